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
from _thread import RLock  # threading would do, see _worker/__init__.py
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from importlib import import_module
from mmap import mmap
from time import monotonic, perf_counter, perf_counter_ns
from types import CoroutineType, SimpleNamespace

from asyncpool._wire import log_records as say
from asyncpool._wire.frames import (
    MAX_NUMBER,
    VERSION,
    Frame,
    FrameDecoder,
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
from asyncpool._wire.page import BEGUN, LANE_OUTCOME_SIZE, NOTED, PageLayout
from asyncpool._wire.pickling import (
    PICKLE_WORKER,
    text_of,
    too_large,
    users_traceback,
)
from asyncpool._wire.records import import_named
from asyncpool._wire.text import JOB_LOGGER, function_name
from asyncpool._worker.api import NO_JOB, run_chunk, running
from asyncpool._worker.channel import SMALL, receive, send
from asyncpool._worker.chunks import call_items
from asyncpool._worker.stacks import waiting_frames
from asyncpool._worker.streams import Credit, send_items
from asyncpool.errors import JobCancelled, JobNotPicklableError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine
    from contextvars import Context
    from typing import Any

    from asyncpool._wire.buffers import OutOfBandPickle
    from asyncpool._wire.messages import WorkerConfig
    from asyncpool._wire.pickling import WorkerSerializer
    from asyncpool._worker.chunks import ChunkLog
    from asyncpool._worker.control import Control
    from asyncpool._worker.hooks import Leave

    Outcome = tuple[FrameKind, bytes | OutOfBandPickle]

_JOB, _STREAM = FrameKind.JOB, FrameKind.STREAM


class Lane:
    """What one running job has, and then the next one.

    Args:
        index: The number of this lane.
        layout: Where on the page its parts are.

    Attributes:
        index: As above.
        begun_offset: Where on the page it says which job it has begun.
        whose: The job and its attempt.
        sequence: The job's sequence number.
        began_ns: When it began, by :func:`time.perf_counter_ns`.
        leave_hook: Leaves the hook that was entered around it.
        credit: How many items its last stream may send.
        steps: Its coroutine, if it has one.
        beats: How many heartbeats the jobs of this lane have had.
        last_beat: The newest heartbeat: the job and its attempt, and the record.
        log: The outcomes of the items of a chunk, once there was one.
    """

    def __init__(self, index: int, layout: PageLayout) -> None:
        self.index = index
        self.begun_offset = layout.begun_offset(index)
        self.whose: tuple[int, int] = (NO_JOB, 1)
        self.sequence = self.began_ns = self.beats = 0
        self.leave_hook: Leave | None = None
        self.credit: Credit | None = None
        self.steps: CoroutineSteps | None = None
        self.last_beat: tuple[tuple[int, int], bytes] | None = None
        self.log: ChunkLog | None = None


class CoroutineSteps:
    """Passes for a coroutine, and times its steps, because a long step blocks all others.

    Args:
        coroutine: The coroutine to run.
        runner: Has the event loop; its ``slow_callback_duration`` says how long is too long.
        lane: Where it runs, if it is a job's: then the last step settles the job.
        context: The context of the job.

    Attributes:
        shown: The coroutine, or the part of it that is the user's.
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
        runner: JobRunner,
        lane: Lane | None = None,
        context: Context | None = None,
    ) -> None:
        self.shown: Any = coroutine
        self.context = context
        self._coroutine = coroutine
        self._runner, self._lane = runner, lane
        self._limit = runner.loop().slow_callback_duration

    def send(self, value: Any) -> Any:
        """Take a step."""
        return self._take(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Take a step that begins with an error."""
        return self._take(self._coroutine.throw, *error)

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self

    def _take(self, step: Callable[..., Any], *args: Any) -> Any:
        began, lane = perf_counter(), self._lane
        try:
            try:
                return step(*args)
            finally:
                if lane is not None and self._runner.forked:
                    os._exit(0)  # a copy that the job made, back from that step
                if perf_counter() - began > self._limit:
                    self._tell(perf_counter() - began)
        except BaseException as error:
            if lane is None:
                raise
            # The first frame is this one, and not the coroutine's own.  No name may refer to what
            # refers to it: such a cycle would keep the job's memory until a collection.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            self._runner.settle(lane, error)
        raise StopIteration

    def _tell(self, seconds: float) -> None:
        job = running.get()
        if job is None:
            who = "the initializer"
        else:
            who = "a broadcast" if job[0] == NO_JOB else f"job {job[0]}"
        where = getattr(self.shown, "__qualname__", "a coroutine")
        before = ""
        for frame in waiting_frames(self.shown):
            if "/asyncio/" in frame.f_code.co_filename:
                break
            before = f", before line {frame.f_lineno} of {frame.f_code.co_filename}"
        hint = ": submit code that computes as a plain function"
        warn(who, seconds, f"in {where}{before}", hint)

    def cancel(self, instead: BaseException) -> None:
        """Have the loop end the job, whose caller is to see *instead*."""
        if self.task is not None and self.task.cancel():
            self.instead = instead


class JobRunner:
    """The main thread of a worker.

    Its event loop lives as long as the worker.  So all later jobs can use what an async
    initializer or a job has made, such as a session or a pool of connections.  The loop runs only
    while a job runs: a task that a job leaves behind continues with the next job.

    Args:
        config: The worker's configuration.
        jobs: The job channel.
        page_fd: The worker page.
        control: The control channel.

    Attributes:
        by_job: The lanes of the running jobs, by job and attempt.
        page: The worker page, up to the stacks of threads.
        page_fd: As above.
        jobs: As above.
        layout: The layout of the page.
        max_payload: The most bytes that an outcome may have.
        serializer: How calls and outcomes travel.
        no_details: What a heartbeat without any details has.
        hook: Enters the pool's hook, if there is one; see ``load_hook()``.
        state: What jobs keep in this worker.
        control: As above.
        heartbeat_lock: Whoever writes a heartbeat has this.  A job may call ``heartbeat()`` in several
            threads, and in a signal handler.
        noticed_at: When the pool was last asked to look at the page.
    """

    def __init__(
        self,
        config: WorkerConfig,
        jobs: socket.socket,
        page_fd: int,
        control: Control,
    ) -> None:
        self.by_job: dict[tuple[int, int], Lane] = {}
        self.layout = layout = PageLayout(config.concurrency)
        self.page = mmap(page_fd, layout.stacks)
        self.page_fd = page_fd
        self._worker = os.getpid()
        self.hook: Callable[[], Leave] | None = None
        self.state = SimpleNamespace()
        self.serializer: WorkerSerializer = PICKLE_WORKER
        if config.codec:
            from asyncpool._wire.schemas import DataWorkerSerializer  # noqa: PLC0415 - most need none

            self.serializer = DataWorkerSerializer(config.codec)
        self.no_details = self.serializer.pack_details(None)
        self._several = config.concurrency > 1
        self._free = [Lane(index, layout) for index in reversed(range(layout.width))]
        self._config = config
        self.max_payload = config.max_payload
        self.job_socket = jobs
        self.control = control
        self._claims, self._interrupts = control.claims, control.interrupts
        self._large_buffers = control.large_buffers
        self._functions = FunctionCache()
        self._context = PLAIN  # of the jobs to come
        self._first_credit = 0  # of the next stream
        most = max(config.max_payload, MAX_CONTEXT)
        self._incoming = FrameDecoder(max_payload=most)
        self._pending: deque[Frame] = deque()
        self._outcomes: list[bytes] = []
        self._loop: Any = None  # once there is a coroutine
        self._looping = self._ended = self._coming = False
        self._failure: BaseException | None = None
        self.heartbeat_lock = RLock()
        self.noticed_at = 0.0

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
                # The last job has been run: whatever else comes goes back to the pool.
                while self.job_socket.recv(SMALL):
                    pass
                return
            elif self._pending:
                self._begin()
            elif frames := receive(self.job_socket, self._incoming):
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
                self._soon()
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
        loop, channel = self._loop, self.job_socket.fileno()
        watches = self._several and not self._ended
        if watches:
            loop.add_reader(channel, self._turn, channel)
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

    def _soon(self) -> None:
        """Have the loop send outcomes, and begin jobs, behind what it does in this turn."""
        if not self._coming:
            self._coming = True
            # In the worker's context, and not in that of the job that has just ended.
            self._loop.call_soon(self._turn, context=self._between_jobs)

    def _turn(self, channel: int | None = None) -> None:
        """Begin jobs while coroutines run; if the *channel* can be read, read it first."""
        try:
            if channel is None:
                self._coming = False
            elif (
                frames := receive(self.job_socket, self._incoming, wait=False)
            ) is not None:
                self._pending += frames
            else:
                self._ended = True
                self._loop.remove_reader(channel)
            if (
                self._looping
            ):  # or else a plain job has its own loop run, which is this one
                self._begin()
                if not self.by_job:
                    self._loop.stop()
        except BaseException as error:
            self._fail(error)

    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the event loop."""
        if self._loop is None:
            # Later jobs need it, and it must stay the current loop of this thread.
            self._interrupts.held = True
            try:
                import asyncio  # noqa: PLC0415 - most workers need none

                if self._config.loop == "uvloop":
                    import uvloop  # noqa: PLC0415 - an extra

                    self._loop = uvloop.new_event_loop()
                else:
                    self._loop = asyncio.new_event_loop()
                asyncio.set_event_loop(self._loop)
            finally:
                self._interrupts.held = False
        return self._loop  # type: ignore[no-any-return]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run *coroutine*, which is no job's, to its end and return its result.

        Raises:
            BaseException: Whatever it raises.
        """
        steps: Any = CoroutineSteps(coroutine, self)  # what passes for a coroutine
        task = self.loop().create_task(steps, name="asyncpool job")
        stacks = self.control.stacks
        stacks.shown = coroutine
        try:
            return self.loop().run_until_complete(task)
        finally:
            stacks.shown = None
            if task.done() and not task.cancelled():
                task.exception()  # else asyncio might complain that nobody has asked

    def close(self) -> None:
        """End what is left in the event loop, and the loop."""
        loop = self._loop
        if loop is None:
            return
        from asyncio import all_tasks, gather  # noqa: PLC0415 - most workers need none

        left = all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    # One job.

    def _run(self, frame: Frame) -> bool:
        """Begin a job, and return whether it is done already.

        ``SystemExit``, ``KeyboardInterrupt`` and the like are outcomes as well, because they
        do no harm to the worker.
        """
        lane = self._free.pop()
        # Noted before any code of the job's own can run, even that of its arguments.
        lane.whose = whose = job, attempt = frame.job, frame.attempt
        BEGUN.pack_into(self.page, lane.begun_offset, job, attempt)
        lane.sequence, lane.began_ns = self._claims.last_claimed, perf_counter_ns()
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
                lane.steps = steps = CoroutineSteps(outcome, self, lane, context)
                steps.task = self._loop.create_task(
                    steps, name="asyncpool job", context=context
                )
                if self._interrupts.forget(lane.sequence):  # it was asked to end before
                    steps.cancel(JobCancelled())
                return False
        except BaseException as error:  # an interrupt at the very end
            outcome = context.run(self._pack_error, lane, error)
        if len(self.by_job) > 1:  # these others have waited for a plain function
            seconds = (perf_counter_ns() - lane.began_ns) / 1e9
            if seconds > self._loop.slow_callback_duration:
                hint = f"; other jobs there: {len(self.by_job) - 1}"
                context.run(warn, f"job {job}", seconds, "in a plain function", hint)
        self._send_outcome(lane, *outcome)
        return True

    def _outcome(self, lane: Lane, frame: Frame) -> Any:
        """Make the call of a job; return its outcome, or the coroutine that has the rest."""
        # A function of its own, so that arguments and result are gone when it returns.
        try:
            value = self._call(lane, frame)
            if frame.kind is _STREAM:
                value = self._begin_stream(lane, value)
            if type(value) is CoroutineType:
                self.loop()
                return value
            if lane.leave_hook is not None:
                lane.leave_hook(None)
            packed = self.serializer.pack_value(value, self.max_payload)
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
            # They have the values that they had for the caller of submit().
            for name, value in pickle.loads(context.variables):
                import_named(name).set(value)
        if began and context.trace:
            _attach(context.trace)
        new = type(known) is bytes
        if new:
            # What this raises belongs to the job that made the call.
            known = self.serializer.load_function(known)
            self._functions[number] = known
        payload = frame.payload
        if self._large_buffers.in_use:
            payload = self._large_buffers.complete(payload)
        function, args, kwargs = self.serializer.load_job(payload, known)
        if new or not number:
            shown = self.serializer.known_as(function, known)
            running.set((job, attempt, context, began, shown))
        if self.hook is not None:
            # Each item of a chunk has it for itself.
            lane.leave_hook = None if function is run_chunk else self.hook()
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # Without a frame of the function, the call itself was wrong.
            at_fault = kwargs and not getattr(error.__traceback__, "tb_next", None)
            if at_fault and (
                note := note_on_misplaced(kwargs, text_of(error), self._config.options)
            ):
                error.add_note(note)
            raise

    def settle(self, lane: Lane, end: BaseException) -> None:
        """Settle a job whose coroutine has ended; called in its last step, in its context.

        Args:
            lane: Where it runs.
            end: The exception that it has ended with: ``StopIteration`` if it has returned.
        """
        outcome: Outcome
        try:
            try:
                if not self._several:  # a hook that hangs can be interrupted
                    self._interrupts.running = lane.sequence
                if isinstance(end, StopIteration):
                    if lane.leave_hook is not None:
                        lane.leave_hook(None)
                    packed = self.serializer.pack_value(end.value, self.max_payload)
                    outcome = FrameKind.VALUE, packed
                else:
                    outcome = self._pack_error(lane, end)
            finally:
                self._interrupts.running = None
        except BaseException as instead:
            outcome = self._pack_error(lane, instead)
        self._send_outcome(lane, *outcome)

    def error_for_caller(self, lane: Lane, error: BaseException) -> BaseException:
        """Return what the caller is to get of *error*, and leave the hook with it.

        Whatever a job raises, or an item of a chunk, comes by here, in its context.
        """
        steps = lane.steps
        if steps is not None and steps.instead is not None:
            from asyncio import CancelledError  # noqa: PLC0415 - most workers need none

            if isinstance(error, CancelledError):
                error.__traceback__ = users_traceback(error)  # ours would make a cycle
                steps.instead.__cause__ = error
                error = steps.instead
        if lane.leave_hook is not None:
            try:
                lane.leave_hook(error)
            except BaseException as instead:
                error = instead
        job = running.get()
        if job is not None and job[2].retire_on:
            # The pool must hear of it, even if the job is to end at this moment.
            self._interrupts.held = True
            try:
                self._retire_after(error, job[2].retire_on.decode().split("\n"), lane)
            finally:
                self._interrupts.held = False
        return error

    def _retire_after(self, error: BaseException, names: list[str], lane: Lane) -> None:
        # As an ``except`` clause compares, which asks no metaclass.
        classes = type.__dict__["__mro__"].__get__(type(error))
        found = next((it for it in map(function_name, classes) if it in names), "")
        if found:
            if lane.log is not None:
                lane.log.words[1] = 1  # no other item of the chunk, if it is one
            self.retire(f"by retire_on, after {found}")

    def pack_error(self, error: BaseException) -> bytes:
        """Pack what the caller of a job, or of an item, is to get."""
        pack, most = self.serializer.pack_error, self.max_payload
        name = type(error).__qualname__
        what = f"the job raised {name}, which"
        try:
            payload = pack(error)
        except Exception as why:  # else its caller would wait for ever
            text = f"{what} cannot be sent: {type(why).__name__}: {why}"
            told = JobNotPicklableError(text, direction="exception", name=name)
        else:
            if len(payload) <= most:
                return payload
            told = too_large(len(payload), most, what, "exception", name)
        return pack(told)

    def _pack_error(self, lane: Lane, error: BaseException) -> Outcome:
        return FrameKind.ERROR, self.pack_error(self.error_for_caller(lane, error))

    def broadcast(self, call: bytes) -> None:
        """Run the pickled call of a broadcast that was made before this worker was started.

        The other workers have run it as a job.  So here too it has a context of its own, a
        current job, and heartbeats.  But the pool has no such job: its number here is 0, and its
        heartbeats have no effect.
        """
        lane, frame = self._free[-1], Frame(_JOB, NO_JOB, 1, 0, call)
        self.by_job[lane.whose] = lane
        try:
            # The next broadcast does not see what this one sets in its context.
            copy_context().run(self._run_missed_broadcast, lane, frame)
        finally:
            if self.forked:
                os._exit(0)  # a copy that it made, back from the call
            del self.by_job[lane.whose]
            self._interrupts.running = None

    def _run_missed_broadcast(self, lane: Lane, frame: Frame) -> None:
        try:
            value = self._call(lane, frame)
            if type(value) is CoroutineType:
                self.run(value)
            if lane.leave_hook is not None:
                lane.leave_hook(None)
        except BaseException as error:
            if lane.leave_hook is not None:
                lane.leave_hook(error)
            raise

    # Maps and streams.

    def run_chunk(self, *args: Any, **kwargs: Any) -> Any:
        """Call a function for the items of a chunk, as :func:`call_items` does."""
        return begin(call_items(self, *args, **kwargs))

    def _begin_stream(self, lane: Lane, source: Any) -> Any:
        """Send the items of *source*, or return a coroutine that does so in the loop.

        The loop takes the items of a plain generator one after the other.  While the generator
        computes an item, all other jobs wait.  While the stream waits for credit, they go on.
        """
        loops = type(source) is CoroutineType or hasattr(type(source), "__aiter__")
        loop = self.loop() if loops or self._several else None
        lane.credit = credit = Credit(self._first_credit, loop)
        coroutine = send_items(self, lane, source, credit)
        # Without a loop the credit blocks, so there is no second step.
        return coroutine if loop is not None else begin(coroutine)

    def send_item(self, lane: Lane, item: object, number: int) -> None:
        """Send an item of a stream."""
        try:
            payload = self.serializer.pack_item(item, self.max_payload)
        except JobNotPicklableError as error:
            error.add_note(f"It is item {number} of a stream.")
            raise
        # Nothing may be raised here, in the middle of a frame.
        self._interrupts.held = True
        try:
            ahead = b""
            if type(payload) is not bytes or self._large_buffers.in_use:
                ahead, payload = self._large_buffers.put(payload)
            head = header(FrameKind.ITEM, len(payload), *lane.whose)
            send(self.job_socket, ahead + head, payload)
        finally:
            self._interrupts.held = False

    # From the lanes to the channel.

    def _send_outcome(
        self, lane: Lane, kind: FrameKind, payload: bytes | OutOfBandPickle
    ) -> None:
        """Send the outcome of a job, and free its lane."""
        duration = min((perf_counter_ns() - lane.began_ns) // 1000, MAX_NUMBER)
        if os.getpid() != self._worker:  # forked, without a call for each job
            os._exit(0)
        job, attempt = whose = lane.whose
        del self.by_job[whose]
        if self._interrupts.requested:
            self._interrupts.forget_over(self._claims.last_claimed, self.runs)
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
                and self._note(lane, kind, payload, duration)
            ):
                # It goes together with others of this turn of the loop.
                self._outcomes.append(head + payload)
                self._soon()
            else:
                send(self.job_socket, ahead + head, payload)
        except BaseException as error:
            self._fail(error)
        if lane.steps is not None:
            # The task refers to them.  A cycle would keep the job's memory until a collection.
            lane.steps.task = None
            lane.steps = None
        self._free.append(lane)
        if self._looping:
            if self._several and self._pending:
                self._soon()  # in the loop: to leave it and come back costs more
            elif not self.by_job:
                self._loop.stop()

    def _note(self, lane: Lane, kind: FrameKind, payload: bytes, duration: int) -> bool:
        """Note an outcome where the pool finds it if the worker dies; return false if too large.

        A noted outcome need not be sent at once.
        """
        if not self._several or len(payload) > LANE_OUTCOME_SIZE - NOTED.size:
            return False
        page, start = self.page, self.layout.outcome_offset(lane.index)
        # The number of the job comes last: until then the outcome belongs to no job.
        NOTED.pack_into(page, start, 0, 0, kind, duration, len(payload))
        begin = start + NOTED.size
        page[begin : begin + len(payload)] = payload
        BEGUN.pack_into(page, start, *lane.whose)
        return True

    def _flush(self) -> None:
        if self._outcomes:
            data = b"".join(self._outcomes)
            self._outcomes.clear()
            self.job_socket.sendall(data)

    def _fail(self, error: BaseException) -> None:
        """End the worker with *error*; only the first one counts, since it cancels the jobs."""
        if self._failure is None:
            self._failure = error
            if self._looping:
                self._loop.stop()

    # For jobs, and for other threads.

    def retire(self, reason: str = "") -> None:
        """Begin no further job, and tell the pool so."""
        if not self._claims.closed:
            self._claims.closed = True
            self.control.send(FrameKind.RETIRE, reason.encode())

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

        def end() -> None:
            for lane in self.by_job.values():
                if lane.sequence == sequence and lane.steps is not None:
                    if self._interrupts.forget(sequence):
                        lane.steps.cancel(JobCancelled())
                    return

        self.call_in_loop(end)

    @property
    def forked(self) -> bool:
        """Whether this process is a copy that a job has made; C code calls no hook at a fork."""
        return os.getpid() != self._worker

    def call_in_loop(self, call: Callable[..., object], *args: object) -> bool:
        """Have the loop make a call, if there is one; return whether it will."""
        with suppress(RuntimeError):  # it was closed at this moment
            if self._loop is not None:
                self._loop.call_soon_threadsafe(call, *args)
                return True
        return False


def begin(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Take the first step of *coroutine*; return its result, or the coroutine if it has not ended."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    return coroutine


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


def warn(who: str, seconds: float, where: str, hint: str) -> None:
    """Warn that others had to wait for a job.  The warning cannot say why it took long.

    CPU time would not show it: a job that blocks uses no CPU time, and neither does a job
    that waits for a CPU.  And reading it costs 2 us at each step.
    """
    import logging  # noqa: PLC0415 - most jobs log nothing

    logger = logging.getLogger(JOB_LOGGER)
    say.JOB_BLOCKED_LOOP.log(
        logger, {"seconds": seconds}, who=who, where=where, hint=hint
    )
