"""The jobs that one worker runs at once, each in a lane of its own.

A task of the worker's event loop runs a coroutine step by step.  A plain function runs without a
break, and all other jobs wait for it.  Each outcome is sent, or noted, in the very step in which
its job ends, so it is safe whatever the other jobs do.
"""

from __future__ import annotations

import os
from contextvars import copy_context
from time import perf_counter_ns

from asyncpool._core.pickling.serializers import PICKLE_WORKER, WorkerSerializer
from asyncpool._core.wire.frames import MAX_NUMBER, Frame, FrameKind
from asyncpool._core.wire.page import (
    BEGUN,
    LANE_OUTCOME_SIZE,
    LANE_STACK_SIZE,
    NOTED,
    PageLayout,
)
from asyncpool._worker.job.coroutines import (
    Coroutines,
    CoroutineSteps,
    inner,
    outcome_of,
    tell_waiting,
    warn,
)
from asyncpool._worker.job.execute import pack_failure
from asyncpool._worker.job_ending.interrupts import Interrupts
from asyncpool._worker.job_ending.live_stacks import computing

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from contextvars import Context
    from mmap import mmap
    from typing import Any

    from asyncpool._core.pickling.out_of_band import OutOfBandPickle
    from asyncpool._worker.job.around import Entered
    from asyncpool._worker.job.heartbeats import HeartbeatWriter


class Lane(CoroutineSteps):
    """A running job, which the event loop takes for a coroutine like any other.

    Args:
        lanes: All lanes.
        index: The number of this lane.
        frame: The frame of the job.
        sequence: The job's sequence number.

    Attributes:
        frame: As above.
        index: As above.
        sequence: As above.
        began: When it began, in nanoseconds.
        context: The context that it runs in.
        asked: Whether it was told to end.
        task: The task that runs its steps, if it is a coroutine.
        shown: The coroutine whose stack a stack dump shows.
        entered: The hook that was entered around it, and must be left.
    """

    def __init__(self, lanes: Lanes, index: int, frame: Frame, sequence: int) -> None:
        self.frame = frame
        self.index = index
        self.sequence = sequence
        self.began = perf_counter_ns()
        self.context: Context = lanes.context.copy()
        self.asked = False
        self.task: asyncio.Task[Any] | None = None
        self.shown: Any = None
        self.entered: Entered | None = None
        self._lanes = lanes

    def go(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Have the loop run *coroutine* to its end."""
        loop = self._lanes.loop
        super().__init__(coroutine, loop)
        self.shown = coroutine
        steps: Any = self
        self.task = loop.create_task(steps, name="asyncpool job", context=self.context)

    def _take(self, step: Callable[..., Any], *args: Any) -> Any:
        lanes = self._lanes
        try:
            try:
                return super()._take(step, *args)
            finally:
                if lanes.mute:  # a fork that a job made, back from that step
                    os._exit(0)
        except StopIteration as end:
            lanes.finish(self, end.value)
        except BaseException as error:
            lanes.fail(self, error)
        raise StopIteration


class Lanes:
    """The lanes of one worker.

    Args:
        page: The worker page.
        layout: The layout of the page.
        coroutines: Has the worker's event loop.
        interrupts: May end a job.
        send: Sends an outcome, given the kind of its frame, its payload and a duration.

    Attributes:
        by_job: The running jobs, by job and attempt.
        loop: The loop, once there is a coroutine.
        context: The context of which each job gets a copy.
        max_payload: The most bytes of an outcome.
        serializer: How outcomes travel.
        beats: Writes their heartbeats.
        mute: Whether this process is a copy of the worker, which a job has forked.
        on_free: Called when a job has ended.
    """

    loop: asyncio.AbstractEventLoop
    beats: HeartbeatWriter

    def __init__(
        self,
        page: mmap,
        layout: PageLayout,
        coroutines: Coroutines,
        interrupts: Interrupts,
        send: Callable[[Lane, FrameKind, bytes | OutOfBandPickle, int], None],
    ) -> None:
        self.by_job: dict[tuple[int, int], Lane] = {}
        self.context = copy_context()
        self.max_payload = 0
        self.serializer: WorkerSerializer = PICKLE_WORKER
        self.mute = False
        self.on_free: Callable[[], None] = _nothing
        self._free = list(range(layout.width))[::-1]
        self._page = page
        self._layout = layout
        self._coroutines = coroutines
        self._interrupts = interrupts
        self._send = send
        self._opened = False

    @property
    def full(self) -> bool:
        """Whether no other job can begin, since all lanes are taken."""
        return not self._free

    def begin(self, frame: Frame, sequence: int) -> Lane:
        """Take a lane for a job, and note on the page that the job has begun."""
        index, whose = self._free.pop(), (frame.job, frame.attempt)
        # Noted before any code of the job's own can run, even that of its arguments.
        BEGUN.pack_into(self._page, self._layout.begun(index), *whose)
        lane = self.by_job[whose] = Lane(self, index, frame, sequence)
        return lane

    def open(self) -> asyncio.AbstractEventLoop:
        """Return the loop, which is created if there is none."""
        if not self._opened:
            self.loop, self._opened = self._coroutines.loop(), True
        return self.loop

    @property
    def looping(self) -> bool:
        """Whether the loop runs."""
        return self._opened and self.loop.is_running()

    def go(self, lane: Lane, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Continue a job whose function has returned *coroutine*."""
        self.open()
        lane.go(coroutine)
        if self._interrupts.wants(lane.sequence):
            self.end_soon(lane.sequence)

    def finish(self, lane: Lane, value: object) -> None:
        """Send what a job has returned."""
        try:
            if lane.entered is not None:
                self._exit_hook(lane, lane.entered, None)
            payload = self._pack(lane, value)
        except BaseException as error:
            self._leave(lane, FrameKind.ERROR, self._pack_failure(error))
        else:
            self._leave(lane, FrameKind.VALUE, payload)

    def fail(self, lane: Lane, error: BaseException) -> None:
        """Send what a job has raised."""
        error.__traceback__ = inner(error.__traceback__)
        error = outcome_of(error, asked=lane.asked)
        if lane.entered is not None:
            try:
                self._exit_hook(lane, lane.entered, error)
            except BaseException as instead:
                error = instead
        self._leave(lane, FrameKind.ERROR, self._pack_failure(error))

    def _pack(self, lane: Lane, value: object) -> bytes | OutOfBandPickle:
        pack = self.serializer.pack_value
        if lane.task is None and self.serializer is not PICKLE_WORKER:
            # The context knows which function has returned it.
            return lane.context.run(pack, value, self.max_payload)
        return pack(value, self.max_payload)

    def _pack_failure(self, error: BaseException) -> bytes:
        return pack_failure(error, self.max_payload, self.serializer)

    def blocked(self, lane: Lane) -> None:
        """Warn if other jobs have waited long for a plain function, which has just ended."""
        seconds = (perf_counter_ns() - lane.began) / 1e9
        others = len(self.by_job) - 1
        if others and self._opened and seconds > self.loop.slow_callback_duration:
            who, hint = f"job {lane.frame.job}", f"; other jobs there: {others}"
            lane.context.run(warn, who, seconds, "in a plain function", hint)

    def _exit_hook(
        self, lane: Lane, entered: Entered, error: BaseException | None
    ) -> None:
        """Have the pool's hook exit, in the context in which it has entered."""
        if lane.task is not None:  # this is the last of its steps
            entered.leave(error)
            return
        self._interrupts.running = lane.sequence
        try:
            lane.context.run(entered.leave, error)
        finally:
            self._interrupts.running = None

    def _leave(
        self, lane: Lane, kind: FrameKind, payload: bytes | OutOfBandPickle
    ) -> None:
        duration = min((perf_counter_ns() - lane.began) // 1000, MAX_NUMBER)
        try:
            # Before any other job begins: a crash there must not cost this outcome.
            self._send(lane, kind, payload, duration)
        finally:
            del self.by_job[lane.frame.job, lane.frame.attempt]
            self._interrupts.forget(lane.sequence)
            # The task refers to the lane.  A cycle would keep the job's memory until a collection.
            lane.task = None
            self._free.append(lane.index)
            self.on_free()

    def become_nobody(self) -> None:
        """Stop everything in this process, which is a copy of the worker."""
        self.mute = self.beats.mute = True

    def note(self, lane: Lane, kind: FrameKind, payload: bytes, duration: int) -> bool:
        """Note an outcome where the pool finds it if the worker dies; return false if too large.

        A noted outcome need not be sent at once.
        """
        if len(payload) > LANE_OUTCOME_SIZE - NOTED.size:
            return False
        page, start = self._page, self._layout.outcome(lane.index)
        # The number of the job comes last: until then the outcome belongs to no job.
        NOTED.pack_into(page, start, 0, 0, kind, duration, len(payload))
        begin = start + NOTED.size
        page[begin : begin + len(payload)] = payload
        BEGUN.pack_into(page, start, lane.frame.job, lane.frame.attempt)
        return True

    # What the control thread asks for.

    def runs(self, sequence: int) -> bool:
        """Return whether the job with this sequence number is running."""
        return any(lane.sequence == sequence for lane in list(self.by_job.values()))

    def end_soon(self, sequence: int) -> None:
        """Have the loop end the job with this sequence number, if it runs there."""
        if self._opened:
            self.loop.call_soon_threadsafe(self._end, sequence)

    def write_stack(self, job: int, attempt: int) -> None:
        """Write where that job is.

        The dump of all threads shows one that computes, too.  But if several jobs end at once,
        the pool shows the dump with the first of them only.
        """
        lane = self.by_job.get((job, attempt))
        if lane is None:
            return
        text = tell_waiting(lane.shown) or computing(self._interrupts)
        told = text.encode(errors="replace")[: LANE_STACK_SIZE - BEGUN.size]
        note = BEGUN.pack(job, attempt) + told
        start = self._layout.stack(lane.index)
        self._page[start : start + LANE_STACK_SIZE] = note.ljust(LANE_STACK_SIZE, b"\0")

    def waiting(self) -> dict[tuple[int, int], str]:
        """Return where each job waits; empty for the one that computes."""
        found: dict[tuple[int, int], str] = {}
        for whose, lane in list(self.by_job.items()):
            lines = tell_waiting(lane.shown).split("\n")
            found[whose] = "\n".join(lines[1:])  # without the heading
        return found

    @property
    def running(self) -> tuple[int, int] | None:
        """The running job, for code that does not know its own; ``None`` if there are several."""
        sequence = self._interrupts.running
        lanes = list(self.by_job.values())
        found = [lane for lane in lanes if lane.sequence == sequence] or lanes
        return (found[0].frame.job, found[0].frame.attempt) if len(found) == 1 else None

    def _end(self, sequence: int) -> None:
        for lane in self.by_job.values():
            if lane.sequence == sequence and lane.task is not None:
                if self._interrupts.forget(sequence):
                    lane.asked = lane.task.cancel()
                return


def _nothing() -> None:
    pass
