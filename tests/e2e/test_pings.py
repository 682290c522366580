"""Pings: workers that do not answer are found and replaced, all others left in peace."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool
from asyncpool.errors import WorkerHungError
from asyncpool.events import Crashed
from tests.helpers import beats, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    FrameKind,
    block_until_pong,
    handle_of,
    heard_before,
    ping_now,
    pinged,
    pinged_before,
    wait_for_stacks,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, idle, next_of

pytestmark = BOTH_LOOPS

SHORT = 0.4
LONG = 3600.0


async def next_crash(pool: Pool) -> Crash:
    return (await next_of(pool.events(), Crashed)).crash


async def test_a_stopped_idle_worker_is_replaced() -> None:
    async with patience(), Pool(2, ping_timeout=SHORT) as pool:
        pid = (await idle(pool)).slots[0].pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        crash = await next_crash(pool)
        assert (crash.pid, crash.kind, crash.signal) == (pid, "hung", "SIGKILL")
        assert (crash.job_id, crash.attempt, crash.stack) == (None, 0, "")
        assert crash.detail == "no answer to pings for 0.4 s; the process is stopped"
        assert crash.next_step_text == "restarting at once"
        await assert_serves(pool)
        assert pool.stats().crashes == 1


async def test_the_job_of_a_stopped_worker_is_taken_over() -> None:
    async with patience(), Gate() as gate, Pool(1, ping_timeout=SHORT) as pool:
        view = pool.options(max_attempts=2)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        os.kill((await gate.visitor("attempt 1")).pid, signal.SIGSTOP)
        (await gate.visitor("attempt 2")).release()
        assert await job == "go"
        assert (pool.stats().crashes, pool.stats().takeovers) == (1, 1)


async def test_a_job_that_holds_the_gil_for_ever_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait_for_stacks(monkeypatch)
    async with patience(), Gate() as gate, Pool(1, ping_timeout=SHORT) as pool:
        for work in (jobs.hold_the_gil, jobs.backtrack):
            with pytest.raises(WorkerHungError) as caught:
                await pool.submit(work, gate.path, "")
            assert f"in {work.__name__}" in caught.value.stack
            assert caught.value.crashes[-1].detail == "no answer to pings for 0.4 s"
            await assert_serves(pool)


async def test_a_job_that_takes_long_is_not_disturbed() -> None:
    # If its main thread is busy or stuck, that is the job's own affair.
    async with patience(), Gate() as gate, Pool(4, ping_timeout=SHORT) as pool:
        works: list[Any] = [jobs.compute, jobs.sleep, beats.deadlock]
        long = [pool.submit(work, gate.path, work.__name__) for work in works]
        pids = [(await gate.visitor(work.__name__)).pid for work in works]
        for _ in range(3):  # so much time passes
            with pytest.raises(WorkerHungError):
                await pool.submit(jobs.hold_the_gil, gate.path, "")
        assert [(job.state, job.worker_pid) for job in long] == [
            ("running", pid) for pid in pids
        ]
        assert pool.stats().crashes == 3
        for job in long:
            job.cancel()


async def test_who_is_kept_waiting_by_slow_handlers_is_not_silent() -> None:
    # The answer is behind hundreds of records, which take longer than the timeout.
    class Slow(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            assert record.name == "tests.flood"
            until = time.perf_counter() + 0.005
            while time.perf_counter() < until:
                pass

    logger, handler = logging.getLogger("tests.flood"), Slow()
    logger.addHandler(handler)
    logger.propagate = False
    try:
        async with patience(), Gate() as gate, Pool(2, ping_timeout=SHORT) as pool:
            job: Job[Any] = pool.submit(beats.log_without_end, gate.path, "flood")
            visitor = await gate.visitor("flood")
            for _ in range(3):  # so much time passes
                with pytest.raises(WorkerHungError):
                    await pool.submit(jobs.hold_the_gil, gate.path, "")
            assert (job.state, job.worker_pid) == ("running", visitor.pid)
            job.cancel()
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


async def test_a_service_that_does_not_listen_condemns_nobody() -> None:
    async with patience(), Pool(2, ping_timeout=SHORT) as pool:
        events = pool.events()
        before = await idle(pool)
        asked = spy_on_pings(pool)
        await asked.wait()  # and their answers are not read meanwhile
        until = time.monotonic() + 3 * SHORT
        while time.monotonic() < until:
            pass
        for _ in range(2):
            asked.clear()
            await asked.wait()
        assert [slot.pid for slot in pool.stats().slots] == [
            slot.pid for slot in before.slots
        ]
    assert not [e async for e in events if isinstance(e, Crashed)]


async def test_an_answer_that_was_not_read_yet_counts() -> None:
    async with patience(), Pool(1, ping_timeout=LONG) as pool:
        await idle(pool)
        ping_now(pool)
        assert pinged(pool) == {handle_of(pool)}
        pinged_before(pool, LONG)
        block_until_pong(pool)
        ping_now(pool)
        assert pool.stats().crashes == 0
        await assert_serves(pool)
        assert pool.stats().spawned == 1


async def test_an_answer_that_comes_too_late_is_no_offence() -> None:
    async with patience(), Pool(1, ping_timeout=LONG) as pool:
        await idle(pool)
        handle_of(pool).control_channel.read = lambda: 0  # type: ignore[method-assign]
        ping_now(pool)
        pinged_before(pool, LONG)
        heard_before(pool, LONG)
        ping_now(pool)  # and its answer is read only now
        assert (await next_crash(pool)).kind == "hung"
        await assert_serves(pool)


def spy_on_pings(pool: Pool) -> asyncio.Event:
    """Return what is set whenever the first worker gets a ping."""
    asked = asyncio.Event()
    handle = handle_of(pool)
    ask = handle.send_control

    def spied(kind: FrameKind, payload: bytes = b"", *fields: int) -> None:
        ask(kind, payload, *fields)
        if kind is FrameKind.PING:
            asked.set()

    handle.send_control = spied  # type: ignore[method-assign]
    return asked


async def test_workers_that_start_have_times_of_their_own_and_some_pools_no_pings() -> (
    None
):
    async with patience(), Gate() as gate, Pool(1, ping_timeout=None) as silent:
        starting: dict[str, Any] = {
            "initializer": jobs.wait_at,
            "initargs": [gate.path],
        }
        pool = Pool(1, ping_timeout=SHORT / 4, **starting)
        start = asyncio.create_task(pool.start())
        visitor = await gate.visitor()
        stopped = visitor.pid, await silent.submit(jobs.pid)
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        async with Pool(1, ping_timeout=SHORT) as other:
            with pytest.raises(WorkerHungError):
                await other.submit(jobs.hold_the_gil, gate.path, "")  # so much time
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
        visitor.release()
        await start
        for it, pid in zip((pool, silent), stopped, strict=True):
            assert await it.submit(jobs.pid) == pid
        await pool.close()
