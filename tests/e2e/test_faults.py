"""Every fault in every phase of a worker's life, with real processes.

In each cell: whoever was hit gets exactly one error and it is the right one, all
others get their results, the pool recovers, and ``on_crash`` hears of each unplanned
death once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from asyncpool import CloseSummary, Crash, Pool
from asyncpool.enums import CrashKind
from tests.helpers import faults, jobs
from tests.helpers.faults import DEATHS, FAULTS, Fault, by_name
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    assert_told,
    closing,
    crash_of,
    idle,
    until,
)

pytestmark = BOTH_LOOPS


def but(*slow: str) -> pytest.MarkDecorator:
    """Parametrise with every fault but those that only time brings to light."""
    faults = [fault for fault in FAULTS if fault.name not in slow]
    return pytest.mark.parametrize("fault", faults, ids=lambda fault: fault.name)


some_deaths = pytest.mark.parametrize(
    "fault", DEATHS[::2], ids=lambda fault: fault.name
)


@but("shut channel")
async def test_in_the_initializer(fault: Fault, tmp_path: Path) -> None:
    await _one_start_fails(fault, faults.commit_first, tmp_path)


@pytest.mark.parametrize(
    "fault",
    [*DEATHS[::2], by_name("half a frame on control"), by_name("garbage on control")],
    ids=lambda fault: fault.name,
)
async def test_in_the_handshake(fault: Fault, tmp_path: Path) -> None:
    await _one_start_fails(fault, faults.commit_at_hello, tmp_path)


async def _one_start_fails(
    fault: Fault, initializer: Callable[[str, str], None], tmp_path: Path
) -> None:
    crashes: list[Crash] = []
    initargs = (str(tmp_path / "token"), fault.name)
    async with (
        patience(),
        Pool(
            2, on_crash=crashes.append, initializer=initializer, initargs=initargs
        ) as pool,
    ):
        assert await pool.submit(jobs.square, 7) == 49
        await until(pool, lambda stats: stats.crashes == 1)
        await assert_serves(pool)
        stats = pool.stats()
    [crash] = crashes
    broke_protocol = fault.kind == CrashKind.PROTOCOL
    kind = CrashKind.PROTOCOL if broke_protocol else CrashKind.FAILED_START
    assert_told(crash, fault, kind=kind)
    assert (crash.generation, crash.job_id, crash.attempt) == (1, None, 0)
    assert (stats.crashes, stats.restarts, stats.failed) == (1, 1, 0)


@but("closed descriptors")
async def test_while_idle(fault: Fault) -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Gate() as gate,
        Pool(2, on_crash=crashes.append) as pool,
    ):
        await idle(pool)
        await pool.submit(faults.commit_later, gate.path, fault.name)
        visitor = await gate.visitor(fault.name)
        visitor.release()
        if fault.name == "closed descriptors":
            # Nothing shows, and nothing is lost but the next job, which finds out.
            await visitor.gone()
            fault = Fault(fault.name, fault.commit, exit_code=1, tail="Bad file")
            await crash_of(pool.submit(jobs.square, 1), fault)
        elif fault.name == "shut channel":
            # An idle worker takes it for the pool's wish.
            fault = Fault(fault.name, fault.commit, exit_code=0)
        await until(pool, lambda stats: stats.crashes == 1)
        await assert_serves(pool)
        stats = pool.stats()
    [crash] = crashes
    assert_told(crash, fault)
    assert crash.pid == visitor.pid
    assert (stats.crashes, stats.restarts) == (1, 1)


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


@but()
async def test_while_running(fault: Fault) -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Gate() as gate,
        Pool(2, on_crash=crashes.append) as pool,
    ):
        culprit = pool.submit(faults.commit_at, gate.path, fault.name)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        visitor = await gate.visitor(fault.name)
        assert culprit.worker_pid == visitor.pid
        visitor.release()
        crash = await crash_of(culprit, fault)
        assert crash.pid == visitor.pid
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)
        stats = pool.stats()
    assert crashes == [crash]
    assert (stats.crashes, stats.restarts, stats.failed) == (1, 1, 1)


@but("closed descriptors")
async def test_while_draining(fault: Fault) -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate:
        pool = Pool(1, on_crash=crashes.append)
        await pool.start()
        culprit = pool.submit(faults.commit_at, gate.path, fault.name)
        queued = [pool.submit(jobs.square, n) for n in range(20)]
        visitor = await gate.visitor(fault.name)
        close = await closing(pool)
        visitor.release()
        crash = await crash_of(culprit, fault)
        assert await asyncio.gather(*queued) == [n * n for n in range(20)]
        assert await close == CloseSummary(finished=20, failed=1, killed=0)
    assert crashes == [crash]
    assert pool.stats().spawned == 2


@but("closed descriptors", "a job that it has not")
async def test_while_closing(fault: Fault) -> None:
    crashes: list[Crash] = []
    async with patience():
        pool = Pool(2, on_crash=crashes.append)
        await pool.start()
        await pool.submit(faults.commit_at_exit, fault.name)
        summary = await pool.close()
    assert (summary.finished, summary.failed) == (0, 0)
    assert crashes == []
    assert pool.stats().spawned == 2


@some_deaths
async def test_while_unpickling_an_argument(fault: Fault) -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        culprit = pool.submit(jobs.call, len, faults.Trap(fault.name))
        others = [pool.submit(jobs.square, n) for n in range(20)]
        crash = await crash_of(culprit, fault)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)
    assert crashes == [crash]


@some_deaths
async def test_while_pickling_the_result(fault: Fault) -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        culprit = pool.submit(faults.make_bomb, fault.name)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        crash = await crash_of(culprit, fault)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)
    assert crashes == [crash]


@some_deaths
@pytest.mark.parametrize("size", [40, 120_000], ids=["small", "large"])
async def test_while_writing_the_result(fault: Fault, size: int) -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        culprit = pool.submit(faults.commit_in_result, fault.name, size)
        others = [pool.submit(jobs.square, n) for n in range(20)]
        crash = await crash_of(culprit, fault)
        assert await asyncio.gather(*others) == [n * n for n in range(20)]
        await assert_serves(pool)
    assert crashes == [crash]


async def test_with_workers_that_are_fresh_interpreters() -> None:
    crashes: list[Crash] = []
    async with (
        patience(),
        Pool(2, launcher="spawn", on_crash=crashes.append) as pool,
    ):
        for fault in DEATHS:
            await crash_of(pool.submit(faults.commit, fault.name), fault)
        await assert_serves(pool)
    assert len(crashes) == len(DEATHS)
