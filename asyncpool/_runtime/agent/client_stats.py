"""The figures of an agent's pool, for one of its clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from asyncpool.stats import PoolStats, SlotStats


def stats_for_client(stats: PoolStats, numbers: Mapping[int, int]) -> PoolStats:
    """Return *stats* with the client's own numbers of its jobs.

    Args:
        stats: The figures.
        numbers: These numbers, by those of the pool.  A job of another client gets 0.
    """

    def told(slot: SlotStats) -> SlotStats:
        if not slot.job_ids:
            return slot
        ids = tuple(numbers.get(job, 0) for job in slot.job_ids)
        running = tuple(
            replace(job, job_id=numbers.get(job.job_id, 0)) for job in slot.running
        )
        first = None if slot.job_id is None else numbers.get(slot.job_id, 0)
        return replace(slot, job_id=first, job_ids=ids, running=running)

    return replace(stats, slots=tuple(map(told, stats.slots)))
