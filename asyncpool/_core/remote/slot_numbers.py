"""The numbers of slots where a pool has several agents."""

from __future__ import annotations

# The slots of the first agent have the numbers of its pool, and those of each further one so
# many more than those of the one before.
SLOTS = 10_000


def first_slot(agent: int) -> int:
    """Return what is added to the slots of an agent, by its number at the client."""
    return (agent - 1) * SLOTS
