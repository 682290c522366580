"""A client of a shared pool has what a local pool has: streams, broadcasts, sessions, leases, events."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, LeaseKeeper, ProcessPoolExecutor
from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    JobTimeoutError,
    NoWorkerError,
    PoolClosedError,
    PoolFullError,
    ResizeError,
    WorkerCrashedError,
    WorkerHungError,
)
from asyncpool.events import Exited, JobEnded, JobQueued, JobStarted, Ready
from asyncpool.sharedpool import connect
from tests.helpers import beats, jobs, streams
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.lapses import begun
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import broken_by, collect, next_of
from tests.helpers.shared_pools import pool_and_client, shared

pytestmark = BOTH_LOOPS


async def test_a_stream_comes_item_by_item_and_waits_for_its_caller(
    tmp_path: Path,
) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        assert [n async for n in pool.stream(streams.numbers, 500)] == list(range(500))
        assert [n async for n in pool.stream(streams.anumbers, 5)] == list(range(5))
        got: list[int] = []
        with pytest.raises(LookupError):
            await collect(pool.stream(streams.values, [1, 2], LookupError()), got)
        assert got == [1, 2]
        [large] = [it async for it in pool.stream(streams.values, [bytes(3 << 20)])]
        assert len(large) == 3 << 20
        stream = pool.options(prefetch=2).stream(streams.numbers, 1000)
        await stream.started()
        assert stream.job is not None
        assert not stream.job.done()  # nobody reads it, so it waits
        await stream.aclose()
        assert await pool.submit(jobs.square, 3) == 9  # the worker is free again


async def test_a_map_takes_a_chunksize(tmp_path: Path) -> None:
    def executed(path: Path) -> list[int]:
        with ProcessPoolExecutor(pool=connect(f"unix:{path}")) as executor:
            return [*executor.map(jobs.square, range(300), chunksize=100)]

    squares = [n * n for n in range(300)]
    async with patience(), shared(tmp_path, workers=1) as pool:
        view = pool.map(jobs.square, range(300), chunksize=100, buffersize=400)
        assert await view == squares
        # One more each time if the first 256 items take longer to be drawn than one turn may.
        first = (await pool.stats()).completed
        assert first in {3, 4}
        assert await asyncio.to_thread(executed, tmp_path / "pool.sock") == squares
        assert (await pool.stats()).completed - first in {3, 4}


async def test_a_crash_has_the_clients_number_of_its_job(tmp_path: Path) -> None:
    async with patience(), pool_and_client(tmp_path, workers=1) as (pool, client):
        for _ in range(3):
            await pool.submit(jobs.pid)
        lost: Job[None] = client.submit(os._exit, 3)
        with pytest.raises(WorkerCrashedError) as crashed:
            await lost
        assert [one.job_id for one in crashed.value.crashes] == [lost.id]
        assert "of job 1 (" in str(crashed.value)


async def test_a_broadcast_reaches_every_worker_and_later_ones(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path) as pool:
        pids = await pool.broadcast(jobs.configure, "one")
        assert sorted(pids) == [0, 1]
        assert len(set(pids.values())) == 2
        await pool.kill(0)
        await pool.roll()
        # The roll leaves alone what has just taken the killed one's place, and may still start.
        while (await pool.stats()).idle < 2:
            pass
        histories = await pool.broadcast(jobs.history)
        assert len(histories) == 2
        assert {tuple(values) for _, values in histories.values()} == {("one",)}
        with pytest.raises(BroadcastError, match=r"jobs\.throw") as failed:
            await pool.broadcast(jobs.throw, LookupError("of mine"))
        assert [str(it) for it in failed.value.errors.values()] == ["of mine"] * 2
        with pytest.raises(ValueError, match="it has no key"):
            await pool.options(key=1).broadcast(jobs.pid)
        with pytest.raises(TypeError, match="broadcast"):
            await pool.broadcast(5)  # type: ignore[call-overload]


async def test_a_broadcast_that_is_cancelled_is_taken_back(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        task = asyncio.create_task(pool.broadcast(jobs.configure, "no", gate.path))
        visitor = await gate.visitor("configure")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await visitor.gone()
        assert await pool.submit(jobs.square, 4) == 16


async def test_a_session_has_a_worker_to_itself(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=2) as pool:
        async with pool.worker(fresh=False) as mine:
            assert await mine.submit(jobs.pid) == mine.pid
            await mine.submit(jobs.fill_state)
            counts = [mine.submit(jobs.count_state) for _ in range(20)]
            assert await asyncio.gather(*counts) == list(range(1, 21))
            others = {await pool.submit(jobs.pid) for _ in range(5)}
            assert mine.pid not in others
            numbers = [n async for n in mine.stream(streams.numbers, 5)]
            assert numbers == list(range(5))
            async with pool.worker():
                with pytest.raises(TimeoutError, match="no worker"):
                    await pool.worker(timeout=0.01).__aenter__()
        stats = await pool.stats()
        assert stats.workers == 2


async def test_heartbeats_come_through_and_the_next_attempt_knows_the_last(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        view = pool.options(max_attempts=2, retry_on=[LookupError])
        job: Job[Any] = view.submit(beats.count_at, gate.path, 5)
        progress = job.progress()
        assert await anext(progress) == 5
        (await gate.visitor("beat 5")).release("fail")
        second = await gate.visitor("beat 5", nth=2)
        assert job.attempt == 2
        text = await job.stack()
        assert "count_at" in text
        assert "count_at" in (await pool.stacks())[0]
        second.release("kill")
        with pytest.raises(WorkerCrashedError):
            await job
        assert await job.stack() == ""
        hung = pool.options(heartbeat_timeout=0.05).submit(jobs.wait_at, gate.path)
        with pytest.raises(WorkerHungError):
            await hung


async def test_events_of_the_pool_and_of_the_clients_own_jobs(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        heard: list[Any] = []
        pool.add_listener(heard.append)
        events, of_jobs = pool.events(), pool.job_events()
        await pool.submit(jobs.square, 2)
        own = [await anext(of_jobs) for _ in range(3)]
        assert [type(event) for event in own] == [JobQueued, JobStarted, JobEnded]
        await pool.kill(0)
        assert (await next_of(events, Exited)).slot == 0
        await next_of(events, Ready)
        assert any(isinstance(event, Ready) for event in heard)
        assert pool.remove_listener(heard.append) == 1


async def test_orders_are_for_the_whole_pool(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=2) as pool:
        pid = await pool.submit(jobs.pid)
        assert (await pool.roll()).ok
        assert await pool.submit(jobs.pid) != pid
        # The roll begins with the worker that is ready first, and may leave any slot empty.
        slot = next(slot for slot in (await pool.stats()).slots if slot.pid is not None)
        await pool.retire(slot.slot)
        with pytest.raises(NoWorkerError):
            await pool.kill(7)
        with pytest.raises(ValueError, match="slot"):
            await pool.kill(-1)
        await pool.resize((1, 3))
        profile = await pool.profile(0.05)
        assert profile.seconds > 0.049  # timers of asyncio may be early by nanoseconds
        with pytest.raises(ValueError, match="rate"):
            await pool.profile(1, rate=0)


async def test_a_resize_tells_of_a_worker_that_does_not_start(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    async with patience(), shared(tmp_path, workers=1, **broken_by(poison)) as pool:
        poison.touch()
        with pytest.raises(ResizeError, match=f"LookupError: {poison}") as caught:
            await pool.resize(2)
        assert (caught.value.crash.kind, caught.value.crash.slot) == ("failed start", 1)


class Outside:
    """Answers beats."""

    def __init__(self) -> None:
        self.down = False

    async def extend(self, lease: str) -> None:
        del lease
        if self.down:
            raise OSError("down")


async def test_a_lease_is_kept_until_no_worker_has_its_job(tmp_path: Path) -> None:
    outside = Outside()
    keeper = LeaseKeeper(outside.extend, max_rate=100.0, interval=0.1, ttl=60.0)
    hasty = LeaseKeeper(outside.extend, max_rate=100.0, interval=0.1, ttl=1.0)
    async with (
        patience(),
        Gate() as gate,
        keeper,
        hasty,
        shared(tmp_path, workers=1) as pool,
    ):
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        with pytest.raises(ValueError, match="mine"):
            view.submit(jobs.square, 1)
        visitor.release()
        assert await job == "go"
        assert keeper.stats().leases == 0
        # A job that is cancelled has its lease until its worker is rid of it.
        cancelled = pool.options(lease=(keeper, "mine"), on_cancel="wait").submit(
            jobs.wait_at, gate.path, "stays"
        )
        visitor = await gate.visitor("stays")
        cancelled.cancel()
        await pool.stats()  # the agent has heard of it
        assert keeper.stats().leases == 1
        visitor.release()
        await pool.submit(jobs.square, 1)
        assert keeper.stats().leases == 0
        # And the worker ends with a lease that lapses.
        view = pool.options(lease=(hasty, "mine"))
        lapsing, visitor = await begun(
            gate, lambda word: view.submit(jobs.wait_at, gate.path, word)
        )
        outside.down = True
        with pytest.raises(asyncio.CancelledError, match="has lapsed"):
            await lapsing
        await visitor.gone()


async def test_a_client_bounds_its_queue_and_can_be_closed_in_steps(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1):
        pool = connect(f"unix:{tmp_path}/pool.sock", max_queued=1)
        await pool.start()
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        for _ in range(1023 + 1):  # as many as the agent takes, and one that waits
            pool.submit(jobs.square, 2).add_done_callback(_retrieve)
        with pytest.raises(PoolFullError):
            pool.submit(jobs.square, 2)
        closing = asyncio.create_task(pool.close(finish="running"))
        await asyncio.sleep(0)
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        visitor.release()
        summary = await closing
        assert await running == "go"
        # The agent may have given its pool one job beside the one that ran, and that counts.
        assert 1 <= summary.finished <= 2
        assert summary.finished + summary.failed == 1025
        with pytest.raises(RuntimeError, match="only once"):
            await pool.start()


async def test_a_close_with_a_timeout_fails_what_is_left(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        assert (await pool.close(timeout=0.01)).failed == 1
        with pytest.raises(PoolClosedError):
            await job
        await visitor.gone()  # the agent has made it end


async def test_time_limits_are_retried_as_in_a_local_pool(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        view = pool.options(timeout=0.05, max_attempts=2, retry_on=[JobTimeoutError])
        job = view.submit(jobs.wait_at, gate.path)
        with pytest.raises(JobTimeoutError):
            await job
        assert gate.visits() == job.attempt == 2
        deadline = asyncio.get_running_loop().time() + 0.05
        late = pool.options(deadline=deadline).submit(jobs.wait_at, gate.path)
        with pytest.raises(JobTimeoutError, match="deadline"):
            await late


def _retrieve(job: asyncio.Future[Any]) -> None:
    _ = job.cancelled() or job.exception()


async def test_what_a_broadcast_cannot_pickle_names_its_job(faced: Faced) -> None:
    async with patience(), faced() as (caller, _):
        await caller.submit(jobs.pid)
        with pytest.raises(BroadcastError) as caught:
            await caller.broadcast(jobs.make_lock)
        [error] = caught.value.errors.values()
        assert isinstance(error, JobNotPicklableError)
        assert (error.job_id, error.attempt) == (2, 1)
        assert error.function == "tests.helpers.jobs.make_lock"
        assert error.__notes__ == [
            "It is the error of job 2 (tests.helpers.jobs.make_lock)."
        ]


async def test_an_item_that_is_not_several_arguments_costs_itself_alone(
    faced: Faced,
) -> None:
    async with patience(), faced() as (caller, _):
        items: list[Any] = [(1, 2), 3, (2, 3)]
        for timeout in (None, 0.05):  # so short a one lets each item travel alone
            view = caller.options(timeout=timeout)
            found = [one async for one in view.starmap(pow, items).outcomes()]
            assert [type(one.error) for one in found] == [
                type(None),
                TypeError,
                type(None),
            ]
            with pytest.raises(
                TypeError, match="'int' object is not iterable"
            ) as caught:
                await view.starmap(pow, items)
            assert caught.value.__notes__ == ["It is the error of item 1 of a map."]
