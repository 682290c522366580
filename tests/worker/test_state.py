"""The contract of a worker: what its initializer has filled, its jobs can read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import asyncpool
from tests.helpers import jobs
from tests.worker.by_hand import Worker


def test_jobs_read_what_the_initializer_has_filled(
    hire: Callable[..., Worker],
) -> None:
    worker = hire(jobs.fill_state)
    worker.hello()
    worker.send(1, jobs.count_state)
    worker.send(2, jobs.count_state)
    assert [worker.result(), worker.result()] == [(1, 1), (2, 2)]


def test_it_is_empty_at_first(worker: Worker) -> None:
    worker.send(1, jobs.state)
    assert worker.result() == (1, {})
    worker.send(2, jobs.count_state)
    job, error = worker.error()
    assert (job, type(error)) == (2, AttributeError)


def test_outside_a_worker_there_is_none() -> None:
    with pytest.raises(RuntimeError) as caught:
        asyncpool.worker_state()
    assert str(caught.value) == "worker_state() was called outside a worker of a pool"


def test_a_worker_knows_that_it_is_one(worker: Worker) -> None:
    assert not asyncpool.in_worker()
    worker.send(1, asyncpool.in_worker)
    assert worker.result() == (1, True)
