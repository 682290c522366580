"""The numbers of slots where a pool has several agents, also in crashes."""

from __future__ import annotations

from dataclasses import replace

from asyncpool.events import Crash

# The slots of the first agent have the numbers of its pool, and those of each further one so
# many more than those of the one before.
SLOTS = 10_000


def first_slot(agent: int) -> int:
    """Return what is added to the slots of an agent, by its number at the client."""
    return (agent - 1) * SLOTS


def crash_at_client(crash: Crash, first_slot: int) -> Crash:
    """Return a crash that came with an error of an agent, with the client's number of the slot.

    It names no job: the agent's numbers are those of other jobs at the client.
    """
    return replace(
        crash, slot=first_slot + crash.slot, job_id=None, attempt=0, concurrent_jobs=()
    )
