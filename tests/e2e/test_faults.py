"""Every fault in every phase of a worker's life, with real processes.

In each cell: whoever was hit gets exactly one error and it is the right one, all
others get their results, the pool recovers, and ``on_crash`` hears of each unplanned
death once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from asyncpool import Crash, Pool, PoolStats, RestartPolicy
from asyncpool.enums import CrashKind
from tests.helpers import faults, jobs
from tests.helpers.faults import DEATHS, FAULTS, Fault, by_name
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    assert_told,
    case,
    crash_of,
    idle,
    until,
)

pytestmark = BOTH_LOOPS


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


async def _one_is_hit(
    found: Sequence[Fault],
    function: Callable[..., object],
    *args: Callable[..., object],
) -> None:
    """Have each fault hit one of two workers, in a call of *function*."""
    async with pool_of_two() as (pool, gate, crashes):
        for number, fault in enumerate(found, 1):
            with case(fault.name):
                given = [each(gate.path, fault.name) for each in args]
                culprit = pool.submit(function, *given)
                others = [pool.submit(jobs.square, n) for n in range(20)]
                pid = None
                if function is faults.commit_at:
                    visitor = await gate.visitor(fault.name)
                    pid = culprit.worker_pid
                    assert pid == visitor.pid
                    visitor.release()
                crash = await crash_of(culprit, fault)
                assert pid in (crash.pid, None)
                assert await asyncio.gather(*others) == [n * n for n in range(20)]
                await assert_serves(pool)
                assert (crashes[-1], len(crashes)) == (crash, number)
                assert pool.stats().failed == number


def path(gate: str, _: str) -> str:
    return gate


def name(_: str, fault: str) -> str:
    return fault


async def test_while_running() -> None:
    await _one_is_hit(FAULTS, faults.commit_at, path, name)


async def test_while_unpickling_an_argument() -> None:
    await _one_is_hit(DEATHS[::2], jobs.take, lambda _, name: faults.Trap(name))


async def test_while_pickling_the_result() -> None:
    await _one_is_hit(DEATHS[::2], faults.make_bomb, name)


@pytest.mark.parametrize("size", [40, 120_000], ids=["small", "large"])
async def test_while_writing_the_result(size: int) -> None:
    await _one_is_hit(DEATHS[::2], faults.commit_in_result, name, lambda *_: size)


async def test_while_closing() -> None:
    """Each in a worker of its own, all of which are asked to end at once."""
    crashes: list[Crash] = []
    found = but("closed descriptors", "a job that it has not")
    async with patience(2):
        pool = Pool(len(found), on_crash=crashes.append)
        await pool.start()
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
    async with (
        patience(),
        Pool(2, launcher="spawn", on_crash=crashes.append) as pool,
    ):
        for fault in DEATHS:
            await crash_of(pool.submit(faults.commit, fault.name), fault)
        await assert_serves(pool)
    assert len(crashes) == len(DEATHS)
