"""Run the jobs of a worker, each in a lane: one at a time, or several at once.

All jobs begin in the order in which they came, as soon as a lane is free.  So each job has its
sequence number, as ``EndRequests`` needs it.  A plain function runs without a break, and all other
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
from _thread import RLock, allocate_lock  # threading would do, see _worker/__init__.py
from collections import deque
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache, partial
from importlib import import_module
from itertools import count, starmap
from mmap import ALLOCATIONGRANULARITY, mmap
from time import monotonic, perf_counter, perf_counter_ns
from types import CoroutineType, SimpleNamespace

from asyncpool._wire import log_records as say, messages, page, pickling
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
from asyncpool._wire.messages import MAX_CONTEXT, PLAIN
from asyncpool._wire.page import JOB_KEY, NOTED, ChunkResult, PageLayout, note
from asyncpool._wire.pickling import FLAT
from asyncpool._wire.records import Later, import_named
from asyncpool._wire.text import JOB_LOGGER, function_name
from asyncpool._worker.api import NO_JOB, CurrentJob, current, current_job, run_chunk
from asyncpool._worker.channels import SMALL, Control, receive, send
from asyncpool._worker.stacks import waiting_frames
from asyncpool.errors import HookError, JobCancelled, JobNotPicklableError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine, Iterator
    from contextvars import Context
    from typing import Any, Literal, NoReturn

    Outcome = tuple[FrameKind, bytes | OutOfBandPickle]
    Leave = Callable[[BaseException | None], None]
else:
    asyncio = Later("asyncio")  # most workers need none

_JOB, _STREAM = FrameKind.JOB, FrameKind.STREAM
_TASK = "asyncpool job"

# Nanoseconds after which other tasks have the loop between two items of a chunk that do not wait.
_YIELD_NS = 10_000_000

# A worker remembers so many functions of maps.
_recall = lru_cache(32)(pickle.loads)


class Lane:
    """A place for one running job after the other.

    It also wraps the coroutine of its job: the task drives the lane, and the lane drives the
    coroutine and times its steps, because a long step blocks all others.

    Args:
        index: The number of this lane.
        runner: Runs its jobs.

    Attributes:
        index: As above.
        begun_offset: Where on the page it says which job it has begun.
        job_key: The job and its attempt.
        sequence: The job's sequence number.
        began_ns: When it began, by :func:`time.perf_counter_ns`.
        leave_hook: Leaves the hook that was entered around it.
        credit: How many items its last stream may send.
        ring: Wakes that stream, if it waits for credit.
        beats: How many heartbeats the jobs of this lane have had.
        last_beat: The newest heartbeat: the job and its attempt, and the record.
        log: The outcomes of the items of a chunk, once there was one.
        context: The context of a job that has a coroutine.
        shown: That coroutine, or the part of it that is the user's.
        task: Takes the steps of that coroutine.
        instead: What the caller is to see in place of ``CancelledError``, once the loop has
            cancelled the job.
    """

    def __init__(self, index: int, runner: JobRunner) -> None:
        self.index, self._runner = index, runner
        self.begun_offset = runner.layout.begun_offset(index)
        self.job_key: tuple[int, int] = (NO_JOB, 1)
        self.sequence = self.began_ns = self.beats = self.credit = 0
        self.leave_hook: Leave | None = None
        self.ring: Callable[[], object] | None = None
        self.last_beat: tuple[tuple[int, int], bytes] | None = None
        self.log: ChunkLog | None = None
        self.wrap(None)

    def wrap(self, coroutine: Any, context: Context | None = None) -> None:
        """Wrap *coroutine* from now on, or none.

        The last step of a coroutine that has a *context* settles the job.
        """
        self._coroutine = self.shown = coroutine
        self.context = context
        self.task: asyncio.Task[Any] | None = None
        self.instead: BaseException | None = None
        if coroutine is not None:
            self._limit = self._runner.loop().slow_callback_duration

    def send(self, value: Any) -> Any:
        """Take a step."""
        return self._step(self._coroutine.send, value)

    def throw(self, *error: Any) -> Any:
        """Take a step that begins with an error."""
        return self._step(self._coroutine.throw, *error)

    def close(self) -> None:
        """End it."""
        self._coroutine.close()

    def __await__(self) -> Any:
        return self

    def _step(self, step: Callable[..., Any], *args: Any) -> Any:
        began, is_job = perf_counter(), self.context is not None
        try:
            try:
                return step(*args)
            finally:
                if is_job:
                    self._runner.exit_if_forked_by_job()
                if (seconds := perf_counter() - began) > self._limit:
                    self._tell(seconds)
        except BaseException as error:
            if not is_job:
                raise
            # The first frame is this one, and not the coroutine's own.  No name may refer to what
            # refers to it: such a cycle would keep the job's memory until a collection.
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            self._runner.settle(self, self._runner.outcome(self, error))
        raise StopIteration

    def _tell(self, seconds: float) -> None:
        job = current.get()
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
        """Have the loop end the job, if it runs there; its caller is to see *instead*."""
        if self.task is not None and self.task.cancel():
            self.instead = instead


class StreamClosed(JobCancelled, GeneratorExit):
    """Raised in a generator that is to end while it computes.

    While it waits at a ``yield``, it gets a plain ``GeneratorExit``.  This exception is a
    ``GeneratorExit`` too, so a generator can handle both in the same way.
    """


class ChunkLog:
    """The outcomes of the items of a chunk; the same log serves one chunk after the other.

    Args:
        fd: The descriptor of the worker page.
        start: The offset of the log on the page.

    Attributes:
        words: The head of the log: ``DONE``, ``STOP``, ``JOB`` and ``ATTEMPT`` of ``_wire/page.py``.
        write: Writes behind what was written before.
    """

    def __init__(self, fd: int, start: int) -> None:
        # A map of its own, which ends with the log: so it has a position, and fails at the end.
        before = start % ALLOCATIONGRANULARITY
        log = mmap(fd, before + page.LOG_SIZE, offset=start - before)
        self._first = before + page.LOG_HEAD.size
        self.words = memoryview(log)[before : self._first].cast("Q")
        self.write: Callable[[bytes], object] = log.write
        self._seek: Callable[[int], object] = log.seek

    def begin(self, job: int, attempt: int) -> None:
        """Begin a new log."""
        words = self.words
        words[page.DONE], words[page.JOB], words[page.ATTEMPT] = 0, job, attempt
        if words[page.STOP] != job:  # else the pool has told it to stop already
            words[page.STOP] = 0
        self._seek(self._first)


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
        control: The worker's ends of the channels.

    Attributes:
        config: As above.
        by_job: The lanes of the running jobs, by job and attempt.
        page: The worker page, up to the stacks of threads.
        layout: The layout of the page.
        max_payload: The most bytes that an outcome may have.
        serializer: How calls and outcomes travel.
        no_details: What a heartbeat without any details has.
        hook: Enters the pool's hook, if there is one; see ``load_hook()``.
        state: What jobs keep in this worker.
        shown: The coroutine that runs, if it is no job's.
        server_stacks: In a worker that serves: makes the text that answers a ``WHERE``.  For 0 it has
            the stacks of the server's tasks, for any other number its open requests.
        control: As above.
        endings: Knows which jobs are to end before their time.
        heartbeat_lock: Whoever writes a heartbeat has this.  A job may call ``heartbeat()`` in several
            threads, and in a signal handler.
        noticed_at: When the pool was last asked to look at the page.
    """

    def __init__(self, config: messages.WorkerConfig, control: Control) -> None:
        self.config = config
        self.by_job: dict[tuple[int, int], Lane] = {}
        self.layout = layout = PageLayout(config.concurrency)
        self.page = mmap(control.page_fd, layout.stacks)
        self._worker = os.getpid()
        self.hook: Callable[[], Leave] | None = None
        self.shown: Any = None
        self.server_stacks: Callable[[int], str] | None = None
        self.state = SimpleNamespace()
        self.serializer: pickling.WorkerSerializer = pickling.PICKLE_WORKER
        if config.codec:
            from asyncpool._wire.schemas import DataWorkerSerializer  # noqa: PLC0415 - most need none

            self.serializer = DataWorkerSerializer(config.codec)
        self.no_details = self.serializer.pack_details(None)
        self._several = config.concurrency > 1
        self._free = [Lane(index, self) for index in reversed(range(layout.width))]
        self.max_payload = config.max_payload
        self._job_socket, self.control = control.job_socket, control
        self.endings, self._large_buffers = control.endings, control.large_buffers
        self._functions = messages.FunctionCache()
        self._context = PLAIN  # of the jobs to come
        self._first_credit = 0  # of the next stream
        self._incoming = FrameDecoder(max_payload=max(self.max_payload, MAX_CONTEXT))
        self._pending: deque[Frame] = deque()
        self._outcomes: list[bytes] = []
        self._loop: Any = None  # once there is a coroutine
        self._looping = self._begin_is_due = False
        self._failure: BaseException | None = None
        self.heartbeat_lock = RLock()
        self.noticed_at = 0.0

    # From the channel to the lanes.

    def serve(self) -> None:
        """Run jobs until the job channel ends, or until no other job may begin."""
        self._worker_context = copy_context()
        while self._failure is None:
            if self.by_job:
                self._run_loop()
            elif self.endings.closed:
                # The last job has been run: whatever else comes goes back to the pool.
                while self._job_socket.recv(SMALL):
                    pass
                return
            elif self._pending:
                self._begin()
            elif frames := receive(self._job_socket, self._incoming):
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
            kind = frame.kind
            if kind is _JOB or kind is _STREAM:
                if not endings.claim():
                    self._large_buffers.discard()
                elif self._run(frame) and pending and self._looping:
                    self._soon()
                    return
            elif kind is FrameKind.FUNCTION:
                # It is looked up when it is called.
                self._functions.add(frame.number, frame.payload)
            elif kind is FrameKind.CONTEXT:
                self._context = messages.JobContext.unpack(frame.payload)
            elif kind is FrameKind.CREDIT:
                self._first_credit = frame.number
            else:
                self._large_buffers.take(frame)

    def _run_loop(self) -> None:
        """Run the event loop while coroutines of jobs run."""
        loop, channel = self._loop, self._job_socket.fileno()
        if self._several:
            loop.add_reader(channel, self._begin_more, channel)
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
                        lane.cancel(error)
        finally:
            self._looping = False
            if self._several:
                loop.remove_reader(channel)
            self._flush()

    def _soon(self) -> None:
        """Have the loop send outcomes, and begin jobs, behind what it does in this iteration."""
        if not self._begin_is_due:
            self._begin_is_due = True
            # In the worker's context, and not in that of the job that has just ended.
            self._loop.call_soon(self._begin_more, context=self._worker_context)

    def _begin_more(self, channel: int | None = None) -> None:
        """Begin jobs while coroutines run; if the *channel* can be read, read it first."""
        try:
            if channel is None:
                self._begin_is_due = False
            else:
                frames = receive(self._job_socket, self._incoming, wait=False)
                if frames is None:
                    self._loop.remove_reader(channel)
                self._pending += frames or ()
            # If not, the loop is run by a plain job, which has found it as the current one:
            # nothing may begin inside that.
            if self._looping:
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
        lane = Lane(0, self)
        lane.wrap(coroutine)
        task = self._loop.create_task(lane, name=_TASK)
        self.shown = coroutine
        try:
            return self._loop.run_until_complete(task)
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
        lane.job_key = job_key = job, attempt = frame.job, frame.attempt
        JOB_KEY.pack_into(self.page, lane.begun_offset, job, attempt)
        lane.sequence, lane.began_ns = self.endings.last_claimed, perf_counter_ns()
        self.by_job[job_key] = lane
        # Each job has its own context: the next job does not see what it sets.  A sampler
        # finds the context by this name, see profile.py.
        context = copy_context()
        outcome: Any
        try:
            outcome = context.run(self.outcome, lane, frame)
            if type(outcome) is CoroutineType:
                lane.wrap(outcome, context)
                task = self._loop.create_task(lane, name=_TASK, context=context)
                if lane.context is context:  # or else an eager task has ended already
                    lane.task = task
                if self.endings.take(lane.sequence):  # it was asked to end before
                    lane.cancel(JobCancelled())
                return False
        except BaseException as error:  # a job has closed the loop, say
            outcome = context.run(self._pack_error, lane, error)
        if len(self.by_job) > 1:  # these others have waited for a plain function
            seconds = (perf_counter_ns() - lane.began_ns) / 1e9
            if seconds > self._loop.slow_callback_duration:
                hint = f"; other jobs there: {len(self.by_job) - 1}"
                context.run(warn, f"job {job}", seconds, "in a plain function", hint)
        self.settle(lane, outcome)
        return True

    def outcome(self, lane: Lane, what: Any) -> Any:
        """Return the outcome of a job, or the coroutine that has the rest.

        Args:
            lane: Where it runs.
            what: The job, which begins; or the exception that its coroutine has ended with, which
                is ``StopIteration`` if it has returned.
        """
        # A function of its own, so that arguments and result are gone when it returns.
        try:
            try:
                if type(what) is Frame:
                    value = self._call(lane, what)
                    if what.kind is _STREAM:
                        value = self._begin_stream(lane, value)
                    if type(value) is CoroutineType:
                        # Made only for a job that needs it: its imports hold back a cancellation.
                        # And made here, where one that comes then is still the job's outcome.
                        self.loop()
                        return value
                else:
                    if not self._several:  # a hook that hangs can be interrupted
                        self.endings.interruptible = lane.sequence
                    if not isinstance(what, StopIteration):
                        return self._pack_error(lane, what)
                    value = what.value
                if lane.leave_hook is not None:
                    lane.leave_hook(None)
                packed = self.serializer.pack_value(value, self.max_payload)
            except BaseException as error:
                return self._pack_error(lane, error)
            else:
                return FrameKind.VALUE, packed
            finally:
                self.endings.interruptible = None
        except BaseException as error:  # an interrupt at the very end
            return self._pack_error(lane, error)

    def _call(self, lane: Lane, frame: Frame) -> Any:
        """Call what the job in *frame* is to call, and return what that returns.

        Raises:
            BaseException: What it raises, or what it is ended by.
        """
        job, attempt = lane.job_key
        context = self._context
        began = 0.0 if context is PLAIN else monotonic()
        number = frame.number
        known: Any = self._functions[number] if number else None
        current.set((job, attempt, context, began, known))
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
            current.set((job, attempt, context, began, function_name(function)))
        if self.hook is not None:
            # Each item of a chunk has it for itself.
            lane.leave_hook = None if function is run_chunk else self.hook()
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            # Without a frame of the function, the call itself was wrong.
            if kwargs and not getattr(error.__traceback__, "tb_next", None):
                options, text = self.config.options, pickling.text_of(error)
                if hint := messages.note_on_misplaced(kwargs, text, options):
                    error.add_note(hint)
            raise

    def error_for_caller(self, lane: Lane, error: BaseException) -> BaseException:
        """Return what the caller is to get of *error*, and leave the hook with it.

        Whatever a job raises, or an item of a chunk, comes by here, in its context.
        """
        if lane.instead is not None and isinstance(error, asyncio.CancelledError):
            # Our part of the traceback would make a cycle.
            error.__traceback__ = pickling.users_traceback(error)
            lane.instead.__cause__ = error
            error = lane.instead
        if lane.leave_hook is not None:
            try:
                lane.leave_hook(error)
            except BaseException as failed:
                error = failed
        job = current.get()
        if job is not None and job[2].retire_on:
            # The pool must hear of it, even if the job is to end at this moment.
            with self.endings.hold:
                names = job[2].retire_on.decode().split("\n")
                # As an ``except`` clause compares, which asks no metaclass.
                classes = type.__dict__["__mro__"].__get__(type(error))
                found = [it for it in map(function_name, classes) if it in names]
                if found:
                    if lane.log is not None:  # no other item of the chunk, if it is one
                        lane.log.words[page.STOP] = 1
                    self.retire(f"by retire_on, after {found[0]}")
        return error

    def pack_error(self, error: BaseException) -> bytes:
        """Pack what the caller of a job, or of an item, is to get."""
        pack, most = self.serializer.pack_error, self.max_payload
        name = type(error).__qualname__
        what = f"the job raised {name}, which"
        try:
            payload = pack(error)
            if len(payload) <= most:
                return payload
            about = pickling.Subject(what, "exception", name)
            told = pickling.too_large(len(payload), most, about)
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
        self.by_job[lane.job_key] = lane
        try:
            # The next broadcast does not see what this one sets in its context.
            copy_context().run(self._run_missed_broadcast, lane, frame)
        finally:
            self.exit_if_forked_by_job()
            del self.by_job[lane.job_key]
            self.endings.interruptible = None

    def _run_missed_broadcast(self, lane: Lane, frame: Frame) -> None:
        try:
            value = self._call(lane, frame)
            if type(value) is CoroutineType:
                self.run(value)
            if lane.leave_hook is not None:
                lane.leave_hook(None)
        except BaseException as error:
            raise self.error_for_caller(lane, error)  # noqa: B904 - it has a cause of its own

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
        lane.credit, lane.ring = self._first_credit, None
        coroutine = send_items(self, lane, source, loop)
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
            head = header(FrameKind.ITEM, len(payload), *lane.job_key)
            send(self._job_socket, ahead + head, payload)

    # From the lanes to the channel.

    def settle(self, lane: Lane, outcome: Outcome) -> None:
        """Send the outcome of a job, and free its lane."""
        kind, payload = outcome
        duration = min((perf_counter_ns() - lane.began_ns) // 1000, MAX_NUMBER)
        # exit_if_forked_by_job(), inlined: its call would cost each job time.
        if os.getpid() != self._worker:
            os._exit(0)
        job, attempt = job_key = lane.job_key
        del self.by_job[job_key]
        if self.endings.requested:
            self.endings.forget_over()
        ahead = b""
        if lane.last_beat is not None:
            # A thread of an earlier job may have been late.
            if lane.last_beat[0] == job_key:
                record = lane.last_beat[1]
                ahead = header(FrameKind.LAST_HEARTBEAT, len(record), *job_key) + record
            lane.last_beat = None
        buffers, alone = self._large_buffers, type(payload) is bytes
        try:
            if type(payload) is not bytes or buffers.in_use:
                news, payload = buffers.put(payload)
                ahead += news
            size = len(payload)
            head = pack_header(VERSION, kind, attempt, duration, job, size)
            # Sent, or noted, before any other job begins: a crash there must not cost this
            # outcome.  Its large buffers may have been sent already, so none may come in between.
            noted = self._looping and self._several and alone and not ahead
            if noted and size <= page.LANE_OUTCOME_SIZE - NOTED.size:
                # Where the pool finds it if the worker dies.  The number of the job comes last:
                # until then the outcome belongs to no job.
                start = self.layout.outcome_offset(lane.index)
                NOTED.pack_into(self.page, start, 0, 0, kind, duration, size)
                body = start + NOTED.size
                self.page[body : body + size] = payload
                JOB_KEY.pack_into(self.page, start, job, attempt)
                # So it goes together with others of this iteration of the loop.
                self._outcomes.append(head + payload)
                self._soon()
            else:
                send(self._job_socket, ahead + head, payload)
        except BaseException as error:
            self._fail(error)
        if lane.context is not None:
            # The task refers to the lane.  A cycle would keep the job's memory until a collection.
            lane.wrap(None)
        self._free.append(lane)
        if self._looping:
            if self._several and self._pending:
                self._soon()  # in the loop: to leave it and come back costs more
            elif not self.by_job:
                self._loop.stop()

    def _flush(self) -> None:
        if self._outcomes:
            data = b"".join(self._outcomes)
            self._outcomes.clear()
            self._job_socket.sendall(data)

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
    def only_running(self) -> tuple[int, int] | None:
        """The running job, for code that does not know its own; ``None`` if there are several."""
        sequence, lanes = self.endings.interruptible, list(self.by_job.values())
        found = [lane for lane in lanes if lane.sequence == sequence] or lanes
        return found[0].job_key if len(found) == 1 else None

    def runs(self, sequence: int) -> bool:
        """Return whether the job with this sequence number is running."""
        return any(lane.sequence == sequence for lane in list(self.by_job.values()))

    def end_in_loop(self, sequence: int) -> None:
        """End the job with this sequence number, if it runs in the loop, which calls this."""
        for lane in self.by_job.values():
            loops = lane.sequence == sequence and lane.task is not None
            if loops and self.endings.take(sequence):
                lane.cancel(JobCancelled())

    @property
    def is_forked_by_job(self) -> bool:
        """Whether this process is a copy that a job has made; C code calls no hook at a fork."""
        return os.getpid() != self._worker

    def exit_if_forked_by_job(self) -> None:
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


async def send_items(runner: JobRunner, lane: Lane, source: Any, loop: Any) -> Any:
    """Send the items of *source*, which a job has returned, one by one.

    Args:
        runner: Runs the job.
        lane: Where it runs.
        source: An iterable or an async iterable, or a coroutine that returns one.
        loop: The event loop in which it waits for credit; without one it blocks its thread.

    Returns:
        The value that the generator returns at its end.

    Raises:
        BaseException: Whatever the generator raises.
    """
    # The control thread rings when there is more credit; a ring too many does no harm.
    bell, more = allocate_lock(), None
    bell.acquire()
    lane.ring = bell.release
    if loop is not None:
        more = asyncio.Event()
        lane.ring = partial(loop.call_soon_threadsafe, more.set)
    if type(source) is CoroutineType:
        source = await source
    if lane.context is not None:
        lane.shown = source
    is_async = hasattr(type(source), "__aiter__")
    over = StopAsyncIteration if is_async else StopIteration
    try:
        items: Any = aiter(source) if is_async else iter(source)
    except TypeError:
        if is_async:
            raise
        raise TypeError(
            "stream() takes a function that returns an iterator or an async "
            f"iterator, such as a generator function; this one has returned {source!r}"
        ) from None
    try:
        for number in count():
            while number >= lane.credit:
                if more is None:
                    bell.acquire()
                    continue
                more.clear()
                if number >= lane.credit:
                    await more.wait()
            try:
                item = await anext(items) if is_async else _next(runner, lane, items)
            except over as end:
                return getattr(end, "value", None)
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
    endings = runner.endings
    before, endings.error = endings.interruptible, StreamClosed
    try:
        endings.begin(lane.sequence)
        return next(items)
    finally:
        endings.interruptible, endings.error = before, JobCancelled


async def call_items(
    runner: JobRunner, packed: bytes, items: list[Any], *, star: bool, named: bool
) -> ChunkResult:
    """Call a function for each of *items*, until all are done or the chunk is told to stop.

    The items of a plain function run one after the other, in the first step of this coroutine.
    At the first item that is a coroutine, the chunk moves to the event loop, and awaits the items
    one by one there.

    Args:
        runner: Runs the job that this is.
        packed: The function, pickled.
        items: The arguments.
        star: Whether each item is a tuple of several arguments.
        named: Whether the function travels by name, so that it may be remembered.
    """
    began = yielded = perf_counter_ns()
    job = current.get()
    assert job is not None
    lane = runner.by_job[job[:2]]
    log = lane.log
    if log is None:
        start = runner.layout.log_offset(lane.index)
        log = lane.log = ChunkLog(runner.control.page_fd, start)
    log.begin(*job[:2])
    try:
        function = _recall(packed) if named else pickle.loads(packed)
    except BaseException as error:
        function = partial(_fail, error)  # so that each item fails with it
    current.set((*job[:4], function if named else function_name(function)))
    calls = starmap(function, items) if star else map(function, items)
    result = ChunkResult([], [])
    # A call of a function for each item would take a fifth more time.
    write, words, add = log.write, log.words, result.outcomes.append
    done_word, stop_word = page.DONE, page.STOP
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
                    if lane.context is None or perf_counter_ns() - yielded > _YIELD_NS:
                        await asyncio.sleep(0)
                        yielded = perf_counter_ns()
                    lane.shown = coroutine
                    outcome = value = await _InContext(coroutine, context)
                if leave is not None:
                    context.run(leave, None)
                if type(value) not in FLAT:
                    data = pickling.pack_value(value, runner.max_payload)
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
                words[stop_word] |= isinstance(error, JobCancelled)
            add(outcome)
            try:
                write(entry)
            except ValueError:  # the log is full, so no other item may begin
                break
            words[done_word] = done + 1  # the outcome counts as noted from here on
            if words[stop_word]:
                break
    except JobCancelled:
        pass  # between two items: those that are done keep their outcomes
    except Exception as broken:  # it is not an item's: the log is broken
        # The item that was not noted has run, and must not count as one that has not begun.
        add((runner.pack_error(broken), True))
    words[stop_word] = 0  # another attempt is another chunk
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
                error.__traceback__ = pickling.users_traceback(error)
                raise HookError(name, stage=stage, exception=error, **who) from error

        manager = call("enter", _entered, function, job)

        def leave(error: BaseException | None) -> None:
            nonlocal manager
            leaving, manager = manager, None
            if leaving is None:
                return
            if os.getpid() != worker:
                os._exit(0)  # a copy that the job made, back from the job's call
            try:
                # What it returns does not count: a job that failed has no result.
                what: Any = (None, None, None)
                if error is not None:
                    what = type(error), error, error.__traceback__
                call("exit", leaving.__exit__, *what)
            except HookError as failed:
                if error is None:
                    raise
                if failed.exception is not error:
                    own = pickling.describe(failed.exception)
                    with suppress(Exception):  # its __notes__ may be anything
                        error.add_note(f"The hook {name} failed too: {own}")

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
