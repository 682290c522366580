"""Tests of asyncpool/_runtime/base/alarm.py."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeAlias, cast

from asyncpool._runtime.base.alarm import Alarm
from tests.helpers import virtual_time

Step: TypeAlias = Callable[[Alarm], None]


def rings(*steps: Step) -> list[float]:
    """Return when an alarm rings within 100 seconds that is used so at second 0."""

    async def main() -> list[float]:
        loop, rung = asyncio.get_running_loop(), list[float]()
        alarm = Alarm(loop, rung.append)
        for step in steps:
            step(alarm)
        over: asyncio.Future[None] = loop.create_future()
        loop.call_at(100.0, over.set_result, None)
        await over
        return rung

    return virtual_time.run(main())


def at(when: float | None) -> Step:
    return lambda alarm: alarm.set_at(when)


def by(when: float) -> Step:
    return lambda alarm: alarm.set_by(when)


def within(seconds: float) -> Step:
    return lambda alarm: alarm.set_in(seconds)


def test_it_rings_once() -> None:
    assert rings(at(5.0)) == [5.0]
    assert rings(by(9.0)) == [9.0]
    assert rings(within(7.0)) == [7.0]


class HeldUpLoop:
    """A loop whose process is held up for a second at each look at the clock."""

    def __init__(self) -> None:
        self.now = 10.0
        self.timers: list[tuple[float, Callable[[], object]]] = []

    def time(self) -> float:
        self.now += 1.0
        return self.now

    def call_later(self, seconds: float, ring: Callable[[], object]) -> None:
        self.timers.append((self.time() + seconds, ring))


def test_it_never_tells_a_time_to_come() -> None:
    loop, rung = HeldUpLoop(), list[float]()
    Alarm(cast("asyncio.AbstractEventLoop", loop), rung.append).set_in(5.0)
    [(at, ring)] = loop.timers
    loop.now = at - 1.0
    ring()
    assert rung == [at]


def test_the_last_time_counts() -> None:
    assert rings(at(5.0), at(8.0)) == [8.0]
    assert rings(at(5.0), at(3.0)) == [3.0]
    assert rings(at(5.0), within(6.0)) == [6.0]


def test_the_earliest_time_counts_if_it_is_to_ring_by_then() -> None:
    assert rings(at(5.0), by(8.0)) == [5.0]
    assert rings(at(5.0), by(3.0)) == [3.0]


def test_one_that_is_cancelled_or_set_to_no_time_does_not_ring() -> None:
    assert rings(Alarm.cancel) == []
    assert rings(at(5.0), Alarm.cancel) == []
    assert rings(at(5.0), at(None)) == []
    assert rings(at(5.0), Alarm.cancel, by(8.0)) == [8.0]


def test_it_tells_whether_it_is_set() -> None:
    def is_set(alarm: Alarm) -> None:
        assert alarm.is_set

    def is_not_set(alarm: Alarm) -> None:
        assert not alarm.is_set

    rings(is_not_set, at(5.0), is_set, Alarm.cancel, is_not_set, within(5.0), is_set)


def test_it_can_be_set_again_when_it_rings() -> None:
    async def main() -> None:
        loop, rung = asyncio.get_running_loop(), list[tuple[float, float, bool]]()
        over: asyncio.Future[None] = loop.create_future()

        def on_ring(now: float) -> None:
            rung.append((now, alarm.due, alarm.is_set))
            if now < 9.0:
                alarm.set_by(now + 4.0)
            else:
                over.set_result(None)

        alarm = Alarm(loop, on_ring)
        alarm.set_at(1.0)
        await over
        assert rung == [(1.0, 1.0, False), (5.0, 5.0, False), (9.0, 9.0, False)]

    virtual_time.run(main())


def test_it_tells_how_late_it_is() -> None:
    async def main() -> None:
        loop, rung = asyncio.get_running_loop(), list[float]()
        assert isinstance(loop, virtual_time.VirtualLoop)
        alarm = Alarm(loop, rung.append)
        alarm.set_at(1.0)
        loop.stall(3.0)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (rung, alarm.due) == ([3.0], 1.0)

    virtual_time.run(main())


class EarlyLoop:
    """As much of a loop as an alarm needs; its timers fire before their time."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], None]] = []

    def time(self) -> float:
        return 1.5

    def call_at(self, _: float, callback: Callable[[], None]) -> None:
        self.timers.append(callback)


def test_a_timer_that_fires_early_is_not_seen_to() -> None:
    loop, rung = EarlyLoop(), list[float]()
    Alarm(cast("asyncio.AbstractEventLoop", loop), rung.append).set_at(2.0)
    [fire] = loop.timers
    fire()
    assert rung == [2.0]
