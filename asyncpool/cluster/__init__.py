"""Clusters: servers whose worker processes share their ports.

The public names are loaded when they are first used: workers import this package for what
they serve with, and must not pay for the master's part.
"""

from __future__ import annotations

from asyncpool._wire.records import on_demand

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from asyncpool._cluster.worker import Connection, Worker
    from asyncpool._wire.posix import ReceivedFile, ReceivedSocket
    from asyncpool.cluster._master import Cluster, Message
    from asyncpool.cluster._servers.targets import asgi, protocol, streams, wsgi
    from asyncpool.cluster._stats import ClusterStats, RequestStats, WorkerStats
    from asyncpool.errors import NoWorkerError, ResizeError

_HOMES = {
    "asyncpool._wire.posix": ("ReceivedFile", "ReceivedSocket"),
    "asyncpool._cluster.worker": ("Connection", "Worker"),
    "asyncpool.cluster._master": ("Cluster", "Message"),
    "asyncpool.cluster._servers.targets": ("asgi", "protocol", "streams", "wsgi"),
    "asyncpool.cluster._stats": ("ClusterStats", "RequestStats", "WorkerStats"),
    "asyncpool.errors": ("NoWorkerError", "ResizeError"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "Cluster",
    "ClusterStats",
    "Connection",
    "Message",
    "NoWorkerError",
    "ReceivedFile",
    "ReceivedSocket",
    "RequestStats",
    "ResizeError",
    "Worker",
    "WorkerStats",
    "asgi",
    "protocol",
    "streams",
    "wsgi",
]


if not TYPE_CHECKING:  # or every name would seem to be there
    __getattr__, __dir__ = on_demand(globals(), _HOME)
