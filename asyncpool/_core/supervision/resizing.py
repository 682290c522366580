"""How the number of workers follows the pool's size, and the size follows the jobs.

The pool starts a worker that is missing.  If there are too many workers, it drains as
many, those without a job first.  If the size may shrink, a worker goes that has been
idle for too long.  ``capacity.py`` decides what the size should be.
"""

from __future__ import annotations

from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import Command, Resized
from asyncpool._core.slots.lifecycle import EMPTY, SlotLifecycle
from asyncpool._core.slots.slots import UP, Slot
from asyncpool._core.supervision.draining import DrainingWorkers
from asyncpool.enums import SlotState


class Resizing:
    """Keeps the number of workers at the size.

    Args:
        lifecycle: The slots.
        dispatcher: What knows how many jobs wait.
        leaving: What lets workers leave.
        sizing: How many workers the pool should have.
        budget: How many workers may come and go at this moment.
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
        self._more = 0  # by how many the size has grown that are not started yet

    def limit(self, least: int, most: int, now: float) -> list[Command]:
        """Keep the size between *least* and *most* from now on."""
        self._lifecycle.ensure_slots(self._budget.slots_for(most))
        self._lifecycle.ledger.workers = self._lifecycle.most = most
        size = self._sizing.size
        self._sizing.limit(least, most, now)
        return self._report(size)

    def count(self, now: float) -> None:
        """Record that a worker has come or gone: some jobs may have no worker now."""
        if self._sizing.watching and self._dispatcher.unserved > self._budget.coming:
            self._sizing.job_waits(now)

    def next_deadline(self) -> float | None:
        """When to call :meth:`step` at the latest."""
        # Asked after every decision, so that a pool that does not shrink looks at no worker.
        nobody_goes = self._sizing.shrinks and not self._may_let_idle_go
        return self._sizing.next_deadline(nobody_goes=nobody_goes)

    def step(self, now: float) -> list[Command]:
        """Start workers that are missing; let workers go that are too many or idle for too long."""
        size, waiting = self._sizing.size, self._dispatcher.unserved
        self._sizing.grow(now, waiting=waiting, coming=self._budget.coming)
        commands = self._report(size)
        commands += self._fill(now)
        commands += self._thin_out(now)
        return [*commands, *self._let_idle_go(now)]

    def close_surplus(self) -> list[Command]:
        """Mark empty slots as not needed, as many as there are too many."""
        commands: list[Command] = []
        for slot in sorted(self._empty, key=_worth)[: max(0, -self._budget.missing)]:
            commands += self._lifecycle.leave_empty(slot)
        return commands

    @property
    def _empty(self) -> list[Slot]:
        """The slots that wait for a start, and that no session waits for."""
        return [
            slot
            for slot in self._slots
            if slot.state in EMPTY
            and self._budget.counts(slot)
            and slot.session is None
        ]

    @property
    def _live(self) -> int:
        """How many workers are ready and stay."""
        return sum(
            slot.state in UP and self._budget.counts(slot) for slot in self._slots
        )

    @property
    def _may_let_idle_go(self) -> bool:
        """Whether one worker less leaves enough that are ready, or takes an empty slot."""
        enough = self._live >= self._sizing.size or bool(self._empty)
        return enough and not self._leaving.any

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
        """Let workers go that are too many, those that do not work yet, or not now, first."""
        commands = self.close_surplus()
        while (slot := self._surplus) is not None:
            # Its replacement, if one is on its way, is surplus from now on, too.
            commands += self._leaving.begin(slot, "resize", now)
        return commands

    @property
    def _surplus(self) -> Slot | None:
        """The slot whose worker goes next, if there are too many, and one may go."""
        # Those with sessions go when these are over.
        free = [s for s in self._slots if self._budget.counts(s) and s.session is None]
        staying = [slot for slot in free if slot.state is not SlotState.STOPPING]
        if len(free) - len(staying) >= -self._budget.missing or not staying:
            return None
        slot = min(staying, key=_worth)
        # If the others are not ready, they may never be.
        is_needed = slot.state in UP and self._live <= self._sizing.size
        return None if is_needed else slot

    def _let_idle_go(self, now: float) -> list[Command]:
        if not self._may_let_idle_go:
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
        # A slot whose starts fail goes before a worker that is well.
        commands = [*self._report(size), *self.close_surplus()]
        if self._budget.missing < 0:
            commands += self._leaving.begin(self._slots[index], "idle", now)
            commands += self._thin_out(now)  # its replacement is surplus, too
        return commands


def _worth(slot: Slot) -> tuple[int, float]:
    """Return the key to sort by: an empty slot first, then a start, then the longest idle."""
    rank = (
        SlotState.PARKED,
        SlotState.VACANT,
        SlotState.STOPPING,
        SlotState.STARTING,
        SlotState.IDLE,
        SlotState.BUSY,
    )
    return rank.index(slot.state), slot.idle_since
