"""Workers that are worn, too large, rolled, retired or killed: replaced, and no job lost."""

from __future__ import annotations

import asyncio
import functools
import importlib
import mmap
import os
import re
import resource
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from pickle import PickleBuffer
from textwrap import dedent
from typing import Any

import pytest

from asyncpool import Cluster, Crash, Pool, RestartPolicy, RollResult, WorkerLimits
from asyncpool.errors import (
    NoWorkerError,
    PoolBrokenError,
    PoolClosedError,
    RollInProgressError,
    UnsupportedPlatformError,
    WorkerCrashedError,
    WorkerOutOfMemoryError,
)
from asyncpool.events import Crashed, Exited, Ready, Retiring, TakenOver
from tests.helpers import jobs, serves
from tests.helpers.clusters import Client, all_ready, cluster_of
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import crashes_of, private_memory
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, broken_by, closing, idle, next_of, until

pytestmark = BOTH_LOOPS

MIB = 1 << 20


def pids(pool: Pool) -> set[int | None]:
    return {slot.pid for slot in pool.stats().slots if slot.pid is not None}


@pytest.mark.parametrize("workers", [1, 2])
async def test_no_worker_begins_more_jobs_than_it_may(workers: int) -> None:
    limits = WorkerLimits(max_jobs=5, jitter=0.0)
    async with patience(), Pool(workers, worker_limits=limits) as pool:
        submitted = [
            pool.submit(jobs.pid) for _ in range(203)
        ]  # short ones travel ahead
        await asyncio.gather(*(pool.broadcast(jobs.pid_for, n) for n in range(3)))
        by_worker = Counter(await asyncio.gather(*submitted))
        stats = await idle(pool)
    assert max(by_worker.values()) == 5
    assert sum(by_worker.values()) == 203
    assert len(by_worker) >= 41
    assert stats.crashes == 0


async def test_the_items_of_a_map_count(faced: Faced) -> None:
    limits = WorkerLimits(max_jobs=5, jitter=0.0)
    async with patience(), faced(2, worker_limits=limits) as (caller, _):
        alone = await caller.map(jobs.pid_for, range(100))
        together = await caller.map(jobs.pid_for, range(100), chunksize=4)
    assert max(Counter(alone).values()) == 5
    assert 5 < max(Counter(together).values()) <= 20


async def test_the_limit_is_kept_where_jobs_run_beside_each_other() -> None:
    limits = WorkerLimits(max_jobs=10, jitter=0.0)
    async with patience(), Pool(1, worker_limits=limits, concurrency=4) as pool:
        tasks = [pool.submit(jobs.pid_later) for _ in range(95)]
        by_worker = Counter(await asyncio.gather(*tasks))
    # A successor that is ready soon takes over what has not begun.
    assert max(by_worker.values()) == 10
    assert by_worker.total() == 95


async def test_a_worker_that_has_done_its_jobs_is_replaced_and_no_job_waits() -> None:
    limits = WorkerLimits(max_jobs=5, jitter=0.0)
    async with patience(), Pool(2, worker_limits=limits) as pool:
        await idle(pool)
        first = pids(pool)
        listener = pool.events()
        seen: set[int | None] = set()
        while not first.isdisjoint(pids(pool)):
            two = (pool.submit(jobs.pid), pool.submit(jobs.pid))
            seen |= {*await asyncio.gather(*two)}
        # The last jobs may have been the fifth of a later worker, too.
        stats = await until(pool, lambda stats: len(stats.slots) == stats.idle == 2)
        assert first < seen, "both have worked"
        assert stats.crashes == 0
    events = [event async for event in listener]
    reasons = {event.reason for event in events if isinstance(event, Retiring)}
    assert reasons == {"max_jobs"}
    assert {event.pid for event in events if isinstance(event, Exited)} >= first


async def test_the_old_worker_works_until_the_new_one_is_ready(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with patience(), Gate() as gate:
        initargs = (str(flag), gate.path)
        async with Pool(1, initializer=jobs.wait_if_there, initargs=initargs) as pool:
            flag.touch()
            old = await pool.submit(jobs.pid)
            pool.retire(0)
            replacement = await gate.visitor("initializer")
            assert await pool.submit(jobs.pid) == old, "it still takes jobs"
            flag.unlink()
            replacement.release()
            while await pool.submit(jobs.pid) == old:
                pass
            assert pool.stats().crashes == 0


async def test_a_worker_that_is_old_is_replaced() -> None:
    limits = WorkerLimits(max_age=0.05)
    async with patience(), Pool(1, worker_limits=limits) as pool:
        events = pool.events()
        old = await pool.submit(jobs.pid)
        for _ in range(2):
            assert (await next_of(events, Retiring)).reason == "max_age"
        assert await pool.submit(jobs.pid) != old
        assert pool.stats().crashes == 0


async def test_a_job_that_retires_its_worker_is_its_last_one() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        warm = [pool.submit(jobs.perhaps_wait) for _ in range(10)]
        await asyncio.gather(*warm)
        [old] = {await job for job in warm}
        last = pool.submit(jobs.retire_at, gate.path)
        behind = [pool.submit(jobs.perhaps_wait) for _ in range(10)]
        visitor = await gate.visitor()
        # It holds on to its job, and nobody waits for that.
        others = {await job for job in behind}
        assert old not in others
        assert not last.done()
        visitor.release()
        assert await last == old
        await visitor.gone()
        stats = pool.stats()
    assert (stats.crashes, stats.takeovers, stats.failed) == (0, 0, 0)


async def test_outside_a_job_nobody_is_retired() -> None:
    with pytest.raises(RuntimeError) as caught:
        jobs.retire_at()
    assert str(caught.value) == "retire_worker() was called outside a job of a pool"


async def test_a_worker_with_too_much_memory_is_replaced_after_its_job() -> None:
    limits = WorkerLimits(max_memory=64 * MIB)
    async with patience(), Gate() as gate, Pool(1, worker_limits=limits) as pool:
        events = pool.events()
        job = pool.submit(jobs.leak, 100 * MIB, gate.path)
        visitor = await gate.visitor()
        retiring = await next_of(events, Retiring)
        assert retiring.reason == "max_memory"
        assert not job.done()
        assert await pool.submit(jobs.pid) != visitor.pid
        visitor.release()
        assert await job == visitor.pid
        assert pool.stats().crashes == 0


async def test_one_with_far_too_much_is_killed() -> None:
    crashes: list[Crash] = []
    limits = WorkerLimits(kill_memory=64 * MIB)
    pool = Pool(1, worker_limits=limits, on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        worker = await pool.submit(jobs.pid)
        # It may be killed before it comes to the gate, or there.
        job = pool.options(max_attempts=2).submit(jobs.leak, 100 * MIB, gate.path)
        with pytest.raises(WorkerOutOfMemoryError) as caught:
            await job
        await assert_serves(pool)
    [crash] = crashes
    assert caught.value.crashes == (crash,)
    assert (crash.kind, crash.pid) == ("out of memory", worker)
    told = r"it had [\d.]+ MiB of memory, and kill_memory is 64 MiB"
    assert re.search(told, crash.detail)
    assert crash.next_step_text == "restarting at once"


def share_with_nobody() -> None:
    memory = mmap.mmap(-1, 400 * MIB)  # MAP_SHARED
    for at in range(0, len(memory), mmap.PAGESIZE):
        memory[at] = 1
    jobs.spin()


async def test_anonymous_shared_memory_counts() -> None:
    limits = WorkerLimits(kill_memory=64 * MIB)
    async with patience(), Pool(1, worker_limits=limits) as pool:
        with pytest.raises(WorkerOutOfMemoryError):
            await pool.submit(share_with_nobody)


HEAVY = """
DATA = bytearray(b"x") * (96 << 20)

def read():
    return sum(DATA[::4096])

def write():
    DATA[::4096] = b"y" * (96 * 256)
    return read()
"""


@pytest.fixture
def heavy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that has 96 MiB of data."""
    (tmp_path / "heavy.py").write_text(HEAVY)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("heavy")
    del sys.modules["heavy"]


def weighing(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[int]:
    """Return what has the memory of a worker each time a pool looks at it."""
    found: asyncio.Queue[int] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def weigh(pid: int) -> int:
        memory = private_memory(pid)
        loop.call_soon_threadsafe(found.put_nowait, memory)
        return memory

    monkeypatch.setattr("asyncpool._engine.replacement.private_memory", weigh)
    return found


@pytest.mark.parametrize("limit", ["max_memory", "kill_memory"])
async def test_what_is_preloaded_is_no_workers_own_until_it_is_written_to(
    limit: str, heavy: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weighed = weighing(monkeypatch)
    options: dict[str, Any] = {limit: 64 * MIB}
    limits = WorkerLimits(**options)
    pool = Pool(1, preload=["heavy"], worker_limits=limits)
    async with patience(), pool:
        events = pool.events()
        worker = await pool.submit(jobs.pid)
        assert await pool.submit(heavy.read) == heavy.read()
        assert [await weighed.get() < 32 * MIB for _ in range(2)] == [True, True]
        assert await pool.submit(jobs.pid) == worker
        with suppress(WorkerOutOfMemoryError):  # it may be killed in the middle of it
            assert await pool.submit(heavy.write) == ord("y") * 96 * 256
        kind = Retiring if limit == "max_memory" else Crashed
        await next_of(events, kind)
        assert await pool.submit(jobs.pid) != worker


@pytest.mark.parametrize("limit", ["max_memory", "kill_memory"])
async def test_a_limit_that_a_fresh_worker_exceeds_breaks_the_pool(
    limit: str, heavy: Any
) -> None:
    options: dict[str, Any] = {limit: 64 * MIB, "jitter": 0.0}
    limits = WorkerLimits(**options)
    policy = RestartPolicy(max_failed_starts=1)
    pool = Pool(1, initializer=heavy.write, worker_limits=limits, restart_policy=policy)
    with pytest.raises(PoolBrokenError) as caught:
        async with patience(), pool:
            pass
    [crash] = caught.value.crashes
    assert re.fullmatch(
        r"check of memory failed: RuntimeError: it has \d+\.\d MiB of memory before its "
        rf"first job, and {limit} is 64 MiB: raise the limit, or have workers import and "
        r"initialize less",
        crash.detail,
    )


async def test_large_arguments_are_not_a_workers_own_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weighed = weighing(monkeypatch)
    limits = WorkerLimits(kill_memory=64 * MIB)
    async with patience(), Gate() as gate, Pool(1, worker_limits=limits) as pool:
        baggage = bytearray(b"x" * 128 * MIB)
        job = pool.submit(jobs.wait_with, gate.path, PickleBuffer(baggage))
        visitor = await gate.visitor("baggage")
        assert 0 < await weighed.get() < 64 * MIB
        visitor.release()
        assert await job == ord("x") * 128 * MIB // 4096
        assert pool.stats().crashes == 0


async def test_the_kernel_is_told_what_a_worker_may() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    cpu = min(os.sched_getaffinity(0))
    limits = WorkerLimits(
        nice=5, cpu_affinity=[cpu], rlimits={"RLIMIT_NOFILE": soft - 1}
    )
    async with patience(), Pool(1, worker_limits=limits) as pool:
        assert await pool.submit(jobs.bounds) == (
            min(os.nice(0) + 5, 19),
            {cpu},
            (soft - 1, hard),
        )
    limits = WorkerLimits(rlimits={"RLIMIT_NOFILE": (64, 65)})
    async with patience(), Pool(1, worker_limits=limits) as pool:
        assert (await pool.submit(jobs.bounds))[2] == (64, 65)


async def test_what_the_kernel_does_not_allow_is_a_failed_start_that_says_so() -> None:
    crashes: list[Crash] = []
    limits = WorkerLimits(rlimits={"RLIMIT_NOFILE": (65, 64)})
    pool = Pool(
        1,
        worker_limits=limits,
        on_crash=crashes.append,
        restart_policy=RestartPolicy(max_failed_starts=1),
    )
    with pytest.raises(Exception, match="the start failed"):
        async with patience(), pool:
            pass
    detail = "limits failed: ValueError: RLIMIT_NOFILE cannot be set to (65, 64): "
    assert crashes[0].detail.startswith(detail)


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"cpu_affinity": [4095]}, "cpu_affinity: this process may not use {4095}"),
        (
            {"rlimits": {"RLIMIT_NOTHING": 1}},
            "rlimits: there is no RLIMIT_NOTHING here",
        ),
    ],
)
async def test_limits_that_are_impossible_here_are_refused(
    limits: dict[str, Any], text: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$") as caught:
        Pool(1, worker_limits=WorkerLimits(**limits))
    assert not isinstance(caught.value, UnsupportedPlatformError)


# Rolls.


async def test_a_roll_replaces_every_worker_while_jobs_go_on() -> None:
    async with patience(), Pool(3) as pool:
        await idle(pool)
        old = pids(pool)

        async def work() -> int:
            done = 0
            while not roll.done():
                await pool.submit(jobs.square, done)
                done += 1
            return done

        roll = asyncio.create_task(pool.roll())
        done = await asyncio.gather(*[work() for _ in range(6)])
        assert await roll == RollResult(replaced=3, reason="", crash=None)
        assert roll.result().ok
        assert min(done) > 0
        stats = await idle(pool)
        assert old.isdisjoint(pids(pool))
    assert (stats.crashes, stats.failed, stats.workers) == (0, 0, 3)


async def test_a_roll_stops_at_a_worker_that_does_not_start(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    pool = Pool(2, **broken_by(poison))
    async with patience(), pool:
        await idle(pool)
        old = pids(pool)
        poison.touch()
        result = await pool.roll()
        assert not result.ok
        assert result.replaced == 0
        assert result.reason == "a replacement did not start"
        assert result.crash is not None
        assert "LookupError" in result.crash.detail
        assert result.crash.next_step_text == "the worker that it was to replace stays"
        assert pids(pool) == old
        await assert_serves(pool)
        assert pool.stats().state == "running"
        poison.unlink()
        assert (await pool.roll()).replaced == 2


async def test_there_is_one_roll_at_a_time() -> None:
    async with patience(), Gate() as gate, Pool(1, name="mill") as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        roll = asyncio.create_task(pool.roll())
        await asyncio.sleep(0)
        with pytest.raises(RollInProgressError) as caught:
            await pool.roll()
        assert str(caught.value) == "pool mill is being rolled: one roll at a time"
        roll.cancel()
        with pytest.raises(RollInProgressError):
            await pool.roll()
        visitor.release()
        await job
        await until(pool, lambda stats: len(stats.slots) == 1)
        assert (await pool.roll()).ok


async def test_a_close_ends_a_roll() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        roll = asyncio.create_task(pool.roll())
        while await pool.submit(jobs.pid) == visitor.pid:
            pass
        close = await closing(pool)
        assert await roll == RollResult(
            replaced=0, reason="the pool was closed", crash=None
        )
        with pytest.raises(PoolClosedError):
            await pool.roll()
        visitor.release()
        assert await job == "go"
        await close


async def test_who_does_not_leave_in_time_is_killed_and_its_job_handed_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crashes: list[Crash] = []
    limits = WorkerLimits(drain_timeout=0.1)
    pool = Pool(1, worker_limits=limits, on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        view = pool.options(max_attempts=2)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        first = await gate.visitor("attempt 1")
        assert (await pool.roll()).ok
        await first.gone()
        (await gate.visitor("attempt 2")).release()
        assert await job == "go"
    [crash] = crashes
    text = "killed since it had not finished within drain_timeout (0.1 s)"
    assert (crash.kind, crash.detail) == ("crash", text)
    assert crash.next_step_text == "not replaced: there are enough other workers"
    assert " in wait_in_every_attempt" in crash.stack
    assert [dedent(it.stack_info or "") for it in caplog.records] == [crash.stack]


# Workers that somebody retires, or kills, one by one.

KILLED = "killed since kill() was called"

# A policy that counts each death.
STRICT = RestartPolicy.limited(1, 3600.0)


async def test_a_retired_worker_finishes_its_job_when_another_one_is_ready() -> None:
    async with patience(), Gate() as gate, Pool(1, restart_policy=STRICT) as pool:
        events = pool.events()
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        for _ in range(3):
            pool.retire(0)  # more than once is as good as once
        retiring = await next_of(events, Retiring)
        assert retiring == Retiring(0, 1, "retire")
        assert await pool.submit(jobs.pid) != visitor.pid
        visitor.release("done")
        assert await job == "done"
        assert await next_of(events, Exited) == Exited(
            0, 1, visitor.pid, 0, reason="retire"
        )
        assert pool.stats().crashes == 0
        assert [slot.slot for slot in (await idle(pool)).slots if slot.pid] == [1]
    rest = [event async for event in events]
    assert not [event for event in rest if isinstance(event, Crashed | Retiring)]


async def test_a_kill_is_no_crash_and_its_job_fails() -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Gate() as gate,
        Pool(1, restart_policy=STRICT, on_crash=crashes.append) as pool,
    ):
        events = pool.events()
        for generation in range(1, 4):
            job = pool.submit(jobs.wait_at, gate.path, f"{generation}")
            visitor = await gate.visitor(f"{generation}")
            pool.kill(0)
            with pytest.raises(WorkerCrashedError, match=re.escape(KILLED)) as caught:
                await job
            assert caught.value.delivery == "started"
            [crash] = caught.value.crashes
            assert (crash.pid, crash.kind, crash.signal, crash.detail) == (
                visitor.pid,
                "crash",
                "SIGKILL",
                KILLED,
            )
            exited = await next_of(events, Exited)
            assert exited == Exited(
                0,
                generation,
                visitor.pid,
                signal="SIGKILL",
                detail=KILLED,
                reason="kill",
            )
        await assert_serves(pool)
        stats = pool.stats()
    assert (stats.crashes, stats.restarts, stats.failed) == (0, 3, 3)
    assert crashes == []
    assert not [event async for event in events if isinstance(event, Crashed)]


async def test_the_job_of_a_killed_worker_is_taken_over_if_it_may_be() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        events = pool.events()
        job = pool.options(max_attempts=2).submit(jobs.wait_at, gate.path)
        behind = pool.submit(jobs.square, 3)
        await gate.visitor()
        pool.kill(0)
        assert await next_of(events, TakenOver) == TakenOver(job.id, 1)
        (await gate.visitor(nth=2)).release("again")
        assert (await job, await behind) == ("again", 9)
        [crash] = crashes_of(job)
        assert crash.detail == KILLED


async def test_an_order_for_a_slot_without_a_worker_names_the_others() -> None:
    async with patience(), Pool(2) as pool:
        await idle(pool)
        for order in (pool.retire, pool.kill):
            text = "there is no worker in slot 7 that is ready; slots with one: 0, 1"
            with pytest.raises(NoWorkerError, match=rf"^{text}$") as caught:
                order(7)
            assert (caught.value.worker, caught.value.there) == (7, (0, 1))
            with pytest.raises(NoWorkerError):
                order(2)  # which is there, for replacements
            with pytest.raises(TypeError, match=r"^slot must be an int, not '0'$"):
                order("0")  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="slot must be"):
                order(-1)
    with pytest.raises(PoolClosedError):
        pool.retire(0)
    with pytest.raises(NoWorkerError, match=r"slots with one: none$"):
        pool.kill(0)


async def test_who_is_starting_is_not_killed() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, initializer=jobs.wait_at, initargs=(gate.path,))
        start = asyncio.create_task(pool.start())
        visitor = await gate.visitor()
        with pytest.raises(NoWorkerError, match=r"slots with one: none$"):
            pool.kill(0)
        visitor.release()
        await start
        pool.kill(0)
        (await gate.visitor(nth=2)).release()
        await pool.close()
        assert pool.stats().crashes == 0


# Clusters.


async def test_a_retired_worker_of_a_cluster_drains() -> None:
    async with patience(), cluster_of(workers=2, restart_policy=STRICT) as cluster:
        await all_ready(cluster)
        events = cluster.events()
        async with Client(cluster) as client:
            slot, _, pid = await client.who()
            cluster.retire(slot)
            assert await client.ask("wait") == "draining"
            assert await next_of(events, Retiring) == Retiring(slot, 1, "retire")
            assert (await client.who())[2] == pid
        exited = await next_of(events, Exited)
        assert exited == Exited(slot, 1, pid, 0, reason="retire")
        assert (await all_ready(cluster)).crashes == 0


async def test_a_killed_worker_of_a_cluster_is_no_crash() -> None:
    async with patience(), cluster_of(workers=2, restart_policy=STRICT) as cluster:
        await all_ready(cluster)
        events = cluster.events()
        for _ in range(3):
            async with Client(cluster) as client:
                slot, generation, pid = await client.who()
                cluster.kill(slot)
                assert await client.ask("who") == ""
            exited = await next_of(events, Exited)
            assert exited == Exited(
                slot, generation, pid, signal="SIGKILL", detail=KILLED, reason="kill"
            )
            assert (await all_ready(cluster)).crashes == 0


async def test_orders_for_nobody_in_a_cluster() -> None:
    cluster = Cluster(serves.talk, workers=1)
    for order in (cluster.retire, cluster.kill):
        with pytest.raises(PoolClosedError, match="was not started"):
            order(0)
    async with patience(), cluster:
        for order in (cluster.retire, cluster.kill):
            with pytest.raises(NoWorkerError, match=r"slots with one: 0$"):
                order(3)


async def test_a_cluster_may_be_waited_for_until_all_are_ready() -> None:
    async with patience(), Gate() as gate:
        target = functools.partial(serves.answer_behind, gate.path)
        cluster = cluster_of(target, bind=(), workers=2, ready="all")
        events = cluster.events()
        start = asyncio.create_task(cluster.start())
        for slot in range(2):
            assert not start.done()
            (await gate.visitor(f"{slot}")).release()
            await next_of(events, Ready)
        await start
        assert [slot.ready for slot in cluster.stats().slots if slot.pid] == [
            True,
            True,
        ]
        await cluster.close()
