"""How a run is done, and the pool for that."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from asyncpool._cli.targets import Work, load
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool.boundpool import BoundPool
from asyncpool.pool import Pool

_START = 300.0  # s that a worker may import what the function needs

Loop = Literal["asyncio", "uvloop"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a run is done; ``--help`` explains each."""

    work: Work
    workers: int | None = None
    timeout: float | None = None
    max_attempts: int = 1
    retry_on: tuple[Any, ...] = ("crash", "hung")
    kill_memory: int | None = None
    ordered: bool = True
    loop: Loop = "asyncio"
    concurrency: int = 1
    trace: str | None = None


def make_pool(plan: Plan) -> Pool:
    """Return the pool that a plan needs."""
    return Pool(
        plan.workers,
        name="map",
        initializer=load,
        initargs=(plan.work, _only_async(plan)),
        worker_limits=WorkerLimits(kill_memory=plan.kill_memory),
        start_timeout=_START,
        worker_loop=plan.loop,
        concurrency=plan.concurrency,
        trace=plan.trace,
    )


def _only_async(plan: Plan) -> str:
    """Return the option of *plan* that is for async functions only, if there is one."""
    if plan.concurrency > 1:
        return "--concurrency"
    return "--loop" if plan.loop != "asyncio" else ""


def options(pool: Pool, plan: Plan) -> BoundPool:
    """Return the pool as the plan's items see it."""
    return pool.options(
        timeout=plan.timeout,
        max_attempts=plan.max_attempts,
        retry_on=plan.retry_on,
        cancel_grace=1.0,
    )
