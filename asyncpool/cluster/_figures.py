"""A cluster's figures, taken together from those who know them."""

from __future__ import annotations

from asyncpool._core.slots.slots import SlotState
from asyncpool._runtime.base.machine import private_memory
from asyncpool._runtime.cluster.service import Service
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool.cluster._stats import ClusterStats, WorkerStats
from asyncpool.events import SlotStats


def cluster_stats(
    supervisor: Supervisor | None,
    service: Service | None,
    *,
    closed: bool,
    workers: int,
    spread: str,
    addresses: tuple[str, ...],
) -> ClusterStats:
    """Return a cluster as it stands, and what it went through.

    Args:
        supervisor: Its supervisor, if it was started.
        service: What its workers do, if it was.
        closed: Whether it was closed before that.
        workers: How many workers there are to be, before there is a supervisor.
        spread: How connections get to them.
        addresses: Where it listens.
    """
    if supervisor is None or service is None:
        return ClusterStats(
            state="closed" if closed else "new",
            workers=workers,
            spread=spread,
            addresses=(),
            handed=0,
            refused=0,
            lost=0,
            crashes=0,
            restarts=0,
            spawned=0,
            slots=(),
        )
    crew = supervisor.stats()
    return ClusterStats(
        state=crew.state,
        workers=crew.workers,
        spread=spread,
        addresses=addresses,
        handed=service.spreader.core.served,
        refused=service.spreader.core.refused,
        lost=service.spreader.lost,
        crashes=crew.crashes,
        restarts=crew.restarts,
        spawned=crew.spawned,
        slots=tuple(
            _worker_stats(slot, service)
            for slot in crew.slots
            if slot.state != SlotState.RETIRED.value
        ),
    )


def _worker_stats(slot: SlotStats, service: Service) -> WorkerStats:
    there = service.figures(slot.slot)
    return WorkerStats(
        slot=slot.slot,
        generation=slot.generation,
        pid=slot.pid,
        state="ready" if there.ready else slot.state,
        ready=there.ready,
        connections=there.connections,
        handed=there.had,
        uptime=there.uptime,
        memory=0 if slot.pid is None else private_memory(slot.pid),
    )
