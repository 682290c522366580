"""Tests of asyncpool/_runtime/preparation/propagation.py."""

from __future__ import annotations

import sys
from contextvars import ContextVar, copy_context
from types import ModuleType
from typing import Any

import pytest

from asyncpool import JobNotPicklableError
from asyncpool._core.pickling.variables import unpack_variables
from asyncpool._core.wire.context import MAX_VARIABLES, JobContext
from asyncpool._runtime.preparation.propagation import Propagation
from tests.helpers import tracing

NAMES = ["tests.helpers.tracing:request", "tests.helpers.tracing:tenant"]


def carried(propagation: Propagation, context: bytes = b"") -> dict[str, Any]:
    packed = propagation.add_to(context)
    return dict(unpack_variables(JobContext.unpack(packed).variables))


@pytest.mark.parametrize("given", [[tracing.request, tracing.tenant], NAMES])
def test_what_is_set_is_carried(given: list[ContextVar[Any] | str]) -> None:
    propagation = Propagation(given)

    def look() -> None:
        assert propagation.add_to(b"") == b""
        tracing.tenant.set("somebody")
        tracing.user.set("not asked for")
        assert carried(propagation) == {NAMES[1]: "somebody"}
        tracing.request.set(None)
        assert carried(propagation) == {NAMES[0]: None, NAMES[1]: "somebody"}
        # What is mutable is looked at anew each time.
        tracing.request.set([])
        assert carried(propagation)[NAMES[0]] == []
        tracing.request.get().append(1)
        assert carried(propagation)[NAMES[0]] == [1]

    copy_context().run(look)


def test_the_rest_of_the_context_stays() -> None:
    propagation = Propagation(NAMES)
    limits = JobContext(timeout=3.0).pack()

    def look() -> None:
        assert propagation.add_to(limits) == limits
        tracing.request.set(7)
        context = JobContext.unpack(propagation.add_to(limits))
        assert (context.timeout, bool(context.variables)) == (3.0, True)
        assert propagation.add_to(limits) is propagation.add_to(limits)
        assert JobContext.unpack(propagation.add_to(b"")).timeout is None

    copy_context().run(look)


def test_what_cannot_be_carried_is_named() -> None:
    propagation = Propagation(NAMES)

    def look() -> None:
        tracing.request.set(_ for _ in ())
        with pytest.raises(JobNotPicklableError) as caught:
            propagation.add_to(b"")
        assert caught.value.name == NAMES[0]
        tracing.request.set(bytes(MAX_VARIABLES))
        with pytest.raises(JobNotPicklableError) as caught:
            propagation.add_to(b"")
        assert caught.value.name == "the context variables"
        assert f"and {MAX_VARIABLES} is the most" in str(caught.value)
        # The pool goes on with what can.
        tracing.request.set(1)
        assert carried(propagation) == {NAMES[0]: 1}

    copy_context().run(look)


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        ("a:b", TypeError, "propagate takes several: ('a:b',)"),
        (
            ["tracing"],
            ValueError,
            "propagate takes names such as 'package.module:name', not 'tracing'",
        ),
        (
            ["no_such_module:x"],
            ValueError,
            (
                "propagate: 'no_such_module:x' cannot be imported: "
                "No module named 'no_such_module'"
            ),
        ),
        (
            ["tests.helpers.tracing:nothing"],
            ValueError,
            (
                "propagate: 'tests.helpers.tracing:nothing' cannot be imported: "
                "module 'tests.helpers.tracing' has no attribute 'nothing'"
            ),
        ),
        (
            ["tests.helpers.tracing:NO_VARIABLE"],
            TypeError,
            "propagate: 'tests.helpers.tracing:NO_VARIABLE' is no context variable: 7",
        ),
        (
            7,
            TypeError,
            (
                "propagate takes context variables and their names, such as "
                "'package.module:name', not 7"
            ),
        ),
        (
            [7],
            TypeError,
            (
                "propagate takes context variables and their names, such as "
                "'package.module:name', not 7"
            ),
        ),
        (
            [ContextVar("lost")],
            ValueError,
            (
                "propagate: context variable 'lost' is no attribute of a module, so "
                "workers cannot find it"
            ),
        ),
        (
            ["__main__:x"],
            ValueError,
            (
                "propagate: context variable 'x' lives in __main__, where workers cannot "
                "find it: define it in a module that they can import, or give the script "
                "an `if __name__ == '__main__':` guard"
            ),
        ),
    ],
)
def test_what_workers_could_not_find(
    given: Any, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        Propagation(given)
    assert str(caught.value) == message


def test_one_that_lives_in_main(monkeypatch: pytest.MonkeyPatch) -> None:
    mine: ContextVar[int] = ContextVar("mine")
    main = ModuleType("__main__")
    vars(main)["mine"] = mine
    monkeypatch.setitem(sys.modules, "__main__", main)
    with pytest.raises(ValueError, match="'mine' lives in __main__"):
        Propagation([mine])
    # Unless another module has it too.
    vars(main)["request"] = tracing.request
    assert carried_name(tracing.request) == NAMES[0]


def test_it_is_looked_up_where_it_is_defined(monkeypatch: pytest.MonkeyPatch) -> None:
    service = ModuleType("aaa_service")
    vars(service).update({f"name_{n}": n for n in range(1000)})
    vars(service)["request"] = tracing.request
    monkeypatch.setitem(sys.modules, "aaa_service", service)
    assert carried_name(tracing.request) == NAMES[0]


def carried_name(variable: ContextVar[Any]) -> str:
    def look() -> str:
        variable.set(1)
        [name] = carried(Propagation([variable]))
        return name

    return copy_context().run(look)
