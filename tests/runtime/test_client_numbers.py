"""What an agent's pool tells one of its clients: that one's jobs have its numbers, others none."""

from __future__ import annotations

import pytest

from asyncpool._runtime.agent.client_numbers import event_for_client
from asyncpool.events import Broken, Crashed, Event, Exited, Restarting, TakenOver
from tests.helpers.crashes import crash_with

# The client calls jobs 30 and 31 of the pool 1 and 2.  Job 40 is somebody else's.
NUMBERS = {30: 1, 31: 2}


def exited(reason: str, detail: str = "") -> Exited:
    return Exited(slot=0, generation=1, pid=70, reason=reason, detail=detail)


MINE = crash_with(job_id=30, attempt=2, concurrent_jobs=(40, 31))
MINE_TOLD = crash_with(job_id=1, attempt=2, concurrent_jobs=(2,), other_jobs=1)
NOT_MINE = crash_with(job_id=40, attempt=2, concurrent_jobs=(31,))
NOT_MINE_TOLD = crash_with(concurrent_jobs=(2,))


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (Crashed(MINE), Crashed(MINE_TOLD)),
        (Crashed(NOT_MINE), Crashed(NOT_MINE_TOLD)),
        (Crashed(crash_with()), Crashed(crash_with())),
        (
            Broken("no start", (MINE, NOT_MINE)),
            Broken("no start", (MINE_TOLD, NOT_MINE_TOLD)),
        ),
        (TakenOver(31, 3), TakenOver(2, 3)),
        (TakenOver(40, 3), None),
        (exited("timeout of job 30"), exited("timeout of job 1")),
        (exited("cancellation of job 40"), exited("cancellation")),
        (
            exited("timeout of job 31", "killed since job 31 did not end"),
            exited("timeout of job 2", "killed since job 2 did not end"),
        ),
        (exited("max_jobs"), exited("max_jobs")),
        (exited("retire(): out of job cards"), exited("retire(): out of job cards")),
        (Restarting(0, 1.0), Restarting(0, 1.0)),
    ],
)
def test_an_event(event: Event, told: Event | None) -> None:
    assert event_for_client(event, NUMBERS) == told
