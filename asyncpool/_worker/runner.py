"""Run the jobs of a worker, each in a lane: one at a time, or several at once.

All jobs begin in the order in which they came, as soon as a lane is free.  So each job has its
sequence number, as ``JobClaims`` needs it.  A plain function runs without a break, and all other
jobs wait for it.  A coroutine runs step by step, as a task of the worker's event loop.  Each
outcome is sent, or noted, in the very step in which its job ends, so it is safe whatever the
other jobs do.

While no coroutine runs, the main thread waits for the job channel.  While one runs, the main
thread runs the event loop, which watches the channel too if there are several lanes.  With one
lane, plain functions never run in the loop: they may run a loop of their own.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from importlib import import_module
from mmap import mmap
from time import monotonic, perf_counter_ns
from types import CoroutineType

from asyncpool._wire.frames import (
    MAX_NUMBER,
    VERSION,
    Frame,
    FrameKind,
    header,
    pack_header,
)
from asyncpool._wire.messages import (
    MAX_CONTEXT,
    PLAIN,
    FunctionCache,
    JobContext,
    note_on_misplaced,
)
from asyncpool._wire.page import BEGUN, LANE_OUTCOME_SIZE, NOTED, PageLayout, run_chunk
from asyncpool._wire.pickling import text_of
from asyncpool._worker.api import NO_JOB, running, set_variables
from asyncpool._worker.channel import decoder, receive, receive_some, send
from asyncpool._worker.coroutines import CoroutineSteps, inner, warn
from asyncpool._worker.streams import Credit, StreamClosed, pump
from asyncpool.errors import JobCancelled, JobNotPicklableError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context
    from typing import Any

    from asyncpool._wire.buffers import OutOfBandPickle
    from asyncpool._wire.messages import WorkerConfig
    from asyncpool._wire.pickling import WorkerSerializer
    from asyncpool._worker.channel import LargeBuffers
    from asyncpool._worker.chunks import ChunkLog
    from asyncpool._worker.coroutines import Coroutines
    from asyncpool._worker.hooks import Entered, Hook
    from asyncpool._worker.interrupts import Interrupts, JobClaims

    Outcome = tuple[FrameKind, bytes | OutOfBandPickle]

_JOB, _STREAM = FrameKind.JOB, FrameKind.STREAM


class Lane:
    """What one running job has, and then the next one.

    Args:
        index: The number of this lane.
        begun: Where on the page it says which job it has begun.

    Attributes:
        index: As above.
        begun: As above.
        whose: The job and its attempt.
        sequence: The job's sequence number.
        began: When it began, in nanoseconds.
        entered: The hook that was entered around it, and must be left.
        steps: Its coroutine, if it has one.
        beats: How many heartbeats the jobs of this lane have had.
        last_beat: The newest heartbeat: the job and its attempt, and the record.
        log: The outcomes of the items of a chunk, once there was one.
    """

    def __init__(self, index: int, begun: int) -> None:
        self.index = index
        self.begun = begun
        self.whose: tuple[int, int] = (NO_JOB, 1)
        self.sequence = self.began = self.beats = 0
        self.entered: Entered | None = None
        self.steps: LaneSteps | None = None
        self.last_beat: tuple[tuple[int, int], bytes] | None = None
        self.log: ChunkLog | None = None


class LaneSteps(CoroutineSteps):
    """The coroutine of a job; its last step settles the job.

    Args:
        coroutine: The coroutine.
        loop: The loop that it runs in.
        runner: Has the lane.
        lane: Where it runs.
        frame: The frame of the job.
        context: The context of the job.

    Attributes:
        context: As above.
        task: Takes the steps.
        instead: What the caller is to see in place of ``CancelledError``, once the loop has
            cancelled the job.
    """

    task: asyncio.Task[Any] | None = None
    instead: BaseException | None = None

    def __init__(
        self,
        coroutine: Coroutine[Any, Any, Any],
        loop: asyncio.AbstractEventLoop,
        runner: JobRunner,
        lane: Lane,
        frame: Frame,
        context: Context,
    ) -> None:
        super().__init__(coroutine, loop)
        self.context = context
        self._settle = partial(runner.settle, lane, frame)
        self._runner = runner

    def _take(self, step: Callable[..., Any], *args: Any) -> Any:
        try:
            try:
                return super()._take(step, *args)
            finally:
                if self._runner.mute:  # a fork that a job made, back from that step
                    os._exit(0)
        except StopIteration as end:
            self._settle(end.value)
        except BaseException as error:
            self._settle(error=error)
        raise StopIteration

    def cancel(self, instead: BaseException) -> None:
        """Have the loop end the job, whose caller is to see *instead*."""
        if self.task is not None and self.task.cancel():
            self.instead = instead

    def seen(self, error: BaseException) -> BaseException:
        """Return what the job has raised, as its caller is to see it."""
        if self.instead is None:
            return error
        from asyncio import CancelledError  # noqa: PLC0415 - most workers need none

        if not isinstance(error, CancelledError):
            return error
        self.instead.__cause__ = error
        return self.instead


class JobRunner:
    """The main thread of a worker.

    Args:
        config: The worker's configuration.
        serializer: How calls and outcomes travel.
        jobs: The job channel.
        page_fd: The worker page.
        claims: Decides which jobs may begin.
        large_buffers: Receives and sends what travels beside jobs.
        interrupts: End a running job.
        coroutines: Has the event loop.

    Attributes:
        by_job: The lanes of the running jobs, by job and attempt.
        page: The worker page, up to the stacks of threads.
        page_fd: As above.
        jobs: As above.
        layout: The layout of the page.
        mute: Whether this process is a copy of the worker, which a job has forked, or makes up
            for a broadcast, so that heartbeats have no effect.
        hook: What is entered around each job, if the pool has such a hook.
    """

    def __init__(
        self,
        config: WorkerConfig,
        serializer: WorkerSerializer,
        jobs: socket.socket,
        page_fd: int,
        claims: JobClaims,
        large_buffers: LargeBuffers,
        interrupts: Interrupts,
        coroutines: Coroutines,
    ) -> None:
        self.by_job: dict[tuple[int, int], Lane] = {}
        self.layout = layout = PageLayout(config.concurrency)
        self.page = mmap(page_fd, layout.stacks)
        self.page_fd = page_fd
        self.mute = False
        self.hook: Hook | None = None
        self._several = config.concurrency > 1
        self._free = [
            Lane(index, layout.begun(index)) for index in range(config.concurrency)
        ][::-1]
        self._options = config.options
        self._max_payload = config.max_payload
        self._serializer = serializer
        self.jobs = jobs
        self._claims = claims
        self._large_buffers = large_buffers
        self._interrupts = interrupts
        self._coroutines = coroutines
        self._functions = FunctionCache()
        self._context = PLAIN  # of the jobs to come
        self._first_credit = 0  # of the next stream
        self._credits: dict[tuple[int, int], Credit] = {}
        self._incoming = decoder(max(config.max_payload, MAX_CONTEXT))
        self._pending: deque[Frame] = deque()
        self._outcomes: list[bytes] = []
        self._worker = os.getpid()
        self._loop: Any = None  # once there is a coroutine
        self._looping = self._ended = self._coming = False
        self._failure: BaseException | None = None

    # From the channel to the lanes.

    def serve(self) -> None:
        """Run jobs until the job channel ends, or until no other job may begin."""
        self._between_jobs = copy_context()
        while True:
            if self._failure is not None:
                raise self._failure
            if self.by_job:
                self._run_loop()
            elif self._claims.closed:
                return
            elif self._pending:
                self._begin()
            elif frames := receive(self.jobs, self._incoming):
                self._pending += frames
            else:
                return

    def _begin(self) -> None:
        """Begin as many jobs as there are lanes for; coroutines go on between two plain jobs."""
        self._flush()  # first, since a new job may note another outcome in the same lane
        claims, pending = self._claims, self._pending
        while pending and self._free and not (claims.closed or self._failure):
            # Popped, so that nothing keeps the job's memory when the job is done.
            frame = pending.popleft()
            if frame.kind is not _JOB and frame.kind is not _STREAM:
                self._prepare(frame)
            elif not claims.claim():
                self._large_buffers.discard()
            elif self._run(frame) and pending and self._looping:
                self._begin_soon()
                return

    def _prepare(self, frame: Frame) -> None:
        """Take what comes ahead of the job that it is for."""
        if frame.kind is FrameKind.FUNCTION:
            # It is looked up when it is called.
            self._functions.add(frame.number, frame.payload)
        elif frame.kind is FrameKind.CONTEXT:
            self._context = JobContext.unpack(frame.payload)
        elif frame.kind is FrameKind.CREDIT:
            self._first_credit = frame.number
        else:
            self._large_buffers.take(frame)

    def _run_loop(self) -> None:
        """Run the event loop while coroutines of jobs run."""
        loop, channel = self._loop, self.jobs.fileno()
        watches = self._several and not self._ended
        if watches:
            loop.add_reader(channel, self._on_readable)
            os.set_blocking(channel, True)  # uvloop has changed that
        self._looping = True
        try:
            while self.by_job and self._failure is None:
                try:
                    loop.run_forever()
                except BaseException as error:  # of a task that a job has left behind
                    if self._several:
                        raise
                    for lane in self.by_job.values():
                        if lane.steps is not None:
                            lane.steps.cancel(error)
        finally:
            self._looping = False
            if watches:
                loop.remove_reader(channel)
            self._flush()

    def _on_readable(self) -> None:
        """Take what has come on the job channel, while coroutines run."""
        try:
            frames = receive_some(self.jobs, self._incoming)
            if frames is None:
                self._ended = True
                self._loop.remove_reader(self.jobs.fileno())
            else:
                self._pending += frames
                self._begin()
        except BaseException as error:
            self._fail(error)

    def _begin_soon(self) -> None:
        if not self._coming:
            self._coming = True
            # In the worker's context, and not in that of the job that has just ended.
            self._loop.call_soon(self._begin_now, context=self._between_jobs)

    def _begin_now(self) -> None:
        self._coming = False
        try:
            self._begin()
            if self._looping and not self.by_job:
                self._loop.stop()
        except BaseException as error:
            self._fail(error)

    # One job.

    def _run(self, frame: Frame) -> bool:
        """Begin a job, and return whether it is done already.

        ``SystemExit``, ``KeyboardInterrupt`` and the like are outcomes as well, because they
        do no harm to the worker.
        """
        lane = self._free.pop()
        # Noted before any code of the job's own can run, even that of its arguments.
        lane.whose = whose = job, attempt = frame.job, frame.attempt
        BEGUN.pack_into(self.page, lane.begun, job, attempt)
        lane.sequence, lane.began = self._claims.taken, perf_counter_ns()
        self.by_job[whose] = lane
        # Each job has its own context: the next job does not see what it sets.  A sampler
        # finds the context by this name, see profile.py.
        context = copy_context()
        outcome: Any
        try:
            try:
                outcome = context.run(self._outcome, lane, frame)
            finally:
                self._interrupts.running = None
            if type(outcome) is CoroutineType:
                loop = self._loop
                steps = LaneSteps(outcome, loop, self, lane, frame, context)
                lane.steps = steps
                steps.task = loop.create_task(
                    steps, name="asyncpool job", context=context
                )
                if self._interrupts.forget(lane.sequence):  # it was asked to end before
                    steps.cancel(JobCancelled())
                return False
        except BaseException as error:  # an interrupt at the very end
            outcome = context.run(self._pack_error, lane, error)
        if len(self.by_job) > 1:
            self._warn_if_long(lane, frame, context)
        self._leave(lane, frame, *outcome)
        return True

    def _outcome(self, lane: Lane, frame: Frame) -> Any:
        """Make the call of a job; return its outcome, or the coroutine that has the rest."""
        # A function of its own, so that arguments and result are gone when it returns.
        try:
            value = self._call(lane, frame)
            if frame.kind is _STREAM:
                value = self._begin_stream(lane, frame, value)
            if type(value) is CoroutineType:
                self._loop = self._coroutines.loop()
                return value
            if lane.entered is not None:
                self._leave_hook(lane, None)
            packed = self._serializer.pack_value(value, self._max_payload)
        except BaseException as error:
            return self._pack_error(lane, error)
        return FrameKind.VALUE, packed

    def _call(self, lane: Lane, frame: Frame) -> Any:
        """Call what the job in *frame* is to call, and return what that returns.

        Raises:
            BaseException: What it raises, or what it is ended by.
        """
        job, attempt = lane.whose
        context = self._context
        began = 0.0 if context is PLAIN else monotonic()
        number = frame.number
        known: Any = self._functions[number] if number else None
        running.set((job, attempt, context, began, known))
        self._interrupts.begin(lane.sequence)
        if began and context.variables:
            set_variables(context.variables)
        if began and context.trace:
            _attach(context.trace)
        new = type(known) is bytes
        if new:
            # What this raises belongs to the job that made the call.
            known = self._serializer.load_function(known)
            self._functions[number] = known
        payload = frame.payload
        if self._large_buffers.in_use:
            payload = self._large_buffers.complete(payload)
        function, args, kwargs = self._serializer.load_job(payload, known)
        if new or not number:
            shown = self._serializer.known_as(function, known)
            running.set((job, attempt, context, began, shown))
        if self.hook is not None and function is not run_chunk:
            lane.entered = self.hook.enter()
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            tb = error.__traceback__
            # Without a frame of the function, the call itself was wrong.
            at_fault = kwargs and tb is not None and tb.tb_next is None
            if at_fault and (
                note := note_on_misplaced(kwargs, text_of(error), self._options)
            ):
                error.add_note(note)
            raise

    def settle(
        self,
        lane: Lane,
        frame: Frame,
        value: object = None,
        error: BaseException | None = None,
    ) -> None:
        """Settle a job whose coroutine has ended; called in its last step."""
        try:
            try:
                if not self._several:  # a hook that hangs can be interrupted
                    self._interrupts.running = lane.sequence
                if error is None:
                    outcome = self._pack(lane, value)
                else:
                    outcome = self._pack_error(lane, error)
            finally:
                self._interrupts.running = None
        except BaseException as instead:
            outcome = self._pack_error(lane, instead)
        self._leave(lane, frame, *outcome)

    def _pack(self, lane: Lane, value: object) -> Outcome:
        """Return the outcome of a job that has returned *value*, in its context."""
        if lane.entered is not None:
            self._leave_hook(lane, None)
        return FrameKind.VALUE, self._serializer.pack_value(value, self._max_payload)

    def _pack_error(self, lane: Lane, error: BaseException) -> Outcome:
        """Return the outcome of a job that has raised *error*, in its context.

        Whatever a job raises comes by here.
        """
        if lane.steps is not None:
            error.__traceback__ = inner(error.__traceback__)
            error = lane.steps.seen(error)
        if lane.entered is not None:
            try:
                self._leave_hook(lane, error)
            except BaseException as instead:
                error = instead
        packed = pack_failure(error, self._max_payload, self._serializer)
        return FrameKind.ERROR, packed

    def _leave_hook(self, lane: Lane, error: BaseException | None) -> None:
        entered, lane.entered = lane.entered, None
        if entered is not None:
            entered.leave(error)

    def _warn_if_long(self, lane: Lane, frame: Frame, context: Context) -> None:
        """Warn if other jobs have waited long for a plain function, which has just ended."""
        seconds = (perf_counter_ns() - lane.began) / 1e9
        loop, others = self._loop, len(self.by_job) - 1
        if loop is not None and seconds > loop.slow_callback_duration:
            hint = f"; other jobs there: {others}"
            context.run(warn, f"job {frame.job}", seconds, "in a plain function", hint)

    def broadcast(self, call: bytes) -> None:
        """Run the pickled call of a broadcast that was made before this worker was started.

        The other workers have run it as a job.  So here too it has a context of its own, a
        current job, and heartbeats.  But the pool has no such job: its number here is 0, and its
        heartbeats have no effect.
        """
        lane, frame = self._free.pop(), Frame(_JOB, NO_JOB, 1, 0, call)
        self.by_job[lane.whose], self.mute = lane, True
        try:
            # The next broadcast does not see what this one sets in its context.
            copy_context().run(self._make_up_for, lane, frame)
        finally:
            if os.getpid() != self._worker:
                os._exit(0)  # a copy that it made, back from the call
            del self.by_job[lane.whose]
            self._interrupts.running, self.mute = None, False
            self._free.append(lane)

    def _make_up_for(self, lane: Lane, frame: Frame) -> None:
        try:
            value = self._call(lane, frame)
            if type(value) is CoroutineType:
                self._coroutines.run(value)
            self._leave_hook(lane, None)
        except BaseException as error:
            self._leave_hook(lane, error)
            raise

    # Streams.

    def _begin_stream(self, lane: Lane, frame: Frame, source: Any) -> Any:
        """Send the items of *source*, or return a coroutine that does so in the loop.

        The loop takes the items of a plain generator one after the other.  While the generator
        computes an item, all other jobs wait.  While the stream waits for credit, they go on.
        """
        loops = type(source) is CoroutineType or hasattr(type(source), "__aiter__")
        loop = self._coroutines.loop() if loops or self._several else None
        credit = Credit(self._first_credit, loop)
        self._credits[frame.job, frame.attempt] = credit
        coroutine = self._stream(lane, frame, source, credit)
        if loop is not None:
            return coroutine
        try:
            coroutine.send(None)  # this credit blocks, so there is no second step
        except StopIteration as end:
            return end.value

    async def _stream(
        self, lane: Lane, frame: Frame, source: Any, credit: Credit
    ) -> Any:
        if type(source) is CoroutineType:
            source = await source
        if lane.steps is not None:
            lane.steps.shown = source

        def advance(iterator: Iterator[Any]) -> Any:
            interrupts, before = self._interrupts, self._interrupts.running
            interrupts.error = StreamClosed
            try:
                interrupts.begin(lane.sequence)
                return next(iterator)
            finally:
                interrupts.running, interrupts.error = before, JobCancelled

        def send_item(item: object, number: int) -> None:
            try:
                payload = self._serializer.pack_item(item, self._max_payload)
            except JobNotPicklableError as error:
                error.add_note(f"It is item {number} of a stream.")
                raise
            # Nothing may be raised here, in the middle of a frame.
            self._interrupts.hold()
            try:
                ahead = b""
                if type(payload) is not bytes or self._large_buffers.in_use:
                    ahead, payload = self._large_buffers.put(payload)
                head = header(FrameKind.ITEM, len(payload), frame.job, frame.attempt)
                send(self.jobs, ahead + head, payload)
            finally:
                self._interrupts.release()

        return await pump(source, credit, advance, send_item)

    def grant(self, job: int, attempt: int, limit: int) -> None:
        """Note how many items a stream may send in all; its job may be over already."""
        credit = self._credits.get((job, attempt))
        if credit is not None:
            credit.raise_to(limit)

    # From the lanes to the channel.

    def _leave(
        self,
        lane: Lane,
        frame: Frame,
        kind: FrameKind,
        payload: bytes | OutOfBandPickle,
    ) -> None:
        """Send the outcome of a job, and free its lane."""
        duration = min((perf_counter_ns() - lane.began) // 1000, MAX_NUMBER)
        if os.getpid() != self._worker:  # a fork that the job made, back from the job
            os._exit(0)
        job, attempt = whose = lane.whose
        del self.by_job[whose]
        if self._interrupts.wanted:
            self._interrupts.forget_over(self._claims.taken, self.runs)
        ahead = b""
        if lane.last_beat is not None:
            # A thread of an earlier job may have been late.
            if lane.last_beat[0] == whose:
                record = lane.last_beat[1]
                ahead = header(FrameKind.LAST_HEARTBEAT, len(record), *whose) + record
            lane.last_beat = None
        buffers, in_parts = self._large_buffers, type(payload) is not bytes
        try:
            if type(payload) is not bytes or buffers.in_use:
                news, payload = buffers.put(payload)
                ahead += news
            size = len(payload)
            head = pack_header(VERSION, kind, attempt, duration, job, size)
            # Sent, or noted, before any other job begins: a crash there must not cost this
            # outcome.  Its large buffers may have been sent already, so none may come in between.
            if (
                self._looping
                and not (ahead or in_parts)
                and self._note(lane, frame, kind, payload, duration)
            ):
                self._send_soon(head + payload)
            else:
                send(self.jobs, ahead + head, payload)
        except BaseException as error:
            self._fail(error)
        if frame.kind is _STREAM:
            self._credits.pop(whose, None)
        if lane.steps is not None:
            # The task refers to them.  A cycle would keep the job's memory until a collection.
            lane.steps.task = None
            lane.steps = None
        self._free.append(lane)
        if self._looping:
            if self._several and self._pending:
                self._begin_soon()  # in the loop: to leave it and come back costs more
            elif not self.by_job:
                self._loop.stop()

    def _note(
        self, lane: Lane, frame: Frame, kind: FrameKind, payload: bytes, duration: int
    ) -> bool:
        """Note an outcome where the pool finds it if the worker dies; return false if too large.

        A noted outcome need not be sent at once.
        """
        if not self._several or len(payload) > LANE_OUTCOME_SIZE - NOTED.size:
            return False
        page, start = self.page, self.layout.outcome(lane.index)
        # The number of the job comes last: until then the outcome belongs to no job.
        NOTED.pack_into(page, start, 0, 0, kind, duration, len(payload))
        begin = start + NOTED.size
        page[begin : begin + len(payload)] = payload
        BEGUN.pack_into(page, start, frame.job, frame.attempt)
        return True

    def _send_soon(self, outcome: bytes) -> None:
        """Send a noted outcome together with others of this turn of the loop."""
        self._outcomes.append(outcome)
        if len(self._outcomes) == 1:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._outcomes:
            data = b"".join(self._outcomes)
            self._outcomes.clear()
            try:
                self.jobs.sendall(data)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the worker with *error*; only the first one counts, since it cancels the jobs."""
        if self._failure is None:
            self._failure = error
            if self._looping:
                self._loop.stop()

    # For other threads.

    @property
    def running(self) -> tuple[int, int] | None:
        """The running job, for code that does not know its own; ``None`` if there are several."""
        sequence, lanes = self._interrupts.running, list(self.by_job.items())
        found = [whose for whose, lane in lanes if lane.sequence == sequence]
        found = found or [whose for whose, _ in lanes]
        return found[0] if len(found) == 1 else None

    def runs(self, sequence: int) -> bool:
        """Return whether the job with this sequence number is running."""
        return any(lane.sequence == sequence for lane in list(self.by_job.values()))

    def end_soon(self, sequence: int) -> None:
        """Have the loop end the job with this sequence number, if it runs there."""
        if self._loop is not None:
            with suppress(RuntimeError):  # it was closed at this moment
                self._loop.call_soon_threadsafe(self._end, sequence)

    def _end(self, sequence: int) -> None:
        for lane in self.by_job.values():
            if lane.sequence == sequence and lane.steps is not None:
                if self._interrupts.forget(sequence):
                    lane.steps.cancel(JobCancelled())
                return


def _attach(packed: bytes) -> None:
    """Make the span that *packed* names the parent of what the running code traces, by OpenTelemetry.

    The code runs in a context of its own, which ends with the job; so nothing is detached.
    """
    # Who makes spans has imported this, for example to make a TracerProvider in the
    # initializer.  All others need not wait for an import.
    if "opentelemetry.context" not in sys.modules:
        return
    with suppress(Exception):  # a propagator's; no job fails because of its trace
        headers = pickle.loads(packed)
        context = import_module("opentelemetry.propagate").extract(headers)
        import_module("opentelemetry.context").attach(context)


def pack_failure(
    error: BaseException, max_payload: int, serializer: WorkerSerializer
) -> bytes:
    """Return what an ``ERROR`` frame carries for what a job has raised."""
    name = type(error).__qualname__
    try:
        payload = serializer.pack_error(error, skip=ours(error))
    except Exception as why:  # else its caller would wait for ever
        text = f"cannot be sent: {type(why).__name__}: {why}"
    else:
        if len(payload) <= max_payload:
            return payload
        text = f"has {len(payload)} bytes when pickled, and max_message_size is {max_payload}"
    told = JobNotPicklableError(
        f"the job raised {name}, which {text}", direction="exception", name=name
    )
    return serializer.pack_error(told, skip=0)


def ours(error: BaseException) -> int:
    """Return how many of the outermost frames of a traceback are the worker's own."""
    tb, number = error.__traceback__, 0
    while tb is not None and tb.tb_frame.f_globals.get("__name__") in _MODULES:
        tb, number = tb.tb_next, number + 1
    return number


_MODULES = frozenset(
    "asyncpool._worker." + name
    for name in ("api", "chunks", "coroutines", "hooks", "runner", "streams")
)
