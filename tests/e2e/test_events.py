"""What a pool tells about itself: events, figures, and its callback for crashes."""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import signal
from pathlib import Path

import pytest

from asyncpool import Crash, Pool, RestartPolicy
from asyncpool.errors import JobTimeoutError, PoolBrokenError, WorkerCrashedError
from asyncpool.events import Broken, Crashed, Exited, Ready, Restarting, Spawned
from tests.helpers import faults, jobs
from tests.helpers.faults import by_name
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, crash_of, idle, next_of, until

pytestmark = BOTH_LOOPS


async def test_the_life_of_a_worker_in_events() -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        events = pool.events()
        first = pool.stats().slots[0].pid
        assert first is not None
        crash = await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
        assert crashes == [crash], "it is told before the caller knows"
        second = (await idle(pool)).slots[0].pid
        assert second is not None
    seen = [event async for event in events]
    ready = next(event for event in seen if isinstance(event, Ready))
    assert ready.seconds > 0
    assert seen == [
        Crashed(crashes[0]),
        Restarting(0, 0.0),
        Spawned(0, 2, second),
        Ready(0, 2, second, ready.seconds),
        Exited(0, 2, second, 0, reason="close"),
    ]
    assert (crashes[0].slot, crashes[0].generation, crashes[0].pid) == (0, 1, first)
    assert crashes[0].next_step_text == "restarting at once"


async def test_who_listens_before_the_start_misses_nothing() -> None:
    pool = Pool(2)
    events = pool.events()
    async with patience(), pool:
        first = [await anext(events) for _ in range(2)]
        pids = [slot.pid for slot in (await idle(pool)).slots]
        assert {type(event) for event in first} <= {Spawned, Ready}
        assert isinstance(first[0], Spawned)
        assert first[0].generation == 1
    seen = [*first, *[event async for event in events]]
    for kind in (Spawned, Ready):
        told = {event.slot: event.pid for event in seen if isinstance(event, kind)}
        assert [told[slot] for slot in range(2)] == pids
    assert [type(event) for event in seen].count(Exited) == 2
    assert events.dropped == 0


async def test_who_listens_before_a_start_in_vain_hears_of_its_end() -> None:
    pool = Pool(1, initializer=jobs.fail, initargs=(ArithmeticError(),))
    events, unused = pool.events(), Pool(1)
    quiet = unused.events()
    await unused.close()
    async with patience():
        assert [event async for event in quiet] == []
        assert [event async for event in unused.events()] == []
        with pytest.raises(PoolBrokenError):
            await pool.start()
        seen = [type(event) async for event in events]
    assert seen.count(Crashed) == 5
    assert seen[0] is Spawned
    assert Broken in seen


async def test_a_start_that_waits_for_all_fails_if_some_never_come(
    tmp_path: Path,
) -> None:
    first = str(tmp_path / "first")
    pool = Pool(
        2,
        ready="all",
        restart_policy=RestartPolicy(initial_delay=0.001, max_delay=0.001),
        initializer=jobs.be_the_only_one,
        initargs=(first,),
    )
    text = (
        r"^the pool is broken: 5 starts failed in a row, and not all workers are ready"
    )
    async with patience():
        with pytest.raises(PoolBrokenError, match=text) as caught:
            await pool.start()
        assert {crash.kind for crash in caught.value.crashes} == {"failed start"}
        assert pool.stats().state == "closed"


async def test_a_worker_that_dies_while_others_start_is_waited_for_again() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2, ready="all", initializer=jobs.wait_at, initargs=(gate.path,))
        events = pool.events()
        start = asyncio.create_task(pool.start())
        first, second = [await gate.visitor(nth=nth) for nth in (1, 2)]
        first.release()
        await next_of(events, Ready)
        os.kill(first.pid, signal.SIGKILL)
        third = await gate.visitor(nth=3)
        second.release()
        await next_of(events, Ready)
        assert not start.done()
        third.release()
        await start
        assert pool.stats().idle == 2
        await pool.close()


async def test_every_listener_gets_every_event() -> None:
    async with patience(), Pool(2) as pool:
        early = [pool.events() for _ in range(3)]
        await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
        await assert_serves(pool)
        late = pool.events()
        waiting = asyncio.create_task(anext(late))
        await asyncio.sleep(0)
        await pool.close()
        seen = [[event async for event in events] for events in early]
        assert seen[0] == seen[1] == seen[2]
        assert [type(event) for event in seen[0]].count(Crashed) == 1
        assert isinstance(await waiting, Exited)


async def test_a_slow_listener_loses_the_oldest_events_and_knows_it() -> None:
    async with patience(), Pool(1) as pool:
        slow, quick = pool.events(buffer=2), pool.events()
        await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
        await assert_serves(pool)
        await pool.close()
        everything = [event async for event in quick]
        assert [event async for event in slow] == everything[-2:]
        assert slow.dropped == len(everything) - 2 > 0
        assert quick.dropped == 0
        assert pool.stats().dropped_events == slow.dropped


async def test_a_listener_that_leaves_is_forgotten() -> None:
    async with patience(), Pool(1) as pool:
        events = pool.events()
        waiting = asyncio.create_task(anext(events))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        del events, waiting
        await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
        await assert_serves(pool)
        assert pool.stats().dropped_events == 0


async def test_on_crash_may_be_async_and_use_the_pool() -> None:
    results: list[int] = []

    async def on_crash(crash: Crash) -> None:
        results.append(await pool.submit(jobs.square, crash.attempt + 6))

    async with patience():
        pool = Pool(2, on_crash=on_crash)
        async with pool:
            await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
            await assert_serves(pool)
    assert results == [49]


@pytest.mark.logs("on-crash-failed")
async def test_an_on_crash_that_raises_is_logged_and_harms_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls: list[str] = []

    def sync_callback(_: Crash) -> None:
        calls.append("sync")
        raise LookupError("sync and broken")

    async def async_callback(_: Crash) -> None:
        calls.append("async")
        raise LookupError("async and broken")

    for callback in (sync_callback, async_callback):
        async with patience(), Pool(2, on_crash=callback) as pool:
            for _ in range(2):
                await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
            await assert_serves(pool)
            assert pool.stats().crashes == 2
    assert calls == ["sync"] * 2 + ["async"] * 2
    logged = [r.exc_text or "" for r in caplog.records if r.levelno == logging.ERROR]
    assert len(logged) == 4
    assert all("and broken" in text for text in logged)


async def test_an_on_crash_that_stalls_holds_up_nothing_but_the_end() -> None:
    cancelled: list[Crash] = []

    async def on_crash(crash: Crash) -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.append(crash)

    async with patience():
        async with Pool(2, on_crash=on_crash) as pool:
            for _ in range(3):
                await crash_of(pool.submit(faults.commit, "exit 3"), by_name("exit 3"))
            await assert_serves(pool)
            assert cancelled == []
        assert len(cancelled) == 3


@pytest.mark.logs("worker-crashed")
async def test_a_crash_is_told_with_all_that_is_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Pool(1, name="noisy") as pool:
        job = pool.submit(faults.commit, "SIGSEGV")
        with pytest.raises(WorkerCrashedError) as caught:
            await job
        await until(pool, lambda stats: stats.idle == 1)
    error = caught.value
    fatal = "Fatal Python error: Segmentation fault"
    [record] = [r for r in caplog.records if r.name == "asyncpool.pool"]
    assert record.getMessage() == (
        f"pool noisy: worker {error.pid} in slot 0 was killed by SIGSEGV during "
        f"attempt 1 of job {job.id} (tests.helpers.faults.commit); restarting at once"
    )
    data = vars(record)
    assert (data["kind"], data["signal"]) == ("crash", "SIGSEGV")
    assert data["exit_code"] is None
    assert (data["attempt"], data["next_step"]) == (1, "restart")
    assert data["function"] == "tests.helpers.faults.commit"
    assert str(record.stack_info).startswith(f"    {fatal}\n")
    assert "was killed by SIGSEGV" in str(error)
    assert fatal in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert vars(copy) == vars(error)
    assert str(copy) == str(error)


async def test_an_exit_has_its_reason() -> None:
    pool = Pool(1, cancel_grace=0.05, max_surge=0, max_unavailable=1)
    events = pool.events()
    async with patience(), Gate() as gate, pool:
        pool.retire(0)
        await until(pool, lambda stats: stats.idle == 1 and stats.spawned == 2)
        late = pool.options(timeout=0.05).submit(jobs.swallow, gate.path, "late")
        with pytest.raises(JobTimeoutError):
            await late
        given_up = pool.submit(jobs.swallow, gate.path, "given up")
        await gate.visitor("given up")
        given_up.cancel()
        await until(pool, lambda stats: stats.idle == 1 and stats.spawned == 4)
        pool.kill(0)
        await until(pool, lambda stats: stats.idle == 1 and stats.spawned == 5)
    reasons = [event.reason async for event in events if isinstance(event, Exited)]
    assert reasons == [
        "retire",
        f"timeout of job {late.id}",
        f"cancellation of job {given_up.id}",
        "kill",
        "close",
    ]
