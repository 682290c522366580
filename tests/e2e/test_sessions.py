"""Workers to oneself."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

import asyncpool
from asyncpool import Job, Pool, WorkerLimits, WorkerSession
from asyncpool.errors import (
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
    WorkerGoneError,
)
from asyncpool.events import Crashed, Exited, Retiring
from tests.helpers import jobs
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    closing,
    collect,
    end_of,
    idle,
    next_of,
    timeout_of,
)

pytestmark = ONE_LOOP


def remember(value: object) -> int:
    asyncpool.worker_state().value = value
    return os.getpid()


async def remember_async(value: object) -> int:
    return remember(value)


def recall() -> Any:
    return getattr(asyncpool.worker_state(), "value", None)


def recalled_and_pid() -> tuple[Any, int]:
    return recall(), os.getpid()


def values(count: int) -> Any:
    for number in range(count):
        asyncpool.worker_state().value = number
        yield number


async def wanting(waiters: int = 1) -> None:
    """Let the tasks that have been created ask for their workers."""
    for _ in range(3 * waiters):
        await asyncio.sleep(0)


async def gone_of(call: Callable[[], asyncio.Future[Any]]) -> WorkerGoneError:
    with pytest.raises(WorkerGoneError) as caught:
        await call()
    assert type(caught.value) is WorkerGoneError
    return caught.value


OVER = (
    "; the session that had it to itself is over: begin another one, and rebuild its "
    "state there"
)


# Its own.


async def test_calls_find_what_those_before_have_left(pair: Pool) -> None:
    async with pair.worker(fresh=False) as worker:
        assert await worker.submit(remember, "mine") == worker.pid
        assert await worker.submit(recalled_and_pid) == ("mine", worker.pid)
        [slot] = [s for s in pair.stats().slots if s.pid == worker.pid]
        assert (slot.slot, slot.state) == (worker.slot, "busy")
        assert repr(worker) == (
            f"<WorkerSession: worker {worker.pid} in slot {worker.slot}>"
        )
    assert repr(worker).endswith(", over>")


async def test_it_is_nobody_elses_under_load() -> None:
    async with patience(), Pool(2) as pool:
        before = [pool.submit(jobs.pid) for _ in range(300)]
        async with pool.worker() as worker:
            mine = [worker.submit(jobs.pid) for _ in range(50)]
            others = [pool.submit(jobs.pid) for _ in range(300)]
            keyed = [pool.options(key=n).submit(jobs.pid) for n in range(50)]
            assert {await job for job in mine} == {worker.pid}
            assert worker.pid not in {await job for job in [*others, *keyed]}
        assert all([await job for job in before])


async def test_calls_run_one_after_the_other_in_their_order() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=4) as pool:  # noqa: SIM117
        async with pool.worker() as worker:
            first = worker.submit(jobs.wait_at, gate.path)
            others = [worker.submit(remember, number) for number in range(3)]
            visitor = await gate.visitor()
            assert first.state == "running"
            assert [job.state for job in others] == ["queued"] * 3
            visitor.release()
            assert await first == "go"
            await asyncio.gather(*others)
            assert await worker.submit(recall) == 2


async def test_calls_of_every_kind() -> None:
    large = bytes(1 << 22)
    async with patience(), Pool(1, concurrency=2) as pool, pool.worker() as worker:
        assert await worker.submit(remember_async, "async") == worker.pid
        assert await worker.submit(recall) == "async"
        sizes = [worker.submit(len, large) for _ in range(3)]
        assert await asyncio.gather(*sizes) == [len(large)] * 3
        assert len(await worker.submit(bytes, 1 << 22)) == 1 << 22
        assert [item async for item in worker.stream(values, 40)] == [*range(40)]
        assert await worker.submit(recall) == 39
        view = worker.options(timeout=60, prefetch=1)
        assert [item async for item in view.stream(values, 3)] == [0, 1, 2]


async def test_broadcasts_come_between_its_calls() -> None:
    async with patience(), Pool(2) as pool, pool.worker() as worker:
        found = await pool.broadcast(remember, "all")
        assert found[worker.slot] == worker.pid
        assert await worker.submit(recall) == "all"


# Whose turn it is.


async def test_first_come_first_served() -> None:
    order: list[int] = []

    async def use(pool: Pool, number: int) -> None:
        async with pool.worker(fresh=number % 2 == 0) as worker:
            order.append(number)
            await worker.submit(jobs.pid)

    async with patience(), Pool(1) as pool:
        async with pool.worker():
            tasks = []
            for number in range(6):
                tasks.append(asyncio.create_task(use(pool, number)))
                await wanting()
            assert order == []
        await asyncio.gather(*tasks)
        assert order == [*range(6)]


async def test_whoever_asks_again_at_once_is_behind_those_who_wait(pool: Pool) -> None:
    order: list[str] = []

    async def use(pool: Pool, who: str, times: int) -> None:
        for _ in range(times):
            async with pool.worker(fresh=False):
                order.append(who)

    async with pool.worker(fresh=False):
        tasks = [asyncio.create_task(use(pool, who, 3)) for who in "ab"]
        await wanting(2)
    await asyncio.gather(*tasks)  # nothing in such a session lets the other one run

    assert order == ["a", "b"] * 3


async def test_whoever_waits_gets_a_worker_before_the_jobs_of_the_queue(
    pool: Pool, gate: Gate
) -> None:
    running = pool.submit(jobs.wait_at, gate.path)
    queued = [pool.submit(jobs.pid) for _ in range(500)]
    (await gate.visitor()).release()
    async with pool.worker(fresh=False) as worker:
        assert await running == "go"
        assert not any(job.done() for job in queued)
        assert pool.stats().queued == len(queued)
        assert await worker.submit(jobs.pid) == worker.pid
    assert {await job for job in queued} == {worker.pid}


async def test_the_wait_has_a_timeout(pool: Pool) -> None:
    async with pool.worker(fresh=False):
        with pytest.raises(TimeoutError) as caught:
            async with pool.worker(timeout=0.01):
                raise AssertionError("there is no worker")
        assert type(caught.value) is TimeoutError
        assert str(caught.value) == (
            f"no worker of pool {pool.name} was free within 0.01 s"
        )
    async with pool.worker(timeout=0, fresh=False) as worker:  # it need not wait
        assert await worker.submit(jobs.pid) == worker.pid


async def test_whoever_is_cancelled_leaves_the_line() -> None:
    async with patience(), Pool(1) as pool:
        async with pool.worker(fresh=False):
            waiters = [
                asyncio.create_task(pool.worker().__aenter__()) for _ in range(2)
            ]
            await wanting(2)
            waiters[0].cancel()
            job = pool.submit(jobs.pid)
        # In the turn in which the other one is offered a worker, it leaves, too.
        waiters[1].cancel()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        assert [type(it) for it in results] == [asyncio.CancelledError] * 2
        assert await job
        async with pool.worker() as worker:
            assert await worker.submit(jobs.pid) == worker.pid


async def test_too_many_may_not_wait() -> None:
    async with patience(), Pool(1, max_queued=2) as pool:
        async with pool.worker(fresh=False) as worker:
            waiter = asyncio.create_task(pool.worker(fresh=False).__aenter__())
            await wanting()
            job = pool.submit(jobs.pid)
            with pytest.raises(PoolFullError) as caught:
                await pool.worker().__aenter__()
            assert (caught.value.waiting, caught.value.max_queued) == (2, 2)
            with pytest.raises(PoolFullError, match="2"):
                pool.submit(jobs.pid)
            found: list[int] = []
            mapped = asyncio.create_task(collect(pool.map(jobs.square, [3]), found))
            calls = [worker.submit(jobs.pid) for _ in range(5)]  # in no queue
            assert {await call for call in calls} == {worker.pid}
        other = await waiter
        await other.__aexit__(None, None, None)
        assert await job == worker.pid
        await mapped
        assert found == [9], "it has waited for room"


async def test_an_elastic_pool_grows_for_it_and_lets_only_the_idle_go() -> None:
    async with patience(), Pool((1, 3), idle_timeout=0.01) as pool:
        events = pool.events()
        async with pool.worker() as one:
            async with pool.worker(fresh=False) as two:
                pids = {one.pid, two.pid, await pool.submit(jobs.pid)}
                assert len(pids) == 3
                assert await two.submit(jobs.pid) == two.pid
            gone = {(await next_of(events, Retiring)).slot for _ in range(2)}
            assert two.slot in gone
            assert one.slot not in gone
            assert await one.submit(jobs.pid) == one.pid


# Its end.


@pytest.mark.parametrize("fresh", [True, False])
async def test_a_fresh_worker_follows_if_that_is_wanted(*, fresh: bool) -> None:
    async with patience(), Pool(1) as pool:
        events = pool.events()
        async with pool.worker(fresh=fresh) as worker:
            await worker.submit(remember, "secret")
        if fresh:
            retiring = await next_of(events, Retiring)
            assert (retiring.slot, retiring.reason) == (worker.slot, "session")
            await end_of(worker.pid)
        found, pid = await pool.submit(recalled_and_pid)
        assert (found, pid == worker.pid) == (None if fresh else "secret", not fresh)
        assert (pool.stats().crashes, pool.stats().spawned) == (0, 1 + fresh)


async def test_leaving_waits_for_the_calls() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        session = pool.worker()
        worker = await session.__aenter__()
        first, second = worker.submit(jobs.wait_at, gate.path), worker.submit(jobs.pid)
        leaving = asyncio.create_task(session.__aexit__(None, None, None))
        visitor = await gate.visitor()
        assert not leaving.done()
        visitor.release()
        await leaving
        assert (first.result(), second.result()) == ("go", worker.pid)
        with pytest.raises(RuntimeError, match="the session is over: its context was"):
            worker.submit(jobs.pid)
        with pytest.raises(RuntimeError, match="entered only once"):
            await worker.__aenter__()


@pytest.mark.parametrize("fresh", [True, False])
async def test_leaving_by_an_error_cancels_the_calls(*, fresh: bool) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        with pytest.raises(KeyError, match="why"):  # noqa: PT012
            async with pool.worker(fresh=fresh) as worker:
                running = worker.submit(jobs.wait_at, gate.path)
                queued = worker.submit(jobs.pid)
                visitor = await gate.visitor()
                raise KeyError("why")
        assert running.cancelled()
        assert queued.cancelled()
        await visitor.gone()
        assert (await pool.submit(jobs.pid) == worker.pid) is not fresh


# Death.


async def test_death_in_a_call_ends_the_session(faced: Faced) -> None:
    async with patience(), faced(2) as (caller, pool):
        # So that a client has other numbers for its jobs.
        await asyncio.gather(*(pool.submit(jobs.pid) for _ in range(5)))
        async with caller.worker() as worker:
            dying: Job[None] = worker.submit(os._exit, 3)
            behind = worker.submit(jobs.pid)
            with pytest.raises(WorkerCrashedError) as caught:
                await dying
            crash = caught.value
            assert (crash.pid, crash.exit_code, crash.attempt) == (worker.pid, 3, 1)
            for call in (lambda: behind, lambda: worker.submit(jobs.pid)):
                error = await gone_of(call)
                assert (error.slot, error.pid) == (worker.slot, worker.pid)
                assert error.crash == crash.crashes[-1]
                assert (error.crash.job_id, error.crash.attempt) == (dying.id, 1)
                assert f"during attempt 1 of job {dying.id} (" in str(error)
                assert error.__cause__ is crash
                assert str(error) == f"{error.crash}{OVER}"
        assert pool.stats().takeovers == 0
        await assert_serves(pool)


async def test_death_between_calls_ends_the_session() -> None:
    async with patience(), Pool(1) as pool:
        events = pool.events()
        async with pool.worker() as worker:
            await worker.submit(jobs.pid)
            os.kill(worker.pid, signal.SIGKILL)
            crash = (await next_of(events, Crashed)).crash
            error = await gone_of(lambda: worker.submit(jobs.pid))
            assert (error.pid, error.crash) == (worker.pid, crash)
            assert error.__cause__ is None
        await assert_serves(pool)


async def test_death_before_a_call_has_begun_ends_the_session() -> None:
    async with patience(), Pool(1) as pool:
        async with pool.worker() as worker:
            os.kill(worker.pid, signal.SIGSTOP)
            call = worker.submit(jobs.pid)
            os.kill(worker.pid, signal.SIGKILL)
            error = await gone_of(lambda: call)
            assert error.crash is not None
            assert (error.pid, error.crash.job_id) == (worker.pid, None)
        await assert_serves(pool)
        assert pool.stats().takeovers == 0, "no other worker gets the call"


async def test_a_call_that_must_be_killed_for_its_time_ends_the_session() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        async with pool.worker() as worker:
            view = worker.options(timeout=0.05, cancel_grace=0.0)
            error = await timeout_of(view.submit(jobs.refuse_to_end, gate.path, ""))
            assert error.limit == "timeout"
            gone = await gone_of(lambda: worker.submit(jobs.pid))
            assert gone.__cause__ is error
        await assert_serves(pool)


async def test_cancelling_a_call_is_as_in_the_pool() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool, pool.worker() as worker:
        job = worker.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        job.cancel()
        assert await worker.submit(jobs.pid) == worker.pid
        killed = worker.options(on_cancel="kill").submit(
            jobs.wait_at, gate.path, "second"
        )
        await gate.visitor("second")
        killed.cancel()
        error = await gone_of(lambda: worker.submit(jobs.pid))
        assert error.pid == worker.pid


# What happens to the pool meanwhile.


async def test_a_pool_that_closes_waits_for_it() -> None:
    async with patience(), Pool(2) as pool:
        async with pool.worker() as worker:
            waiter = asyncio.create_task(pool.worker(fresh=False).__aenter__())
            other = await waiter
            late = asyncio.create_task(pool.worker().__aenter__())
            await wanting()
            close = await closing(pool)
            assert await worker.submit(jobs.pid) == worker.pid
            with pytest.raises(PoolClosedError):
                pool.submit(jobs.pid)
            with pytest.raises(PoolClosedError):
                await pool.worker().__aenter__()
            await other.__aexit__(None, None, None)
            third = await late  # it had asked before
            assert await third.submit(jobs.pid) == third.pid
            await third.__aexit__(None, None, None)
            assert not close.done()
        assert (await close).failed == 0


@pytest.mark.parametrize("how", [{"timeout": 0}, {"finish": "none"}])
async def test_a_close_that_does_not_wait_ends_it(how: dict[str, Any]) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool, pool.worker() as worker:
        running = worker.submit(jobs.wait_at, gate.path)
        behind = worker.submit(jobs.pid)
        waiter = asyncio.create_task(pool.worker().__aenter__())
        await gate.visitor()
        await pool.close(**how)
        for call in (running, behind, waiter):
            with pytest.raises(PoolClosedError):
                await call
        with pytest.raises(PoolClosedError):
            worker.submit(jobs.pid)


async def test_a_close_that_finishes_what_runs() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool, pool.worker() as worker:
        running = worker.submit(jobs.wait_at, gate.path)
        behind = worker.submit(jobs.pid)
        waiter = asyncio.create_task(pool.worker().__aenter__())
        visitor = await gate.visitor()
        close = await closing(pool, finish="running")
        for call in (behind, waiter):
            with pytest.raises(PoolClosedError):
                await call
        visitor.release()
        assert await running == "go"
        await close


async def test_a_roll_waits_for_it() -> None:
    async with patience(), Pool(2) as pool:
        await idle(pool)
        async with pool.worker(fresh=False) as worker:
            await worker.submit(remember, "mine")
            events = pool.events()
            roll = asyncio.create_task(pool.roll())
            await next_of(events, Exited)
            assert await worker.submit(recalled_and_pid) == ("mine", worker.pid)
            assert not roll.done()
        assert (await roll).replaced == 2
        await end_of(worker.pid)
        await assert_serves(pool)


async def test_worn_workers_are_replaced_when_it_is_over() -> None:
    limits = WorkerLimits(max_jobs=2, jitter=0)
    async with patience(), Pool(1, worker_limits=limits) as pool:
        async with pool.worker(fresh=False) as worker:
            for _ in range(5):
                assert await worker.submit(jobs.pid) == worker.pid
            assert pool.stats().spawned == 1
        await end_of(worker.pid)
        assert await pool.submit(jobs.pid) != worker.pid


async def test_a_call_that_retires_its_worker_ends_the_session() -> None:
    async with patience(), Pool(1) as pool:
        events = pool.events()
        async with pool.worker(fresh=False) as worker:
            await worker.submit(asyncpool.retire_worker)
            assert (await next_of(events, Retiring)).slot == worker.slot
            error = await gone_of(lambda: worker.submit(jobs.pid))
            assert (error.pid, error.crash, error.__cause__) == (worker.pid, None, None)
        assert await pool.submit(jobs.pid) != worker.pid
        assert pool.stats().crashes == 0


@pytest.mark.parametrize("how", ["retire", "kill"])
async def test_a_worker_that_is_to_go_by_order(how: str) -> None:
    async with patience(), Pool(1) as pool:
        async with pool.worker(fresh=False) as worker:
            pid = worker.pid
            await worker.submit(remember, "mine")
            getattr(pool, how)(worker.slot)
            if how == "retire":  # when the session is over
                assert await worker.submit(recalled_and_pid) == ("mine", pid)
            else:
                error = await gone_of(lambda: worker.submit(jobs.pid))
                assert (error.pid, error.crash) == (pid, None)
        await end_of(pid)
        assert await pool.submit(recall) is None
        assert pool.stats().crashes == 0


async def test_a_stream_that_is_left_ends_with_its_loop(pool: Pool) -> None:
    async with pool.worker(fresh=False) as worker:
        async for item in worker.options(prefetch=1).stream(values, 1 << 30):
            if item == 3:
                break
    assert await pool.submit(jobs.pid) == worker.pid


async def test_it_ends_with_its_loop() -> None:
    ends: list[BaseException] = []

    async def hold(pool: Pool, begun: asyncio.Event) -> None:
        try:
            async with pool.worker() as worker:
                await worker.submit(jobs.pid)
                begun.set()
                await asyncio.Event().wait()
        except BaseException as end:
            ends.append(end)
            raise

    async def main() -> None:
        pool, begun = Pool(2), asyncio.Event()
        await pool.start()
        holder = asyncio.create_task(hold(pool, begun))
        await begun.wait()
        assert not holder.done()

    async with patience():
        await asyncio.to_thread(asyncio.run, main())
    assert [type(end) for end in ends] == [asyncio.CancelledError]


# What cannot be.


async def test_its_calls_have_one_attempt_in_one_place(pool: Pool) -> None:
    wrong: list[dict[str, Any]] = [{"max_attempts": 2}, {"priority": 1}, {"key": "a"}]
    async with pool.worker(fresh=False) as worker:
        for options in wrong:
            expected = (
                f"{next(iter(options))} is no option of a worker to oneself: its calls run "
                "once, in this worker, in their order"
            )
            with pytest.raises(ValueError, match=f"^{expected}$"):
                pool.options(**options).worker()
            with pytest.raises(ValueError, match=f"^{expected}$"):
                worker.options(**options)


async def test_it_must_be_entered(faced: Faced) -> None:
    async with patience(), faced() as (pool, _):
        session = pool.worker()
        assert isinstance(session, WorkerSession)
        assert repr(session) == "<WorkerSession, not begun>"
        with pytest.raises(RuntimeError, match="has no worker: use 'async with'"):
            session.submit(jobs.pid)
        with pytest.raises(TypeError, match="submit"):
            session.submit(3)  # type: ignore[call-overload]
        with pytest.raises(TypeError, match="stream"):
            session.stream(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="timeout must be >= 0"):
            pool.worker(timeout=-1)
        for wrong in (None, "x", 1):
            with pytest.raises(TypeError, match="fresh must be True or False, not"):
                pool.worker(fresh=wrong)
    with pytest.raises(PoolClosedError):
        await Pool(1).worker().__aenter__()
