"""Run several jobs at once, each in a lane.

While no coroutine runs, the main thread waits for the job channel, as in a worker with one lane.
While one runs, the main thread runs the event loop, which watches the channel too.  A job begins
when there is a lane for it, and all jobs begin in the order in which they came.  So each job has
its sequence number, as ``job_claims.py`` needs it.
"""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from mmap import mmap
from types import CoroutineType

from asyncpool._core.map import chunks
from asyncpool._core.pickling.serializers import PICKLE_WORKER, WorkerSerializer
from asyncpool._core.wire.context import MAX_CONTEXT
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.page import PageLayout
from asyncpool._worker.channel.frames_io import decoder, receive, receive_some, send
from asyncpool._worker.job.execute import JobRunner
from asyncpool._worker.job.heartbeats import install
from asyncpool._worker.job.streams import Credit
from asyncpool._worker.lanes.lane_chunks import run_chunk
from asyncpool._worker.lanes.lane_heartbeats import LaneHeartbeats
from asyncpool._worker.lanes.lane_streams import LaneStreams
from asyncpool._worker.lanes.lanes import Lane, Lanes

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import socket

    from asyncpool._core.pickling.out_of_band import OutOfBandPickle
    from asyncpool._core.wire.messages import WorkerConfig
    from asyncpool._worker.channel.large_buffers import LargeBuffers
    from asyncpool._worker.job.around import Hook
    from asyncpool._worker.job.control import Control
    from asyncpool._worker.job.coroutines import Coroutines
    from asyncpool._worker.job_ending.job_claims import JobClaims


class ConcurrentJobs:
    """The main thread of a worker that runs several jobs at once.

    Args:
        config: The worker's configuration.
        page_fd: The worker page.
        jobs: The job channel.
        control: The control channel.
        claims: Decides which job is next.
        large_buffers: Receives what travels beside jobs.
        coroutines: Has the event loop in which they run.
        hook: The pool's hook around each job, if it has one.
        serializer: How calls and outcomes travel.

    Attributes:
        beats: Writes the heartbeats.
        lanes: The running jobs.
    """

    def __init__(
        self,
        config: WorkerConfig,
        page_fd: int,
        jobs: socket.socket,
        control: Control,
        claims: JobClaims,
        large_buffers: LargeBuffers,
        coroutines: Coroutines,
        hook: Hook | None = None,
        serializer: WorkerSerializer = PICKLE_WORKER,
    ) -> None:
        interrupts = control.interrupts
        layout = PageLayout(config.concurrency)
        page = mmap(page_fd, layout.stacks)
        self._jobs = jobs
        self._claims = claims
        self._large_buffers = large_buffers
        self._interrupts = interrupts
        self._coroutines = coroutines
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
            page, layout, interrupts, control.ring, self.lanes
        )
        self.beats.use(serializer.pack_details)
        streams = LaneStreams(jobs, large_buffers, interrupts, coroutines, Credit())
        control.credit = streams.credits
        self._streams = streams
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
        if os.getpid() != self._worker:
            os._exit(
                0
            )  # this is a fork that a job made, and it has returned from the job
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
