"""Workers that leave: they get no more jobs, finish what they have begun, and end.

What has not begun is asked back, errands are dropped, and who takes longer than the
*drain timeout* is killed.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.pinned_jobs import Errands
from asyncpool._core.slots.commands import Command, Retiring, Revoke
from asyncpool._core.slots.lifecycle import Lives
from asyncpool._core.slots.slots import UP, Ending, Slot, SlotState


class Leaving:
    """Who leaves a pool.

    Args:
        lives: What ends workers.
        dispatcher: Which must not count on who leaves.
        errands: What is dropped.
        drain_timeout: Seconds that a worker has for it; ``None`` for any time.
    """

    def __init__(
        self,
        lives: Lives,
        dispatcher: Dispatcher,
        errands: Errands,
        drain_timeout: float | None,
    ) -> None:
        self._lives = lives
        self._dispatcher = dispatcher
        self._errands = errands
        self._drain_timeout = drain_timeout

    @property
    def anybody(self) -> bool:
        """Whether there is somebody who leaves."""
        return any(slot.leaving for slot in self._lives.slots)

    def begin(
        self, slot: Slot, why: str, now: float, *, planned: bool = True
    ) -> list[Command]:
        """Let the worker of *slot* leave, unless it does already; its end may be a crash."""
        if slot.leaving or slot.state not in UP | {SlotState.STARTING}:
            return []
        slot.leaving = True
        self._dispatcher.worker_gone(slot.index)
        commands: list[Command] = [
            Retiring(slot.index, why),
            *self._errands.drop(slot),
        ]
        if slot.state is SlotState.BUSY:
            if self._drain_timeout is not None:
                slot.leave_by = now + self._drain_timeout
            return [*commands, *self.ask_back(slot, slot.flight.behind())]
        how = Ending.STOPPED if slot.state is SlotState.IDLE else Ending.TERMINATED
        return [*commands, *self._lives.end(slot, how, now, planned=planned)]

    @staticmethod
    def ask_back(slot: Slot, jobs: Iterable[int]) -> list[Command]:
        """Ask the worker of *slot* for those of *jobs* for which it was not asked yet."""
        flight = slot.flight
        not_asked = [job for job in jobs if not flight.asks_for(job)]
        return [Revoke(slot.index, flight.ask(not_asked))] if not_asked else []

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        return earliest(*map(_due, self._lives.slots))

    def on_timer(self, now: float) -> list[Command]:
        """Kill those whose time is over."""
        commands: list[Command] = []
        for slot in self._lives.slots:
            due = _due(slot)
            if due is not None and due <= now:
                reason = (
                    f"it was to leave, and had not within {self._drain_timeout:g} s"
                )
                commands += self._lives.end(slot, Ending.KILLED, now, reason=reason)
        return commands


def _due(slot: Slot) -> float | None:
    return slot.leave_by if slot.state is SlotState.BUSY else None
