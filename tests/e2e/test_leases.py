"""When the lease of a job ends: not before the last attempt at it, and never later."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Crash, EventStream, Job, LeaseKeeper, Pool, RestartPolicy
from asyncpool.errors import (
    JobNotPicklableError,
    LeaseLostError,
    PoolBrokenError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from asyncpool.events import LeaseEvent, LeaseLapsed
from tests.e2e.test_pipelining import learn
from tests.helpers import jobs, several
from tests.helpers.gate import Gate
from tests.helpers.inside import break_core, in_hand, look_for_stalls_never, ring
from tests.helpers.lapses import begun, unless_over
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import assert_serves, closing, idle, stop, until
from tests.helpers.scripts import run_script

pytestmark = ONE_LOOP

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


@pytest.mark.parametrize("why", ["cancelled", "too late"])
async def test_while_a_cancelled_job_cleans_up(why: str) -> None:
    async with leasing() as (gate, keeper, pool):
        view = pool.options(lease=(keeper, "mine"), timeout=LONG)
        job = view.submit(jobs.clean_up_at, gate.path)
        worker = await gate.visitor("work")
        if why == "cancelled":
            await given_up(job)
        else:
            ring(pool, asyncio.get_running_loop().time() + LONG)
        cleaning = await gate.visitor("JobCancelled")
        await keeper.keeps("mine")
        with pytest.raises(ValueError, match="'mine' is kept already"):
            view.submit(jobs.pid)
        assert pool.stats().submitted == 1, "what has no lease is not run"
        cleaning.release()
        if why == "too late":
            with pytest.raises(TimeoutError):
                await job
        assert await keeper.lets_go("mine") == {worker.pid}
        assert await view.submit(jobs.pid) == worker.pid
        assert await view.options(lease=None).submit(jobs.square, 3) == 9
    assert len(keeper.ends) == 2


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
    assert len(keeper.ends) == 1


class Submitting:
    """An argument that submits a job of its own as it is pickled."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def __reduce__(self) -> tuple[Any, ...]:
        self.job = self._pool.submit(jobs.pid)
        return bytes, ()


async def test_for_its_own_job_and_no_other_that_is_submitted_meanwhile() -> None:
    async with leasing(2) as (gate, keeper, pool):
        view, argument = pool.options(lease=(keeper, "mine")), Submitting(pool)
        job = view.submit(jobs.wait_with, gate.path, argument)
        await argument.job
        worker = await gate.visitor("baggage")
        await keeper.keeps("mine")
        worker.release()
        assert await job == 0
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
        assert queued.cancel()
        # At once, if a job is cancelled in the queue.
        queued = view.submit(jobs.pid)
        await keeper.keeps("mine")
        assert queued.cancel()
        await asyncio.sleep(0)
        assert keeper.stats().leases == 0
        queued = pool.submit(jobs.pid)
        worker.release()
        await running
        assert await queued == worker.pid
        assert await view.submit(jobs.pid) == worker.pid
    assert len(keeper.ends) == 5


# In real time: no job outlasts its lease, whatever happens to the process that extends it.
CYCLE, TTL = 0.1, 1.0


class Outside:
    """Counts the beats of each lease, says that some are gone, and answers none when down."""

    def __init__(self) -> None:
        self.beats: Counter[str] = Counter()
        self.gone: set[str] = set()
        self.down = False
        self._news = asyncio.Event()

    async def extend(self, lease: str) -> None:
        if self.down:
            raise OSError("down")
        self.beats[lease] += 1
        self._news.set()
        if lease in self.gone:
            raise LeaseLostError

    async def beaten(self, lease: str, times: int) -> None:
        while self.beats[lease] < times:
            self._news.clear()
            await self._news.wait()

    def keeper(self, *, ttl: float | None = TTL) -> LeaseKeeper[str]:
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
    pool = Pool(1, concurrency=concurrency, on_crash=crashes.append)
    async with patience(), Gate() as gate, outside.keeper() as keeper, pool:
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
    pool = Pool(1, on_crash=crashes.append)
    async with patience(), Gate() as gate, outside.keeper() as keeper, pool:
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
    pool = Pool(1)
    async with patience(), Gate() as gate, outside.keeper() as keeper, pool:
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


async def test_a_lease_is_kept_while_its_job_is_queued_and_while_it_runs(
    pool: Pool, gate: Gate
) -> None:
    outside = Outside()
    async with outside.keeper(ttl=None) as keeper:
        jobs_kept: list[Job[Any]] = [
            pool.submit(jobs.wait_at, gate.path, "first"),
            pool.submit(jobs.compute, gate.path, "second"),
        ]
        for name, job in zip(("first", "second"), jobs_kept, strict=True):
            keeper.keep(name, job)
        await outside.beaten("second", 3)
        (await gate.visitor("first")).release()
        victim = await gate.visitor("second")
        assert keeper.stats().leases == 1
        before = outside.beats["first"]
        await outside.beaten("second", outside.beats["second"] + 3)
        assert outside.beats["first"] == before
        # If it is gone, its job is stopped.
        outside.gone.add("second")
        with pytest.raises(asyncio.CancelledError, match="lease 'second' is gone"):
            await jobs_kept[1]
        await victim.gone()
        await assert_serves(pool)


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


@pytest.mark.parametrize("lease", ["mine", ("mine",), ("keeper", "mine")])
async def test_a_lease_without_its_keeper_is_refused(lease: object) -> None:
    with pytest.raises(TypeError) as caught:
        Pool(1).options(lease=lease)  # type: ignore[arg-type]
    assert str(caught.value) == f"lease must be a pair (keeper, lease), not {lease!r}"
