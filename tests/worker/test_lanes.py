"""The contract of a worker that runs several jobs at once: which begins when, and what is sent."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import JobCancelled, JobRaisedError, current_job, retire_worker
from tests.helpers import jobs
from tests.worker.by_hand import (
    LANE_OUTCOME_SIZE,
    Door,
    FrameKind,
    Worker,
    context_frame,
    function_frame,
    interrupt_frame,
    job_frame,
)

WIDTH = 3


@pytest.fixture
def worker(hire: Callable[..., Worker]) -> Worker:
    found = hire(concurrency=WIDTH)
    found.hello()
    return found


# What jobs do, in turns of the loop and not in time.

_log: list[Any] = []


def note(word: Any) -> Any:
    _log.append(word)
    return word


def noted() -> list[Any]:
    return _log


async def meet(count: int) -> int:
    """Wait until so many are there, and say how many those are."""
    _log.append("meet")
    while _log.count("meet") < count:  # noqa: ASYNC110 - turns are what is counted here
        await asyncio.sleep(0)
    return _log.count("meet")


async def pass_at(word: str, turns: int) -> str:
    """Take so many turns of the loop."""
    _log.append(f"{word} begins")
    for _ in range(turns):
        await asyncio.sleep(0)
    _log.append(f"{word} ends")
    return word


async def wait_for(word: str) -> str:
    """Wait until somebody notes that."""
    while word not in _log:  # noqa: ASYNC110 - see above
        await asyncio.sleep(0)
    return word


async def pad(size: int) -> bytes:
    return bytes(size)


async def who_later() -> tuple[int, float | None]:
    await asyncio.sleep(0)
    job = current_job()
    return job.id, job.deadline


def test_as_many_begin_at_once_as_there_are_lanes_and_no_more(worker: Worker) -> None:
    worker.write(*(job_frame(n, pass_at, str(n), 2 * n) for n in range(1, 5)))
    assert sorted(worker.results(4)) == [(n, str(n)) for n in range(1, 5)]
    worker.send(5, noted)
    _, log = worker.result()
    begun = [word for word in log if word.endswith("begins")]
    assert begun == [f"{n} begins" for n in range(1, 5)], "in their order"
    assert log.index("4 begins") > log.index("1 ends")
    assert log.index("4 begins") < log.index("2 ends"), "as soon as there is a lane"


def test_plain_ones_run_beside_those_that_wait_and_are_sent_at_once(
    worker: Worker, door: Door
) -> None:
    worker.write(
        job_frame(1, wait_for, "last"),
        *(job_frame(n, note, n) for n in range(2, 7)),
        job_frame(7, jobs.wait_at, door.path),
        job_frame(8, note, "last"),
    )
    assert door.visitor() == ""
    assert worker.results(5) == [(n, n) for n in range(2, 7)]
    door.release()
    assert worker.result() == (7, "go")
    assert sorted(worker.results(2)) == [(1, "last"), (8, "last")]


def test_outcomes_are_noted_if_there_is_room(worker: Worker) -> None:
    worker.write(*(job_frame(n, meet, WIDTH) for n in (1, 2, 3)))
    assert sorted(worker.results(WIDTH)) == [(n, WIDTH) for n in (1, 2, 3)]
    assert sorted(worker.notes.outcomes()) == [(n, 1) for n in (1, 2, 3)]
    most = LANE_OUTCOME_SIZE
    worker.write(*(job_frame(n, pad, most) for n in (4, 5, 6)))
    assert worker.results(WIDTH) == [(n, bytes(most)) for n in (4, 5, 6)]
    assert sorted(worker.notes.outcomes()) == [(n, 1) for n in (1, 2, 3)]


async def end_when_another_comes(gate: str, channel: int) -> str:
    """End in the turn of the loop in which the next job is read, and before that."""
    jobs.pass_by(gate)
    select.select([channel], [], [])
    await asyncio.sleep(0)
    return "sent"


def test_an_outcome_is_sent_before_the_next_job_begins(
    worker: Worker, door: Door
) -> None:
    worker.send(1, end_when_another_comes, door.path, worker.own)
    door.visitor()
    worker.send(2, os._exit, 3)
    assert worker.result() == (1, "sent")
    assert worker.ended()[0] == 3


def test_functions_are_known_by_number_and_contexts_are_for_those_behind(
    worker: Worker,
) -> None:
    worker.write(
        function_frame(5, who_later),
        job_frame(1, who_later, number=5),
        context_frame(deadline=60.0),
        job_frame(2, who_later, number=5),
        job_frame(3, who_later),
    )
    assert sorted(worker.results(3)) == [(1, (1, None)), (2, (2, 60.0)), (3, (3, 60.0))]


@pytest.mark.parametrize("function", [note, pad], ids=["plain", "coroutines"])
def test_what_was_revoked_does_not_begin(
    worker: Worker, door: Door, function: Callable[..., Any]
) -> None:
    worker.send(1, jobs.wait_at, door.path)
    assert door.visitor() == ""
    assert worker.revoke(3, 4) == (3, 4)
    worker.write(*(job_frame(n, function, n) for n in range(2, 6)))
    door.release()
    assert sorted(job for job, _ in worker.results(3)) == [1, 2, 5]
    assert worker.revoke(5) == ()


def test_nothing_begins_when_the_worker_retires_and_what_runs_ends(
    worker: Worker,
) -> None:
    worker.write(
        job_frame(1, pass_at, "long", 4),
        job_frame(2, retire_worker),
        job_frame(3, note, "never"),
    )
    assert sorted(worker.results(2)) == [(1, "long"), (2, None)]
    assert worker.last_words() == (None, 0, "")


def test_a_request_to_end_is_for_one_job_and_no_other(worker: Worker) -> None:
    worker.write(job_frame(1, wait_for, "last"), job_frame(2, wait_for, "never"))
    while not (worker.notes.begun(1, 1) and worker.notes.begun(2, 1)):
        pass
    # The one that began last and the fourth, which has not begun: it ends as soon as it does.
    worker.control.sendall(interrupt_frame(2, 4))
    job, error = worker.error()
    assert job == 2
    assert isinstance(error, JobRaisedError)
    assert type(error.exception) is JobCancelled
    worker.write(
        job_frame(3, note, "first"),
        job_frame(4, wait_for, "never"),
        job_frame(5, note, "last"),
    )
    outcomes = [worker.heard(worker.jobs) for _ in range(4)]
    found = {frame.job: frame.kind for frame in outcomes if frame is not None}
    value = FrameKind.VALUE
    assert found == {1: value, 3: value, 4: FrameKind.ERROR, 5: value}


def test_nonsense_on_the_channel_ends_it(worker: Worker) -> None:
    worker.send(1, wait_for, "never")
    while not worker.notes.begun(1, 1):
        pass
    worker.write(b"\xff" * 99)
    status, err = worker.ended()
    assert status == 1
    assert "ProtocolError: the peer speaks version 255, not 2" in err
