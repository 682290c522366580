"""When the lease of a job ends: not before the last attempt at it, and never later."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    Job,
    JobNotPicklableError,
    LeaseKeeper,
    LeaseLostError,
    Pool,
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
    RestartPolicy,
    WorkerCrashedError,
)
from tests.e2e.test_pipelining import learn
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import break_core, in_hand, look_for_stalls_never, ring
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, stop, until

pytestmark = BOTH_LOOPS

LONG, SHORT = 3600.0, 0.05


class Keeper(LeaseKeeper[str]):
    """Tells of its beats, and of the leases that it lets go.

    Attributes:
        lost: The leases that are gone, as the outside system says.
        ends: The leases that it has let go since nobody needs them, each with the
            workers that there were at that moment.
    """

    pool: Pool

    def __init__(self) -> None:
        super().__init__(self._extend, max_rate=100.0, interval=0.05)
        self.lost: set[str] = set()
        self.ends: list[tuple[str, set[int | None]]] = []
        self._extended: Counter[str] = Counter()
        self._news = asyncio.Event()

    async def _extend(self, lease: str) -> None:
        self._extended[lease] += 1
        self._news.set()
        if lease in self.lost:
            raise LeaseLostError

    def remove(self, lease: str) -> bool:
        was_here = super().remove(lease)
        if was_here:
            workers = {slot.pid for slot in self.pool.stats().slots}
            self.ends.append((lease, workers))
            self._news.set()
        return was_here

    async def keeps(self, lease: str) -> None:
        """Check that *lease* is kept, and extended."""
        enough = self._extended[lease] + 3
        await self._until(
            lambda: self._extended[lease] >= enough or lease not in self._holds
        )
        assert lease in self._holds

    async def lets_go(self, lease: str, times: int = 1) -> set[int | None]:
        """Wait for the end of *lease*; return the workers that there were then."""

        def ends() -> list[set[int | None]]:
            return [workers for name, workers in self.ends if name == lease]

        await self._until(lambda: len(ends()) >= times)
        return ends()[times - 1]

    async def _until(self, predicate: Callable[[], bool]) -> None:
        while not predicate():
            self._news.clear()
            await self._news.wait()


@asynccontextmanager
async def leasing(
    workers: int = 1, **options: Any
) -> AsyncIterator[tuple[Gate, Keeper, Pool]]:
    """Check that no lease outlives its pool."""
    async with patience(), Gate() as gate, Keeper() as keeper:
        keeper.pool = Pool(workers, cancel_grace=LONG, **options)
        async with keeper.pool as pool:
            yield gate, keeper, pool
        assert keeper.stats().leases == 0


async def given_up(job: asyncio.Future[Any]) -> None:
    """Cancel *job*."""
    assert job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await job


async def test_while_a_cancelled_job_cleans_up() -> None:
    async with leasing() as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.clean_up_at, gate.path)
        worker = await gate.visitor("work")
        await given_up(job)
        cleaning = await gate.visitor("JobCancelled")
        await keeper.keeps("mine")
        with pytest.raises(ValueError, match="'mine' is kept already"):
            view.submit(jobs.pid)
        cleaning.release()
        assert await keeper.lets_go("mine") == {worker.pid}
        assert await view.submit(jobs.pid) == worker.pid
    assert len(keeper.ends) == 2


async def test_to_the_end_of_a_job_that_nobody_waits_for() -> None:
    async with leasing(on_cancel="wait") as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        await given_up(job)
        await keeper.keeps("mine")
        worker.release()
        assert await keeper.lets_go("mine") == {worker.pid}
    assert len(keeper.ends) == 1


@pytest.mark.parametrize(
    ("work", "options"),
    [(jobs.compute, {"on_cancel": "kill"}), (jobs.swallow, {"cancel_grace": SHORT})],
    ids=["at once", "after its grace"],
)
async def test_until_the_worker_is_dead_that_is_killed(
    work: Callable[[str, str], Any], options: Any
) -> None:
    async with leasing() as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"), **options)
        job = view.submit(work, gate.path, "work")
        worker = await gate.visitor("work")
        await given_up(job)
        assert worker.pid not in await keeper.lets_go("mine")
    assert len(keeper.ends) == 1


async def test_until_the_worker_is_dead_that_dies_by_itself() -> None:
    async with leasing(on_cancel="wait") as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"), max_attempts=2)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        worker = await gate.visitor("attempt 1")
        await given_up(job)
        await keeper.keeps("mine")
        worker.release("die")
        assert worker.pid not in await keeper.lets_go("mine")
        await idle(pool)
        assert gate.visits("attempt 2") == 0
    assert len(keeper.ends) == 1


async def test_the_death_of_another_worker_ends_nothing() -> None:
    async with leasing(2, on_cancel="wait") as (gate, keeper, pool):
        await idle(pool)
        job = pool.options(lease=(keeper, "mine")).submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        await given_up(job)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        await keeper.keeps("mine")
        worker.release()
        assert worker.pid in await keeper.lets_go("mine")


async def test_while_a_job_cleans_up_whose_time_is_over() -> None:
    async with leasing() as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"), timeout=LONG)
        job = view.submit(jobs.clean_up_at, gate.path)
        await gate.visitor("work")
        ring(pool, asyncio.get_running_loop().time() + LONG)
        cleaning = await gate.visitor("JobCancelled")
        await keeper.keeps("mine")
        cleaning.release()
        with pytest.raises(TimeoutError):
            await job
        await keeper.lets_go("mine")
    assert len(keeper.ends) == 1


@pytest.mark.parametrize("why", ["cancelled", "too late"])
async def test_until_a_worker_has_said_that_it_will_not_begin(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    look_for_stalls_never(monkeypatch)  # or it is taken back before
    async with leasing() as (gate, keeper, pool):
        await learn(pool, jobs.perhaps_wait)
        running = pool.submit(jobs.perhaps_wait, gate.path)
        worker = await gate.visitor()
        await stop(worker.pid)
        try:
            view = pool.options(lease=(keeper, "mine"))
            if why == "too late":
                view = view.options(queue_timeout=SHORT)
            job = view.submit(jobs.perhaps_wait, gate.path)
            assert in_hand(pool, job=job) == 1
            if why == "cancelled":
                await given_up(job)
            else:
                with pytest.raises(TimeoutError):
                    await job
            await keeper.keeps("mine")
        finally:
            os.kill(worker.pid, signal.SIGCONT)
        await keeper.lets_go("mine")
        worker.release()
        assert await running == worker.pid
        assert gate.visits() == 1
    assert len(keeper.ends) == 1


async def test_at_once_if_a_job_is_cancelled_in_the_queue() -> None:
    async with leasing() as (gate, keeper, pool):
        running = pool.submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        job = pool.options(lease=(keeper, "mine")).submit(jobs.pid)
        await keeper.keeps("mine")
        job.cancel()
        await asyncio.sleep(0)
        assert keeper.stats().leases == 0
        worker.release()
        await running
    assert len(keeper.ends) == 1


async def test_not_before_the_last_attempt() -> None:
    async with leasing() as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"), max_attempts=3, priority=1)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        for attempt in (1, 2):
            (await gate.visitor(f"attempt {attempt}")).release("die")
            # Also in the queue, where it waits for the next worker.
            await until(pool, lambda stats, n=attempt: stats.takeovers == n)  # type: ignore[misc]
            await keeper.keeps("mine")
        last = await gate.visitor("attempt 3")
        assert keeper.ends == []
        last.release()
        assert await job == "go"
        assert keeper.stats().leases == 0
    assert len(keeper.ends) == 1


@pytest.mark.parametrize("cancelled", [True, False])
async def test_not_before_the_workers_of_a_closing_pool_are_dead(
    *, cancelled: bool
) -> None:
    async with leasing(on_cancel="wait") as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        if cancelled:
            job.cancel()
        close = await closing(pool, finish="none")
        if not cancelled:
            with pytest.raises(PoolClosedError):
                await job
        assert worker.pid not in await keeper.lets_go("mine")
        await close
    assert len(keeper.ends) == 1


async def test_not_with_the_hope_of_its_pool(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    policy = RestartPolicy.limited(2, period=60)
    broken = {"restart_policy": policy, "initializer": jobs.fail_if_there}
    async with leasing(2, on_cancel="wait", initargs=(str(flag),), **broken) as (
        gate,
        keeper,
        pool,
    ):
        await idle(pool)
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        culprit = pool.submit(jobs.wait_at, gate.path, "culprit")
        other = await gate.visitor("culprit")
        queued = pool.options(lease=(keeper, "other")).submit(jobs.pid)
        await given_up(job)
        flag.touch()
        os.kill(other.pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashedError):
            await culprit
        with pytest.raises(PoolBrokenError):
            await queued
        await keeper.lets_go("other")
        await keeper.keeps("mine")
        worker.release()
        await keeper.lets_go("mine")
    assert len(keeper.ends) == 2


async def test_with_its_pool_whatever_has_ended_that(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with leasing(2, on_cancel="wait") as (gate, keeper, pool):
        await idle(pool)
        job = pool.options(lease=(keeper, "mine")).submit(jobs.wait_at, gate.path)
        await gate.visitor()
        await given_up(job)
        break_core(pool, LookupError("no more decisions"))
        dying: Job[Any] = pool.submit(os._exit, 3)
        with pytest.raises(PoolClosedError, match="the supervisor failed"):
            await dying
        await keeper.lets_go("mine")
    assert len(keeper.ends) == 1
    assert "no more decisions" in caplog.text


async def test_if_it_is_lost_its_job_is_stopped_and_it_may_be_taken_again() -> None:
    async with leasing() as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.clean_up_at, gate.path)
        await gate.visitor("work")
        keeper.lost.add("mine")
        with pytest.raises(asyncio.CancelledError, match="lease 'mine' is gone"):
            await job
        cleaning = await gate.visitor("JobCancelled")
        assert keeper.stats().leases == 0
        keeper.lost.clear()
        again = view.submit(jobs.wait_at, gate.path)
        cleaning.release()
        visitor = await gate.visitor()
        # The end of the first attempt has not ended what is the second job's.
        await keeper.keeps("mine")
        assert keeper.ends == []
        visitor.release()
        assert await again == "go"
    assert len(keeper.ends) == 1


async def test_if_it_is_lost_when_nobody_waits_for_its_job() -> None:
    async with leasing(on_cancel="wait") as (gate, keeper, pool):
        job = pool.options(lease=(keeper, "mine")).submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        await given_up(job)
        events = keeper.events()
        keeper.lost.add("mine")
        await anext(events)
        assert keeper.stats().leases == 0
        worker.release()
        assert await pool.submit(jobs.pid) == worker.pid
    assert keeper.ends == []


async def test_if_its_job_does_not_come_to_the_queue() -> None:
    async with leasing(max_queued=1) as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"))
        with pytest.raises(JobNotPicklableError):
            await view.submit(jobs.take, (n for n in (1,)))
        await keeper.lets_go("mine")
        with pytest.raises(TimeoutError):
            await view.options(deadline=0.0).submit(jobs.pid)
        await keeper.lets_go("mine", times=2)
        running = pool.submit(jobs.wait_at, gate.path)
        worker = await gate.visitor()
        queued = pool.submit(jobs.pid)
        with pytest.raises(PoolFullError):
            view.submit(jobs.pid)
        await keeper.lets_go("mine", times=3)
        worker.release()
        await running
        assert await queued == worker.pid
        assert await view.submit(jobs.pid) == worker.pid
    assert len(keeper.ends) == 4
