"""What a cluster in operation says of itself, in words."""

from __future__ import annotations

from asyncpool.cluster._stats import ClusterStats
from asyncpool.events import RollResult


def status_line(stats: ClusterStats) -> str:
    """Return what the service manager shows of a cluster."""
    ready = sum(it.ready for it in stats.slots)
    return (
        f"{ready} of {stats.workers} workers, {stats.handed} connections, "
        f"{stats.restarts} restarts"
    )


def outcome_of(result: RollResult) -> str:
    """Return what a reload has done, and what it could not do."""
    if not result.ok:
        new = number_of(result.replaced + result.filled)
        return (
            f"the reload has ended after {new}, the others are as before: "
            f"{trouble_of(result)}"
        )
    are = "is" if result.replaced == 1 else "are"
    text = f"reloaded: {number_of(result.replaced)} {are} new"
    if result.filled:
        text += f", {number_of(result.filled)} came where starts had failed"
    return text


def trouble_of(result: RollResult) -> str:
    """Return why a reload has ended early, with what has become of the new worker."""
    return f"{result.reason}{f': {result.crash}' if result.crash else ''}"


def number_of(workers: int) -> str:
    """Return a number of workers in words."""
    return f"{workers} worker{'' if workers == 1 else 's'}"
