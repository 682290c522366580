"""The contract of a worker that has more than one job: in order, unless revoked."""

from __future__ import annotations

import select
from typing import Any

import pytest

from asyncpool._core.pickling.calls import dumps, load_value, pack_job
from asyncpool._core.pickling.out_of_band import HEAVY
from asyncpool._core.wire.frames import MAX_NUMBER, Frame, FrameKind
from tests.helpers import jobs, values
from tests.helpers.parcels import plain
from tests.worker.by_hand import (
    Door,
    Worker,
    encode,
    function_frame,
    job_frame,
    revoke_frame,
)


def outcomes(worker: Worker, count: int) -> list[tuple[int, Any]]:
    return [worker.result() for _ in range(count)]


def test_jobs_that_come_together_are_answered_one_by_one(worker: Worker) -> None:
    worker.write(*(job_frame(job, jobs.square, job) for job in range(1, 101)))
    assert outcomes(worker, 100) == [(job, job * job) for job in range(1, 101)]
    assert worker.noted() == 100
    assert worker.last_words() == (None, 0, "")


def test_each_outcome_has_the_attempt_of_its_job(worker: Worker) -> None:
    payload = plain(pack_job(jobs.attempt, (), {}))
    worker.write(
        encode(FrameKind.JOB, payload, 3, 9),
        encode(FrameKind.JOB, payload, 1, 65_535),
        encode(FrameKind.JOB, payload, 2, 1),
    )
    heard = [worker.heard(worker.jobs) for _ in range(3)]
    told = [(f.job, f.attempt, load_value(f.payload)) for f in heard if f is not None]
    assert told == [(3, 9, (3, 9)), (1, 65_535, (1, 65_535)), (2, 1, (2, 1))]


def test_an_outcome_does_not_wait_for_the_next_job(worker: Worker, door: Door) -> None:
    worker.write(
        job_frame(1, jobs.square, 5),
        job_frame(2, jobs.wait_at, door.path, "second"),
        job_frame(3, jobs.square, 6),
    )
    assert door.visitor() == "second"
    # That it has begun the second says that the first's outcome has been written.
    assert select.select([worker.jobs], [], [], 0)[0]
    assert worker.result() == (1, 25)
    assert worker.noted() == 2
    assert not select.select([worker.jobs], [], [], 0)[0]
    door.release("open")
    assert outcomes(worker, 2) == [(2, "open"), (3, 36)]


def test_jobs_that_come_while_one_runs_wait_for_it(worker: Worker, door: Door) -> None:
    worker.send(1, jobs.wait_at, door.path, "first")
    assert door.visitor() == "first"
    for job in (2, 3):
        worker.send(job, jobs.pass_by, door.path, str(job))
    door.release()
    assert outcomes(worker, 3) == [(1, "go"), (2, None), (3, None)]
    assert door.words() == ["2", "3"]


# Functions.


def test_a_function_is_called_by_the_jobs_that_have_its_number(worker: Worker) -> None:
    worker.write(
        function_frame(7, jobs.square),
        job_frame(1, jobs.square, 5, number=7),
        job_frame(2, jobs.square, 6, number=7),
        function_frame(9, jobs.take),
        job_frame(3, jobs.take, "a", "b", number=9),
        job_frame(4, jobs.take, "c"),
        job_frame(5, jobs.square, 7, number=7),
    )
    expected = [(1, 25), (2, 36), (3, 2), (4, 1), (5, 49)]
    assert outcomes(worker, 5) == expected
    # It is not forgotten between two reads.
    worker.write(job_frame(6, jobs.square, 8, number=7))
    assert worker.result() == (6, 64)


def test_a_function_that_cannot_be_unpickled_costs_only_its_calls(
    worker: Worker,
) -> None:
    worker.write(
        function_frame(1, values.ExplodesThere(LookupError("there"))),
        function_frame(2, jobs.square),
        job_frame(1, jobs.square, 5, number=1),
        job_frame(2, jobs.square, 5, number=2),
        job_frame(3, jobs.square, 5, number=1),
        job_frame(4, jobs.square, 6),
    )
    for expected in (1, 3):
        job, error = worker.error()
        assert (job, type(error), error.args) == (expected, LookupError, ("there",))
        assert worker.result() == ((2, 25) if expected == 1 else (4, 36))
    assert worker.last_words() == (None, 0, "")


def test_the_257th_function_makes_a_worker_forget_the_first(worker: Worker) -> None:
    worker.write(*(function_frame(number, jobs.square) for number in range(1, 257)))
    worker.write(*(job_frame(n, jobs.square, 3, number=n) for n in (1, 256)))
    assert outcomes(worker, 2) == [(1, 9), (256, 9)]
    worker.write(
        function_frame(257, jobs.take),
        job_frame(1001, jobs.square, 3, number=1),
        *(job_frame(1000 + n, jobs.square, 3, number=n) for n in (2, 256, 257)),
    )
    job, error = worker.error()
    assert (job, type(error), error.args) == (1001, KeyError, (1,))
    assert outcomes(worker, 3) == [(1002, 9), (1256, 9), (1257, 1)]


# Revoking.


def test_revoked_jobs_never_begin_and_the_others_do(worker: Worker, door: Door) -> None:
    worker.write(
        job_frame(11, jobs.wait_at, door.path, "first"),
        *(job_frame(10 + n, jobs.pass_by, door.path, str(n)) for n in range(2, 7)),
    )
    assert door.visitor() == "first"
    assert worker.revoke(3, 2, 6) == (3, 2, 6)
    door.release()
    assert outcomes(worker, 3) == [(11, "go"), (14, None), (15, None)]
    # Whatever comes later has the place behind the last, revoked or not.
    worker.send(17, jobs.pass_by, door.path, "7")
    assert worker.result() == (17, None)
    assert door.words() == ["4", "5", "7"]
    assert worker.noted() == 17
    assert worker.last_words() == (None, 0, "")


def test_only_jobs_have_places(worker: Worker, door: Door) -> None:
    worker.write(
        function_frame(1, jobs.wait_at),
        job_frame(11, jobs.wait_at, door.path, "first", number=1),
        function_frame(2, jobs.pass_by),
        job_frame(12, jobs.pass_by, door.path, "second", number=2),
        function_frame(3, jobs.square),
        job_frame(13, jobs.square, 7, number=3),
    )
    assert door.visitor() == "first"
    assert worker.revoke(2) == (2,)
    door.release()
    assert outcomes(worker, 2) == [(11, "go"), (13, 49)]
    assert door.words() == []


def test_a_function_between_revoked_jobs_is_remembered(
    worker: Worker, door: Door
) -> None:
    worker.write(
        job_frame(1, jobs.wait_at, door.path, "first"),
        job_frame(2, jobs.pass_by, door.path, "second"),
        function_frame(5, jobs.square),
        job_frame(3, jobs.square, 3, number=5),
    )
    assert door.visitor() == "first"
    assert worker.revoke(2, 3) == (2, 3)
    worker.write(job_frame(4, jobs.square, 4, number=5))
    door.release()
    assert outcomes(worker, 2) == [(1, "go"), (4, 16)]
    assert door.words() == []


def test_a_job_is_revoked_before_the_worker_has_read_it(
    worker: Worker, door: Door
) -> None:
    worker.send(1, jobs.wait_at, door.path, "first")
    assert door.visitor() == "first"
    frames = [job_frame(n, jobs.pass_by, door.path, str(n)) for n in range(2, 6)]
    # One is there in part, two are not even sent.
    worker.write(frames[0], frames[1][:30])
    assert worker.revoke(3, 4) == (3, 4)
    worker.write(frames[1][30:], *frames[2:])
    door.release()
    assert outcomes(worker, 3) == [(1, "go"), (2, None), (5, None)]
    assert door.words() == ["2", "5"]


def test_an_idle_worker_can_be_asked_too(worker: Worker, door: Door) -> None:
    assert worker.revoke(1) == (1,)
    for job in (1, 2):
        worker.send(job, jobs.pass_by, door.path, str(job))
    assert worker.result() == (2, None)
    assert door.words() == ["2"]


def test_what_runs_or_is_done_cannot_be_revoked(worker: Worker, door: Door) -> None:
    worker.write(
        job_frame(1, jobs.square, 5),
        job_frame(2, jobs.wait_at, door.path, "second"),
        job_frame(3, jobs.square, 6),
        job_frame(4, jobs.square, 7),
    )
    assert door.visitor() == "second"
    assert worker.revoke(1) == ()
    assert worker.revoke(2) == ()
    assert worker.revoke(1, 2, 3) == (3,)
    assert worker.revoke() == ()
    door.release()
    assert outcomes(worker, 3) == [(1, 25), (2, "go"), (4, 49)]
    assert worker.revoke(1, 2, 3, 4) == ()


def test_requests_that_come_together_are_answered_one_by_one(
    worker: Worker, door: Door
) -> None:
    worker.send(1, jobs.wait_at, door.path, "first")
    assert door.visitor() == "first"
    data = revoke_frame(2) + revoke_frame(1) + revoke_frame(4, 5)
    # However they are cut.
    worker.control.sendall(data[:-5])
    assert [worker.revoked() for _ in range(2)] == [(2,), ()]
    worker.control.sendall(data[-5:])
    assert worker.revoked() == (4, 5)


def test_a_worker_that_computes_gives_jobs_back(worker: Worker, door: Door) -> None:
    worker.write(
        job_frame(1, jobs.compute, door.path, "first"), job_frame(2, jobs.square, 5)
    )
    assert door.visitor() == "first"
    assert worker.revoke(1, 2) == (2,)


# Durations.


def set_clock(*readings: int) -> None:
    """Have the worker that this runs in read these from its clock."""
    from asyncpool._worker.job import execute

    vars(execute).update(perf_counter_ns=iter(readings).__next__)


def test_outcomes_carry_their_durations(worker: Worker) -> None:
    # The first reading ends the job that sets the clock, whose beginning is unknown.
    readings = [1 << 80, 5_000, 4_571_999, 10_000, 10_000, 20_000, 1_020_999]
    worker.write(
        job_frame(1, set_clock, *readings),
        job_frame(2, jobs.square, 5),
        job_frame(3, jobs.square, 6),
        job_frame(4, jobs.divide, 1, 0),
    )
    heard: list[Frame | None] = [worker.heard(worker.jobs) for _ in range(4)]
    told = [
        (frame.job, frame.kind, frame.number) for frame in heard if frame is not None
    ]
    assert told == [
        (1, FrameKind.VALUE, MAX_NUMBER),
        (2, FrameKind.VALUE, 4566),
        (3, FrameKind.VALUE, 0),
        (4, FrameKind.ERROR, 1000),
    ]


def length_of(size: int) -> int:
    """Return how many bytes have *size* when pickled."""
    about = size - 50
    return size - (len(dumps(bytes(about))) - about)


@pytest.mark.parametrize("size", [65_535, 65_536, 65_537, HEAVY])
def test_an_outcome_of_any_size_is_whole(size: int, worker: Worker) -> None:
    length = length_of(size)
    worker.write(job_frame(1, bytes, length), job_frame(2, jobs.square, 5))
    frame = worker.heard(worker.jobs)
    assert frame is not None
    assert frame.payload == dumps(bytes(length))
    assert len(frame.payload) == size
    assert worker.result() == (2, 25)


@pytest.mark.parametrize("size", [HEAVY + 1, 1 << 20])
def test_a_heavy_outcome_is_whole_too(size: int, worker: Worker) -> None:
    worker.write(job_frame(1, bytes, length_of(size)), job_frame(2, jobs.square, 5))
    assert worker.heard(worker.jobs) == (FrameKind.WANT, size, 0, 0, b"")
    worker.control.sendall(encode(FrameKind.GRANT, b""))  # there is no segment for it
    area, outcome = (worker.heard(worker.jobs) for _ in range(2))
    stream = dumps(bytes(length_of(size)))
    assert area == (FrameKind.AREA, 0, 0, 0, stream)
    assert len(stream) == size
    assert outcome is not None
    assert (outcome.kind, outcome.job, outcome.attempt) == (FrameKind.VALUE, 1, 1)
    assert outcome.payload == b""
    assert worker.result() == (2, 25)
