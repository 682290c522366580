"""Which worker has which bucket, so that jobs with the same key find the same worker.

A *bucket* is a number that stands for one worker.  The keys are divided among the
buckets (``dispatch/dispatcher.py``).  A bucket passes from a worker to the one that follows
it:

* If a worker ends and another one follows at once in its slot, that one gets the
  bucket.  Jobs wait for it, since it is there within milliseconds.
* A replacement, which starts in an unused slot, gets the bucket when it is ready and
  the old worker leaves.
* A worker that belongs to a session (``sessions.py``) has no bucket meanwhile.
* If no worker follows at once, the bucket is given up, and its keys go to their next
  choices.  That is so if there is a backoff, if the slot is parked or not needed, or if
  a worker leaves before its replacement is ready.  A worker that is ready and has no
  bucket takes the lowest free one.  Most likely that is the one that was given up, so
  its keys come back, and no other keys move.

A worker that is started because the pool grows has no bucket before it is ready.  The
workers with which a pool begins have theirs from the start.  Otherwise all keys would
first belong to the first worker that is ready, and then move.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.commands import Assign, Command
from asyncpool._core.slots.slots import UP, Slot
from asyncpool.enums import SlotState

# The states of a slot whose worker is there, comes at once, or is followed at once.
_SEATED = UP | {SlotState.STARTING, SlotState.STOPPING}


class AffinitySlots:
    """The buckets of a pool.

    Args:
        slots: The slots; there may be more later.
        dispatcher: What needs to know which slot has which bucket.
    """

    def __init__(self, slots: Sequence[Slot], dispatcher: Dispatcher) -> None:
        self._slots = slots
        self._dispatcher = dispatcher

    def open(self) -> None:
        """Give buckets to the workers with which the pool begins."""
        for slot in self._slots:
            if slot.state is SlotState.STARTING:
                slot.bucket = slot.index
        self.update()

    def assign(self, slot: Slot) -> None:
        """Give a bucket to the worker of *slot*, which is ready; then call :meth:`update`."""
        if slot.bucket is None and slot.replaces is not None:
            old = self._slots[slot.replaces]
            slot.bucket, old.bucket = old.bucket, None
        if slot.bucket is None:
            taken = {other.bucket for other in self._slots}
            slot.bucket = min(set(range(len(self._slots))) - taken)

    def update(self) -> list[Command]:
        """Free the buckets that were given up, and move jobs to where their keys belong now."""
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
