"""Planned exits, from the pool's side: who asks for one, and who waits for it."""

from __future__ import annotations

import asyncio
import math
import time
from typing import TYPE_CHECKING

from asyncpool import errors, events
from asyncpool._core import log_messages as say
from asyncpool._core.functions import RELOADS
from asyncpool._core.slots import ALIVE, NOT_NEEDED, UP, Slot
from asyncpool._engine.loop import fail_quietly
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.posix import memory_at_most, private_memory
from asyncpool._wire.text import in_units

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine

# Seconds between two looks at the workers' memory.  A look takes 8 us for each worker.
_LOOK_EVERY = 0.25

# A worker is weighed at most this part of the time, unless it has become larger since: it may
# only have begun to write to what it shares.
_WEIGHING = 0.02


class WorkerReplacement:
    """Retires, replaces and kills workers on request.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lifecycle = engine.core.lifecycle
        self._roll: asyncio.Future[events.RollResult] | None = None
        self._roll_began = 0.0
        self._reloaded: list[object] = []
        self._reloads = 0  # there had been so many when the roll began
        # The calls of resize() that have not returned, and when they began.
        self._waits: dict[asyncio.Future[None], float] = {}
        self._size = 0, 0
        self._watch = engine.alarm(self._look_at_memory)
        limits = engine.config.worker_limits
        self._hard = limits.kill_memory
        if limits.max_memory is not None or limits.kill_memory is not None:
            self._watch.set_in(_LOOK_EVERY)

    # Requests.

    def retire_now(self, handle: WorkerHandle, reason: str = "") -> None:
        """Have a worker begin no other job, since its job has asked for that."""
        engine, slot = self._engine, self._engine.core.slots[handle.slot]
        with engine.turn as now:
            unsent = slot.in_flight.last if handle.outbox.withdraw() else None
            jobs = engine.config.serving is None
            why = _why("retire_worker()" if jobs else "retire()", reason)
            self._lifecycle.drain_now(slot, why, now, unsent=unsent)
            if unsent is not None:
                engine.core.withdraw(slot.index, unsent, now, requeue=True)

    def replace(self, handle: WorkerHandle, reason: str = "") -> None:
        """Start another worker for the slot of one that has asked for it."""
        why = _why("request_replacement()", reason)
        self._replace(self._engine.core.slots[handle.slot], why)

    def retire(self, index: int) -> None:
        """Retire the worker in a slot.

        Raises:
            NoWorkerError: If no worker is ready there.
        """
        self._replace(self._worker_in(index), "retire")

    def _replace(self, slot: Slot, why: str) -> None:
        with self._engine.turn as now:
            self._lifecycle.replace(slot, why, now)

    def kill(self, index: int) -> None:
        """Kill the worker in a slot.

        Raises:
            NoWorkerError: If no worker is ready there.
        """
        self._worker_in(index)
        with self._engine.turn as now:
            self._engine.core.kill(index, now)

    def _worker_in(self, index: int) -> Slot:
        alive = (slot for slot in self._engine.core.slots if slot.state in ALIVE)
        ready = {slot.index: slot for slot in alive if slot.ready_at is not None}
        if index not in ready:
            raise errors.NoWorkerError(index, there=tuple(ready))
        return ready[index]

    def resize(self, least: int, most: int) -> asyncio.Future[None]:
        """Let the pool grow or shrink; return a future that is done when it has its size.

        Who cancels the future has no effect on the pool.
        """
        wait: asyncio.Future[None] = self._engine.loop.create_future()
        wait.add_done_callback(self._waits.pop)  # the caller may have been cancelled
        with self._engine.turn as now:
            self._size = least, most
            self._waits[wait] = now
            self._lifecycle.resize(least, most, now)
        self.check_size()
        return wait

    def roll(self) -> asyncio.Future[events.RollResult]:
        """Have every worker replaced; return a future of the result.

        Raises:
            RollInProgressError: If the pool is being rolled already.
        """
        if self._lifecycle.rolling:
            text = f"{self._engine.config.title} is being rolled: one roll at a time"
            raise errors.RollInProgressError(text)
        roll = self._roll = self._engine.loop.create_future()
        # Taken now: new workers may import a module before it is reloaded later on.
        self._reloaded = self._engine.traffic.functions.usual.reloaded()
        self._reloads = len(RELOADS.names)
        with self._engine.turn as now:
            self._roll_began = now
            extra = {"workers": self._lifecycle.sizing.size}
            self._engine.log.soon(say.ROLL_BEGUN, extra)
            self._lifecycle.roll(now)
        return roll

    # Results.

    def on_draining(self, slot: int, reason: str) -> None:
        """Tell that a worker gets no more jobs."""
        handle = self._engine.handles[slot]
        self._engine.hub.publish(events.Retiring(slot, handle.generation, reason))
        self._engine.log.worker_retiring(handle, reason)

    def on_resized(self, workers: int) -> None:
        """Tell that the size has changed."""
        self._engine.hub.publish(events.Resized(workers))
        self._engine.log.soon(say.SIZE_CHANGED, {"workers": workers})

    def on_rolled(self, replaced: int, reason: str, filled: int) -> None:
        """Tell the caller of a roll that it is over."""
        crashes = self._engine.crashes
        failed = reason and not self._lifecycle.stopped
        crash = crashes[-1] if failed and crashes else None
        roll, self._roll = self._roll, None
        if not reason and not self._engine.launcher.has_imports:
            self._engine.traffic.functions.forget(self._reloaded)
            self._engine.traffic.workers_have(self._reloads)
        if roll is not None and not roll.done():
            result = events.RollResult(
                replaced=replaced, filled=filled, reason=reason, crash=crash
            )
            roll.set_result(result)
            self._engine.log.rolled(result, self._engine.loop.time() - self._roll_began)

    def stop(self) -> None:
        """End all waits: the pool closes."""
        self.on_rolled(0, "the pool was closed", 0)
        for wait in self._waits:
            fail_quietly(wait, errors.PoolClosedError())

    # Who waits until the pool has its new size, and what ends that wait.

    def check_size(self) -> None:
        """End the waits, if the pool has its size, or has given up for good."""
        if not self._waits or self._lifecycle.stopped:
            return
        if self._lifecycle.settled:
            self._end_waits(math.inf, None)
        elif self._lifecycle.retry_in(self._engine.loop.time()) is None:
            self._end_waits(math.inf, self._engine.crashes[-1])

    def start_failed(self, crash: events.Crash, began_at: float) -> None:
        """End the waits with *crash*, if starts fail, and that one was for the size.

        Who has called since it began waits for another start: what made this one fail may be over.
        """
        core = self._engine.core
        if not self._waits or core.slots[crash.slot].state in NOT_NEEDED:
            return
        # Who resizes a server wants to hear of the first one that fails: its code may be broken.
        serving = self._engine.config.serving is not None
        if serving or self._lifecycle.ledger.starts_fail or core.broken is not None:
            self._end_waits(began_at, crash)
        if any(asked_at > began_at for asked_at in self._waits.values()):
            with self._engine.turn as now:
                self._lifecycle.try_now(now)

    def _end_waits(self, until: float, crash: events.Crash | None) -> None:
        """End the waits of the calls that were made *until* then."""
        made = [wait for wait in self._waits if self._waits[wait] <= until]
        ended = [wait for wait in made if not wait.done()]
        if ended:
            self._engine.log.resized(*self._size, crash)
        for wait in ended:
            if crash is not None:
                fail_quietly(wait, errors.ResizeError(crash))
            else:
                wait.set_result(None)

    # Memory.

    def _look_at_memory(self, now: float) -> None:
        for slot in self._engine.core.slots:
            if slot.state in UP:
                self._look_at(slot, self._engine.handles[slot.index], now)
        self._watch.set_in(_LOOK_EVERY)

    def _look_at(self, slot: Slot, handle: WorkerHandle, now: float) -> None:
        """Have a worker weighed that may have reached a limit."""
        both = (self._hard, slot.recycle_limits.memory)
        limits = [limit for limit in both if limit is not None]
        pid = handle.pid
        if pid is None:
            return
        bound = memory_at_most(pid)
        next_bound, again_at = handle.next_weighing
        if bound < min(limits) or (bound < next_bound and now < again_at):
            return

        def weigh() -> tuple[int, float]:
            began = time.monotonic()
            return private_memory(pid), time.monotonic() - began

        def note(weight: asyncio.Future[tuple[int, float]]) -> None:
            if not weight.cancelled():  # the pool does not close
                memory, took = weight.result()
                again_at = self._engine.loop.time() + took / _WEIGHING
                # The bound was too high by so much.  So the memory reaches the limit, at the
                # earliest, when the bound is higher than the limit by as much.  (A worker that has
                # reached max_memory may go on for long, with its job.)
                limit = min((it for it in limits if it > memory), default=math.inf)
                handle.next_weighing = max(0, bound - memory) + limit, again_at
                self._judge(handle, memory)

        handle.next_weighing = math.inf, math.inf  # until there is an answer
        self._engine.threads.copy(weigh).add_done_callback(note)

    def _judge(self, handle: WorkerHandle, memory: int) -> None:
        """Kill or replace a worker that has so much memory to itself, if that is too much."""
        slot = self._engine.core.slots[handle.slot]
        if self._engine.handles.get(handle.slot) is not handle or slot.state not in UP:
            return
        soft = slot.recycle_limits.memory
        if self._hard is not None and memory >= self._hard:
            had, most = in_units(memory), in_units(self._hard)
            reason = f"it had {had} of memory, and kill_memory is {most}"
            with self._engine.turn as now:
                self._engine.core.oversized(slot.index, reason, now)
        elif soft is not None and memory >= soft:
            self._replace(slot, "max_memory")


def _why(call: str, reason: str) -> str:
    return f"{call}: {reason}" if reason else call
