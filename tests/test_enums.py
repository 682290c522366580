"""Enums of the public data: each member is its string, wherever it is shown or sent."""

from __future__ import annotations

import enum
import json
import logging
import pickle

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
    Delivery: ["never sent", "sent", "started"],
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
MEMBERS = [member for kind in EXPECTED for member in kind]


@pytest.mark.parametrize("kind", EXPECTED)
def test_the_values_are_these(kind: type[enum.StrEnum]) -> None:
    assert [member.value for member in kind] == EXPECTED[kind]


@pytest.mark.parametrize("member", MEMBERS, ids=repr)
def test_a_member_is_its_string(member: enum.StrEnum) -> None:
    text = member.value
    assert (str(member), f"{member}", f"{member:>20}".strip()) == (text, text, text)
    assert json.dumps({"it": member}) == f'{{"it": "{text}"}}'
    assert logging.LogRecord("", 0, "", 0, "%s", (member,), None).getMessage() == text
    assert {text: 1}[member] == 1
    assert pickle.loads(pickle.dumps(member)) is member
