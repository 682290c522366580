"""What a cluster in operation says of itself, in words."""

from __future__ import annotations

from asyncpool.cluster._stats import ClusterStats


def status_line(stats: ClusterStats) -> str:
    """Return what the service manager shows of a cluster."""
    ready = sum(it.ready for it in stats.slots)
    return (
        f"{ready} of {stats.workers} workers, {stats.handed} connections, "
        f"{stats.restarts} restarts"
    )
