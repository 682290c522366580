"""Every way to hang in every phase of a worker's life, and who finds out.

As in ``test_faults.py``: whoever was hit gets exactly one error and it is the right one,
all others get their results, and the pool recovers.  Here it takes a limit of time to bring
it to light, and each phase has its own.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, Literal

import pytest

from asyncpool import (
    CloseSummary,
    Crash,
    Job,
    Pool,
    PoolBrokenError,
    PoolClosedError,
    RestartPolicy,
    RollResult,
    WorkerHungError,
    WorkerLimits,
)
from asyncpool.events import Retiring
from tests.helpers import faults, jobs
from tests.helpers.faults import HANGS, Fault
from tests.helpers.gate import Gate
from tests.helpers.inside import allow_silence, run_out
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, closing, idle, next_of, timeout_of, until

pytestmark = BOTH_LOOPS

# Long enough for a job to begin on a machine under load; where it has to, see run_out() and allow_silence().
SHORT = 0.5
LONG = 3600.0

every_hang = pytest.mark.parametrize("hang", HANGS, ids=lambda hang: hang.name)

# What no thread of the worker survives, so that it does not answer either.
total = pytest.mark.parametrize(
    "hang",
    [hang for hang in HANGS if hang.name in {"held gil", "stopped"}],
    ids=lambda hang: hang.name,
)


async def times_out(job: Job[Any]) -> None:
    error = await timeout_of(job)
    assert (error.limit, error.job_id) == ("timeout", job.id)


@every_hang
async def test_in_the_initializer(hang: Fault, tmp_path: Path) -> None:
    token = tmp_path / "token"
    crashes: list[Crash] = []

    def culprits() -> list[Crash]:
        # On a machine under load others may not be ready in time either.
        pid = token.read_text() if token.exists() else ""
        return [it for it in crashes if f"{it.pid}" == pid]

    async with (
        patience(),
        Pool(
            2,
            on_crash=crashes.append,
            initializer=faults.commit_first,
            initargs=(str(token), hang.name),
            start_timeout=2 * SHORT,
            restart_policy=RestartPolicy(max_failed_starts=None),
        ) as pool,
    ):
        assert await pool.submit(jobs.square, 7) == 49
        await until(pool, lambda _: bool(culprits()))
        await assert_serves(pool)
    [crash] = culprits()
    assert (crash.kind, crash.job_id) == ("failed start", None)
    assert (
        crash.detail
        == f"killed since it was not ready within {2 * SHORT:g} s (start_timeout)"
    )


@total
async def test_while_idle(hang: Fault, caplog: pytest.LogCaptureFixture) -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Gate() as gate,
        Pool(2, on_crash=crashes.append, ping_timeout=SHORT) as pool,
    ):
        await idle(pool)
        await pool.submit(faults.commit_later, gate.path, hang.name)
        visitor = await gate.visitor(hang.name)
        visitor.release()
        await until(pool, lambda stats: stats.crashes == 1)
        await visitor.gone()
        await assert_serves(pool)
    [crash] = crashes
    assert (crash.kind, crash.pid, crash.job_id) == ("hung", visitor.pid, None)
    [record] = [it for it in caplog.records if it.name == "asyncpool"]
    assert (record.stack_info or "") == crash.stack
    assert crash.detail.startswith(f"no answer to pings for {SHORT:g} s")
    assert ("the process is stopped" in crash.detail) is (hang.name == "stopped")


@every_hang
async def test_while_unpickling_an_argument(hang: Fault) -> None:
    async with patience(), Pool(2) as pool:
        view = pool.options(timeout=SHORT, cancel_grace=0.1)
        culprit = view.submit(jobs.call, len, faults.Trap(hang.name))
        others = [pool.submit(jobs.square, n) for n in range(20)]
        await times_out(culprit)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)


@every_hang
@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
async def test_while_running_longer_than_it_may(hang: Fault, on_cancel: Any) -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Gate() as gate,
        Pool(2, on_crash=crashes.append, cancel_grace=0.1) as pool,
    ):
        view = pool.options(timeout=LONG, on_cancel=on_cancel)
        culprit = view.submit(faults.commit_at, gate.path, hang.name)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        visitor = await gate.visitor(hang.name)
        visitor.release()
        run_out(pool, culprit, within=SHORT)
        await times_out(culprit)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)
        stats = pool.stats()
    assert (crashes, stats.crashes) == ([], 0), "it is no crash"


@every_hang
async def test_while_running_in_silence(hang: Fault) -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(2, on_crash=crashes.append) as pool:
        view = pool.options(heartbeat_timeout=LONG)
        culprit = view.submit(faults.commit_at, gate.path, hang.name)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        visitor = await gate.visitor(hang.name)
        visitor.release()
        allow_silence(pool, culprit, SHORT)
        with pytest.raises(WorkerHungError) as caught:
            await culprit
        await visitor.gone()
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)
    [crash] = crashes
    assert caught.value.crashes == (crash,)
    assert (crash.kind, crash.pid) == ("hung", visitor.pid)
    assert crash.detail.startswith(f"no heartbeat for {SHORT:g} s")
    assert crash.job_id == culprit.id


@every_hang
@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
@pytest.mark.parametrize("phase", ["unpickling", "running", "pickling"])
async def test_and_then_cancelled(phase: str, hang: Fault, on_cancel: Any) -> None:
    async with patience(), Gate() as gate, Pool(1, cancel_grace=0.1) as pool:
        view = pool.options(on_cancel=on_cancel)
        culprit: Job[Any]
        if phase == "unpickling":
            trap = faults.TrapAt(gate.path, hang.name)
            culprit = view.submit(jobs.take, trap)
        elif phase == "running":
            culprit = view.submit(faults.commit_at, gate.path, hang.name)
        else:
            culprit = view.submit(faults.make_bomb_at, gate.path, hang.name)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        visitor = await gate.visitor(hang.name)
        visitor.release()
        assert culprit.cancel()
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await visitor.gone()
        stats = pool.stats()
    assert (stats.crashes, stats.cancelled) == (0, 1)


@every_hang
async def test_while_pickling_the_result(hang: Fault) -> None:
    async with patience(), Pool(2) as pool:
        view = pool.options(timeout=SHORT, cancel_grace=0.1)
        culprit = view.submit(faults.make_bomb, hang.name)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        await times_out(culprit)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)


@every_hang
@pytest.mark.parametrize("size", [40, 120_000], ids=["small", "large"])
async def test_while_writing_the_result(hang: Fault, size: int) -> None:
    async with patience(), Pool(2) as pool:
        view = pool.options(timeout=SHORT, on_cancel="kill")
        culprit = view.submit(faults.commit_in_result, hang.name, size)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        await times_out(culprit)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)


@every_hang
async def test_while_the_pool_closes(hang: Fault) -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1)
        await pool.start()
        culprit = pool.submit(faults.commit_at, gate.path, hang.name)
        visitor = await gate.visitor(hang.name)
        close = await closing(pool, timeout=SHORT)
        visitor.release()
        with pytest.raises(PoolClosedError) as caught:
            await culprit
        assert caught.value.delivery == "started"
        assert await close == CloseSummary(finished=0, failed=1, killed=1)
        await visitor.gone()


@every_hang
async def test_while_it_is_to_leave(hang: Fault) -> None:
    crashes: list[Crash] = []
    limits = WorkerLimits(drain_timeout=SHORT)
    pool = Pool(1, worker_limits=limits, on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        culprit = pool.submit(faults.commit_at, gate.path, hang.name)
        visitor = await gate.visitor(hang.name)
        events = pool.events()
        roll = asyncio.create_task(pool.roll())
        assert (await next_of(events, Retiring)).reason == "roll"
        visitor.release()
        assert await roll == RollResult(replaced=1, reason="", crash=None)
        with pytest.raises(Exception, match="it was to leave"):
            await culprit
        await visitor.gone()
        await assert_serves(pool)
    assert [crash.pid for crash in crashes] == [visitor.pid]


@total
async def test_in_the_middle_of_a_roll(hang: Fault) -> None:
    """The other worker hangs; it is found, replaced, and the roll goes on."""
    async with patience(), Gate() as gate, Pool(2, ping_timeout=SHORT) as pool:
        job = pool.submit(jobs.wait_at, gate.path, "busy")
        busy = await gate.visitor("busy")
        culprit = pool.submit(faults.commit_at, gate.path, hang.name)
        visitor = await gate.visitor(hang.name)
        roll = asyncio.create_task(pool.roll())
        visitor.release()
        with pytest.raises(WorkerHungError):
            await culprit
        busy.release()
        assert await job == "go"
        assert (await roll).ok
        await assert_serves(pool)
        pids = {slot.pid for slot in pool.stats().slots}
        assert not pids & {busy.pid, visitor.pid}


async def test_a_crash_of_a_worker_that_retires_is_one_crash() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(1, on_crash=crashes.append) as pool:
        job = pool.submit(jobs.retire_at, gate.path)
        visitor = await gate.visitor()
        others = [pool.submit(jobs.pid) for _ in range(10)]
        assert visitor.pid not in await asyncio.gather(*others)
        os.kill(visitor.pid, signal.SIGKILL)
        with pytest.raises(Exception, match="SIGKILL"):
            await job
        await assert_serves(pool)
        stats = pool.stats()
    [crash] = crashes
    assert crash.next_step_text == "not replaced: there are enough other workers"
    assert (stats.crashes, stats.spawned) == (1, 2)


@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_an_import_that_hangs_is_shown(
    launcher: Literal["forkserver", "spawn"],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With forkserver it hangs in the launcher, with spawn in each worker."""
    (tmp_path / "hung.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.syspath_prepend(tmp_path)
    pool = Pool(
        1,
        launcher=launcher,
        preload=["hung"],
        start_timeout=5.0,  # on a machine under load
        restart_policy=RestartPolicy(max_failed_starts=1),
    )
    async with patience():
        with pytest.raises(PoolBrokenError, match=r"start_timeout") as caught:
            await pool.start()
    crash = caught.value.crashes[-1]
    where = f'File "{tmp_path}/hung.py", line 2 in <module>'
    assert where in crash.stack.splitlines()[1]
    assert where in str(caught.value)
