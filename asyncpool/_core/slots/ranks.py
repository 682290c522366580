"""The rank of a worker: a number from 0 on that no other worker has which takes jobs.

Jobs read it as ``current_job().slot``, and ``worker_env`` gets it.  It is for what there is
once for each worker: a GPU, a port, a core.  The number of the worker's slot would not do.
A replacement starts in a slot beyond the size of the pool while the old worker still works,
so the slots in use wander.  A replacement has the rank of the worker that it replaces, from
its start on, since the environment of a process cannot change with the end of another one.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Sequence

from asyncpool._core.slots.slots import Slot
from asyncpool.enums import SlotState

_NOBODY = frozenset({SlotState.UNUSED, SlotState.RETIRED})


def rank_of(slot: Slot, slots: Sequence[Slot], most: int) -> int:
    """Return the rank of the worker that is started in *slot*.

    Args:
        slot: It knows whose worker the new one replaces, and the rank of its last worker.
        slots: All slots.
        most: How many workers the pool may have, without surge.  Ranks are less than that.
    """
    others = [it for it in slots if it is not slot and it.state not in _NOBODY]
    if slot.replaces is not None and slots[slot.replaces].rank < most:
        return slots[slot.replaces].rank
    # A worker that leaves takes no more jobs.  Its rank is free for its successor, which may
    # start before it has gone, but one that nobody has is better.
    staying = {it.rank for it in others if not it.draining}
    leaving = {it.rank for it in others if it.draining}
    free = [rank for rank in range(most) if rank not in staying]
    if not free:  # in a cluster, workers that fail have successors beyond the size
        return _first_beyond(staying, most)
    return min(free, key=lambda rank: (rank in leaving, rank != slot.rank, rank))


def _first_beyond(taken: Container[int], most: int) -> int:
    return next(rank for rank in itertools.count(most) if rank not in taken)
