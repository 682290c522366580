"""Workers that leave: they get no more jobs, finish what they have begun, and end.

The pool asks such a worker for the jobs that it has not begun, and drops its pinned
jobs.  It kills a worker that takes longer than the *drain timeout*.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.placement.pinned_jobs import PinnedJobs
from asyncpool._core.slots.commands import Command, Retiring, Revoke
from asyncpool._core.slots.lifecycle import SlotLifecycle
from asyncpool._core.slots.slots import UP, Slot, StopStage
from asyncpool.enums import SlotState


class DrainingWorkers:
    """The workers that leave a pool.

    Args:
        lifecycle: What ends workers.
        dispatcher: What decides which worker runs which job.  It must not use a
            worker that leaves.
        pinned_jobs: The pinned jobs.  Those of a worker that leaves are dropped.
        drain_timeout: Seconds that a worker has to finish; ``None`` for any time.
    """

    def __init__(
        self,
        lifecycle: SlotLifecycle,
        dispatcher: Dispatcher,
        pinned_jobs: PinnedJobs,
        drain_timeout: float | None,
    ) -> None:
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher
        self._pinned = pinned_jobs
        self._drain_timeout = drain_timeout

    @property
    def any(self) -> bool:
        """Whether a worker is leaving."""
        return any(slot.draining for slot in self._lifecycle.slots)

    def begin(
        self, slot: Slot, why: str, now: float, *, planned: bool = True
    ) -> list[Command]:
        """Let the worker of *slot* leave, unless it already does; its end may count as a crash."""
        if slot.draining or slot.state not in UP | {SlotState.STARTING}:
            return []
        slot.draining, slot.exit_reason = True, why
        self._dispatcher.exclude(slot.index)
        self._lifecycle.pass_on_probe(slot, now)
        commands: list[Command] = [
            Retiring(slot.index, why),
            *self._pinned.drop(slot),
        ]
        if slot.state is SlotState.BUSY:
            if self._drain_timeout is not None:
                slot.drain_deadline = now + self._drain_timeout
            return [*commands, *self.ask_back(slot, slot.in_flight.waiting())]
        how = (
            StopStage.STOPPED if slot.state is SlotState.IDLE else StopStage.TERMINATED
        )
        return [
            *commands,
            *self._lifecycle.stop_worker(slot, how, now, planned=planned),
        ]

    @staticmethod
    def ask_back(slot: Slot, jobs: Iterable[int]) -> list[Command]:
        """Ask the worker of *slot* for those *jobs* that the pool has not asked it for yet."""
        in_flight = slot.in_flight
        not_asked = [job for job in jobs if not in_flight.is_revoking(job)]
        return (
            [Revoke(slot.index, in_flight.begin_revoke(not_asked))] if not_asked else []
        )

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        return earliest(*map(_due, self._lifecycle.slots))

    def on_timer(self, now: float) -> list[Command]:
        """Kill the workers whose time is over."""
        commands: list[Command] = []
        for slot in self._lifecycle.slots:
            due = _due(slot)
            if due is not None and due <= now:
                reason = (
                    f"it was to leave, and had not within {self._drain_timeout:g} s"
                )
                commands += self._lifecycle.stop_worker(
                    slot, StopStage.KILLED, now, reason=reason
                )
        return commands


def _due(slot: Slot) -> float | None:
    return slot.drain_deadline if slot.state is SlotState.BUSY else None
