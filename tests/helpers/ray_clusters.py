"""Ray clusters whose nodes are all on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Generator
from typing import Any

import psutil

from asyncpool.ray import Pool
from tests.helpers.patience import PATIENCE

__all__ = ["LocalNodes", "agents", "local_nodes", "until"]

_STORE = 80 * 2**20

# Without the second of these Ray uses files in place of shared memory, which it does not call
# spilling; and the third is how many seconds it hopes for room before that.
_NO_DISK = {
    "automatic_object_spilling_enabled": False,
    "local_fs_capacity_threshold": 0.0,
    "oom_grace_period_s": 0,
}


class LocalNodes:
    """A cluster; ``nodes.address`` is what pools connect to.

    Args:
        spills: Whether its stores may write to disk.
    """

    def __init__(self, *, spills: bool = True) -> None:
        from ray.cluster_utils import Cluster

        head: dict[str, Any] = {"num_cpus": 1, "include_dashboard": False}
        if not spills:
            head["_system_config"] = _NO_DISK
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={**head, "object_store_memory": _STORE},
        )
        self.address: str = self._cluster.address

    def add(self, cpus: int = 1) -> Any:
        """Add a node, and return what :meth:`kill` takes."""
        return self._cluster.add_node(num_cpus=cpus, object_store_memory=_STORE)

    def kill(self, node: Any) -> None:
        """Kill all of Ray's processes on a node."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@contextlib.contextmanager
def local_nodes(more: int = 0, *, spills: bool = True) -> Generator[LocalNodes]:
    """Have a cluster of one node and *more*, to which this process is connected."""
    import ray

    nodes = LocalNodes(spills=spills)
    try:
        for _ in range(more):
            nodes.add()
        ray.init(nodes.address, logging_level="ERROR", log_to_driver=False)
        # Ray's has attributes that are in no table of ours.
        factory = logging.getLogRecordFactory()
        logging.setLogRecordFactory(logging.LogRecord)
        try:
            yield nodes
        finally:
            logging.setLogRecordFactory(factory)
            ray.shutdown()
    finally:
        nodes.close()


async def agents(pool: Pool, count: int) -> list[str]:
    """Wait until *pool* has so many agents; return their names."""
    found: list[str] = []
    async with asyncio.timeout(2 * PATIENCE):
        while len(found) != count:
            found = [*await pool.nodes()]
    return found


async def until(processes: list[psutil.Process]) -> None:
    """Wait until they are gone."""
    _, left = await asyncio.to_thread(psutil.wait_procs, processes, PATIENCE)
    assert not left
