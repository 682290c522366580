"""An option that a function was given is told where it belongs."""

from __future__ import annotations

import pytest

from asyncpool._core.policies.misplaced_option import note_on_misplaced


@pytest.mark.parametrize(
    ("names", "text", "named"),
    [
        (["timeout"], "f() got an unexpected keyword argument 'timeout'", "timeout"),
        (["x", "key"], "f() got an unexpected keyword argument 'key'", "key"),
        (["key"], "'key' is an invalid keyword argument for int()", "key"),
        (["timeout"], "time.sleep() takes no keyword arguments", "timeout"),
        (["x"], "f() got an unexpected keyword argument 'x'", ""),
        (["timeout"], "f() got an unexpected keyword argument 'x'", ""),
        (["timeout"], "unsupported operand", ""),
    ],
)
def test_only_an_option_that_was_refused_is_misplaced(
    names: list[str], text: str, named: str
) -> None:
    found = note_on_misplaced(names, text, ("timeout", "key"))
    assert bool(found) == bool(named)
    assert not named or f"Pool.options({named}=...).submit(...)" in found
