"""What an agent's pool tells of itself, with the numbers that one client has given its jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from asyncpool._core.remote.client_jobs import crash_for_client
from asyncpool._core.slots.reasons import detail_for_client, reason_for_client
from asyncpool._runtime.job.job import Job
from asyncpool.events import Broken, Crashed, Event, Exited, TakenOver
from asyncpool.stats import PoolStats, SlotStats


def numbers_of(jobs: Mapping[int, Job[Any]]) -> dict[int, int]:
    """Return the client's numbers of *jobs*, by those of the pool."""
    return {job.id: number for number, job in jobs.items()}


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


def event_for_client(event: Event, numbers: Mapping[int, int]) -> Event | None:
    """Return *event* with the client's own numbers of its jobs; of others it names none.

    Args:
        event: What has happened.
        numbers: These numbers, by those of the pool.

    Returns:
        ``None`` if it is only about a job of somebody else.
    """
    match event:
        case Crashed(crash=crash):
            return Crashed(crash_for_client(crash, numbers))
        case Broken(crashes=crashes):
            told = tuple(crash_for_client(crash, numbers) for crash in crashes)
            return replace(event, crashes=told)
        case TakenOver(job_id=job):
            return replace(event, job_id=numbers[job]) if job in numbers else None
        case Exited(reason=reason):
            return replace(
                event,
                reason=reason_for_client(reason, numbers),
                detail=detail_for_client(event.detail, numbers),
            )
        case _:  # it names no job
            return event
