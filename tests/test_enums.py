"""Enums of the public data: the texts of their members."""

from __future__ import annotations

import enum

import pytest

from asyncpool.enums import (
    CrashKind,
    Delivery,
    JobOutcome,
    JobState,
    NextStep,
    RunState,
    SlotState,
    TimeLimit,
)

EXPECTED: dict[type[enum.StrEnum], list[str]] = {
    CrashKind: ["crash", "failed start", "out of memory", "hung", "protocol"],
    Delivery: ["never sent", "sent", "started", "unknown"],
    JobOutcome: [
        *("ok", "raised", "crashed", "timeout", "cancelled", "refused", "aborted"),
    ],
    JobState: ["queued", "running", "done", "cancelled"],
    NextStep: ["restart", "park", "give up", "leave empty", "keep worker", "close"],
    RunState: ["new", "running", "broken", "closing", "closed"],
    SlotState: [
        *("vacant", "starting", "idle", "busy", "stopping", "parked", "unused"),
        "removed",
    ],
    TimeLimit: ["timeout", "queue_timeout", "deadline"],
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_values_are_these(kind: type[enum.StrEnum]) -> None:
    assert [member.value for member in kind] == EXPECTED[kind]
