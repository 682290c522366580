"""Faults that do not end a worker, or not at once, or not by its own hand."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    Crash,
    Job,
    Pool,
    PoolBrokenError,
    PoolClosedError,
    WorkerOutOfMemoryError,
)
from asyncpool.enums import CrashKind
from tests.helpers import faults, jobs
from tests.helpers.faults import Fault, by_name
from tests.helpers.gate import Gate
from tests.helpers.inside import break_core, crashes_of, live_in_cgroup
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    assert_told,
    closing,
    crash_of,
    idle,
    until,
)

pytestmark = ONE_LOOP

FROM_OUTSIDE = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT, signal.SIGHUP)


@pytest.mark.parametrize("number", FROM_OUTSIDE, ids=lambda number: number.name)
async def test_every_worker_is_killed_from_outside(number: signal.Signals) -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(3, on_crash=crashes.append) as pool:
        before = await idle(pool)
        for slot in before.slots:
            assert slot.pid is not None
            os.kill(slot.pid, number)
        await until(pool, lambda stats: stats.crashes == 3)
        await assert_serves(pool)
    fault = Fault(number.name, lambda: None, signal=number.name)
    for crash in crashes:
        assert_told(crash, fault)
    assert {crash.pid for crash in crashes} == {slot.pid for slot in before.slots}
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
        pool = Pool(2, on_crash=crashes.append)
        await pool.start()
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


async def test_a_worker_that_stops_while_starting_is_replaced_in_time(
    tmp_path: os.PathLike[str],
) -> None:
    crashes: list[Crash] = []
    token = os.path.join(tmp_path, "token")
    async with (
        patience(),
        Pool(
            2,
            on_crash=crashes.append,
            initializer=faults.stop_first,
            initargs=(token,),
            start_timeout=1.5,
        ) as pool,
    ):
        # A machine that is busy with something else may cost a second one its start.
        await until(pool, lambda _: faults.stopped_by(token) in pids(crashes))
        await assert_serves(pool)
    fault = Fault("stop", lambda: None, signal="SIGKILL", detail="within 1.5 s")
    for crash in crashes:
        assert_told(crash, fault, kind=CrashKind.FAILED_START)


def pids(crashes: list[Crash]) -> list[int | None]:
    return [crash.pid for crash in crashes]


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
    async with patience(), Pool(3) as pool:
        floods = [pool.submit(jobs.flood, stream, size) for stream in (1, 2)]
        others = [pool.submit(jobs.square, n) for n in range(100)]
        assert await asyncio.gather(*others) == [n * n for n in range(100)]
        assert await asyncio.gather(*floods) == [size, size]
        assert pool.stats().crashes == 0


async def test_a_flood_does_not_keep_the_pool_from_closing() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2)
        await pool.start()
        floods: list[Job[Any]] = [
            pool.submit(jobs.flood_without_end, gate.path, stream) for stream in (1, 2)
        ]
        await gate.visitor("flood", nth=2)
        summary = await pool.close(finish="none")
        outcomes = await asyncio.gather(*floods, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [PoolClosedError] * 2
    assert (summary.finished, summary.failed) == (0, 2)


async def test_a_job_that_forks_answers_once() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(1, on_crash=crashes.append) as pool:
        pid = await pool.submit(jobs.pid)
        for _ in range(3):
            assert await pool.submit(jobs.fork_and_return, gate.path) == "worker"
            assert await pool.submit(jobs.pid) == pid
        await (await gate.visitor("copy", nth=3)).gone()
    assert crashes == []


async def test_a_job_may_use_threads(pair: Pool) -> None:
    assert await pair.submit(jobs.finish_threads) == sum(n * n for n in range(8))
    stats = pair.stats()
    assert stats.crashes == 0


async def test_an_exception_in_a_thread_costs_the_worker_and_not_its_job() -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        assert await pool.submit(jobs.raise_in_thread, "lost") == "lost"
        await until(pool, lambda stats: stats.crashes == 1)
        await assert_serves(pool)
    [crash] = crashes
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


async def test_an_exception_in_a_thread_of_an_idle_worker_has_it_replaced() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(2, on_crash=crashes.append) as pool:
        await pool.submit(faults.raise_later, gate.path)
        visitor = await gate.visitor()
        visitor.release()
        await visitor.gone()
        await until(pool, lambda stats: stats.crashes == 1)
        await assert_serves(pool)
    assert [crash.pid for crash in crashes] == [visitor.pid]


@pytest.mark.parametrize("new_session", [False, True])
async def test_what_a_job_has_started_dies_with_its_worker(
    *, new_session: bool
) -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        job = pool.submit(
            jobs.start_program_and_wait, gate.path, "program", new_session=new_session
        )
        program = await gate.visitor("program")
        parent = await gate.visitor("program's parent")
        assert program.pid != parent.pid
        os.kill(parent.pid, signal.SIGKILL)
        await crash_of(job, by_name("SIGKILL"))
        await program.gone()
        await assert_serves(pool)


async def test_a_daemon_of_a_job_dies_with_its_worker() -> None:
    async with patience(), Gate() as gate, Pool(2, on_cancel="kill") as pool:
        job = pool.submit(jobs.daemonize, gate.path, "daemon")
        daemon = await gate.visitor("daemon")
        job.cancel()
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
    with pytest.raises(RecursionError):
        await pool.submit(jobs.recurse)
    with pytest.raises(MemoryError):
        await pool.submit(jobs.exhaust_memory)
    assert await pool.submit(jobs.pid) == pid


async def test_two_workers_that_die_together_cost_two_jobs() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(4, on_crash=crashes.append) as pool:
        kill = by_name("SIGKILL")
        culprits = [
            pool.submit(faults.commit_at, gate.path, kill.name) for _ in range(4)
        ]
        others = [pool.submit(jobs.square, n) for n in range(40)]
        for nth in range(1, 5):
            (await gate.visitor(kill.name, nth)).release()
        for culprit in culprits:
            await crash_of(culprit, kill)
        assert await asyncio.gather(*others) == [n * n for n in range(40)]
        await assert_serves(pool)
    assert len(crashes) == 4


async def test_a_death_and_a_close_at_the_same_moment() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1)
        await pool.start()
        culprit = pool.submit(faults.commit_at, gate.path, "exit 3")
        queued = pool.submit(jobs.square, 4)
        (await gate.visitor("exit 3")).release()
        close = await closing(pool, finish="running")
        await crash_of(culprit, by_name("exit 3"))
        with pytest.raises(PoolClosedError):
            await queued
        assert (await close).failed == 2


async def test_a_bug_in_the_pool_ends_it_and_leaves_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        await idle(pool)
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        break_core(pool, LookupError("a bug"))
        dying: Job[Any] = pool.submit(os._exit, 3)
        for job in (running, dying):
            with pytest.raises(PoolClosedError, match="the supervisor failed"):
                await job
        await visitor.gone()
    assert "LookupError: a bug" in caplog.text
