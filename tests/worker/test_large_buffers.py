"""The contract of a worker's shared memory: what comes and goes beside its jobs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers import jobs, large
from tests.helpers.large import Block, pattern
from tests.worker.by_hand import (
    Door,
    Frame,
    FrameKind,
    Worker,
    encode,
    job_frame,
    large_job,
    pack_numbers,
    send_segment,
    unpack_numbers,
)


def block(number: int) -> Block:
    return Block(pattern(70_000, number))


def lent(segment: int, *sizes: int) -> bytes:
    return encode(FrameKind.LENT, pack_numbers(sizes), tag=segment)


def returned(segment: int) -> Frame:
    return Frame(FrameKind.SEGMENT_RETURNED, 0, 0, segment, b"")


def test_an_argument_is_where_it_was_put_and_its_memory_comes_back(
    worker: Worker,
) -> None:
    [area], job = large_job(1, large.checksum, block(1))
    # The segment may come on its own channel when the job is there already.
    worker.write(lent(7, len(area)), job)
    while not worker.noted():
        pass
    send_segment(worker, 6)
    memory = send_segment(worker, 7, area)
    for number in (1, 2):
        assert worker.heard(worker.jobs) == returned(7)
        assert worker.result() == (number, large.checksum(block(number)))
        [area], job = large_job(number + 1, large.checksum, block(number + 1))
        memory.write(0, [area])
        worker.write(lent(7, len(area)), job)


def test_an_outcome_goes_where_it_may_or_is_sent(worker: Worker) -> None:
    value = bytes(pattern(70_001, 3))
    memory = send_segment(worker, 7)
    for segment in (7, 0):
        worker.send(1, large.make, 70_001, 3)
        want = worker.told(FrameKind.WANT, worker.jobs)
        assert want.job == len(value)
        worker.control.sendall(encode(FrameKind.GRANT, b"", tag=segment))
        if segment:
            frame = worker.told(FrameKind.LENT, worker.jobs)
            assert (frame.number, unpack_numbers(frame.payload)) == (7, (70_001,))
            assert bytes(memory.lend(lambda: None)[:70_001]) == value
        else:
            assert worker.told(FrameKind.AREA, worker.jobs).payload == value
        assert worker.told(FrameKind.VALUE, worker.jobs).job == 1


@pytest.fixture(params=[1, 3], ids=["alone", "beside others"])
def busy(hire: Callable[..., Worker], request: pytest.FixtureRequest) -> Worker:
    """A worker that runs one job at a time, or several."""
    found = hire(concurrency=request.param)
    found.hello()
    return found


def test_what_was_sent_for_a_revoked_job_is_not_for_the_next_one(
    busy: Worker, door: Door
) -> None:
    worker = busy
    worker.send(1, jobs.wait_at, door.path)
    door.visitor()
    assert worker.revoke(2) == (2,)
    door.release()
    assert worker.result() == (1, "go")
    for number in (2, 3):
        areas, job = large_job(number, large.checksum, block(number))
        worker.write(*(encode(FrameKind.AREA, area) for area in areas), job)
    assert worker.result() == (3, large.checksum(block(3)))


def test_what_was_lent_for_a_revoked_job_is_returned(busy: Worker, door: Door) -> None:
    worker = busy
    worker.send(1, jobs.wait_at, door.path)
    door.visitor()
    assert worker.revoke(2) == (2,)
    for number in (2, 3):
        [area], job = large_job(number, large.checksum, block(number))
        send_segment(worker, number + 10, area)
        worker.write(lent(number + 10, len(area)), job)
    door.release()
    assert worker.result() == (1, "go")
    told = [worker.heard(worker.jobs) for _ in range(2)]
    assert sorted(map(str, told)) == sorted(map(str, (returned(12), returned(13))))
    assert worker.result() == (3, large.checksum(block(3)))


def test_memory_that_did_not_arrive_is_said_and_is_the_jobs_error(
    worker: Worker,
) -> None:
    worker.control.sendall(encode(FrameKind.SEGMENT, b"", job=1, tag=7))
    [area], job = large_job(1, large.checksum, block(1))
    worker.write(lent(7, len(area)), job, job_frame(2, jobs.square, 3))
    assert worker.heard(worker.jobs) == Frame(FrameKind.LOST, 0, 0, 7, b"")
    number, error = worker.error()
    assert number == 1
    assert "Too many open files: the shared memory of a job" in str(error)
    assert worker.result() == (2, 9), "the next job has nothing to do with that"
