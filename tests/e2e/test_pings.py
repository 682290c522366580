"""Pings: workers that do not answer are found and replaced, all others left in peace."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool, WorkerCrashedError, WorkerHungError
from asyncpool.events import Crashed
from tests.helpers import beats, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    FrameKind,
    block_until_pong,
    core_of,
    handle_of,
    heard_before,
    heartbeats_awaited,
    ping_now,
    pinged,
    pinged_before,
    pings_of,
    spy_on_words,
    timing,
    wait_for_stacks,
    watching,
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


@pytest.mark.parametrize(
    ("work", "line"),
    [(jobs.hold_the_gil, "in hold_the_gil"), (jobs.backtrack, "in backtrack")],
)
async def test_a_job_that_holds_the_gil_for_ever_is_found(
    work: Callable[[str, str], Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_for_stacks(monkeypatch)
    async with patience(), Gate() as gate, Pool(1, ping_timeout=SHORT) as pool:
        with pytest.raises(WorkerHungError) as caught:
            await pool.submit(work, gate.path, "")
        assert line in caught.value.stack
        assert caught.value.crashes[-1].detail == "no answer to pings for 0.4 s"
        await assert_serves(pool)


@pytest.mark.parametrize("work", [jobs.compute, jobs.sleep, beats.deadlock])
async def test_a_job_that_takes_long_is_not_disturbed(
    work: Callable[[str, str], Any],
) -> None:
    # If its main thread is busy or stuck, that is the job's own affair.
    async with patience(), Gate() as gate, Pool(2, ping_timeout=SHORT) as pool:
        job = pool.submit(work, gate.path, "long")
        visitor = await gate.visitor("long")
        for _ in range(3):  # so much time passes
            with pytest.raises(WorkerHungError):
                await pool.submit(jobs.hold_the_gil, gate.path, "")
        assert (job.state, job.worker_pid) == ("running", visitor.pid)
        assert pool.stats().crashes == 3
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
        handle_of(pool).catch_up = lambda: None  # type: ignore[method-assign]
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
    ask = handle.ask

    def spied(kind: FrameKind, payload: bytes = b"", *fields: int) -> None:
        ask(kind, payload, *fields)
        if kind is FrameKind.PING:
            asked.set()

    handle.ask = spied  # type: ignore[method-assign]
    return asked


async def test_workers_that_start_or_stop_have_times_of_their_own() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(
            1, ping_timeout=SHORT / 4, initializer=jobs.wait_at, initargs=[gate.path]
        )
        starting = asyncio.create_task(pool.start())
        visitor = await gate.visitor()
        os.kill(visitor.pid, signal.SIGSTOP)
        async with Pool(1, ping_timeout=SHORT) as other:
            with pytest.raises(WorkerHungError):
                await other.submit(jobs.hold_the_gil, gate.path, "")  # so much time
        os.kill(visitor.pid, signal.SIGCONT)
        visitor.release()
        await starting
        assert await pool.submit(jobs.pid) == visitor.pid
        await pool.close()


async def test_without_a_timeout_there_are_no_pings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said = spy_on_words(monkeypatch)
    async with patience(), Gate() as gate:
        async with (
            Pool(1, ping_timeout=None) as pool,
            Pool(1, ping_timeout=SHORT) as other,
        ):
            await idle(pool)
            pid = await pool.submit(jobs.pid)
            with pytest.raises(WorkerHungError):
                await other.submit(jobs.hold_the_gil, gate.path, "")
            assert FrameKind.PING in said
            said.clear()
            await other.close()
            os.kill(pid, signal.SIGSTOP)
            os.kill(pid, signal.SIGCONT)
            await assert_serves(pool)
        assert FrameKind.PING not in said


@pytest.mark.parametrize("allowed", [None, LONG])
async def test_an_answer_that_nobody_has_asked_for_is_an_offence(
    allowed: float | None,
) -> None:
    async with patience(), Pool(1, ping_timeout=allowed) as pool:
        with pytest.raises(WorkerCrashedError, match="it answered a ping") as caught:
            await pool.submit(beats.pong)
        assert caught.value.kind == "protocol"
        await assert_serves(pool)


async def test_an_idle_pool_has_one_timer() -> None:
    async with patience(), Pool(4) as pool:
        await idle(pool)
        assert pings_of(pool) is not None, "that is the one"
        assert core_of(pool).next_deadline() is None
        assert not watching(pool)
        assert not timing(pool)
        assert heartbeats_awaited(pool) == 0
