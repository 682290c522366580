"""The trace of a cluster: what it looks up now and then, besides the events that it hears."""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.trace.cluster_trace_book import Counted
from asyncpool._observe.cluster_trace import ClusterTrace, Look
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.cluster._stats import ClusterStats
from asyncpool.enums import SlotState


def begin_trace(
    path: str,
    name: str,
    hub: PoolHub,
    stats: Callable[[], ClusterStats],
) -> ClusterTrace:
    """Begin to write the trace of the cluster *name* into *path*.

    Raises:
        OSError: If the file cannot be written.
    """

    def look() -> Look:
        figures = stats()
        counted = Counted(
            connections=sum(slot.connections for slot in figures.slots),
            answered=figures.requests.count,
            open_requests=figures.requests.open,
            memory=sum(slot.memory for slot in figures.slots),
        )
        draining = {
            slot.slot: slot.seconds
            for slot in figures.slots
            if slot.state == SlotState.STOPPING
        }
        return Look(counted, draining)

    return ClusterTrace(path, name=name, hub=hub, look=look)
