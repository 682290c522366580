"""Small pools for stories about their workers, without a shell."""

from __future__ import annotations

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import Command, Spawn
from asyncpool._core.supervision.supervision import Supervision
from asyncpool.enums import SlotState

__all__ = ["POLICY", "gone", "pool", "short", "taking"]

POLICY = RestartPolicy(initial_delay=0.5)


def pool(
    workers: int,
    most: int | None = None,
    *,
    max_surge: int = 1,
    max_unavailable: int = 0,
    limits: WorkerLimits | None = None,
    policy: RestartPolicy = POLICY,
) -> Supervision:
    """Return a pool whose workers are ready at 0.0."""
    core = Supervision(
        workers=(workers, most or workers),
        policy=policy,
        start_timeout=20.0,
        limits=limits or WorkerLimits(jitter=0.0),
        idle_timeout=60.0,
        max_surge=max_surge,
        max_unavailable=max_unavailable,
    )
    assert core.workers.start(0.0) == [Spawn(index, 1) for index in range(workers)]
    for index in range(workers):
        core.workers.ready(index, 0.0)
    return core


def short(cost: float = 10.0) -> JobTraits:
    traits = JobTraits()
    traits.cost = cost
    return traits


def gone(core: Supervision, slot: int, now: float) -> list[Command]:
    return core.workers.ended(slot, now, started=False, requeue=(), jitter=0.0)


def taking(core: Supervision) -> list[int]:
    """Return the slots that get jobs."""
    up = {SlotState.IDLE, SlotState.BUSY}
    return [s.index for s in core.slots if s.state in up and not s.draining]
