"""The process that a launcher forks ahead: who gets it, and what becomes of it."""

from __future__ import annotations

import os
import signal

import pytest

from asyncpool import Pool
from asyncpool.events import Crashed
from tests.helpers import jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    by_events,
    end_of,
    kill_worker,
    launcher_of,
    spare_of,
    until,
)

pytestmark = BOTH_LOOPS


async def test_the_next_worker_is_the_spare_process() -> None:
    async with patience(), Pool(1) as pool:
        for _ in range(3):
            spare = await spare_of(pool)
            await kill_worker(pool)
            assert await pool.submit(jobs.pid) == spare


async def test_a_spare_process_has_what_every_worker_has_and_nothing_of_others() -> (
    None
):
    async with patience(), Pool(1) as pool:
        await spare_of(pool)
        first = await pool.submit(jobs.surroundings)
        await kill_worker(pool)
        second = await pool.submit(jobs.surroundings)
        assert second == first
        before = await pool.submit(jobs.dice)
        await spare_of(pool)
        await kill_worker(pool)
        assert await pool.submit(jobs.dice) != before


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM])
async def test_nobody_hears_of_the_end_of_a_spare_process(signum: int) -> None:
    async with patience(), Pool(1) as pool:
        events = pool.events()
        spare = await spare_of(pool)
        os.kill(spare, signum)
        await end_of(spare)
        await kill_worker(pool)
        await assert_serves(pool)
        assert await spare_of(pool) != spare
        stats = pool.stats()
        assert (stats.crashes, stats.spawned) == (1, 2)
    crashed = [event.crash.pid async for event in by_events(events, Crashed)]
    assert len(crashed) == 1
    assert spare not in crashed


async def test_a_stopped_spare_process_is_a_start_that_takes_too_long() -> None:
    async with patience(), Pool(1, start_timeout=1.0) as pool:
        spare = await spare_of(pool)
        os.kill(spare, signal.SIGSTOP)
        await kill_worker(pool)
        await until(pool, lambda stats: stats.crashes >= 2)
        await assert_serves(pool)
        await end_of(spare)


async def test_a_spare_process_ends_with_its_launcher() -> None:
    async with patience(), Pool(1) as pool:
        spare = await spare_of(pool)
        os.kill(await launcher_of(pool), signal.SIGKILL)
        await end_of(spare)
        await assert_serves(pool)


async def test_a_launcher_that_hangs_keeps_nobody_from_its_spare_process() -> None:
    async with patience(), Pool(1) as pool:
        spare = await spare_of(pool)
        launcher = await launcher_of(pool)
        os.kill(launcher, signal.SIGSTOP)
        try:
            await kill_worker(pool)
            assert await pool.submit(jobs.pid) == spare
        finally:
            os.kill(launcher, signal.SIGCONT)
