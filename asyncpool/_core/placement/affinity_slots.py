"""Who has which place, so that jobs with the same key find the same worker.

A *bucket* is a number that belongs to whoever does the work that is meant for it: the keys
are divided among places (``affinity_queues.py``), and a place goes from a worker to the one that
comes after it:

* A worker that has ended and is followed at once, in its slot, leaves its place to that
  one, and jobs wait for it: it is there within milliseconds.
* A replacement, which begins in a spare slot, has the place from the moment in which it is
  ready and the other one leaves.
* A worker that is somebody's own for a while (``sessions.py``) has none meanwhile.
* If nobody follows at once (there is a backoff, the slot is parked or not needed, a worker
  leaves before another one is ready), the place is given up, and its keys go to their next
  choices.  Whoever is ready and has no place takes the lowest that is free: most likely the
  one that was given up, so that these keys come back, and no others move.

A worker that is started because there are to be more has no place before it is ready.  Those
with which a pool begins have theirs from the start, else all keys would belong to the first
that is ready, and move at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.commands import Assign, Command
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

# Whoever is in one of these is there, or comes at once, or is followed at once.
_SEATED = UP | {SlotState.STARTING, SlotState.STOPPING}


class AffinitySlots:
    """The places of a pool.

    Args:
        slots: The slots; there may be more later.
        dispatcher: Which is told.
    """

    def __init__(self, slots: Sequence[Slot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher

    def open(self) -> None:
        """Give places to the workers with which the pool begins."""
        for slot in self._slots:
            if slot.state is SlotState.STARTING:
                slot.bucket = slot.index
        self.update()

    def assign(self, slot: Slot) -> None:
        """Give a bucket to the worker of *slot*, which is ready; :meth:`update` is next."""
        if slot.bucket is None and slot.replaces is not None:
            old = self._slots[slot.replaces]
            slot.bucket, old.bucket = old.bucket, None
        if slot.bucket is None:
            taken = {other.bucket for other in self._slots}
            slot.bucket = min(set(range(len(self._slots))) - taken)

    def update(self) -> list[Command]:
        """Let go of the places that are given up, and have jobs follow their keys."""
        for slot in self._slots:
            if slot.draining or slot.session or slot.state not in _SEATED:
                slot.bucket = None
        slots_by_bucket = {
            s.bucket: s.index for s in self._slots if s.bucket is not None
        }
        commands: list[Command] = []
        for index, job in self._dispatcher.assign_buckets(slots_by_bucket):
            self._slots[index].assign()
            commands.append(Assign(index, (job,)))
        return commands
