"""How a pool is set up, lives and ends."""

from __future__ import annotations

from contextvars import ContextVar
from typing import assert_type

from asyncpool import (
    CloseSummary,
    Crash,
    Pool,
    PoolStats,
    RestartPolicy,
    RollResult,
    SlotStats,
    WorkerLimits,
)
from asyncpool.enums import JobOutcome, SlotState

request: ContextVar[str] = ContextVar("request")


def on_crash(crash: Crash) -> None:
    print(crash.slot)


async def on_crash_async(crash: Crash) -> int:
    return crash.slot


class Alarm:
    async def ring(self, crash: Crash | None = None) -> None:
        print(crash)


def load(path: str, *, fast: bool = False) -> object:
    return path, fast


def accepted(alarm: Alarm) -> None:
    Pool()
    Pool(4)
    Pool(workers=(2, 16), idle_timeout=5, name="images", max_surge=0, max_unavailable=1)
    Pool(on_crash=on_crash)
    Pool(on_crash=on_crash_async)
    Pool(on_crash=alarm.ring)
    Pool(on_crash=lambda crash: print(crash.stderr_tail))
    Pool(initializer=load, initargs=("model",), preload=["numpy"], launcher="spawn")
    Pool(propagate=[request, "shop.tracing:tenant"])
    Pool(
        restart_policy=RestartPolicy(initial_delay=0.1, max_restarts=None),
        worker_output="inherit",
    )
    Pool(restart_policy=RestartPolicy.limited(5, period=60))
    Pool(worker_limits=WorkerLimits(max_jobs=100, max_age=3600.5, cpu_affinity={0, 1}))
    Pool(
        worker_limits=WorkerLimits(
            rlimits={"RLIMIT_AS": 1 << 30, "RLIMIT_NOFILE": (64, 128)}
        )
    )
    Pool(timeout=None, queue_timeout=1, heartbeat_timeout=2.5, on_cancel="wait")
    Pool(max_queued=None, ping_timeout=None, max_message_size=1 << 20)
    Pool(max_message_size=None)


async def life() -> None:
    async with Pool() as pool:
        assert_type(pool, Pool)
        assert_type(pool.name, str)
        assert_type(await pool.resize(3), None)
        assert_type(await pool.resize((3, 4)), None)
        rolled = await pool.roll()
        assert_type(rolled, RollResult)
        assert_type(rolled.ok, bool)
        assert_type(rolled.crash, Crash | None)
    assert_type(await pool.start(), None)
    summary = await pool.close(timeout=3, finish="running")
    assert_type(summary, CloseSummary)
    assert_type(summary.finished + summary.failed + summary.killed, int)


def figures(pool: Pool) -> None:
    stats = pool.stats()
    assert_type(stats, PoolStats)
    assert_type(stats.queued, int)
    assert_type(stats.slots, tuple[SlotStats, ...])
    assert_type(stats.functions[0].jobs[JobOutcome.OK], int)
    assert_type(stats.functions[0].run.quantile(0.5), float)
    assert_type(stats.slots[0].pid, int | None)


def takes_no_crash() -> None: ...


def takes_text(text: str) -> None:
    print(text)


def rejected() -> None:
    Pool("4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool((1, 2, 3))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(2, 60.0)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Pool(worker=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Pool(max_attempts=2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Pool(on_crash=takes_no_crash)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(on_crash=takes_text)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(initializer="load")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(initargs=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(launcher="fork")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(worker_output="stdout")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(on_cancel="stop")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(idle_timeout=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(propagate=[3])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    Pool(restart_policy="always")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    Pool(worker_limits={"max_jobs": 3})  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def policies_rejected(policy: RestartPolicy, limits: WorkerLimits) -> None:
    RestartPolicy(0.5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RestartPolicy(initial_delay="0.5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    RestartPolicy(max_crashes=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    RestartPolicy.limited(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    WorkerLimits(100)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    WorkerLimits(max_jobs=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    WorkerLimits(memory=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    WorkerLimits(rlimits={"RLIMIT_AS": "1G"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]
    policy.max_delay = 1.0  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    limits.max_jobs = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


async def life_rejected(pool: Pool, summary: CloseSummary, stats: PoolStats) -> None:
    with pool:  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues]
        pass
    await pool.close(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await pool.close(finish="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await pool.resize("3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await pool.resize()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    summary.finished = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    stats.queued = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    stats.slots[0].state = SlotState.IDLE  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
