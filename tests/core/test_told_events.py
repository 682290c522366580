"""What a trace tells of events: all that they have, and of a crash what is known."""

from __future__ import annotations

from asyncpool._core.trace.told_events import told_of
from asyncpool.enums import CrashKind, NextStep
from asyncpool.events import Crash, Crashed, GaveUp, Retiring

CRASH = Crash(
    slot=0,
    generation=1,
    pid=70,
    exit_code=None,
    signal="SIGSEGV",
    kind=CrashKind.CRASH,
    uptime=1.0,
    job_id=None,
    attempt=0,
    detail="",
    stderr_tail=("first", "last"),
    next_step=NextStep.CLOSE,
)


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
    assert told_of(GaveUp("no start", (CRASH,))) == ("gaveup", {"reason": "no start"})
