"""Every way to hang in every phase of a worker's life, and who finds out.

As in ``test_faults.py``: whoever was hit gets exactly one error and it is the right one,
all others get their results, and the pool recovers.  Here it takes a limit of time to bring
it to light, and each phase has its own.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any, Literal, TypeAlias

import pytest

from asyncpool import (
    CloseSummary,
    Crash,
    Job,
    Pool,
    RestartPolicy,
    RollResult,
    WorkerLimits,
)
from asyncpool.errors import PoolBrokenError, PoolClosedError, WorkerHungError
from asyncpool.events import Retiring
from tests.helpers import faults, jobs
from tests.helpers.faults import HANGS, Fault
from tests.helpers.gate import Gate
from tests.helpers.inside import run_out
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    case,
    closing,
    next_of,
    started,
    timeout_of,
    until,
)

pytestmark = BOTH_LOOPS

# Long enough for a job to begin on a machine under load; where it has to, see run_out().
SHORT = 0.5
LONG = 3600.0

Call: TypeAlias = tuple[Any, ...]

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
    pool = Pool(2, on_crash=crashes.append, ping_timeout=SHORT, ready="all")
    async with patience(), Gate() as gate, pool:
        await pool.submit(faults.commit_later, gate.path, hang.name)
        visitor = await gate.visitor(hang.name)
        visitor.release()
        await until(pool, lambda stats: stats.crashes == 1)
        await visitor.gone()
        await assert_serves(pool)
    [crash] = crashes
    assert (crash.kind, crash.pid, crash.job_id) == ("hung", visitor.pid, None)
    [record] = [it for it in caplog.records if it.name == "asyncpool.pool"]
    assert dedent(record.stack_info or "") == crash.stack
    assert crash.detail.startswith(f"no answer to pings for {SHORT:g} s")
    assert ("the process is stopped" in crash.detail) is (hang.name == "stopped")


# What hangs in a job: a call for the gate and the name of the hang, and the way to end it.
PHASES: dict[str, Callable[[str, str], Call]] = {
    "unpickling": lambda gate, name: (jobs.take, faults.TrapAt(gate, name)),
    "running": lambda gate, name: (faults.commit_at, gate, name),
    "pickling": lambda gate, name: (faults.make_bomb_at, gate, name),
    "writing little": lambda _, name: (faults.commit_in_result, name, 40),
    "writing much": lambda _, name: (faults.commit_in_result, name, 120_000),
}
WAYS: list[Literal["interrupt", "kill"]] = ["interrupt", "kill"]


@pytest.mark.parametrize("phase", PHASES)
async def test_for_longer_than_it_may_and_then_cancelled(phase: str) -> None:
    crashes: list[Crash] = []
    pool = Pool(2, on_crash=crashes.append, cancel_grace=0.1)
    writes = phase.startswith("writing")  # and there is no moment to wait for
    visits = dict.fromkeys((hang.name for hang in HANGS), 0)
    async with patience(5), Gate() as gate, pool:
        for hang, way, cancels in itertools.product(HANGS, WAYS, (False, True)):
            if writes and (way == "interrupt" or cancels):
                continue  # half of a result cannot be followed by anything
            with case(hang.name, way, cancels):
                view = pool.options(timeout=SHORT if writes else LONG, on_cancel=way)
                function, *args = PHASES[phase](gate.path, hang.name)
                culprit = view.submit(function, *args)
                others = [pool.submit(jobs.square, n) for n in range(20)]
                if not writes:
                    visits[hang.name] += 1
                    visitor = await gate.visitor(hang.name, visits[hang.name])
                    visitor.release()
                    if cancels:
                        assert culprit.cancel()
                        await visitor.gone()
                    else:
                        run_out(pool, culprit, within=SHORT)
                if not cancels:
                    await times_out(culprit)
                assert await asyncio.gather(*others) == [n * n for n in range(20)]
                await assert_serves(pool)
        stats = pool.stats()
    assert (crashes, stats.crashes) == ([], 0), "it is no crash"
    assert stats.cancelled == (0 if writes else 2 * len(HANGS))


@every_hang
async def test_while_the_pool_closes(hang: Fault) -> None:
    async with patience(), Gate() as gate:
        pool = await started(1)
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
        with pytest.raises(Exception, match="it had not finished within"):
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
