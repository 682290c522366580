"""Run several jobs at once, each in a lane.

While no coroutine runs, the main thread waits for the job channel, as in a worker with one lane.
While one runs, the main thread runs the event loop, which watches the channel too.  A job begins
when there is a lane for it, and all jobs begin in the order in which they came.  So each job has
its sequence number, as ``job_claims.py`` needs it.
"""

from __future__ import annotations

import os
from collections import deque
from contextvars import copy_context
from functools import partial
from itertools import count
from mmap import mmap
from time import monotonic
from types import CoroutineType

from asyncpool._core.map import chunks
from asyncpool._core.map.chunks import LOG_HEAD, ChunkResult
from asyncpool._core.pickling.serializers import PICKLE_WORKER, WorkerSerializer
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.messages import MAX_CONTEXT
from asyncpool._core.wire.page import BEAT_INTERVAL, LOG_SIZE, Beat, PageLayout
from asyncpool._worker.api.context import running
from asyncpool._worker.channel.frames_io import decoder, receive, receive_some, send
from asyncpool._worker.job.chunks import Chunk, ChunkLog
from asyncpool._worker.job.coroutines import InContext, outcome_of
from asyncpool._worker.job.execute import JobRunner
from asyncpool._worker.job.heartbeats import HeartbeatWriter, install, last_frame
from asyncpool._worker.job.streams import (
    AwaitedCredit,
    StreamClosed,
    Streams,
    close,
    not_iterable,
)
from asyncpool._worker.lanes.lanes import Lane, Lanes
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Callable, Coroutine, Iterator
    from typing import Any

    from asyncpool._core.pickling.out_of_band import OutOfBandPickle
    from asyncpool._core.wire.messages import WorkerConfig
    from asyncpool._worker.channel.large_buffers import LargeBuffers
    from asyncpool._worker.job.around import Hook
    from asyncpool._worker.job_ending.interrupts import Interrupts
    from asyncpool._worker.loop import WorkerParts


class ConcurrentJobs:
    """The main thread of a worker that runs several jobs at once.

    Args:
        config: The worker's configuration.
        parts: The parts of the worker.
        large_buffers: Receives what travels beside jobs.
        hook: The pool's hook around each job, if it has one.
        serializer: How calls and outcomes travel.

    Attributes:
        beats: Writes the heartbeats.
        lanes: The running jobs.
    """

    def __init__(
        self,
        config: WorkerConfig,
        parts: WorkerParts,
        large_buffers: LargeBuffers,
        hook: Hook | None = None,
        serializer: WorkerSerializer = PICKLE_WORKER,
    ) -> None:
        interrupts, coroutines = parts.interrupts, parts.coroutines
        layout = PageLayout(config.concurrency)
        page = mmap(parts.page_fd, layout.stacks)
        self._jobs = parts.jobs
        self._claims = parts.claims
        self._large_buffers = large_buffers
        self._interrupts = interrupts
        self._incoming = decoder(max(config.max_payload, MAX_CONTEXT))
        self._pending: deque[Frame] = deque()
        self._outcomes: list[bytes] = []
        self._worker = os.getpid()
        self._ended = self._coming = False
        self._failure: BaseException | None = None
        self.lanes = Lanes(page, layout, coroutines, interrupts, self._send)
        self.lanes.max_payload = config.max_payload
        self.lanes.serializer = serializer
        self.lanes.on_free = self._on_free
        self.beats = self.lanes.beats = LaneHeartbeats(
            page, layout, interrupts, parts.control.ring, self.lanes
        )
        self.beats.use(serializer.pack_details)
        streams = LaneStreams(parts.jobs, large_buffers, interrupts, coroutines)
        parts.control.streams = self._streams = streams
        self._executor = JobRunner(large_buffers, interrupts, coroutines, streams)
        self._executor.hook = hook
        self._executor.configure(config, serializer)
        interrupts.lanes = self.lanes
        install(self.beats)
        chunks.install(partial(run_chunk, page, layout, self.lanes, hook=hook))

    def serve(self) -> None:
        """Run jobs until the job channel ends, or until no other job may begin."""
        while not self._over:
            if self.lanes.by_job:
                self._run_loop()
            elif self._pending and not self._claims.closed:
                self._begin()
            elif frames := receive(self._jobs, self._incoming):
                self._pending += frames
            else:
                self._ended = True
            if self._failure is not None:
                raise self._failure

    @property
    def _over(self) -> bool:
        if self.lanes.by_job:
            return False
        return self._claims.closed or (self._ended and not self._pending)

    @property
    def _closed(self) -> bool:
        """Whether no other job may begin."""
        return self._claims.closed or self._failure is not None

    def _run_loop(self) -> None:
        loop = self.lanes.loop
        if not self._ended:
            loop.add_reader(self._jobs.fileno(), self._on_readable)
            os.set_blocking(self._jobs.fileno(), True)  # uvloop has changed that
        try:
            while self.lanes.by_job and self._failure is None:
                loop.run_forever()
        finally:
            loop.remove_reader(self._jobs.fileno())
            self._flush()

    def _on_readable(self) -> None:
        """Take what has come on the job channel, while coroutines run."""
        try:
            frames = receive_some(self._jobs, self._incoming)
        except BaseException as error:
            self._fail(error)
            return
        if frames is None:
            self._ended = True
            self.lanes.loop.remove_reader(self._jobs.fileno())
        else:
            self._pending += frames
            self._begin()

    def _on_free(self) -> None:
        """Begin jobs that wait for a lane; leave the loop if nothing is left to do."""
        if not self.lanes.looping:
            return
        if self._pending and not self._closed:
            self._begin_soon()
        else:
            self._leave_if_done()

    def _begin_soon(self) -> None:
        if not self._coming:
            self._coming = True
            # In the worker's context, and not in that of the job that has just ended.
            self.lanes.loop.call_soon(self._begin_now, context=self.lanes.context)

    def _begin_now(self) -> None:
        self._coming = False
        self._begin()
        self._leave_if_done()

    def _leave_if_done(self) -> None:
        """Leave the loop when nothing is left to do, unless it runs only to be closed."""
        if not self.lanes.by_job and self._failure is None:
            self.lanes.loop.stop()

    def _begin(self) -> None:
        """Begin as many jobs as there are lanes for; coroutines go on between two plain jobs."""
        self._flush()  # first, since a new job may note another outcome in the same lane
        while self._pending and not self.lanes.full and not self._closed:
            # Popped, so that nothing keeps the job's memory when the job is done.
            frame = self._pending.popleft()
            if frame.kind is not FrameKind.JOB and frame.kind is not FrameKind.STREAM:
                self._executor.prepare(frame)
            elif not self._claims.claim():
                self._large_buffers.discard()
            elif self._run(frame) and self._pending and self.lanes.looping:
                self._begin_soon()
                return

    def _run(self, frame: Frame) -> bool:
        """Begin a job, and return whether it is done already."""
        lanes = self.lanes
        lane = lanes.begin(frame, self._claims.taken)
        try:
            try:
                value = lane.context.run(self._executor.call, frame, lane.sequence)
            finally:
                self._interrupts.running = None
                lane.entered, self._executor.entered = self._executor.entered, None
            if frame.kind is FrameKind.STREAM:
                value = self._streams.begin(lane, value, lanes.open())
            if type(value) is CoroutineType:
                lanes.go(lane, value)
                return False
        except BaseException as error:
            lanes.blocked(lane)
            lanes.fail(lane, error)
        else:
            lanes.blocked(lane)
            lanes.finish(lane, value)
        return True

    def _send(
        self,
        lane: Lane,
        kind: FrameKind,
        payload: bytes | OutOfBandPickle,
        duration: int,
    ) -> None:
        if os.getpid() != self._worker:  # a fork that a job made, back from the job
            os._exit(0)
        frame = lane.frame
        try:
            ahead = self.beats.last_heartbeat(frame)
            # Its large buffers may have been sent already, so no other outcome may come in between.
            in_parts = type(payload) is not bytes
            if self._large_buffers.in_use or type(payload) is not bytes:
                news, payload = self._large_buffers.put(payload)
                ahead += news
            head = header(kind, len(payload), frame.job, frame.attempt, duration)
            if (
                not (ahead or in_parts)
                and self.lanes.looping
                and self.lanes.note(lane, kind, payload, duration)
            ):
                self._send_soon(head + payload)
            else:
                send(self._jobs, ahead + head, payload)
        except BaseException as error:
            self._fail(error)

    def _send_soon(self, outcome: bytes) -> None:
        """Send an outcome, which is noted on the page, together with others of this turn."""
        self._outcomes.append(outcome)
        if len(self._outcomes) == 1:
            self.lanes.loop.call_soon(self._flush)

    def _flush(self) -> None:
        if self._outcomes:
            data = b"".join(self._outcomes)
            self._outcomes.clear()
            try:
                self._jobs.sendall(data)
            except BaseException as error:
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """End the worker with *error*; only the first one counts, since it cancels the jobs."""
        if self._failure is None:
            self._failure = error
            if self.lanes.looping:
                self.lanes.loop.stop()


class LaneHeartbeats(HeartbeatWriter):
    """Writes the heartbeats of a worker that runs several jobs at once, each into its lane.

    Args:
        page: The worker page.
        layout: The layout of the page.
        interrupts: Knows which jobs are to end.
        ring: Tells the pool to look at the page soon.
        lanes: The running jobs.
    """

    def __init__(
        self,
        page: mmap,
        layout: PageLayout,
        interrupts: Interrupts,
        ring: Callable[[], None],
        lanes: Lanes,
    ) -> None:
        super().__init__(page, interrupts, ring)
        self._layout = layout
        self._lanes = lanes
        self._numbers = [0] * layout.width
        self._records: dict[tuple[int, int], bytes] = {}

    def last_heartbeat(self, frame: Frame) -> bytes:
        """Return the frame that goes ahead of the outcome of the job in *frame*."""
        record = self._records.pop((frame.job, frame.attempt), None)
        return b"" if record is None else last_frame(frame, record)

    def _check(self) -> None:
        whose = self._whose()
        interrupts = self._interrupts
        if interrupts.at_home and interrupts.forget(self._lanes.by_job[whose].sequence):
            raise JobCancelled

    def _write(self, packed: bytes) -> None:
        job = self._whose()
        index = self._lanes.by_job[job].index
        now, number = monotonic(), self._numbers[index] + 1
        record = Beat(number, job[0], job[1], now, packed).pack()
        self._note(self._layout.beats(index), number, record)
        self._numbers[index] = number
        first = job not in self._records
        self._records[job] = record
        if first or now - self._rung_at >= BEAT_INTERVAL:
            self._rung_at = now
            self._ring()

    def _whose(self) -> tuple[int, int]:
        mine = running.get()
        job = mine[:2] if mine is not None else self._lanes.running
        if job is None:  # the code runs in a thread without the context of a job
            if self._lanes.by_job:
                raise RuntimeError(
                    "heartbeat() was called in a thread that does not know its job, and "
                    "several jobs are running: run it in a copy of the job's context"
                )
            raise RuntimeError("heartbeat() was called when no job was running")
        if job not in self._lanes.by_job:
            text = f"heartbeat() was called for job {job[0]}, which is over"
            raise RuntimeError(text)
        return job


class LaneStreams(Streams):
    """The streams of one worker, which run at once.  Each waits for its own credit.

    The loop takes the items of a plain generator one after the other.  While the generator computes
    an item, all other jobs wait.  While the stream waits for credit, they go on.

    The arguments are those of :class:`Streams`.
    """

    def begin(
        self, lane: Lane, source: Any, loop: AbstractEventLoop
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that sends the items of *source*, which the job has returned."""
        credit = AwaitedCredit(self.first, loop)
        self._credits[lane.frame.job, lane.frame.attempt] = credit
        return self._run(lane, source, credit)

    async def _run(self, lane: Lane, source: Any, credit: AwaitedCredit) -> Any:
        try:
            if type(source) is CoroutineType:
                source = await source
            lane.shown = source
            if hasattr(type(source), "__aiter__"):
                return await self.drain(lane.frame, source, credit)
            return await self._pump_in_turns(lane, source, credit)
        finally:
            del self._credits[lane.frame.job, lane.frame.attempt]

    async def _pump_in_turns(
        self, lane: Lane, source: Any, credit: AwaitedCredit
    ) -> Any:
        """Send the items of a plain iterable; others go on while it waits for credit."""
        try:
            items = iter(source)
        except TypeError:
            raise not_iterable(source) from None
        try:
            for number in count():
                await credit.wait(number)
                try:
                    payload = self._pack(self._next(lane, items), number)
                except StopIteration as end:
                    return end.value
                self._send(lane.frame, payload)
                del payload
        finally:
            close(items)

    def _next(self, lane: Lane, iterator: Iterator[Any]) -> Any:
        interrupts = self._interrupts
        interrupts.error = StreamClosed
        try:
            interrupts.begin(lane.sequence)
            return next(iterator)
        finally:
            interrupts.running = None
            interrupts.error = JobCancelled


class _Pen:
    """Writes one log into memory with several logs; has the methods of an ``mmap``.

    It is an object of its own: a log that had its own methods as attributes would be a cycle.

    Args:
        page: The worker page.
        start: The offset of the log on the page.
    """

    def __init__(self, page: mmap, start: int) -> None:
        self._room = memoryview(page)[start : start + LOG_SIZE]
        self._start = start
        self._end = LOG_HEAD.size

    def write(self, data: bytes) -> None:
        end = self._end + len(data)
        if end > LOG_SIZE:
            raise ValueError("the log has no room for it")
        self._room[self._end : end] = data
        self._end = end

    def seek(self, where: int) -> None:
        self._end = where - self._start


def run_chunk(
    page: mmap,
    layout: PageLayout,
    lanes: Lanes,
    packed: bytes,
    items: list[Any],
    **how: Any,
) -> ChunkResult | Coroutine[Any, Any, ChunkResult]:
    """Call a function for each of *items*, or return a coroutine that does so.

    The items of a plain function run one after the other, without a break, as in a worker with one
    lane.  If the function is async, its coroutines are awaited one after the other, and other jobs
    go on meanwhile.

    The other arguments are those of :func:`asyncpool._worker.job.chunks.run_chunk`.
    """
    job = running.get()
    assert job is not None
    lane = lanes.by_job[job[:2]]
    start = layout.log(lane.index)
    log = ChunkLog(page, start, _Pen(page, start))
    chunk = Chunk(log, packed, items, **how)
    coroutine = chunk.go_on()
    return chunk.result if coroutine is None else _go_on(lane, chunk, coroutine)


async def _go_on(
    lane: Lane, chunk: Chunk, coroutine: Coroutine[Any, Any, Any] | None
) -> ChunkResult:
    while coroutine is not None:
        try:
            value = await InContext(coroutine, copy_context())
        except BaseException as error:
            coroutine = chunk.go_on(error=_shown(lane, error))
        else:
            coroutine = chunk.go_on(value)
    return chunk.result


def _shown(lane: Lane, error: BaseException) -> BaseException:
    """Return what an item has raised, as its caller will see it."""
    outcome = outcome_of(error, asked=lane.asked)
    if outcome is not error:
        return outcome
    # Leave two frames out that are asyncpool's: the await, and the step.
    tb = error.__traceback__
    for _ in range(2):
        tb = tb and tb.tb_next
    error.__traceback__ = tb
    return error
