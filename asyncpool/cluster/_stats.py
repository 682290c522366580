"""What a cluster tells of itself: plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerStats:
    """One worker as it stands.

    Attributes:
        slot: Which one it is; ``worker.id`` inside.
        generation: Which worker of the slot it is, counting from 1.
        pid: Its process id; ``None`` if there is no process.
        state: ``"ready"`` if it serves, and is to go on; else the slot's, such as
            ``"starting"`` or ``"parked"``.
        ready: Whether it serves, and is to go on.
        connections: How many it has open.
        handed: How many it was handed, or has accepted, in all.
        uptime: Seconds since its process was started.
        memory: The bytes that it has to itself; 0 where nobody knows.
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
    """A cluster as it stands, and what it went through since its start.

    Attributes:
        state: ``"new"``, ``"running"``, ``"broken"``, ``"closing"`` or ``"closed"``.
        workers: How many workers there are to be.
        spread: How connections get to them.
        addresses: Where it listens, with the real ports.
        handed: Connections that were handed to workers, or accepted by them.
        refused: Handles that a worker could not take, for want of descriptors.
        lost: Connections that were closed, and not handed on when their worker left, for
            want of descriptors.
        crashes: Unplanned deaths of workers, failed starts included.
        restarts: Processes started to replace another one.
        spawned: Processes started.
        slots: The workers, one by one, those that drain included.
    """

    state: str
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
