"""A job does not outlast its lease, whatever happens to the process that extends it."""

from __future__ import annotations

import asyncio
import os
import select
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import Crash, EventStream, LeaseKeeper, Pool
from asyncpool.events import LeaseEvent, LeaseLapsed
from tests.helpers import jobs, several
from tests.helpers.gate import Gate
from tests.helpers.lapses import begun, unless_over
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import assert_serves

pytestmark = ONE_LOOP

CYCLE, TTL = 0.1, 1.0


class Outside:
    """Counts the beats that it answers; when it is down, it answers none."""

    def __init__(self) -> None:
        self.beats: Counter[str] = Counter()
        self.down = False
        self._news = asyncio.Event()

    async def extend(self, lease: str) -> None:
        if self.down:
            raise OSError("down")
        self.beats[lease] += 1
        self._news.set()

    async def beaten(self, lease: str, times: int) -> None:
        while self.beats[lease] < times:
            self._news.clear()
            await self._news.wait()

    def keeper(self, *, ttl: float = TTL) -> LeaseKeeper[str]:
        return LeaseKeeper(self.extend, max_rate=100.0, interval=CYCLE, ttl=ttl)


def block_until_dead(pid: int) -> None:
    """Have nothing happen in this process before that one is gone."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:  # its lease had lapsed before, see unless_over()
        return
    try:
        assert select.select([process], [], [], PATIENCE)[0], "it runs on"
    finally:
        os.close(process)


async def lapsed_of(events: EventStream[LeaseEvent]) -> LeaseLapsed:
    """Return the first event that tells of a lease which has lapsed."""
    while True:
        event = await anext(events)
        if isinstance(event, LeaseLapsed):
            return event


@pytest.mark.parametrize(
    ("function", "concurrency"),
    [(jobs.wait_at, 1), (jobs.compute, 1), (several.at, 1), (several.at, 2)],
)
async def test_a_worker_ends_with_the_lease_while_the_loop_is_blocked(
    function: Callable[..., Any], concurrency: int
) -> None:
    outside, crashes = Outside(), list[Crash]()
    async with (
        patience(),
        Gate() as gate,
        outside.keeper() as keeper,
        Pool(1, concurrency=concurrency, on_crash=crashes.append) as pool,
    ):
        events = keeper.events()
        # It may be tried again, but not with this lease.
        view = pool.options(lease=(keeper, "mine"), max_attempts=3)
        job, worker = await begun(
            gate, lambda word: view.submit(function, gate.path, word)
        )
        await unless_over(job, outside.beaten("mine", 2))
        block_until_dead(worker.pid)
        with pytest.raises(asyncio.CancelledError, match=r"^lease 'mine' has lapsed: "):
            await job
        # A beat may have been late before, on a busy machine.
        assert (await lapsed_of(events)).lease == "mine"
        await assert_serves(pool)
        assert gate.visits(worker.word) == 1
        assert keeper.stats().leases == 0
    assert len(crashes) <= int(worker.word) + 1, "one job costs one worker"
    [(signal, detail)] = {(crash.signal, crash.detail) for crash in crashes}
    assert signal == "SIGKILL"
    assert detail == "lease failed: it has lapsed, and its job was still running"


async def test_a_job_runs_for_longer_than_a_lease_that_is_extended(pool: Pool) -> None:
    # A machine that holds this process up for a second must not make it lapse.
    outside, ttl = Outside(), 4 * TTL
    async with patience(), Gate() as gate, outside.keeper(ttl=ttl) as keeper:
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        await outside.beaten("mine", int(1.25 * ttl / CYCLE))
        worker.release()
        assert await job == "go"
        assert await pool.submit(jobs.pid) == worker.pid
        assert keeper.stats().lapsed == 0


async def test_a_job_that_will_not_end_costs_its_worker_when_its_lease_lapses() -> None:
    outside, crashes = Outside(), list[Crash]()
    async with (
        patience(),
        Gate() as gate,
        outside.keeper() as keeper,
        Pool(1, on_crash=crashes.append) as pool,
    ):
        view = pool.options(lease=(keeper, "mine"), on_cancel="wait")
        job, worker = await begun(
            gate, lambda word: view.submit(jobs.wait_at, gate.path, word)
        )
        outside.down = True
        with pytest.raises(asyncio.CancelledError, match="has lapsed"):
            await job
        await worker.gone()
        await assert_serves(pool)
    assert [crash.signal for crash in crashes] == ["SIGKILL"]


async def test_a_worker_outlives_the_leases_of_jobs_that_are_over(pool: Pool) -> None:
    outside = Outside()
    async with (
        patience(),
        Gate() as gate,
        outside.keeper() as keeper,
        outside.keeper(ttl=PATIENCE) as clock,
    ):
        with_lease = pool.options(lease=(keeper, "mine"))
        worker = await with_lease.submit(jobs.pid)
        # Its place is another one, and its time is not over when that of the first is.
        other = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        clock.add("clock")
        await outside.beaten("clock", int(2 * TTL / CYCLE))
        visitor.release()
        assert await other == "go"
        assert await with_lease.submit(jobs.pid) == worker


async def test_a_job_is_told_of_its_lease_wherever_it_is_sent() -> None:
    outside = Outside()
    async with (
        patience(),
        Gate() as gate,
        outside.keeper() as keeper,
        Pool(1) as pool,
    ):
        view = pool.options(lease=(keeper, "mine"))
        nth = 0
        while True:
            nth += 1
            first = pool.submit(jobs.wait_at, gate.path, "first")
            visitor = await gate.visitor("first", nth)
            # It waits in the queue, and has more than is sent in one piece.
            job = view.submit(jobs.wait_with, gate.path, bytes(1 << 24))
            await unless_over(job, outside.beaten("mine", 2 * nth))
            visitor.release()
            assert await first == "go"
            worker = await unless_over(job, gate.visitor("baggage"))
            if worker is not None:
                break
        block_until_dead(worker.pid)
        with pytest.raises(asyncio.CancelledError, match=r"^lease 'mine' has lapsed: "):
            await job
        await assert_serves(pool)
