"""The contract of a worker: a context holds for the jobs that follow it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from time import monotonic

from asyncpool._core.wire.frames import FrameKind
from asyncpool._core.wire.heartbeat_records import MAX_DETAILS
from tests.helpers import jobs
from tests.worker.by_hand import Door, Worker, context_frame, encode, job_frame


def test_without_a_context_there_is_nothing_to_know(worker: Worker) -> None:
    worker.send(1, jobs.limits)
    assert worker.result() == (1, (None, None))
    worker.send(2, jobs.last_details)
    assert worker.result() == (2, None)


def test_a_context_holds_until_the_next_one(worker: Worker) -> None:
    worker.write(
        job_frame(1, jobs.limits),
        context_frame(deadline=7.0),
        job_frame(2, jobs.limits),
        job_frame(3, jobs.limits),
        context_frame(deadline=8.0, details=pickle.dumps(["half"])),
        job_frame(4, jobs.last_details),
        job_frame(5, jobs.limits),
        encode(FrameKind.CONTEXT, b""),
        job_frame(6, jobs.limits),
    )
    results = dict(worker.result() for _ in range(6))
    ends = {job: found[0] for job, found in results.items()}
    assert ends == {1: None, 2: 7.0, 3: 7.0, 4: "half", 5: 8.0, 6: None}


def test_a_timeout_begins_with_the_attempt(worker: Worker, door: Door) -> None:
    worker.write(
        context_frame(timeout=1000.0),
        job_frame(1, jobs.wait_at, door.path),
        job_frame(2, jobs.limits),
    )
    door.visitor()
    before = monotonic()
    door.release()
    assert worker.result() == (1, "go")
    _, (end, left) = worker.result()
    assert before + 1000 <= end <= monotonic() + 1000
    assert left <= 1000
    worker.write(context_frame(timeout=1000.0, deadline=5.0), job_frame(3, jobs.limits))
    assert worker.result()[1][0] == 5.0


def test_a_revoked_job_leaves_its_context_to_those_behind(
    worker: Worker, door: Door
) -> None:
    worker.write(
        job_frame(1, jobs.wait_at, door.path),
        context_frame(deadline=7.0),
        job_frame(2, jobs.limits),
        job_frame(3, jobs.limits),
    )
    door.visitor()
    assert worker.revoke(2) == (2,)
    door.release()
    assert worker.result() == (1, "go")
    job, (end, _) = worker.result()
    assert (job, end) == (3, 7.0)


def test_a_context_may_be_larger_than_a_message(hire: Callable[..., Worker]) -> None:
    worker = hire(max_payload=1024)
    worker.hello()
    details = pickle.dumps(b"d" * (MAX_DETAILS - 100))
    worker.write(context_frame(details=details), job_frame(1, jobs.size_of_details))
    assert worker.result() == (1, MAX_DETAILS - 100)


def test_details_that_cannot_be_unpickled_are_the_jobs_error(worker: Worker) -> None:
    worker.write(context_frame(details=b"no"), job_frame(1, jobs.last_details))
    job, error = worker.error()
    assert (job, type(error)) == (1, pickle.UnpicklingError)


def test_a_logger_that_tells_whose_records_they_are(worker: Worker) -> None:
    worker.send(1, eval, _LOGGER)
    assert worker.result() == (1, ("asyncpool.job", {"job_id": 1, "attempt": 1}, True))


_LOGGER = """(
    lambda asyncpool, modules: (
        "logging" not in modules and asyncpool.current_job().logger.name,
        dict(asyncpool.current_job().logger.extra),
        "logging" in modules,
    )
)(__import__("asyncpool"), __import__("sys").modules)"""
