"""The contract of a worker that runs several jobs at once: which begins when, and what is sent."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import retire_worker
from tests.helpers import jobs
from tests.worker.by_hand import Door, Worker, job_frame

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


async def pass_at(word: str, turns: int) -> str:
    """Take so many turns of the loop."""
    for _ in range(turns):
        await asyncio.sleep(0)
    return word


async def wait_for(word: str) -> str:
    """Wait until somebody notes that."""
    while word not in _log:  # noqa: ASYNC110 - turns are what is counted here
        await asyncio.sleep(0)
    return word


async def pad(size: int) -> bytes:
    return bytes(size)


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


def test_nonsense_on_the_channel_ends_it(worker: Worker) -> None:
    worker.send(1, wait_for, "never")
    while not worker.notes.begun(1, 1):
        pass
    worker.write(b"\xff" * 99)
    status, err = worker.ended()
    assert status == 1
    assert "ProtocolError: the peer speaks version 255, not 2" in err
