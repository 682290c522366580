"""What waits in an event loop: alarms, and streams."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.options import JobOptions
from asyncpool._engine.job import StreamJob
from asyncpool._engine.loop import Alarm
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool.errors import ProtocolError
from tests.helpers import virtual_time
from tests.helpers.functions import known_function
from tests.helpers.owner import Owner
from tests.helpers.patience import patience

Step = Callable[[Alarm], None]


async def reach(moment: float) -> None:
    """Return when the virtual clock is at *moment*."""
    loop = asyncio.get_running_loop()
    there = loop.create_future()
    loop.call_at(moment, there.set_result, None)
    await there


def at(when: float | None) -> Step:
    return lambda alarm: alarm.set_at(when)


def by(when: float) -> Step:
    return lambda alarm: alarm.set_by(when)


def within(seconds: float) -> Step:
    return lambda alarm: alarm.set_in(seconds)


@pytest.mark.parametrize(
    ("steps", "rings"),
    [
        ([at(5.0)], [5.0]),
        ([by(9.0)], [9.0]),
        ([within(7.0)], [7.0]),
        # The last time counts.
        ([at(5.0), at(8.0)], [8.0]),
        ([at(5.0), at(3.0)], [3.0]),
        ([at(5.0), within(6.0)], [6.0]),
        # The earliest time counts if it is to ring by then.
        ([at(5.0), by(8.0)], [5.0]),
        ([at(5.0), by(3.0)], [3.0]),
        ([Alarm.cancel], []),
        ([at(5.0), Alarm.cancel], []),
        ([at(5.0), at(None)], []),
        ([at(5.0), Alarm.cancel, by(8.0)], [8.0]),
    ],
)
def test_when_an_alarm_rings(steps: list[Step], rings: list[float]) -> None:
    async def main() -> None:
        rung = list[float]()
        alarm = Alarm(asyncio.get_running_loop(), rung.append)
        for step in steps:
            step(alarm)
        assert alarm.is_set is bool(rings)
        await reach(100.0)
        assert rung == rings
        assert not alarm.is_set

    virtual_time.run(main())


def test_an_alarm_can_be_set_again_when_it_rings_and_tells_how_late_it_is() -> None:
    async def main() -> None:
        loop, rung = asyncio.get_running_loop(), list[tuple[float, float, bool]]()
        assert isinstance(loop, virtual_time.VirtualLoop)

        def on_ring(now: float) -> None:
            rung.append((now, alarm.due, alarm.is_set))
            if now < 9.0:
                alarm.set_by(now + 4.0)

        alarm = Alarm(loop, on_ring)
        alarm.set_at(1.0)
        await reach(8.0)
        loop.stall(3.0)
        await reach(12.0)
        assert rung == [(1.0, 1.0, False), (5.0, 5.0, False), (11.0, 9.0, False)]

    virtual_time.run(main())


class OddLoop:
    """As much of a loop as an alarm needs: each look at the clock takes it some time."""

    def __init__(self, takes: float) -> None:
        self.now, self._takes = 10.0, takes
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        self.now += self._takes
        return self.now

    def call_at(self, when: float, ring: Callable[[], object]) -> None:
        self.timers.append((when, ring))

    def call_later(self, seconds: float, ring: Callable[[], object]) -> None:
        self.call_at(self.time() + seconds, ring)


def test_it_never_tells_a_time_to_come() -> None:
    """Though its timer fires too early, by a second or at once."""
    for takes, early in ((1.0, 1.0), (0.0, 5.0)):
        loop, rung = OddLoop(takes), list[float]()
        Alarm(cast("asyncio.AbstractEventLoop", loop), rung.append).set_in(5.0)
        [(at, ring)] = loop.timers
        loop.now = at - early
        ring()
        assert rung == [at]


# Streams.


class Bank(Owner):
    """Notes the credit that is given."""

    def __init__(self) -> None:
        self.given: list[int] = []

    def give_credit(self, job: StreamJob, /) -> None:
        self.given.append(job.credit)


def stream(buffer: int) -> tuple[StreamJob, Bank]:
    bank, loop = Bank(), asyncio.get_running_loop()
    options = JobOptions(via="stream", prefetch=buffer)
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
        job, bank = stream(buffer)
        sent = got = 0
        for is_worker, count in steps:
            for _ in range(count):
                if is_worker and sent < job.credit:
                    job.receive(item(sent))
                    sent += 1
                elif not is_worker and got < sent:
                    assert await taken(job) == got
                    got += 1
            assert sent - got <= buffer
            assert job.credit <= got + buffer
            # Who has taken all that was sent is owed something new.
            assert got < sent or job.credit > sent
        assert bank.given == sorted(set(bank.given))
        assert len(bank.given) <= 2 * got // buffer + 1
        # Another attempt begins anew.
        job.begin_again()
        for number in range(buffer):
            job.receive(item(number))
        with pytest.raises(ProtocolError, match=f"it sent more than {buffer} items of"):
            job.receive(item(buffer))
        # Items come before the end.
        job.set_result("end")
        found = [await taken(job) for _ in range(buffer + 1)]
        assert found == [*range(buffer), None]

    asyncio.run(main())


@pytest.mark.asyncio
async def test_a_stream_is_silent_only_while_it_may_send() -> None:
    job, _ = stream(2)
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
    # Who waits hears of the next item, and of the end.
    for happens, heard in ((lambda: job.receive(item(2)), 2), (job.cancel, None)):
        waiting = asyncio.create_task(taken(job))
        await asyncio.sleep(0)
        assert not waiting.done()
        happens()
        async with patience():
            assert await waiting == heard
