"""Enums of the public data: each member is its string, wherever it is shown or sent."""

from __future__ import annotations

import dataclasses
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
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.events import Crash

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
        "retired",
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


def test_what_is_made_of_them_shows_strings_and_can_be_pickled() -> None:
    crash = Crash(
        slot=0,
        generation=1,
        pid=4242,
        exit_code=3,
        signal=None,
        kind=CrashKind.HUNG,
        uptime=1.0,
        job_id=17,
        attempt=1,
        detail="",
        stderr_tail=(),
        next_step=NextStep.PARK,
        next_start=2.0,
        park_reason="3 starts failed in a row",
    )
    error = WorkerCrashedError(job_id=17, crashes=(crash,), delivery=Delivery.SENT)
    late = JobTimeoutError(job_id=17, attempt=1, limit=TimeLimit.TIMEOUT, seconds=2.0)
    assert str(error) == (
        "worker 4242 in slot 0 exited with status 3 (hung) during attempt 1 of job 17; "
        "the job had been sent but not started"
    )
    assert crash.next_step_text == "3 starts failed in a row, next try in 2 s"
    for it in (error, late, crash):
        twin = pickle.loads(pickle.dumps(it))
        assert str(twin) == str(it)
    twin = pickle.loads(pickle.dumps(error))
    assert twin.crashes == (crash,)
    assert twin.kind is CrashKind.HUNG
    assert twin.delivery is Delivery.SENT
    shown = json.loads(json.dumps(dataclasses.asdict(crash)))
    assert (shown["kind"], shown["next_step"]) == ("hung", "park")
