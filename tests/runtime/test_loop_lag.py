"""The lag of the event loop: measured while it is needed, and not when nobody works."""

from __future__ import annotations

import asyncio

import pytest

from asyncpool._runtime.state.pool_state import PERIOD, LoopLag
from tests.helpers import virtual_time
from tests.helpers.virtual_time import VirtualLoop


async def reach(moment: float) -> None:
    """Return when the virtual clock is at *moment*."""
    loop = asyncio.get_running_loop()
    there = loop.create_future()
    loop.call_at(moment, there.set_result, None)
    await there


def test_a_loop_that_is_held_up_is_late_for_so_long() -> None:
    async def main() -> LoopLag:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        answers = [False, True, True]
        lag = LoopLag(loop, answers.pop)
        lag.go()
        await reach(PERIOD / 2)
        loop.stall(PERIOD)  # half of it late
        await reach(5 * PERIOD)
        assert not lag.active
        return lag

    histogram = virtual_time.run(main()).durations.histogram()
    assert histogram.count == 3
    assert histogram.total == pytest.approx(PERIOD / 2, abs=0.01)
    assert histogram.quantile(1) == pytest.approx(PERIOD / 2, rel=0.5)


def test_it_stops_when_it_is_told_so() -> None:
    async def main() -> LoopLag:
        lag = LoopLag(asyncio.get_running_loop(), lambda: True)
        lag.go()
        await reach(2.5 * PERIOD)
        lag.stop()
        await reach(5 * PERIOD)
        assert not lag.active
        return lag

    assert virtual_time.run(main()).durations.histogram().count == 2
