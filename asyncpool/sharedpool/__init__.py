"""One pool for several programs of a machine: who has it, and who uses it."""

from __future__ import annotations

from asyncpool.sharedpool._remote_pool import SharedPool, connect, shared_pool
from asyncpool.sharedpool._server import PoolServer

__all__ = ["PoolServer", "SharedPool", "connect", "shared_pool"]
