"""Planned exits, from the pool's side: who asks for one, and who waits for it."""

from __future__ import annotations

import asyncio

from asyncpool import events
from asyncpool._core.base.text import in_units
from asyncpool._core.slots import commands as cmd
from asyncpool._core.slots.slots import UP, Slot
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.machine import private_memory
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import SlotState
from asyncpool.errors import (
    NoWorkerError,
    PoolClosedError,
    ResizeError,
    RollInProgressError,
)

# Seconds between two looks at the workers' memory.  A look takes 10 us for each worker.
_LOOK_EVERY = 0.25

# The states of a slot whose process is a worker that has been ready.
_THERE = UP | {SlotState.STOPPING}


class WorkerReplacement:
    """Retires, replaces and kills workers on request.

    Args:
        state: The pool's state.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._replacements = state.core.replacements
        self._roll: asyncio.Future[events.RollResult] | None = None
        self._roll_began = 0.0
        self._sized: asyncio.Future[None] | None = None
        self._size = 0, 0
        self._watch = Alarm(state.loop, self._look_at_memory)
        limits = state.config.worker_limits
        self._hard = limits.kill_memory
        if limits.max_memory is not None or limits.kill_memory is not None:
            self._watch.set_in(_LOOK_EVERY)

    # Requests.

    @decision
    def retire(self, handle: WorkerHandle, reason: str = "") -> None:
        """Have a worker begin no other job, since its job has asked for that."""
        core, registry = self._state.core, self._state.registry
        slot, now = core.slots[handle.slot], self._state.loop.time()
        unsent = core.jobs.last(slot.index) if handle.outbox.withdraw() else None
        jobs = self._state.config.serving is None
        why = _why("retire_worker()" if jobs else "retire()", reason)
        self._state.performer.perform(
            self._replacements.retire(slot, why, now, unsent=unsent)
        )
        if unsent is not None:
            self._state.performer.perform(core.jobs.withdraw(slot.index, unsent, now))
            traits = registry.jobs[unsent]._traits
            self._state.performer.perform(core.jobs.requeue({unsent: traits}, now))

    @decision
    def replace(self, handle: WorkerHandle, reason: str = "") -> None:
        """Start another worker for the slot of one that has asked for it."""
        slot, now = self._state.core.slots[handle.slot], self._state.loop.time()
        self._state.performer.perform(
            self._replacements.replace(slot, _why("request_replacement()", reason), now)
        )
        self._state.performer.rearm()

    @decision
    def retire_from(self, index: int) -> None:
        """Retire the worker in a slot.

        Raises:
            NoWorkerError: If no worker is ready there.
        """
        slot, now = self._worker_in(index), self._state.loop.time()
        self._state.performer.perform(self._replacements.replace(slot, "retire", now))
        self._state.performer.rearm()

    @decision
    def kill(self, index: int) -> None:
        """Kill the worker in a slot.

        Raises:
            NoWorkerError: If no worker is ready there.
        """
        slot, now = self._worker_in(index), self._state.loop.time()
        self._state.performer.perform(self._state.core.workers.kill(slot.index, now))

    def _worker_in(self, index: int) -> Slot:
        slots = {
            slot.index: slot
            for slot in self._state.core.slots
            if slot.state in _THERE and slot.ready_at is not None
        }
        if index not in slots:
            raise NoWorkerError(index, there=tuple(slots))
        return slots[index]

    def resize(self, least: int, most: int) -> asyncio.Future[None]:
        """Let the pool grow or shrink; return a future that is done when it has its size."""
        self._resize(least, most)
        if self._sized is None:
            self._sized = self._state.loop.create_future()
        sized = self._sized
        self.check_limits()
        return sized

    @decision
    def _resize(self, least: int, most: int) -> None:
        now, self._size = self._state.loop.time(), (least, most)
        self._state.performer.perform(self._replacements.resize(least, most, now))
        self._state.performer.rearm()

    def roll(self) -> asyncio.Future[events.RollResult]:
        """Have every worker replaced; return a future of the result.

        Raises:
            RollInProgressError: If the pool is being rolled already.
        """
        if self._replacements.rolling:
            raise RollInProgressError(
                f"{self._state.config.title} is being rolled: one roll at a time"
            )
        roll = self._roll = self._state.loop.create_future()
        self._roll_began = self._state.loop.time()
        self._state.log.roll_begun(self._replacements.sizing.size)
        self._begin_roll()
        return roll

    @decision
    def _begin_roll(self) -> None:
        self._state.performer.perform(self._replacements.roll(self._state.loop.time()))
        self._state.performer.rearm()

    # Results.

    def carry_out(self, command: cmd.Retiring | cmd.Resized | cmd.RollEnded) -> None:
        """Perform a command that is about replacement."""
        hub = self._state.hub
        match command:
            case cmd.Retiring(slot, reason):
                handle = self._state.handles[slot]
                hub.publish(events.Retiring(slot, handle.generation, reason))
                self._state.log.worker_retiring(handle, reason)
            case cmd.Resized(workers):
                hub.publish(events.Resized(workers))
                self._state.log.size_changed(workers)
            case cmd.RollEnded(replaced, trouble, filled):
                self._rolled(replaced, trouble, filled)

    def _rolled(self, replaced: int, reason: str, filled: int) -> None:
        crashes = self._state.crashes
        failed = reason and not self._replacements.stopped
        crash = crashes[-1] if failed and crashes else None
        roll, self._roll = self._roll, None
        if roll is not None and not roll.done():
            result = events.RollResult(
                replaced=replaced, filled=filled, reason=reason, crash=crash
            )
            roll.set_result(result)
            self._state.log.rolled(result, self._state.loop.time() - self._roll_began)

    def check_limits(self) -> None:
        """Finish the wait for a size, if the pool has it, or if nobody knows when it will."""
        self.check_size()
        if self._awaits_size and self._starts_fail and self._replacements.budget.stuck:
            self._sized_is(self._crash_of_parked())

    def check_size(self) -> None:
        """Finish the wait for a size, if the pool has that size."""
        if self._awaits_size and self._replacements.budget.settled:
            self._sized_is(None)

    @property
    def _awaits_size(self) -> bool:
        return self._sized is not None and not self._replacements.stopped

    def _crash_of_parked(self) -> events.Crash:
        """Return how the last worker ended in one of the slots that are parked."""
        slots, crashes = self._state.core.slots, self._state.crashes
        parked = {slot.index for slot in slots if slot.state is SlotState.PARKED}
        return next((it for it in reversed(crashes) if it.slot in parked), crashes[-1])

    def start_failed(self, crash: events.Crash) -> None:
        """Fail the wait for a size with *crash*, if that worker was started for it."""
        if self._starts_fail and self._replacements.budget.misses(crash.slot):
            self._sized_is(crash)

    @property
    def _starts_fail(self) -> bool:
        core = self._state.core
        # Who resizes a server wants to hear of the first one that fails: its code may be broken.
        serving = self._state.config.serving is not None
        return serving or core.starts_fail or core.broken is not None

    def _sized_is(self, crash: events.Crash | None) -> None:
        sized, self._sized = self._sized, None
        if sized is None or sized.done():
            return
        self._state.log.resized(*self._size, crash)
        if crash is None:
            sized.set_result(None)
        else:
            sized.set_exception(ResizeError(crash))
            sized.exception()  # marks it as retrieved, since the caller may have left

    def stop(self) -> None:
        """End all waits: the pool closes."""
        self._watch.cancel()
        self._rolled(0, "the pool was closed", 0)
        if self._sized is not None and not self._sized.done():
            self._sized.set_exception(PoolClosedError())
            self._sized.exception()  # marks it as retrieved, since the caller may have left

    # Memory.

    @decision
    def _look_at_memory(self, _: float) -> None:
        for slot in list(self._state.core.slots):
            if slot.state in UP:
                self._weigh(slot)
        self._watch.set_in(_LOOK_EVERY)

    def _weigh(self, slot: Slot) -> None:
        handle, now = self._state.handles[slot.index], self._state.loop.time()
        if handle.pid is None:
            return
        memory = private_memory(handle.pid)
        if self._hard is not None and memory >= self._hard:
            had, most = in_units(memory), in_units(self._hard)
            reason = f"it had {had} of memory, and kill_memory is {most}"
            self._state.performer.perform(
                self._state.core.workers.oversized(slot.index, reason, now)
            )
        elif (
            slot.recycle_limits.memory is not None
            and memory >= slot.recycle_limits.memory
        ):
            self._state.performer.perform(
                self._replacements.replace(slot, "max_memory", now)
            )


def _why(call: str, reason: str) -> str:
    return f"{call}: {reason}" if reason else call
