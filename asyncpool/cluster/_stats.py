"""The figures of a cluster, as plain frozen data, and where they come from."""

from __future__ import annotations

from dataclasses import dataclass

from asyncpool._runtime.base.machine import private_memory
from asyncpool._runtime.cluster.service import Service
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool.enums import RunState, SlotState
from asyncpool.stats import SlotStats


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """The figures of one worker.

    Attributes:
        slot: Its slot; ``worker.id`` in the worker.
        generation: Which worker of the slot it is, counting from 1.
        pid: Its process id; ``None`` if there is no process.
        state: ``"ready"`` if it serves and does not drain; else the state of the slot (a
            :class:`asyncpool.enums.SlotState`), such as ``"starting"`` or ``"parked"``.
        ready: Whether it serves and does not drain.
        connections: How many connections it has open.
        handed: How many connections it was handed, or has accepted, in all.
        uptime: Seconds since its process was started.
        memory: The bytes that it does not share; 0 where the system does not tell.
    """

    slot: int
    generation: int
    pid: int | None
    state: str
    ready: bool
    connections: int
    handed: int
    uptime: float
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterStats:
    """The figures of a cluster: how it stands, and what happened since its start.

    Attributes:
        state: Where it is in its life.
        workers: How many workers the cluster aims at.
        spread: How connections get to the workers.
        addresses: Where it listens, with the real ports.
        handed: Connections that were handed to workers, or accepted by them.
        refused: Handles that a worker could not take, since it had no descriptors left.
        lost: Connections that were closed when their worker left, since the master had no
            descriptors left to hand them on.
        crashes: Unplanned ends of workers, failed starts included.
        restarts: Processes started to replace another one.
        spawned: Processes started.
        slots: The workers, one by one, draining ones included.
    """

    state: RunState
    workers: int
    spread: str
    addresses: tuple[str, ...]
    handed: int
    refused: int
    lost: int
    crashes: int
    restarts: int
    spawned: int
    slots: tuple[WorkerStats, ...]


def cluster_stats(
    supervisor: Supervisor | None,
    service: Service | None,
    *,
    closed: bool,
    workers: int,
    spread: str,
    addresses: tuple[str, ...],
) -> ClusterStats:
    """Return the figures of a cluster.

    Args:
        supervisor: Its supervisor, if it was started.
        service: Its service, if it was started.
        closed: Whether it was closed without being started.
        workers: How many workers it aims at, if there is no supervisor yet.
        spread: How connections get to the workers.
        addresses: Where it listens.
    """
    if supervisor is None or service is None:
        return ClusterStats(
            state=RunState.CLOSED if closed else RunState.NEW,
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
    stats = supervisor.stats()
    return ClusterStats(
        state=stats.state,
        workers=stats.workers,
        spread=spread,
        addresses=addresses,
        handed=service.balancer.core.served,
        refused=service.balancer.core.refused,
        lost=service.balancer.lost,
        crashes=stats.crashes,
        restarts=stats.restarts,
        spawned=stats.spawned,
        slots=tuple(
            _worker_stats(slot, service)
            for slot in stats.slots
            if slot.state is not SlotState.RETIRED
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
