"""What is said to arguments of the wrong type."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from asyncpool._core.base.validation import (
    INT,
    SECONDS,
    SWITCH,
    TEXT,
    check_function,
    check_type,
    check_types,
    or_none,
    several,
)

FOUND = "of.a.module:attribute"


@pytest.mark.parametrize(
    ("check", "kind", "text"),
    [
        (lambda: check_type("n", "2", INT), TypeError, "n must be an int, not '2'"),
        (lambda: check_type("n", True, INT), TypeError, "n must be an int, not True"),
        (
            lambda: check_type("n", False, or_none(SECONDS)),
            TypeError,
            "n must be a number of seconds or None, not False",
        ),
        (lambda: check_type("n", None, TEXT), TypeError, "n must be a str, not None"),
        (
            lambda: check_type("n", 1, SWITCH),
            TypeError,
            "n must be True or False, not 1",
        ),
        (
            lambda: check_type("n", "2", or_none(SECONDS)),
            TypeError,
            "n must be a number of seconds or None, not '2'",
        ),
        (
            lambda: check_type("n", -(10**400), SECONDS),
            ValueError,
            "n must be a number of seconds, and this int is too large for one",
        ),
        (
            lambda: check_types(SimpleNamespace(a=1, b=2), {"a": INT, "b": TEXT}),
            TypeError,
            "b must be a str, not 2",
        ),
        (lambda: several("n", 3, "names"), TypeError, "n takes names, not 3"),
        (lambda: several("n", b"ab", "names"), TypeError, "n takes names, not b'ab'"),
        (lambda: several("n", "ab", "names"), TypeError, "n takes several: ('ab',)"),
        (
            lambda: several("n", {3: 4}, "names", single=(dict,)),
            TypeError,
            "n takes several: ({3: 4},)",
        ),
        (
            lambda: several("n", [1, ""], "ints", each=int),
            TypeError,
            "n takes ints, not ''",
        ),
        (
            lambda: check_function("n", 3),
            TypeError,
            "n must be a function, or its name, not 3",
        ),
        (
            lambda: check_function("n", None, "a factory"),
            TypeError,
            "n must be a factory, or its name, not None",
        ),
        *(
            (
                lambda name=name: check_function("n", name),
                ValueError,
                f"n must be 'package.module:name', not {name!r}",
            )
            for name in ("", "a", "a:", ":a")
        ),
    ],
)
def test_what_is_wrong_is_told(
    check: Callable[[], object], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        check()


def test_what_is_right_is_taken() -> None:
    check_types(SimpleNamespace(a=1.5, b=3), {"a": SECONDS, "b": SECONDS})
    check_type("n", None, or_none(INT))
    check_type("n", 10**300, SECONDS)
    check_function("n", print)
    check_function("n", FOUND)
    assert several("n", (n for n in range(3)), "numbers") == (0, 1, 2)
    assert several("n", "ab", "letters", single=()) == ("a", "b")
    assert several("n", [], "numbers") == ()
