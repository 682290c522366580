"""Leases of a pool's jobs, on both loops and in real time."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, LeaseKeeper, LeaseLostError, Pool, WorkerCrashedError
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves
from tests.helpers.scripts import run_script

pytestmark = ONE_LOOP


class Outside:
    """Counts the beats of each lease, and says that some are gone."""

    def __init__(self) -> None:
        self.beats: Counter[str] = Counter()
        self.gone: set[str] = set()
        self._news = asyncio.Event()

    async def extend(self, lease: str) -> None:
        self.beats[lease] += 1
        self._news.set()
        if lease in self.gone:
            raise LeaseLostError

    async def beaten(self, lease: str, times: int) -> None:
        """Wait until *lease* has been extended so many times more."""
        enough = self.beats[lease] + times
        while self.beats[lease] < enough:
            self._news.clear()
            await self._news.wait()


async def test_a_lease_is_kept_while_its_job_is_queued_and_while_it_runs(
    pool: Pool,
) -> None:
    outside = Outside()
    async with (
        patience(),
        Gate() as gate,
        LeaseKeeper(outside.extend, max_rate=100.0, interval=0.05) as keeper,
    ):
        for name in ("first", "second"):
            keeper.keep(name, pool.submit(jobs.wait_at, gate.path, name))
        await outside.beaten("second", 3)
        (await gate.visitor("first")).release()
        second = await gate.visitor("second")
        assert keeper.stats().leases == 1
        before = outside.beats["first"]
        await outside.beaten("second", 3)
        assert outside.beats["first"] == before
        second.release()


async def test_a_job_whose_lease_is_gone_is_stopped(pair: Pool) -> None:
    outside = Outside()
    async with (
        patience(),
        Gate() as gate,
        LeaseKeeper(outside.extend, max_rate=100.0, interval=0.05) as keeper,
    ):
        lost: Job[Any] = pair.submit(jobs.compute, gate.path, "lost")
        safe = pair.submit(jobs.wait_at, gate.path, "safe")
        keeper.keep("lost", lost)
        keeper.keep("safe", safe)
        victim, survivor = await gate.visitor("lost"), await gate.visitor("safe")
        outside.gone.add("lost")
        with pytest.raises(asyncio.CancelledError, match="lease 'lost' is gone"):
            await lost
        await victim.gone()
        survivor.release()
        assert await safe == "go"
        await assert_serves(pair)


async def test_a_crash_ends_a_lease() -> None:
    outside = Outside()
    async with (
        patience(),
        LeaseKeeper(outside.extend, max_rate=100.0, interval=0.05) as keeper,
        Pool(1) as pool,
    ):
        job: Job[Any] = pool.submit(os._exit, 3)
        keeper.keep("one", job)
        with pytest.raises(WorkerCrashedError):
            await job
        await asyncio.sleep(0)
        assert keeper.stats().leases == 0


async def test_ctrl_c_ends_a_keeper_and_what_it_has_under_way(tmp_path: Path) -> None:
    said = await asyncio.to_thread(run_script, tmp_path, INTERRUPTED)
    assert said.split() == ["beat", "ended", "left", "interrupted"]


INTERRUPTED = """
    import asyncio, signal
    import asyncpool

    async def send(lease):
        print("beat")
        signal.raise_signal(signal.SIGINT)
        try:
            await asyncio.sleep(60)
        finally:
            print("ended")

    async def main():
        # A turn that is slow on a busy machine is not what this is about.
        asyncio.get_running_loop().slow_callback_duration = 3600
        try:
            async with asyncpool.LeaseKeeper(send) as keeper:
                keeper.add("one")
                await asyncio.sleep(60)
        finally:
            print("left")

    try:
        asyncio.run(main(), debug=True)
    except KeyboardInterrupt:
        print("interrupted")
"""


async def test_a_lease_can_be_an_option_of_its_job() -> None:
    outside = Outside()
    async with (
        patience(),
        Gate() as gate,
        LeaseKeeper(outside.extend, max_rate=100.0, interval=0.05) as keeper,
        Pool(1) as pool,
    ):
        view = pool.options(lease=(keeper, "mine"), priority=1)
        job = view.options(priority=0).submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        await outside.beaten("mine", 2)
        with pytest.raises(ValueError, match="'mine' is kept already"):
            view.submit(jobs.pid)
        assert pool.stats().submitted == 1, "what has no lease is not run"
        visitor.release()
        assert await job == "go"
        assert keeper.stats().leases == 0
        again = view.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor(nth=2)
        outside.gone.add("mine")
        with pytest.raises(asyncio.CancelledError):
            await again
        await visitor.gone()
        assert await view.options(lease=None).submit(jobs.square, 3) == 9


@pytest.mark.parametrize("lease", ["mine", ("mine",), ("keeper", "mine")])
async def test_a_lease_without_its_keeper_is_refused(lease: object) -> None:
    with pytest.raises(TypeError) as caught:
        Pool(1).options(lease=lease)  # type: ignore[arg-type]
    assert str(caught.value) == f"lease must be a pair (keeper, lease), not {lease!r}"
