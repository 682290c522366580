"""Supervised pools of worker processes for asyncio.

The public names are loaded when they are first used: every worker imports this
package, and must not pay for asyncio.
"""

from __future__ import annotations

from asyncpool._wire.records import on_demand

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    # Tools that freeze programs look for imports, and other processes begin with this one.
    import asyncpool._worker.process  # noqa: F401 # pyright: ignore[reportUnusedImport]
    from asyncpool import errors, to_process
    from asyncpool._core.options import RestartPolicy, WorkerLimits
    from asyncpool._engine.hub import EventStream
    from asyncpool._engine.job import Job
    from asyncpool._wire.formats import Codec
    from asyncpool._worker.api import (
        CurrentJob,
        current_job,
        heartbeat,
        in_worker,
        retire_worker,
        worker_state,
    )
    from asyncpool.cluster import Cluster
    from asyncpool.events import CloseSummary, Crash, RollResult
    from asyncpool.executor import ProcessPoolExecutor
    from asyncpool.leasekeeper import LeaseKeeper
    from asyncpool.mapping import Map, Outcome
    from asyncpool.pool import BoundPool, Pool
    from asyncpool.sandbox import Sandbox
    from asyncpool.session import WorkerSession
    from asyncpool.sharedpool import PoolServer, SharedPool, connect, shared_pool
    from asyncpool.stats import PoolStats, SlotStats
    from asyncpool.stream import Stream

__version__ = "0.1.0"

_HOMES = {
    "asyncpool": ("errors", "to_process"),  # modules
    "asyncpool._wire.formats": ("Codec",),
    "asyncpool._core.options": ("RestartPolicy", "WorkerLimits"),
    "asyncpool._engine.hub": ("EventStream",),
    "asyncpool._engine.job": ("Job",),
    "asyncpool._worker.api": (
        "CurrentJob",
        "current_job",
        "heartbeat",
        "in_worker",
        "retire_worker",
        "worker_state",
    ),
    "asyncpool.cluster": ("Cluster",),
    "asyncpool.events": ("CloseSummary", "Crash", "RollResult"),
    "asyncpool.executor": ("ProcessPoolExecutor",),
    "asyncpool.leasekeeper": ("LeaseKeeper",),
    "asyncpool.mapping": ("Map", "Outcome"),
    "asyncpool.pool": ("BoundPool", "Pool"),
    "asyncpool.sandbox": ("Sandbox",),
    "asyncpool.session": ("WorkerSession",),
    "asyncpool.sharedpool": ("PoolServer", "SharedPool", "connect", "shared_pool"),
    "asyncpool.stats": ("PoolStats", "SlotStats"),
    "asyncpool.stream": ("Stream",),
}

__all__ = [
    "BoundPool",
    "CloseSummary",
    "Cluster",
    "Codec",
    "Crash",
    "CurrentJob",
    "EventStream",
    "Job",
    "LeaseKeeper",
    "Map",
    "Outcome",
    "Pool",
    "PoolServer",
    "PoolStats",
    "ProcessPoolExecutor",
    "RestartPolicy",
    "RollResult",
    "Sandbox",
    "SharedPool",
    "SlotStats",
    "Stream",
    "WorkerLimits",
    "WorkerSession",
    "connect",
    "current_job",
    "errors",
    "heartbeat",
    "in_worker",
    "retire_worker",
    "shared_pool",
    "to_process",
    "worker_state",
]


_HOME = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # or every name would seem to be there
    __getattr__, __dir__ = on_demand(globals(), _HOME)
