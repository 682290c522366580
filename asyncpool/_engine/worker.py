"""One worker, as the pool sees it: a process, two channels, a page, its output.

It has two watchers.  The exit watcher, :meth:`WorkerHandle.run`, waits for the end of the process;
when it returns, the engine hears of the end, once.  The error watcher, :meth:`WorkerHandle.on_end`,
hears of a channel that ends: the process has a moment to follow, and is killed then, or at once if
it broke the protocol.  So whatever comes first, the other follows.  (A worker whose initializer
raises exits, which ends its channels; one with a thread that ends with an exception is replaced.)

What goes to it is put by its :class:`Outbox`.  Ahead of a job goes what the worker lacks for it:
its context, its function, its large buffers.  Large buffers travel in segments of shared memory,
or, if there is no segment, in AREA frames on the job channel.  Either way they go ahead of the
frame that they belong to, and so do those that come back with outcomes.  The worker's half of this
is ``_worker/channels.py``.

The engine and its parts hear what the worker sends.  A method of theirs that reads it raises
:exc:`ProtocolError` if it breaks the protocol.  The handle then trusts the worker no more.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._engine.channel import SMALL, Channel, DescriptorSocket
from asyncpool._engine.launcher import LaunchError, Process
from asyncpool._engine.loop import Alarm
from asyncpool._engine.output import Output
from asyncpool._engine.page import WorkerPage
from asyncpool._engine.segments import Segment, SegmentOwner, Use
from asyncpool._wire import messages
from asyncpool._wire.buffers import LARGE, OutOfBandPickle, ReceivedPickle, cut, lay_out
from asyncpool._wire.frames import (
    HEADER_SIZE,
    VERSION,
    Frame,
    FrameKind,
    header,
    pack_header,
)
from asyncpool._wire.posix import STACKS_SIGNAL, socket_pair
from asyncpool._wire.text import printable, printable_block, printable_text
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine
    from asyncpool._engine.job import PoolJob
    from asyncpool._sandbox.confinement import Place

# Processes with the same authkey of multiprocessing accept each other's connections, so workers in a
# sandbox have another one than this process.
_OTHER_KEY = os.urandom(32)

# The start methods that any worker knows; that of a library, such as loky's, needs its import.
_START_METHODS = {"fork", "forkserver", "spawn"}

# Seconds that a process has to end by itself after its channel has ended.
_EXIT_GRACE = 1.0

_MAX_CONTROL = 1 << 20

# Frames that matter only while the worker is to go on working.
_FROM_WORKERS_THAT_STAY = frozenset(
    {FrameKind.REVOKED, FrameKind.STACKS, FrameKind.PONG, FrameKind.RETIRE}
)

# How many cancelled jobs of a worker the log can name.
_CANCELLED_KEPT = 64


# A member of an enum costs 60 ns each time that it is looked up there.
_JOB, _VALUE, _ERROR = FrameKind.JOB, FrameKind.VALUE, FrameKind.ERROR

# Where the frame of a job ends that is not on the channel yet: beyond all that is ever sent.
NOT_PUT = sys.maxsize

# How many parts of an outcome may be small; a worker of this version sends none.
_SMALL_ONES = 16
_TOO_MANY = "it sent an outcome in more parts than an outcome can have"


class Outbox(SegmentOwner):
    """What goes to one worker and comes back; the worker's segments belong to this.

    It puts what goes there, and collects the large buffers that come back ahead of an outcome.

    Args:
        engine: Has segments, and threads that copy into them.

    Attributes:
        areas: Large buffers that have come, and whose outcome is still to come.
        flush: Sends what was put.
        flush_soon: Sends, at the end of this iteration of the loop, what was put until then.
    """

    # Set when the channels are open; nobody sends before that.
    _job_channel: Channel
    flush: Callable[[], None]
    flush_soon: Callable[[], None]

    def __init__(self, engine: Engine) -> None:
        self._spawn, self._segments = engine.tasks.create_task, engine.segments
        self._max_payload = engine.config.worker.max_payload
        # In an untrusted pool nothing that a worker can still write into may reach a caller: outcomes come on
        # the job channel, into memory of this process alone.
        self._untrusted = engine.config.untrusted
        self._functions = messages.FunctionCache()
        self._context = b""  # the context that the worker has now
        self._loan: object | None = None
        self.areas: list[memoryview] = []
        self._expected = 0  # bytes of the next outcome
        self._wanting = False

    def connect(self, jobs: Channel, control: Channel) -> None:
        """Send on these channels from now on."""
        self._job_channel, self.control_channel = jobs, control
        self.flush, self.flush_soon = jobs.flush, jobs.flush_soon

    # Jobs.

    @property
    def sent_bytes(self) -> int:
        """How many bytes the kernel has taken for the worker, counted as :meth:`put_job` does."""
        return self._job_channel.sent_bytes if self.control_channel is not None else 0

    def put_jobs(self, jobs: Iterable[PoolJob[Any]], slot: int) -> None:
        """Put jobs that get an attempt in *slot*; the next flush sends them."""
        channel, known, context = self._job_channel, self._functions, self._context
        end = channel.put_bytes
        for job in jobs:
            # First, since the worker may die of the job at any moment.
            job.attempt = attempt = job.attempt + 1
            job.slot = slot
            payload, number = job.payload, job.function.number
            size = len(payload)
            lacks = number not in known or job.context != context
            if lacks or job.credit or size > SMALL:
                self.put_job(job, payload)
                context, end = self._context, channel.put_bytes
                continue
            # put_job(), inlined: its calls would double the cost.
            head = pack_header(VERSION, _JOB, attempt, number, job.id, size)
            channel.small += (head, payload)
            channel.put_bytes = job.frame_end = end = end + HEADER_SIZE + size

    def put_job(self, job: PoolJob[Any], payload: bytes) -> None:
        """Put a job, and note where its frame ends; the next flush sends it."""
        channel, number, context = self._job_channel, job.function.number, job.context
        if context != self._context:
            self._context = context
            channel.put(header(FrameKind.CONTEXT, len(context)), context)
        if number and number not in self._functions:
            self._functions.add(number)
            reference = job.function.payload
            head = header(FrameKind.FUNCTION, len(reference), number=number)
            channel.put(head, reference)
        kind, credit = _JOB, job.credit
        if credit:  # it is a stream, and may send so many items
            kind = FrameKind.STREAM
            channel.put(header(FrameKind.CREDIT, 0, number=credit))
        head = pack_header(VERSION, kind, job.attempt, number, job.id, len(payload))
        job.frame_end = channel.put(head, payload)

    # Large buffers, to the worker.

    @property
    def lending(self) -> bool:
        """Whether an out-of-band pickle is on its way to the worker."""
        return self._loan is not None

    def lend(self, pickled: OutOfBandPickle, send: Callable[[], None]) -> None:
        """Put *pickled* where the worker can see it, then have *send* put its job.

        The large buffers go ahead of what *send* puts on the job channel.  If the loan is
        withdrawn meanwhile, or the worker is gone, nothing is sent.
        """
        segment = self._segments.fill_at_once(self, pickled)
        if segment is not None:
            self._put_buffers(pickled, segment)
            send()
        else:
            self._loan = loan = object()
            self._spawn(self._lend_slowly(loan, pickled, send))

    def withdraw(self) -> bool:
        """Give up the loan that is on its way; return whether there was one."""
        loan, self._loan = self._loan, None
        return loan is not None

    async def _lend_slowly(
        self, loan: object, pickled: OutOfBandPickle, send: Callable[[], None]
    ) -> None:
        segment = await self._segments.fill(
            self, pickled, wanted=lambda: self._loan is loan
        )
        if self._loan is loan and not self.closed:
            # At once: Ctrl-C may withdraw the loan after any call.
            self._loan = None
            self._put_buffers(pickled, segment)
            send()
        elif segment is not None:
            self._segments.free(segment)

    def _put_buffers(self, pickled: OutOfBandPickle, segment: Segment | None) -> None:
        if segment is None:
            for size, pieces in zip(pickled.sizes, pickled.areas, strict=True):
                self._job_channel.put(header(FrameKind.AREA, size))
                for piece in pieces:
                    self._job_channel.put(b"", piece)
        else:
            segment.use = Use.WORKER
            numbers = messages.pack_numbers(pickled.sizes)
            head = header(FrameKind.LENT, len(numbers), number=segment.number)
            self._job_channel.put(head, numbers)

    def close(self) -> None:
        """Give up the segments of the worker, which is gone."""
        self.closed = True
        self.areas = []
        self._segments.forget_all(self)

    # Large buffers, from the worker.

    def complete(self, frame: Frame) -> Frame:
        """Return an outcome or an item together with its large buffers, which have come."""
        self._expected, self._wanting = 0, False
        if not self.areas:
            return frame
        areas, self.areas = self.areas, []
        return frame._replace(payload=ReceivedPickle(frame.payload, areas))

    def take(self, frame: Frame) -> None:
        """Take a frame about large buffers, or about the segment that they are in.

        Raises:
            ProtocolError: If it breaks the protocol.
        """
        segments, number = self._segments, frame.number
        match frame.kind:
            case FrameKind.AREA:
                data = frame.payload
                self._expect(len(data), 1)
                # A bytearray, since the caller of the job may change what it gets.
                area = memoryview(bytearray(data) if type(data) is bytes else data)
                self.areas.append(area)
            case FrameKind.LENT:
                if len(frame.payload) // 8 > self._max_payload // LARGE + _SMALL_ONES:
                    raise ProtocolError(_TOO_MANY)
                sizes = messages.unpack_numbers(frame.payload)
                self._expect(sum(sizes), len(sizes))
                segment = segments.find(self, number, Use.GRANTED)
                view = segments.view(segment, lay_out(sizes)[1])
                self.areas += cut(view, sizes)
            case FrameKind.WANT:
                self._want(frame.job)
            case FrameKind.SEGMENT_RETURNED:
                segments.free(segments.find(self, number, Use.WORKER))
            case FrameKind.LOST:
                segments.forget(segments.find(self, number, Use.WORKER, Use.GRANTED))
            case _:
                raise ProtocolError(f"it sent {frame.kind.name} on its job channel")

    def _expect(self, size: int, parts: int) -> None:
        self._expected += size
        if self._expected > self._max_payload:
            what = f"an outcome of {self._expected} bytes"
            raise ProtocolError(f"{what} exceeds the limit of {self._max_payload}")
        # Each buffer beside the pickle is large: a small one would be inside the pickle.  16,384
        # parts of a byte took Python's garbage collector 10 ms, in this process.
        if len(self.areas) + parts > self._expected // LARGE + _SMALL_ONES:
            raise ProtocolError(_TOO_MANY)

    def _want(self, size: int) -> None:
        # One for each outcome: a worker that asked on and on, and did not read the answers, would
        # fill the memory of this process with them.
        if self._wanting or not 0 < size <= 2 * self._max_payload:
            raise ProtocolError(f"it asked for {size} bytes when it was not allowed to")
        self._wanting = True
        segment = None if self._untrusted else self._segments.take(self, size)
        if segment is not None or self._untrusted:
            self._grant(segment)
        else:
            self._spawn(self._make_and_grant(size))

    async def _make_and_grant(self, size: int) -> None:
        segment = await self._segments.make(self, size)
        if not self.closed:
            self._grant(segment)
        elif segment is not None:
            self._segments.free(segment)

    def _grant(self, segment: Segment | None) -> None:
        assert self.control_channel is not None
        number = 0
        if segment is not None:
            number, segment.use = segment.number, Use.GRANTED
        self.control_channel.put(header(FrameKind.GRANT, 0, number=number))
        self.control_channel.flush()


class CancelledJob(NamedTuple):
    """A job that was cancelled when its worker had it."""

    job_id: int
    attempt: int
    function: str


class WorkerHandle:
    """One worker: one generation of one slot.

    Attributes:
        slot: The slot.
        generation: Which worker of the slot it is, counting from 1.
        rank: The number by which its jobs know it; see ``_core/lifecycle.py``.
        process: Its process; ``None`` until there is one.
        pid: The pid of its process; ``None`` until there is one.
        page: The worker page: what the worker has noted.
        outbox: Puts jobs on the job channel, and moves large objects through shared memory.
        job_channel: The job channel, once it is open.
        control_channel: The control channel, once it is open.
        link: Reads and writes in place of the job channel if the worker serves; a ``WorkerLink`` of
            ``_cluster/link.py``.
        stderr: What the worker writes to its stderr.
        lacked_memory: Whether the kernel has killed it, or a child of it, since its own cgroup
            was full.
        said_hello: Whether the worker has said that it is ready.
        status: Its exit status, once it has ended and if it is known.
        detail: Why it has ended, as far as that is known.
        traceback: The traceback of the exception that has ended it, if there is one.
        final: Whether another start would fail in the same way.
        silence: What has been missing for how long, if it counts as hung.
        late_stacks: Its stacks, if it was killed since it had not ended in time.
        broke_protocol: Whether it has sent something that the protocol does not allow.
        sent_before_breach: How many bytes of jobs it had been sent before it did that; -1 if it has not.
        ignored: Whether it is to end, so that its requests and answers no longer count.
        killed: Whether the pool has sent it SIGKILL.
        started_at: When its start began, by :func:`time.monotonic`.
        began_at: The same, by the clock of the loop.
        since: When its present state began: it starts, is idle, or runs its first job.
        cancelled: The last of its jobs that were cancelled, for the log.
        stack_answers: The requests for stacks that it has not answered yet, by job; 0 for all of them.
        next_weighing: When its memory is measured next: a bound and a time.  It is measured when it
            may have reached the bound, or at that time.
        first_signal_at: When the pool first sent it a signal to end it; ``None`` before that.
    """

    job_channel: Channel
    control_channel: Channel

    def __init__(self, engine: Engine, slot: int, generation: int, rank: int) -> None:
        self.slot, self.generation, self.rank = slot, generation, rank
        self.process: Process | None = None
        self.pid: int | None = None
        self.status: int | None = None
        self.detail = self.traceback = self.silence = self.late_stacks = ""
        self.broke_protocol = self.final = self.said_hello = False
        self.ignored = self.killed = self.lacked_memory = self._tracked = False
        self.sent_before_breach = -1
        self._engine = engine
        self._config = engine.config
        loop = self._loop = engine.loop
        self.began_at = self._heard_at = loop.time()
        self.started_at = self.since = monotonic()
        self.page = WorkerPage(self._config.worker.concurrency)
        self.outbox = Outbox(engine)
        self.link: Any = None
        self.stderr: Output | None = None
        self._channels: list[Channel] = []
        self._outputs: list[Output] = []
        self._place: Place | None = None
        self._channel_ended = False
        self._overdue = Alarm(loop, self._on_overdue)
        self.first_signal_at: float | None = None
        self.cancelled: deque[CancelledJob] = deque(maxlen=_CANCELLED_KEPT)
        self.stack_answers: dict[int, asyncio.Future[str]] = {}
        self.next_weighing = 0.0, 0.0
        self._pending_signal: signal.Signals | None = None
        self._launching: asyncio.Timeout | None = None

    async def run(self) -> None:
        """Start the worker; return when it has ended and all that it sent has been read.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means, such as descriptors.

        Cancellation:
            Kills the worker.
        """
        try:
            process = await self._start()
            self.status = await asyncio.shield(process.ended)
            # What it sent before it died counts: an outcome, or the reason of its death.
            for channel in self._channels:
                channel.read_rest()
            self._engine.traffic.on_exit(self)
            self._engine.profiles.lose(self)
        finally:
            self.close()

    # What the pool does with it.

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines that it wrote to its stderr."""
        return self.stderr.tail if self.stderr is not None else ()

    @property
    def failed(self) -> bool:
        """Whether it ended with an error; after a signal of the pool's, only another signal is one."""
        if not self.status or self._pending_signal is None:
            return bool(self.status)
        ours = {-signal.SIGTERM, -signal.SIGKILL if self.killed else -signal.SIGTERM}
        return self.status < 0 and self.status not in ours

    def send_control(self, kind: FrameKind, payload: bytes = b"", *fields: int) -> None:
        """Send a request on the control channel: the worker answers even while it runs a job."""
        self.control_channel.put(header(kind, len(payload), *fields), payload)
        self.control_channel.flush()

    def revoke(self, sequences: tuple[int, ...]) -> None:
        """Ask it not to begin the jobs with these sequence numbers."""
        self.send_control(FrameKind.REVOKE, messages.pack_numbers(sequences))

    def interrupt(self, sequence: int) -> None:
        """Ask it to end the running job with this sequence number."""
        self.send_control(FrameKind.INTERRUPT, messages.pack_numbers((sequence,)))

    def signal_for_stacks(self) -> None:
        """Have a signal handler write its stacks, since perhaps no thread of Python's can run there."""
        if self.process is not None:
            self.process.signal(STACKS_SIGNAL)

    def read_requested_stacks(self) -> None:
        """Read the stacks that it was asked for shortly before its time to end was over.

        If it then ended by itself, it did not hang there, and the stacks do not matter.
        """
        if self.first_signal_at is not None and (
            self.status is None or self.status < 0
        ):
            self.late_stacks = self.page.take_stacks()

    def stop(self) -> None:
        """Tell it that no more jobs will come."""
        self._ignore()
        if self._channels:
            self.job_channel.half_close()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._ignore()
        self._signal(signal.SIGTERM)

    def kill(self, reason: str = "") -> None:
        """Send it SIGKILL; the launcher kills all processes that it has started."""
        self.detail = self.detail or reason
        self.killed = True
        self._ignore()
        self._signal(signal.SIGKILL)
        if self._launching is not None and not self._launching.expired():
            self._launching.reschedule(self._loop.time())  # ends the wait

    def abandon(self) -> None:
        """Stop waiting for the end of its process."""
        if self.process is not None:
            self.process.note_end(None)

    def close(self) -> None:
        """Kill it if it still runs, and close everything but the page."""
        self.ignored = True
        self.outbox.close()
        self._overdue.cancel()
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            self.process.close()
        for channel in self._channels:
            channel.close()
        for output in self._outputs:
            output.close()
        place, self._place = self._place, None
        if place is not None and self._config.confinement is not None:
            self.lacked_memory = place.lacked_memory()
            self._config.confinement.release(place, self._engine.threads)

    def _ignore(self) -> None:
        """Ignore its requests and answers from now on; send nothing more to it if it serves."""
        self.ignored = True
        self._shut_link()

    def _shut_link(self) -> None:
        if self.link is not None:
            self.link.shut()

    def _signal(self, number: signal.Signals) -> None:
        self._pending_signal = number
        if self.first_signal_at is None:
            self.first_signal_at = self._loop.time()
        if self.process is not None:
            self.process.signal(number)

    # Its start.

    async def _start(self) -> Process:
        variables = self._environment()
        theirs: list[int] = []
        try:
            self._open(theirs, variables)
            delay = 0 if self.killed else None
            async with asyncio.timeout(delay) as self._launching:
                process = await self._engine.launcher.launch(theirs, variables)
        except TimeoutError:
            if self._launching is None or not self._launching.expired():
                raise
            text = "the launcher did not answer within start_timeout"
            raise LaunchError(text) from None
        finally:
            self._launching = None
            for fd in theirs:
                os.close(fd)
        self.process, self.pid = process, process.pid
        label = f"worker {self.pid} in slot {self.slot}"
        trusted = self._config.data is None and self._config.confinement is None
        extra = {it: getattr(self, it) for it in ("slot", "generation", "pid")}
        for output in self._outputs:
            output.name(label, {"pool": self._config.name, **extra}, trusted=trusted)
        if self._pending_signal is not None:  # asked for while it was starting
            process.signal(self._pending_signal)
        self._engine.on_spawned(self)
        if self.said_hello:
            self._engine.on_ready(self)
        if self._channel_ended:
            self._expect_end()
        return process

    def _environment(self) -> messages.Variables:
        """Return the environment variables that it alone has.

        Raises:
            LaunchError: If the user's function fails, or returns what cannot be had.
        """
        config = self._config
        try:
            return config.worker_env.of(self.rank, forked=config.fork)
        except Exception as error:
            text = str(error)
            if not text.startswith("worker_env("):
                text = f"worker_env({self.rank}) raised {type(error).__name__}: {text}"
            failure = LaunchError(text)
            failure.trace = traceback.format_exc()
            raise failure from error

    def _identity(self, variables: messages.Variables) -> messages.Identity:
        """Return what it is to :mod:`multiprocessing`: a child of this process.

        Its key must not be on a command line or in an environment, where others could see it.
        """
        this = multiprocessing.current_process()
        arguments: list[object] = [*sys.argv]
        method: str | None = multiprocessing.get_start_method(allow_none=True)
        identity = messages.Identity(
            name=f"{self._config.name}-worker-{self.slot}",
            number=self.slot + 1,
            parent=(os.getpid(), this.name),
            authkey=bytes(this.authkey),
            start_method=method if method in _START_METHODS else None,
            argv=tuple(text for text in arguments if isinstance(text, str)),
            rank=self.rank,
            environment=variables,
        )
        if self._place is None:
            return identity
        folder, cgroup = self._place.folder, self._place.cgroup
        group = "" if cgroup is None else str(cgroup)
        # In a sandbox it is told nothing of the service.
        known = identity._replace(authkey=_OTHER_KEY, argv=("",))
        return known._replace(folder=folder, cgroup=group)

    def _open(self, theirs: list[int], variables: messages.Variables) -> None:
        """Open everything, and send the worker its configuration.

        The worker's ends come into *theirs*, also if an error is raised: job channel, control
        channel, page, stdout, stderr.

        Raises:
            OSError: If this process lacks the means.
        """
        engine, serving, config = self._engine, self._engine.serving, self._config
        link = partial(Channel, self._loop, buffer=engine.buffer, on_end=self.on_end)
        ours, size = _pair(theirs), config.worker.max_payload
        if serving is None:
            on_frames = self._on_job_frames
            jobs = link(ours, max_payload=size, bare=True, on_frames=on_frames)
        else:
            ours, on_frames = DescriptorSocket(ours), self._on_link_frames
            jobs = link(ours, max_payload=size, on_frames=on_frames)
        self._channels.append(jobs)
        if serving is not None:
            self.link = serving.open_link(self, ours, jobs)
        ours, on_frames = _pair(theirs), self._on_control_frames
        control = link(ours, max_payload=_MAX_CONTROL, on_frames=on_frames)
        self._channels.append(control)
        self.job_channel, self.control_channel = jobs, control
        self.outbox.connect(jobs, control)
        theirs.append(self.page.open())
        for err in (False, True):
            output, end = os.pipe()
            theirs.append(end)
            self.stderr = Output(self._loop, output, config.worker_output, err=err)
            self._outputs.append(self.stderr)
        if config.handover is not None:
            for fd in config.handover.fds:
                control.put_descriptor(header(FrameKind.HANDED, 0), fd, keep=True)
        if config.confinement is not None:
            self._place = config.confinement.open()
        packed = pickle.dumps(self._identity(variables))
        control.put(header(FrameKind.IDENTITY, len(packed)), packed)
        of_pool = (
            engine.broadcasts.config() if serving is None else serving.config(self)
        )
        self.send_control(FrameKind.CONFIG, of_pool)

    def _lend_tracker(self) -> None:
        """Send the worker the resource tracker of this program, which starts if need be.

        What its jobs share is unlinked at the end of the program if nobody has unlinked it.

        Raises:
            ProtocolError: If it may not have that.  With it, it could unlink what is others'.
        """
        control, config = self.control_channel, self._config
        if self._tracked or config.confinement is not None or config.data is not None:
            raise ProtocolError("it asked for a resource tracker that it cannot have")
        self._tracked = True

        def lend(tracker: asyncio.Future[int | None]) -> None:
            failed = tracker.cancelled() or tracker.exception() is not None
            if failed or (fd := tracker.result()) is None:
                self.send_control(FrameKind.TRACKER)
            else:
                control.put_descriptor(header(FrameKind.TRACKER, 0), fd, keep=True)
                control.flush()

        self._engine.threads.copy(_descriptor_of_tracker).add_done_callback(lend)

    # What it sends.

    @property
    def heard_at(self) -> float:
        """When it last gave a sign of life on its control channel, or was kept from giving one."""
        if self in self._engine.worker_logs.paused:
            return self._loop.time()
        return self._heard_at

    # The job channel.

    def _on_job_frames(self, frames: list[Frame]) -> None:
        """Tell the pool about jobs that have ended, and about items of streams."""
        # Also if the worker has been killed: what it has done must not be done again.
        if self.broke_protocol:
            return
        outbox, trouble = self.outbox, ""
        for frame in frames:
            kind = frame[0]
            if kind is not _VALUE and kind is not _ERROR:
                break
        else:
            if not outbox.areas:  # nearly always
                self._engine.traffic.on_outcomes(self, frames)
                return
        frames = [Frame(*frame) for frame in frames]
        outcomes: list[Frame] = []
        try:
            for frame in frames:
                if frame.kind is FrameKind.LAST_HEARTBEAT:
                    self._engine.heartbeats.on_last_heartbeat(self, frame)
                elif frame.kind is _VALUE or frame.kind is _ERROR:
                    outcomes.append(outbox.complete(frame))
                elif frame.kind is FrameKind.ITEM:
                    # At once, before all outcomes: that of its stream comes behind it, and those
                    # of other jobs have nothing to do with it.
                    self._engine.traffic.on_item(self, outbox.complete(frame))
                else:
                    outbox.take(frame)
        except ProtocolError as error:
            trouble = str(error)
        if outcomes:
            self._engine.traffic.on_outcomes(self, outcomes)
        if trouble:
            self.distrust(trouble)

    def _on_link_frames(self, frames: list[Frame]) -> None:
        """Hand the frames of a worker that serves to its link."""
        assert self.link is not None
        # Also if the worker has been killed: what it took before that counts.
        if not self.broke_protocol:
            try:
                self.link.on_frames(frames)
            except ProtocolError as error:
                self.distrust(str(error))

    # The control channel.

    def _on_control_frames(self, frames: list[Frame]) -> None:
        """Tell the pool what the worker says about itself, and what it answers."""
        engine, has_heartbeats = self._engine, False
        if self.broke_protocol:
            return
        # Of a worker that serves only its loop's answers are a sign of life: any thread may log.
        if self.link is None:
            self._heard_at = self._loop.time()
        try:
            for frame in frames:
                match frame.kind:
                    case FrameKind.HEARTBEAT:
                        has_heartbeats = True
                    case FrameKind.RECORD:
                        engine.worker_logs.add(
                            self, self.control_channel, frame.payload
                        )
                    case kind if (
                        kind in _FROM_WORKERS_THAT_STAY and self._counts_no_more(kind)
                    ):
                        pass
                    case FrameKind.REVOKED:
                        with engine.turn as now:
                            sequences = messages.unpack_numbers(frame.payload)
                            engine.core.endings.revoked(self.slot, sequences, now)
                    case FrameKind.STACKS:
                        engine.stacks.written(self, frame.job or None)
                    case FrameKind.RETIRE:
                        asked = engine.replacement
                        leave = asked.replace if frame.number else asked.retire_now
                        leave(self, printable(frame.payload[: messages.MAX_REASON]))
                    case FrameKind.PONG:
                        engine.pings.answered(self)
                    case FrameKind.SAMPLES:
                        engine.profiles.hear(self, frame)
                    case FrameKind.WHERE:
                        engine.stacks.answered(self, frame.job, frame.payload)
                    case FrameKind.HELLO if not self.said_hello:
                        self.said_hello = True
                        # If a worker is quick, its hello may come before the launcher's answer.
                        if self.process is not None:
                            engine.on_ready(self)
                    case FrameKind.FAILED:
                        self._on_failure(frame)
                    case FrameKind.TRACKER:
                        self._lend_tracker()
                    case kind:
                        self.distrust(f"it sent {kind.name} on its control channel")
                        return
        except ProtocolError as error:
            self.distrust(str(error))
            return
        if has_heartbeats and not self.ignored:
            engine.heartbeats.on_notice(self)

    def _counts_no_more(self, kind: FrameKind) -> bool:
        """Return whether an answer counts no more, since the worker is to end."""
        # A worker that serves may be asked for its stacks while it drains, so that answer counts.
        return self.ignored and (kind is not FrameKind.STACKS or self.link is None)

    def _on_failure(self, frame: Frame) -> None:
        if self.detail:
            return  # only the first reason counts
        failure = messages.Failure.unpack(frame.payload)
        self.detail = printable_text(f"{failure.stage} failed: {failure.summary}")
        self.traceback = printable_block(failure.text)
        self.final = failure.final
        if failure.stage == "thread" or (failure.stage == "serve" and self.said_hello):
            with self._engine.turn as now:
                self._engine.core.replace_faulty(self.slot, now)

    # The error watcher.

    def on_end(self, error: ProtocolError | None) -> None:
        """Note that a channel has ended, with *error* if the worker broke the protocol."""
        # A frame that is cut short breaks no rule: a sudden death looks like that.
        if error is not None:
            self.distrust(str(error))
        self._shut_link()
        self._expect_end()

    def distrust(self, detail: str) -> None:
        """Trust the worker no more, since it has done what *detail* says, and kill it."""
        self.detail = detail
        if not self.broke_protocol:
            self.sent_before_breach = self.outbox.sent_bytes
        self.broke_protocol = True
        self._ignore()
        for channel in self._channels:
            channel.ignore()
        self._expect_end()

    def _expect_end(self) -> None:
        """Kill its process, now if it broke the protocol, else unless it ends by itself soon."""
        self._channel_ended = True
        if self.process is None:
            return  # when it is there, this is called again
        if self.broke_protocol:
            self.kill()
        elif not self._overdue.is_set:
            self._overdue.set_in(_EXIT_GRACE)

    def _on_overdue(self, _: float) -> None:
        if self.process is not None and self.process.ended.done():
            return  # this process was late itself: the worker has ended, too
        self.broke_protocol = True
        self.detail = self.detail or "it closed its channel and went on"
        self.kill()


def _descriptor_of_tracker() -> int | None:
    from multiprocessing.resource_tracker import getfd  # noqa: PLC0415 - few programs need it

    return getfd()


def _pair(theirs: list[int]) -> socket.socket:
    ours, other = socket_pair()
    theirs.append(other.detach())
    return ours
