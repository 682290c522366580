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
    large_job,
    pack_numbers,
    send_segment,
)


def block(number: int) -> Block:
    return Block(pattern(70_000, number))


def lent(segment: int, *sizes: int) -> bytes:
    return encode(FrameKind.LENT, pack_numbers(sizes), tag=segment)


def returned(segment: int) -> Frame:
    return Frame(FrameKind.SEGMENT_RETURNED, 0, 0, segment, b"")


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
