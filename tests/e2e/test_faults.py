"""Every fault in every phase of a worker's life, with real processes.

In each cell: whoever was hit gets exactly one error and it is the right one, all
others get their results, the pool recovers, and ``on_crash`` hears of each unplanned
death once.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool, PoolStats, RestartPolicy
from asyncpool.enums import CrashKind
from asyncpool.errors import PoolBrokenError, PoolClosedError, WorkerOutOfMemoryError
from tests.helpers import faults, jobs
from tests.helpers.faults import DEATHS, FAULTS, Fault, by_name
from tests.helpers.gate import Gate
from tests.helpers.inside import break_core, crashes_of, live_in_cgroup
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    assert_told,
    case,
    closing,
    crash_of,
    idle,
    started,
    until,
)

pytestmark = ONE_LOOP


def but(*slow: str) -> list[Fault]:
    """Return every fault but those that only time brings to light."""
    return [fault for fault in FAULTS if fault.name not in slow]


async def test_in_the_initializer(tmp_path: Path) -> None:
    await _starts_fail(but("shut channel"), faults.commit_next, tmp_path)


async def test_in_the_handshake(tmp_path: Path) -> None:
    on_control = "half a frame on control", "garbage on control"
    found = [*DEATHS[::2], *map(by_name, on_control)]
    await _starts_fail(found, faults.commit_next_at_hello, tmp_path)


async def _starts_fail(
    found: Sequence[Fault],
    initializer: Callable[[str, Sequence[str]], None],
    tmp_path: Path,
) -> None:
    """Have a start fail by each fault."""
    crashes: list[Crash] = []
    async with (
        patience(2),
        Pool(
            2,
            on_crash=crashes.append,
            initializer=initializer,
            initargs=(str(tmp_path), [fault.name for fault in found]),
            restart_policy=RestartPolicy(
                initial_delay=0.001, max_delay=0.002, max_failed_starts=None
            ),
        ) as pool,
    ):
        assert await pool.submit(jobs.square, 7) == 49
        await until(pool, partial(has_lost, len(found)))
        await assert_serves(pool)
        stats = pool.stats()
    by_pid = {crash.pid: crash for crash in crashes}
    for fault in found:
        with case(fault.name):
            crash = by_pid.pop(int((tmp_path / fault.name).read_text()))
            broke_protocol = fault.kind == CrashKind.PROTOCOL
            kind = CrashKind.PROTOCOL if broke_protocol else CrashKind.FAILED_START
            assert_told(crash, fault, kind=kind)
            assert (crash.job_id, crash.attempt) == (None, 0)
    counts = stats.crashes, stats.restarts, stats.failed
    assert counts == (len(found), len(found), 0)


@asynccontextmanager
async def pool_of_two() -> AsyncGenerator[tuple[Pool, Gate, list[Crash]]]:
    """Yield a pool that goes through one fault after the other, a gate, and its crashes."""
    crashes: list[Crash] = []
    pool = Pool(2, on_crash=crashes.append)
    async with patience(3), Gate() as gate, pool:
        yield pool, gate, crashes
        stats = pool.stats()
    assert (stats.crashes, stats.restarts) == (len(crashes),) * 2


def has_lost(number: int, stats: PoolStats) -> bool:
    return stats.crashes == number


async def test_while_idle() -> None:
    async with pool_of_two() as (pool, gate, crashes):
        for number, fault in enumerate(but("closed descriptors"), 1):
            with case(fault.name):
                await idle(pool)
                await pool.submit(faults.commit_later, gate.path, fault.name)
                visitor = await gate.visitor(fault.name)
                visitor.release()
                await until(pool, partial(has_lost, number))
                await assert_serves(pool)
                # An idle worker takes it for the pool's wish.
                wish = Fault(fault.name, fault.commit, exit_code=0)
                told = wish if fault.name == "shut channel" else fault
                assert_told(crashes[-1], told)
                assert (len(crashes), crashes[-1].pid) == (number, visitor.pid)


async def test_an_idle_worker_that_has_closed_its_channels_costs_one_job() -> None:
    """Nothing shows before the worker wants to answer."""
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(1, on_crash=crashes.append) as pool:
        await pool.submit(faults.commit_later, gate.path, "closed descriptors")
        visitor = await gate.visitor("closed descriptors")
        visitor.release()
        await visitor.gone()
        fault = Fault("closed", faults.close_everything, exit_code=1, tail="Bad file")
        await crash_of(pool.submit(jobs.square, 1), fault)
        await assert_serves(pool)
    assert [crash.pid for crash in crashes] == [visitor.pid]


async def test_while_running() -> None:
    """One of two workers is hit; for other phases see ``test_faults_in_flight.py``."""
    async with pool_of_two() as (pool, gate, crashes):
        for number, fault in enumerate(FAULTS, 1):
            with case(fault.name):
                culprit = pool.submit(faults.commit_at, gate.path, fault.name)
                others = [pool.submit(jobs.square, n) for n in range(20)]
                visitor = await gate.visitor(fault.name)
                assert culprit.worker_pid == visitor.pid
                visitor.release()
                crash = await crash_of(culprit, fault)
                assert crash.pid == visitor.pid
                assert await asyncio.gather(*others) == [n * n for n in range(20)]
                await assert_serves(pool)
                assert (crashes[-1], len(crashes)) == (crash, number)
                assert pool.stats().failed == number


async def test_while_closing() -> None:
    """Each in a worker of its own, all of which are asked to end at once."""
    crashes: list[Crash] = []
    found = but("closed descriptors", "a job that it has not")
    async with patience(2):
        pool = await started(len(found), on_crash=crashes.append)
        async with AsyncExitStack() as stack:
            for fault in found:
                session = pool.worker(fresh=False)
                worker = await stack.enter_async_context(session)
                await worker.submit(faults.commit_at_exit, fault.name)
        summary = await pool.close()
    assert (summary.finished, summary.failed) == (0, 0)
    assert crashes == []
    assert pool.stats().spawned == len(found)


async def test_with_workers_that_are_fresh_interpreters() -> None:
    crashes: list[Crash] = []
    pool = Pool(2, launcher="spawn", on_crash=crashes.append)
    async with patience(), pool:
        for fault in DEATHS:
            await crash_of(pool.submit(faults.commit, fault.name), fault)
        await assert_serves(pool)
    assert len(crashes) == len(DEATHS)


# Faults that do not end a worker, or not at once, or not by its own hand.
FROM_OUTSIDE = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGHUP)


async def test_every_worker_is_killed_from_outside() -> None:
    crashes: list[Crash] = []
    pool = Pool(3, on_crash=crashes.append, ready="all")
    async with patience(2), Gate() as gate, pool:
        for number in FROM_OUTSIDE:
            word = number.name
            lost = [pool.submit(jobs.wait_at, gate.path, word) for _ in range(2)]
            others = [pool.submit(jobs.square, n) for n in range(40)]
            busy = {(await gate.visitor(word, nth)).pid for nth in (1, 2)}
            assert await asyncio.gather(*others) == [n * n for n in range(40)]
            before = {slot.pid for slot in pool.stats().slots}
            crashes.clear()
            for pid in before:
                assert pid is not None
                os.kill(pid, number)
            fault = Fault(word, lambda: None, signal=word)
            assert {(await crash_of(job, fault)).pid for job in lost} == busy
            await until(pool, lambda _: len(crashes) == 3)
            await assert_serves(pool)
            for crash in crashes:
                assert_told(crash, fault)
            assert {crash.pid for crash in crashes} == before
            assert sorted(crash.slot for crash in crashes) == [0, 1, 2]


async def test_workers_that_the_kernel_kills_together_all_lacked_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter, crashes = tmp_path / "memory.events", list[Crash]()
    counter.write_text("oom_kill 0\n")
    live_in_cgroup(monkeypatch, tmp_path)
    async with patience(), Gate() as gate, Pool(3, on_crash=crashes.append) as pool:
        again = pool.options(max_attempts=2)
        lost = [again.submit(jobs.wait_at, gate.path) for _ in range(3)]
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2, 3)]
        counter.write_text("oom_kill 3\n")
        for visitor in visitors:
            os.kill(visitor.pid, signal.SIGKILL)
        for job in lost:
            with pytest.raises(WorkerOutOfMemoryError):
                await job
        [slot, *_] = (await idle(pool)).slots
        assert slot.pid is not None
        os.kill(slot.pid, signal.SIGKILL)
        await until(pool, lambda stats: stats.crashes == 4)
        await assert_serves(pool)
    assert [crash.kind for crash in crashes] == ["out of memory"] * 3 + ["crash"]


async def test_a_stopped_idle_worker_costs_one_job_and_no_more() -> None:
    crashes: list[Crash] = []
    async with patience():
        pool = await started(2, on_crash=crashes.append)
        stats = await idle(pool)
        stopped = stats.slots[0].pid
        assert stopped is not None
        os.kill(stopped, signal.SIGSTOP)
        # Of a function of which nothing is known, so nothing is sent to wait behind it.
        lost: Job[int] = pool.submit(jobs.square, 1)
        if lost.worker_pid != stopped:
            await lost
            first = pool.submit(jobs.wait_at, "/nowhere")
            lost = pool.submit(jobs.pid)
            with pytest.raises(OSError, match="No such file"):
                await first
        assert lost.worker_pid == stopped
        others = [pool.submit(jobs.square, n) for n in range(50)]
        assert await asyncio.gather(*others) == [n * n for n in range(50)]
        summary = await pool.close(timeout=0.2)
        with pytest.raises(PoolClosedError) as caught:
            await lost
    assert (caught.value.job_id, caught.value.delivery) == (lost.id, "sent")
    assert (summary.finished, summary.failed, summary.killed) == (0, 1, 1)
    assert crashes == []


async def test_a_death_after_its_outcome_was_written_costs_no_job() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(1, on_crash=crashes.append) as pool:
        # It dies behind the gate, after the value and before anything is read.
        job = pool.submit(faults.answer_and_die, gate.path)
        visitor = await gate.visitor()
        visitor.release()
        await visitor.gone()
        assert await job == "answered"
        await assert_serves(pool)
    assert [crash.exit_code for crash in crashes] == [3]
    assert crashes[0].job_id is None


async def test_a_call_that_a_dying_worker_never_read_is_not_lost() -> None:
    crashes: list[Crash] = []
    # What is large then goes through the channel.
    pool = Pool(1, on_crash=crashes.append, max_shared_memory=0)
    async with patience(), pool:
        pid = await pool.submit(jobs.pid)
        os.kill(pid, signal.SIGSTOP)
        # Too large for the channel: a part of it stays here.
        large = pool.submit(len, bytes(8_000_000))
        while large.worker_pid is None:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0)
        assert (large.worker_pid, large.attempt) == (pid, 1)
        os.kill(pid, signal.SIGKILL)
        assert await large == 8_000_000
        assert large.attempt == 1
        small = pool.submit(jobs.square, 3)
        assert await small == 9
        stats = pool.stats()
    # It was not running it, so it is not to blame for it either.
    assert [crash.job_id for crash in crashes] == [None]
    assert [crash.pid for crash in crashes_of(large)] == [pid]
    assert (stats.takeovers, stats.failed) == (1, 0)


async def test_jobs_that_flood_their_output_disturb_nobody() -> None:
    size = 1_000_000
    async with patience(), Gate() as gate:
        pool = await started(3)
        floods = [pool.submit(jobs.flood, stream, size) for stream in (1, 2)]
        others = [pool.submit(jobs.square, n) for n in range(100)]
        assert await asyncio.gather(*others) == [n * n for n in range(100)]
        assert await asyncio.gather(*floods) == [size, size]
        assert pool.stats().crashes == 0
        # Nor do they keep the pool from closing.
        endless: list[Job[Any]] = [
            pool.submit(jobs.flood_without_end, gate.path, stream) for stream in (1, 2)
        ]
        await gate.visitor("flood", nth=2)
        assert (await pool.close(finish="none")).failed == 2
        outcomes = await asyncio.gather(*endless, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PoolClosedError] * 2


async def test_a_job_that_forks_answers_once() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(1, on_crash=crashes.append) as pool:
        pid = await pool.submit(jobs.pid)
        for _ in range(3):
            assert await pool.submit(jobs.fork_and_return, gate.path) == "worker"
            assert await pool.submit(jobs.pid) == pid
        await (await gate.visitor("copy", nth=3)).gone()
    assert crashes == []


async def test_an_exception_in_a_thread_costs_the_worker_and_not_its_job() -> None:
    crashes: list[Crash] = []
    pool = Pool(2, on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        assert await pool.submit(jobs.raise_in_thread, "lost") == "lost"
        await until(pool, lambda stats: stats.crashes == 1)
        await assert_serves(pool)
        # Also when it is idle.
        await pool.submit(faults.raise_later, gate.path)
        visitor = await gate.visitor()
        visitor.release()
        await visitor.gone()
        await until(pool, lambda stats: stats.crashes == 2)
        await assert_serves(pool)
    crash, other = crashes
    assert other.pid == visitor.pid
    assert "LookupError in thread 'helper': lost" in crash.detail
    assert (crash.kind, crash.signal, crash.job_id) == ("crash", "SIGKILL", None)
    assert any("LookupError: lost" in line for line in crash.stderr_tail)
    assert crash.stack.startswith("Traceback (most recent call last):\n")
    assert "in raise_in_thread" not in crash.stack, "that is another thread"
    assert ", in body\n" in crash.stack
    assert crash.stack.endswith("LookupError: lost\n")


async def test_an_initializer_that_raises_tells_where() -> None:
    pool = Pool(1, initializer=jobs.throw, initargs=(LookupError("no such thing"),))
    async with patience():
        with pytest.raises(PoolBrokenError) as caught:
            await pool.start()
    crash = caught.value.crashes[-1]
    assert crash.detail == "initializer failed: LookupError: no such thing"
    first, where, *_, last = crash.stack.splitlines()
    assert first == "Traceback (most recent call last):"
    assert where.endswith(", in throw")
    assert last == "LookupError: no such thing"


async def test_what_a_job_has_started_dies_with_its_worker() -> None:
    pool = Pool(2, on_cancel="kill")
    async with patience(), Gate() as gate, pool:
        for nth, new_session in enumerate((False, True), 1):
            job = pool.submit(
                jobs.start_program_and_wait,
                gate.path,
                "program",
                new_session=new_session,
            )
            program = await gate.visitor("program", nth)
            parent = await gate.visitor("program's parent", nth)
            assert program.pid != parent.pid
            os.kill(parent.pid, signal.SIGKILL)
            await crash_of(job, by_name("SIGKILL"))
            await program.gone()
        # A daemon, too, when its job is cancelled.
        demon = pool.submit(jobs.daemonize, gate.path, "daemon")
        daemon = await gate.visitor("daemon")
        demon.cancel()
        await daemon.gone()
        await assert_serves(pool)


async def test_what_a_job_has_left_behind_is_gone_when_the_pool_is_closed() -> None:
    async with patience(), Gate() as gate:
        async with Pool(2) as pool:
            await pool.submit(jobs.start_thread, gate.path, "thread")
            for word in ("group", "session"):
                await pool.submit(
                    jobs.start_program, gate.path, word, new_session=word == "session"
                )
            visitors = [
                await gate.visitor(word) for word in ("thread", "group", "session")
            ]
        for visitor in visitors:
            await visitor.gone()


async def test_errors_of_the_interpreter_are_the_jobs_own(pool: Pool) -> None:
    pid = await pool.submit(jobs.pid)
    assert await pool.submit(jobs.finish_threads) == sum(n * n for n in range(8))
    with pytest.raises(RecursionError):
        await pool.submit(jobs.recurse)
    with pytest.raises(MemoryError):
        await pool.submit(jobs.exhaust_memory)
    assert await pool.submit(jobs.pid) == pid


async def test_a_death_and_a_close_at_the_same_moment() -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
        culprit = pool.submit(faults.commit_at, gate.path, "exit 3")
        queued = pool.submit(jobs.square, 4)
        (await gate.visitor("exit 3")).release()
        close = await closing(pool, finish="running")
        await crash_of(culprit, by_name("exit 3"))
        with pytest.raises(PoolClosedError):
            await queued
        assert (await close).failed == 2


@pytest.mark.logs("supervisor-failed")
async def test_a_bug_in_the_pool_ends_it_and_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Gate() as gate, Pool(2, ready="all") as pool:
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        break_core(pool, LookupError("a bug"))
        dying: Job[Any] = pool.submit(os._exit, 3)
        for job in (running, dying):
            with pytest.raises(PoolClosedError, match="the supervisor failed"):
                await job
        await visitor.gone()
    assert "LookupError: a bug" in caplog.text
