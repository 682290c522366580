"""What an agent calls by numbers of its own, as its client tells it: slots, and jobs in crashes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from asyncpool._core.slots.lifecycle import detail_for_client
from asyncpool.events import Crash

# The slots of the first agent have the numbers of its pool, and those of each further one so
# many more than those of the one before.
SLOTS = 10_000


def first_slot(agent: int) -> int:
    """Return what is added to the slots of an agent, by its number at the client."""
    return (agent - 1) * SLOTS


def crash_at_client(crash: Crash, first_slot: int, numbers: Mapping[int, int]) -> Crash:
    """Return a crash that an agent has told with an error, as the client tells it.

    Args:
        crash: The crash.
        first_slot: What is added to the slots of the agent.
        numbers: See :func:`crash_for_client`.
    """
    told = crash_for_client(crash, numbers)
    return replace(told, slot=first_slot + told.slot)


def crash_for_client(crash: Crash, numbers: Mapping[int, int]) -> Crash:
    """Return a crash with the client's numbers of its jobs; it only counts others.

    The agent's numbers are those of other jobs at the client.

    Args:
        crash: The crash.
        numbers: The client's numbers, by those of the agent.
    """
    job = None if crash.job_id is None else numbers.get(crash.job_id)
    beside = tuple(numbers[job] for job in crash.concurrent_jobs if job in numbers)
    return replace(
        crash,
        job_id=job,
        attempt=0 if job is None else crash.attempt,
        concurrent_jobs=beside,
        other_jobs=crash.other_jobs + len(crash.concurrent_jobs) - len(beside),
        detail=detail_for_client(crash.detail, numbers),
    )
