"""What a trace tells of events: all that they have, and of a crash what is known."""

from __future__ import annotations

from asyncpool._core.trace.trace_book import told_of
from asyncpool.enums import NextStep
from asyncpool.events import Broken, Crashed, Retiring
from tests.helpers.crashes import crash_with

CRASH = crash_with(next_step=NextStep.CLOSE)


def test_an_event_is_told_by_its_fields() -> None:
    assert told_of(Retiring(2, 3, "roll")) == (
        "retiring",
        {"slot": 2, "generation": 3, "reason": "roll"},
    )


def test_of_a_crash_only_what_is_known_is_told() -> None:
    assert told_of(Crashed(CRASH)) == (
        "crashed",
        {
            "what": "was killed by SIGSEGV",
            "worker": 70,
            "kind": "crash",
            "signal": "SIGSEGV",
            "stderr": "first\nlast",
            "next": "no replacement: the pool is closing",
        },
    )


def test_of_giving_up_the_reason_is_told() -> None:
    assert told_of(Broken("no start", (CRASH,))) == ("broken", {"reason": "no start"})
