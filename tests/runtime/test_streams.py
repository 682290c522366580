"""A stream's job, without a worker: credit, order, and what another attempt forgets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool.errors import ProtocolError
from tests.helpers.functions import known_function
from tests.helpers.owner import Owner


class Bank(Owner):
    """Notes the credit that is given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    async def stack_of(self, _: object, /) -> str:
        return ""

    def give_credit(self, job: StreamJob, /) -> None:
        self.given.append(job._credit)


def job_of(buffer: int) -> tuple[StreamJob, Bank]:
    bank = Bank()
    options = JobOptions(via="stream", prefetch=buffer)
    loop = asyncio.get_running_loop()
    return StreamJob(1, known_function(), options, bank, loop), bank


def item(number: int) -> Frame:
    return Frame(FrameKind.ITEM, 1, 1, number, b"")


async def taken(job: StreamJob) -> Any:
    frame = await job.take()
    return None if frame is None else frame.number


@given(
    buffer=st.integers(1, 40),
    steps=st.lists(st.tuples(st.booleans(), st.integers(1, 30)), max_size=60),
)
def test_whatever_the_pace_order_and_bound_hold(
    buffer: int, steps: list[tuple[bool, int]]
) -> None:
    async def main() -> None:
        job, bank = job_of(buffer)
        sent = got = 0
        for is_worker, count in steps:
            for _ in range(count):
                if is_worker and sent < job._credit:
                    job.receive(item(sent))
                    sent += 1
                elif not is_worker and got < sent:
                    assert await taken(job) == got
                    got += 1
            assert sent - got <= buffer
            assert job._credit <= got + buffer
            # Who has taken all that was sent is owed something new.
            assert got < sent or job._credit > sent
        assert bank.given == sorted(set(bank.given))
        assert len(bank.given) <= 2 * got // buffer + 1

    asyncio.run(main())


@pytest.mark.asyncio
async def test_more_than_the_credit_is_an_offence() -> None:
    job, _ = job_of(2)
    job.receive(item(0))
    job.receive(item(1))
    with pytest.raises(
        ProtocolError, match="it sent more than 2 items of <Job 1 queued>"
    ):
        job.receive(item(2))


@pytest.mark.asyncio
async def test_another_attempt_begins_anew() -> None:
    job, _ = job_of(2)
    job.receive(item(7))
    job.receive(item(8))
    job.begin_again()
    assert job._credit == 2
    waiting = asyncio.ensure_future(taken(job))
    await asyncio.sleep(0)
    assert not waiting.done()
    job.receive(item(0))
    assert await waiting == 0


@pytest.mark.asyncio
async def test_what_was_taken_rules_out_another_attempt() -> None:
    job, _ = job_of(2)
    job._attempt_policy = JobOptions().attempts.__class__(max_attempts=3)
    job.receive(item(0))
    assert job._attempt_policy.max_attempts == 3
    await taken(job)
    assert job._attempt_policy.max_attempts == 1


@pytest.mark.asyncio
async def test_items_come_before_the_end() -> None:
    job, bank = job_of(3)
    job.receive(item(0))
    job.receive(item(1))
    job.set_result("end")
    assert [await taken(job), await taken(job), await taken(job)] == [0, 1, None]
    assert bank.given == []


@pytest.mark.asyncio
async def test_who_waits_hears_of_the_end() -> None:
    job, _ = job_of(3)
    waiting = asyncio.ensure_future(taken(job))
    await asyncio.sleep(0)
    job.set_result("end")
    assert await waiting is None


@pytest.mark.asyncio
async def test_who_stops_waiting_takes_nothing() -> None:
    job, _ = job_of(3)
    waiting = asyncio.ensure_future(taken(job))
    await asyncio.sleep(0)
    job.receive(item(0))
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert await taken(job) == 0


@pytest.mark.asyncio
async def test_it_is_silent_only_while_it_may_send() -> None:
    job, _ = job_of(2)
    now = asyncio.get_running_loop().time()
    assert job.heard_at(now + 9) < now
    job.receive(item(0))
    assert now <= job.heard_at(now + 9) < now + 5
    job.receive(item(1))
    assert job.heard_at(now + 9) == now + 9  # it waits for its caller
    now = asyncio.get_running_loop().time()
    await taken(job)
    await taken(job)
    assert now <= job.heard_at(now + 9) < now + 5
