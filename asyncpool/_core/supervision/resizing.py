"""How many workers there are: as many as the pool's size says, and the size follows the jobs.

A worker that is missing is started.  One that is too many drains, one after the other, those
without a job before the others.  If there may be fewer, one that has been idle for too long
goes.  What the size is to be is decided in ``capacity.py``.
"""

from __future__ import annotations

from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.capacity import Budget, Sizing, counts
from asyncpool._core.slots.commands import Command, Resized
from asyncpool._core.slots.lifecycle import EMPTY, SlotLifecycle
from asyncpool._core.slots.slots import Slot
from asyncpool._core.supervision.draining import DrainingWorkers
from asyncpool.enums import SlotState


class Resizing:
    """Keeps the number of workers at the size.

    Args:
        lifecycle: The slots.
        dispatcher: Which knows how many jobs wait.
        leaving: How workers go.
        sizing: How many there are to be.
        budget: How many may come and go meanwhile.
    """

    def __init__(
        self,
        lifecycle: SlotLifecycle,
        dispatcher: Dispatcher,
        *,
        leaving: DrainingWorkers,
        sizing: Sizing,
        budget: Budget,
    ) -> None:
        self._slots = lifecycle.slots
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._leaving = leaving
        self._sizing = sizing
        self._budget = budget
        self._more = 0  # by so many it has grown, and they have not been started

    def limit(self, least: int, most: int, now: float) -> list[Command]:
        """Keep the size between these from now on."""
        self._lifecycle.ensure_slots(self._budget.slots_for(most))
        self._lifecycle.ledger.workers = most
        size = self._sizing.size
        self._sizing.limit(least, most, now)
        return self._report(size)

    def count(self, now: float) -> None:
        """Take note that a worker has come or gone: there may be jobs for which none is."""
        if self._sizing.watching and self._dispatcher.unserved > self._budget.coming:
            self._sizing.crowded(now)

    def next_deadline(self) -> float | None:
        """When to call :meth:`step` at the latest."""
        return self._sizing.next_deadline(leaving=self._leaving.any)

    def step(self, now: float) -> list[Command]:
        """Start who is missing, and let those go that are too many, or idle for too long."""
        size, waiting = self._sizing.size, self._dispatcher.unserved
        self._sizing.grow(now, waiting=waiting, coming=self._budget.coming)
        commands = self._report(size)
        commands += self._fill(now)
        commands += self._thin_out(now)
        return [*commands, *self._let_idle_go(now)]

    def _report(self, before: int) -> list[Command]:
        size = self._sizing.size
        self._more = max(0, self._more + size - before)
        return [] if size == before else [Resized(size)]

    def _fill(self, now: float) -> list[Command]:
        missing = self._budget.missing
        self._more = min(self._more, max(0, missing))
        commands: list[Command] = []
        for _ in range(min(missing, self._budget.free)):
            slot = self._lifecycle.unused_slot()
            commands.append(self._lifecycle.spawn(slot, now, new=self._more > 0))
            self._more = max(0, self._more - 1)
        return commands

    def _thin_out(self, now: float) -> list[Command]:
        """Let those go that are too many: who does not work yet, or not now, is first."""
        commands: list[Command] = []
        while self._budget.missing < 0:
            free = (s for s in self._slots if counts(s) and s.session is None)
            slot = min(free, key=_worth, default=None)
            if slot is None:
                break  # until a session is over
            if slot.state in EMPTY:
                commands += self._lifecycle.leave_empty(slot)
            elif self._leaving.any or slot.state is SlotState.STOPPING:
                break  # whoever is gone then calls here again
            else:
                commands += self._leaving.begin(slot, "resize", now)
        return commands

    def _let_idle_go(self, now: float) -> list[Command]:
        if self._leaving.any:
            return []
        idle = [
            (slot.idle_since, slot.index)
            for slot in self._slots
            if slot.state is SlotState.IDLE and not slot.draining
            if slot.session is None
        ]
        size = self._sizing.size
        index = self._sizing.shrink(now, idle)
        if index is None:
            return []
        return [
            *self._report(size),
            *self._leaving.begin(self._slots[index], "idle", now),
        ]


def _worth(slot: Slot) -> tuple[int, float]:
    """Return what to sort by: an empty slot first, then a start, then the longest idle."""
    rank = (
        SlotState.PARKED,
        SlotState.VACANT,
        SlotState.STOPPING,
        SlotState.STARTING,
        SlotState.IDLE,
        SlotState.BUSY,
    )
    return rank.index(slot.state), slot.idle_since
