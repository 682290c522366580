"""Run the jobs of a worker, each in a lane: one at a time, or several at once.

All jobs begin in the order in which they came, as soon as a lane is free.  So each job has its
sequence number, as ``JobClaims`` needs it.  A plain function runs without a break, and all other
jobs wait for it.  A coroutine runs step by step, as a task of the worker's event loop.  Each
outcome is sent, or noted, in the very step in which its job ends, so it is safe whatever the
other jobs do.

While no coroutine runs, the main thread waits for the job channel.  While one runs, the main
thread runs the event loop, which watches the channel too if there are several lanes.  With one
lane, plain functions never run in the loop: they may run a loop of their own.

A *stream* sends the items that a job yields, as far as the pool has given credit.  *Credit* is the
number of items that the pool accepts in all.  The first credit comes with the job, and more when
the caller has taken items.  Without credit the generator does not even make the next item.

A *chunk* is a job that calls a function for many items of a map, and notes the outcome of each;
``_wire/page.py`` has the log.

A *hook*, ``Pool(around=…)``, is entered and left in one context, which is the job's own, or that of
one item of a map.  So it may set context variables and reset them.  An error of the hook is the
outcome of its job.
"""

from __future__ import annotations

import os
import pickle
import sys
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from _thread import RLock  # threading would do, see _worker/__init__.py
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache, partial
from importlib import import_module
from itertools import count, starmap
from mmap import ALLOCATIONGRANULARITY, mmap
from time import monotonic, perf_counter, perf_counter_ns
from types import CoroutineType, SimpleNamespace

from asyncpool._wire import log_records as say
from asyncpool._wire.buffers import OutOfBandPickle
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
from asyncpool._wire.page import (
    BEGUN,
    FLAT,
    LANE_OUTCOME_SIZE,
    LOG_HEAD,
    LOG_SIZE,
    NOTED,
    ChunkResult,
    PageLayout,
    note,
)
from asyncpool._wire.pickling import (
    PICKLE_WORKER,
    describe,
    pack_value,
    text_of,
    too_large,
    users_traceback,
)
from asyncpool._wire.records import Later, import_named
from asyncpool._wire.text import JOB_LOGGER, function_name
from asyncpool._worker.api import NO_JOB, current_job, run_chunk, running
from asyncpool._worker.channel import SMALL, receive, send
from asyncpool._worker.stacks import waiting_frames
from asyncpool.errors import HookError, JobCancelled, JobNotPicklableError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context
    from typing import Any, Literal, NoReturn

    from asyncpool._wire.messages import WorkerConfig
    from asyncpool._wire.pickling import WorkerSerializer
    from asyncpool._worker.api import CurrentJob
    from asyncpool._worker.control import Control

    Outcome = tuple[FrameKind, bytes | OutOfBandPickle]
    Leave = Callable[[BaseException | None], None]
else:
    asyncio = Later("asyncio")  # most workers need none

_JOB, _STREAM = FrameKind.JOB, FrameKind.STREAM

# Nanoseconds after which the loop has a turn between two items of a chunk that do not wait.
_TURN = 10_000_000

# A worker remembers so many functions of maps.
_recall = lru_cache(32)(pickle.loads)


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


class StreamClosed(JobCancelled, GeneratorExit):
    """Raised in a generator that is to end while it computes.

    While it waits at a ``yield``, it gets a plain ``GeneratorExit``.  This exception is a
    ``GeneratorExit`` too, so a generator can handle both in the same way.
    """


class Credit:
    """How many items the pool takes of a stream.

    Args:
        limit: So many.
        loop: The event loop that the stream waits in; without one it blocks its thread.
    """

    def __init__(self, limit: int, loop: asyncio.AbstractEventLoop | None) -> None:
        self.limit = limit
        self._loop = loop
        # The control thread rings when there is more; a ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()
        if loop is not None:
            self._more = asyncio.Event()

    def raise_to(self, limit: int) -> None:
        """Hear, in any thread, how many there may be."""
        self.limit = limit
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._more.set)
        elif self._bell.empty():
            self._bell.put(None)

    async def wait(self, number: int) -> None:
        """Wait until the item of that number, counted from 0, may be sent."""
        while number >= self.limit:
            if self._loop is None:
                self._bell.get()
                continue
            self._more.clear()
            if number >= self.limit:
                await self._more.wait()


class ChunkLog:
    """The outcomes of the items of a chunk; the same log serves one chunk after the other.

    Args:
        page: The descriptor of the worker page.
        start: The offset of the log on the page.

    Attributes:
        words: The head of the log, see ``_wire/page.py``.
        write: Writes behind what was written before.
    """

    def __init__(self, page: int, start: int) -> None:
        # A map of its own, which ends with the log: so it has a position, and fails at the end.
        before = start % ALLOCATIONGRANULARITY
        log = mmap(page, before + LOG_SIZE, offset=start - before)
        self._first = before + LOG_HEAD.size
        self.words = memoryview(log)[before : self._first].cast("Q")
        self.write: Callable[[bytes], object] = log.write
        self._seek: Callable[[int], object] = log.seek

    def begin(self, job: int, attempt: int) -> None:
        """Begin a new log."""
        words = self.words
        words[0], words[2], words[3] = 0, job, attempt
        if words[1] != job:  # else the pool has told it to stop already
            words[1] = 0
        self._seek(self._first)


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
                if lane is not None:
                    self._runner.end_copy()
                if (seconds := perf_counter() - began) > self._limit:
                    self._tell(seconds)
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


class _InContext:
    """Awaits *coroutine*, and takes each of its steps in *context*."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], context: Context) -> None:
        self._coroutine = coroutine
        self._run = context.run

    def __await__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return self._run(self._coroutine.send, None)

    def throw(self, *error: Any) -> Any:
        """Take a step that begins with an error."""
        return self._run(self._coroutine.throw, *error)


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
        config: As above.
        by_job: The lanes of the running jobs, by job and attempt.
        page: The worker page, up to the stacks of threads.
        page_fd: As above.
        job_socket: The job channel.
        layout: The layout of the page.
        max_payload: The most bytes that an outcome may have.
        serializer: How calls and outcomes travel.
        no_details: What a heartbeat without any details has.
        hook: Enters the pool's hook, if there is one; see ``load_hook()``.
        state: What jobs keep in this worker.
        shown: The coroutine that runs, if it is no job's.
        tell: Tells instead of all that where the tasks of a server wait.
        control: As above.
        endings: Knows which jobs are to end before their time.
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
        self.config = config
        self.by_job: dict[tuple[int, int], Lane] = {}
        self.layout = layout = PageLayout(config.concurrency)
        self.page, self.page_fd = mmap(page_fd, layout.stacks), page_fd
        self._worker = os.getpid()
        self.hook: Callable[[], Leave] | None = None
        self.shown: Any = None
        self.tell: Callable[[], str] | None = None
        self.state = SimpleNamespace()
        self.serializer: WorkerSerializer = PICKLE_WORKER
        if config.codec:
            from asyncpool._worker.data import DataWorkerSerializer  # noqa: PLC0415 - most need none

            self.serializer = DataWorkerSerializer(config.codec)
        self.no_details = self.serializer.pack_details(None)
        self._several = config.concurrency > 1
        self._free = [Lane(index, layout) for index in reversed(range(layout.width))]
        self.max_payload = config.max_payload
        self.job_socket, self.control = jobs, control
        self.endings, self._large_buffers = control.endings, control.large_buffers
        self._functions = FunctionCache()
        self._context, self._first_credit = (
            PLAIN,
            0,
        )  # of the next jobs, and of the next stream
        self._incoming = FrameDecoder(max_payload=max(self.max_payload, MAX_CONTEXT))
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
        while self._failure is None:
            if self.by_job:
                self._run_loop()
            elif self.endings.closed:
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
        raise self._failure

    def _begin(self) -> None:
        """Begin as many jobs as there are lanes for; coroutines go on between two plain jobs."""
        self._flush()  # first, since a new job may note another outcome in the same lane
        endings, pending = self.endings, self._pending
        while pending and self._free and not (endings.closed or self._failure):
            # Popped, so that nothing keeps the job's memory when the job is done.
            frame = pending.popleft()
            if frame.kind is not _JOB and frame.kind is not _STREAM:
                self._prepare(frame)
            elif not endings.claim():
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
            with self.endings.hold:
                module: Any = asyncio
                if self.config.loop == "uvloop":
                    import uvloop as module  # noqa: PLC0415 - an extra
                self._loop = module.new_event_loop()
                asyncio.set_event_loop(self._loop)
        return self._loop  # type: ignore[no-any-return]

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run *coroutine*, which is no job's, to its end and return its result.

        Raises:
            BaseException: Whatever it raises.
        """
        steps: Any = CoroutineSteps(coroutine, self)  # what passes for a coroutine
        task = self.loop().create_task(steps, name="asyncpool job")
        self.shown = coroutine
        try:
            return self.loop().run_until_complete(task)
        finally:
            self.shown = None
            if task.done() and not task.cancelled():
                task.exception()  # else asyncio might complain that nobody has asked

    def close(self) -> None:
        """End what is left in the event loop, and the loop."""
        loop = self._loop
        if loop is None:
            return
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
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
        lane.sequence, lane.began_ns = self.endings.last_claimed, perf_counter_ns()
        self.by_job[whose] = lane
        # Each job has its own context: the next job does not see what it sets.  A sampler
        # finds the context by this name, see profile.py.
        context = copy_context()
        outcome: Any
        try:
            outcome = context.run(self._outcome, lane, frame)
            if type(outcome) is CoroutineType:
                lane.steps = steps = CoroutineSteps(outcome, self, lane, context)
                steps.task = self._loop.create_task(
                    steps, name="asyncpool job", context=context
                )
                if self.endings.forget(lane.sequence):  # it was asked to end before
                    steps.cancel(JobCancelled())
                return False
        except BaseException as error:  # a job has closed the loop, say
            outcome = context.run(self._pack_error, lane, error)
        if len(self.by_job) > 1:  # these others have waited for a plain function
            seconds = (perf_counter_ns() - lane.began_ns) / 1e9
            if seconds > self._loop.slow_callback_duration:
                hint = f"; other jobs there: {len(self.by_job) - 1}"
                context.run(warn, f"job {job}", seconds, "in a plain function", hint)
        self._send_outcome(lane, *outcome)
        return True

    def _outcome(
        self, lane: Lane, frame: Frame | None, end: BaseException | None = None
    ) -> Any:
        """Return the outcome of a job, or the coroutine that has the rest.

        Args:
            lane: Where it runs.
            frame: The job, which begins; ``None`` if its coroutine has ended.
            end: The exception that this has ended with: ``StopIteration`` if it has returned.
        """
        # A function of its own, so that arguments and result are gone when it returns.
        try:
            try:
                if frame is not None:
                    value = self._call(lane, frame)
                    if frame.kind is _STREAM:
                        value = self._begin_stream(lane, value)
                    if type(value) is CoroutineType:
                        self.loop()
                        return value
                else:
                    if not self._several:  # a hook that hangs can be interrupted
                        self.endings.running = lane.sequence
                    if not isinstance(end, StopIteration):
                        assert end is not None
                        return self._pack_error(lane, end)
                    value = end.value
                if lane.leave_hook is not None:
                    lane.leave_hook(None)
                packed = self.serializer.pack_value(value, self.max_payload)
            except BaseException as error:
                return self._pack_error(lane, error)
            else:
                return FrameKind.VALUE, packed
            finally:
                self.endings.running = None
        except BaseException as error:  # an interrupt at the very end
            return self._pack_error(lane, error)

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
        self.endings.begin(lane.sequence)
        if began and context.variables:
            # They have the values that they had for the caller of submit().
            for name, value in pickle.loads(context.variables):
                import_named(name).set(value)
        if began and context.trace:
            _attach(context.trace)
        new = type(known) is bytes
        if new:
            # What this raises belongs to the job that made the call.
            known = self._functions[number] = self.serializer.load_function(known)
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
            if kwargs and not getattr(error.__traceback__, "tb_next", None):
                options = self.config.options
                if hint := note_on_misplaced(kwargs, text_of(error), options):
                    error.add_note(hint)
            raise

    def settle(self, lane: Lane, end: BaseException) -> None:
        """Settle a job whose coroutine has ended; called in its last step, in its context."""
        self._send_outcome(lane, *self._outcome(lane, None, end))

    def error_for_caller(self, lane: Lane, error: BaseException) -> BaseException:
        """Return what the caller is to get of *error*, and leave the hook with it.

        Whatever a job raises, or an item of a chunk, comes by here, in its context.
        """
        instead = None if lane.steps is None else lane.steps.instead
        if instead is not None and isinstance(error, asyncio.CancelledError):
            error.__traceback__ = users_traceback(error)  # ours would make a cycle
            instead.__cause__ = error
            error = instead
        if lane.leave_hook is not None:
            try:
                lane.leave_hook(error)
            except BaseException as failed:
                error = failed
        job = running.get()
        if job is not None and job[2].retire_on:
            # The pool must hear of it, even if the job is to end at this moment.
            with self.endings.hold:
                names = job[2].retire_on.decode().split("\n")
                # As an ``except`` clause compares, which asks no metaclass.
                classes = type.__dict__["__mro__"].__get__(type(error))
                found = [it for it in map(function_name, classes) if it in names]
                if found:
                    if lane.log is not None:
                        lane.log.words[1] = (
                            1  # no other item of the chunk, if it is one
                        )
                    self.retire(f"by retire_on, after {found[0]}")
        return error

    def pack_error(self, error: BaseException) -> bytes:
        """Pack what the caller of a job, or of an item, is to get."""
        pack, most = self.serializer.pack_error, self.max_payload
        name = type(error).__qualname__
        what = f"the job raised {name}, which"
        told: JobNotPicklableError
        try:
            payload = pack(error)
            if len(payload) <= most:
                return payload
            told = too_large(len(payload), most, what, "exception", name)
        except Exception as why:  # else its caller would wait for ever
            text = f"{what} cannot be sent: {type(why).__name__}: {why}"
            told = JobNotPicklableError(text, direction="exception", name=name)
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
            self.end_copy()
            del self.by_job[lane.whose]
            self.endings.running = None

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
        with self.endings.hold:  # nothing may be raised in the middle of a frame
            ahead = b""
            if type(payload) is not bytes or self._large_buffers.in_use:
                ahead, payload = self._large_buffers.put(payload)
            head = header(FrameKind.ITEM, len(payload), *lane.whose)
            send(self.job_socket, ahead + head, payload)

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
        if self.endings.requested:
            self.endings.forget_over()
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
            head = pack_header(VERSION, kind, attempt, duration, job, len(payload))
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
        if not self.endings.closed:
            self.endings.closed = True
            self.control.send(FrameKind.RETIRE, reason.encode())

    @property
    def running(self) -> tuple[int, int] | None:
        """The running job, for code that does not know its own; ``None`` if there are several."""
        sequence, lanes = self.endings.running, list(self.by_job.items())
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
                    if self.endings.forget(sequence):
                        lane.steps.cancel(JobCancelled())
                    return

        self.call_in_loop(end)

    @property
    def forked(self) -> bool:
        """Whether this process is a copy that a job has made; C code calls no hook at a fork."""
        return os.getpid() != self._worker

    def end_copy(self) -> None:
        """End this process if it is a copy that a job has made, back from the job's call."""
        if os.getpid() != self._worker:
            os._exit(0)

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


async def send_items(runner: JobRunner, lane: Lane, source: Any, credit: Credit) -> Any:
    """Send the items of *source*, which a job has returned, one by one.

    Args:
        runner: Runs the job.
        lane: Where it runs.
        source: An iterable or an async iterable, or a coroutine that returns one.
        credit: How many may be sent.

    Returns:
        The value that the generator returns at its end.

    Raises:
        BaseException: Whatever the generator raises.
    """
    if type(source) is CoroutineType:
        source = await source
    if lane.steps is not None:
        lane.steps.shown = source
    end: type[StopIteration | StopAsyncIteration]
    items: Any
    if hasattr(type(source), "__aiter__"):
        items, is_async, end = aiter(source), True, StopAsyncIteration
    else:
        try:
            items, is_async, end = iter(source), False, StopIteration
        except TypeError:
            raise TypeError(
                "stream() takes a function that returns an iterator or an async "
                f"iterator, such as a generator function; this one has returned {source!r}"
            ) from None
    try:
        for number in count():
            if number >= credit.limit:
                await credit.wait(number)
            try:
                item = await anext(items) if is_async else _next(runner, lane, items)
            except end as last:
                return getattr(last, "value", None)
            runner.send_item(lane, item, number)
            del item
    finally:
        close = getattr(items, "aclose" if is_async else "close", None)
        if close is not None:
            closing = close()
            if is_async:
                await closing


def _next(runner: JobRunner, lane: Lane, items: Iterator[Any]) -> Any:
    """Return the next item, whose computation can be interrupted, also in the event loop."""
    interrupts = runner.control.interrupts
    before, interrupts.error = interrupts.running, StreamClosed
    try:
        interrupts.begin(lane.sequence)
        return next(items)
    finally:
        interrupts.running, interrupts.error = before, JobCancelled


async def call_items(
    runner: JobRunner,
    packed: bytes,
    items: list[Any],
    *,
    star: bool,
    named: bool,
) -> ChunkResult:
    """Call a function for each of *items*, until all are done or the chunk is told to stop.

    The items of a plain function run one after the other, in the first step of this coroutine.
    At the first coroutine of an item it waits for the event loop; there it awaits one after the
    other.

    Args:
        runner: Runs the job that this is.
        packed: The function, pickled.
        items: The arguments.
        star: Whether each item is a tuple of several arguments.
        named: Whether the function travels by name, so that it may be remembered.
    """
    began = turn = perf_counter_ns()
    job = running.get()
    assert job is not None
    lane = runner.by_job[job[:2]]
    log = lane.log
    if log is None:
        log = lane.log = ChunkLog(runner.page_fd, runner.layout.log_offset(lane.index))
    log.begin(*job[:2])
    try:
        function = _recall(packed) if named else pickle.loads(packed)
    except BaseException as error:
        function = partial(_fail, error)  # so that each item fails with it
    running.set((*job[:4], function if named else function_name(function)))
    calls = starmap(function, items) if star else map(function, items)
    result = ChunkResult([], [])
    # A call of a function for each item would take a fifth more time.
    write, words, add = log.write, log.words, result.outcomes.append
    enter, leave, coroutine = runner.hook, None, None
    try:
        for done in range(len(items)):
            context = copy_context()
            try:
                if enter is not None:
                    leave = lane.leave_hook = context.run(enter)
                outcome = value = context.run(next, calls)
                if type(value) is CoroutineType:
                    coroutine = value
                    if lane.steps is None or perf_counter_ns() - turn > _TURN:
                        await asyncio.sleep(0)
                        turn = perf_counter_ns()
                    assert lane.steps is not None
                    lane.steps.shown = coroutine
                    outcome = value = await _InContext(coroutine, context)
                if leave is not None:
                    context.run(leave, None)
                if type(value) not in FLAT:
                    data = pack_value(value, runner.max_payload)
                    if isinstance(data, OutOfBandPickle):  # it is too large for the log
                        result.tail.append(value)
                        break
                    outcome = (data,)
                entry = note(outcome)
            except BaseException as error:
                if coroutine is not None:
                    coroutine.close()  # it may not have begun
                # No other name may refer to the error: its traceback refers to this frame.
                error = context.run(runner.error_for_caller, lane, error)
                value, outcome = None, (runner.pack_error(error), True)
                entry = note(outcome)
                words[1] |= isinstance(error, JobCancelled)
            try:
                write(entry)
            except ValueError:  # the log is full, so no other item may begin
                add(outcome)
                break
            add(outcome)
            words[0] = done + 1  # the outcome counts as noted from here on
            if words[1]:
                break
    except JobCancelled:
        pass  # between two items: those that are done keep their outcomes
    except Exception as broken:  # it is not an item's: the log is broken
        # The item that was not noted has run, and must not count as one that has not begun.
        add((runner.pack_error(broken), True))
    words[1] = 0  # another attempt is another chunk
    # While coroutines wait, others run.
    jobs = 1 if coroutine is None else len(runner.by_job)
    return result._replace(microseconds=(perf_counter_ns() - began) / 1000 / jobs)


def _fail(error: BaseException, *_: object) -> NoReturn:
    raise error


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


def load_hook(name: str, payload: bytes) -> Callable[[], Leave]:
    """Load the hook that the pool has sent, or import it by its name.

    Returns:
        A function that enters the hook for the running job, and returns one that leaves it.
        What leaves it gets what the job has raised.  Further calls do nothing.
        If both have raised, the caller gets the job's error, with a note about the hook's.
        If only the hook fails, both functions raise ``HookError``; and ``JobCancelled`` if the
        job is to end.

    Raises:
        BaseException: If there is no such hook, or importing it raises.
    """
    function = pickle.loads(payload) if payload else import_named(name)
    if not callable(function):
        raise TypeError(f"{name} is no function: {function!r}")

    def enter() -> Leave:
        job, worker = current_job(), os.getpid()
        who: Any = {"job_id": job.id, "attempt": job.attempt, "function": job.function}

        def call(stage: Literal["enter", "exit"], step: Any, *args: Any) -> Any:
            try:
                return step(*args)
            except JobCancelled:
                raise
            except BaseException as error:
                error.__traceback__ = users_traceback(error)
                raise HookError(name, stage=stage, exception=error, **who) from error

        def leave(error: BaseException | None) -> None:
            nonlocal manager
            leaving, manager = manager, None
            if leaving is None:
                return
            if os.getpid() != worker:
                os._exit(0)  # a copy that the job made, back from the job's call
            try:
                # What it returns does not count: a job that failed has no result.
                if error is None:
                    call("exit", leaving.__exit__, None, None, None)
                else:
                    tb = error.__traceback__
                    call("exit", leaving.__exit__, type(error), error, tb)
            except HookError as failed:
                if error is None:
                    raise
                if failed.exception is not error:
                    own = describe(failed.exception)
                    with suppress(Exception):  # its __notes__ may be anything
                        error.add_note(f"The hook {name} failed too: {own}")

        manager = call("enter", _entered, function, job)
        return leave

    return enter


def _entered(function: Any, job: CurrentJob) -> Any:
    """Return the context manager that the hook makes for *job*, and that is entered."""
    manager = function(job)
    if not (hasattr(manager, "__enter__") and hasattr(manager, "__exit__")):
        if type(manager) is CoroutineType:
            manager.close()  # or Python would warn that nothing has awaited it
        raise TypeError(f"it returned {manager!r}, which is no context manager")
    manager.__enter__()
    return manager
