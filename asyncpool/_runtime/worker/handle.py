"""One worker, as the pool sees it: a process, two channels, a page, its output.

Two watchers look after it.  The exit watcher awaits the end of the process.  The
error watcher awaits whatever else can go wrong while it lives: a channel that ends
or breaks the protocol, an initializer that raises, an uncaught exception in one of
the worker's threads.  Whichever is first, both ends meet in one place,
:meth:`WorkerHandle.live` returns, and the worker has ended, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass

import anyio

from asyncpool._core.base.text import printable, printable_lines
from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._core.wire.messages import (
    MAX_REASON,
    Failure,
    pack_moment,
    pack_numbers,
    unpack_numbers,
)
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.channel.large_buffers import LargeBuffers
from asyncpool._runtime.channel.outbox import Outbox
from asyncpool._runtime.channel.page import WorkerPage
from asyncpool._runtime.channel.segments import Segments
from asyncpool._runtime.launcher.launcher import Launcher
from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.launcher.process import Process
from asyncpool._runtime.options.worker_options import OutputMode
from asyncpool._runtime.worker.identity import identity_of
from asyncpool._runtime.worker.log_records import LogNotes, WorkerLogs
from asyncpool._runtime.worker.output import Output
from asyncpool._runtime.worker.serving import Serving, ServingLink
from asyncpool._runtime.worker.worker_events import WorkerEvents
from asyncpool._system.signals import STACKS
from asyncpool.errors import ProtocolError

# A process whose channel has ended is ending too; if it does not, it is killed.
_EXIT_GRACE = 1.0

_MAX_CONTROL = 1 << 20

# What matters only as long as a worker is to work.
_ANSWERS = frozenset(
    {FrameKind.REVOKED, FrameKind.STACKS, FrameKind.PONG, FrameKind.RETIRE}
)


@dataclass(frozen=True, slots=True)
class WorkerSetup:
    """What all workers of a pool have in common."""

    pool: str
    launcher: Launcher
    listener: WorkerEvents
    handed: Collection[int]
    buffer: memoryview
    max_payload: int
    concurrency: int
    output: OutputMode
    tasks: asyncio.TaskGroup
    threads: Threads
    segments: Segments
    serving: Serving | None
    journal: WorkerLogs


class WorkerHandle:
    """One generation of one slot.

    Attributes:
        slot: The slot.
        generation: Which worker of it this is.
        process: Its process; ``None`` until there is one.
        page: What it has noted.
        outbox: The way of jobs to it.
        line: The way to one that serves instead.
        status: Its exit status, once it has ended and if it is known.
        detail: What is known of the reason, if anything.
        traceback: That of the exception which was the reason, if it is known.
        silence: What it has failed to say for too long, if it was found hung.
        late_stacks: Where it was, if it was killed since it had not ended in time.
        broke_protocol: Whether it said something that a worker does not say.
        killed: Whether SIGKILL was sent to it from here.
        pressed_at: When it was first sent a signal that is to end it, if it was.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slot: int,
        generation: int,
        s: WorkerSetup,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.process: Process | None = None
        self.page = WorkerPage(s.concurrency)
        self.status: int | None = None
        self.detail = self.traceback = self.silence = self.late_stacks = ""
        self.broke_protocol = False
        self.began_at = loop.time()
        self._loop = loop
        self._setup = s
        self._listener = s.listener
        self._large_buffers = LargeBuffers(
            spawn=s.tasks.create_task,
            segments=s.segments,
            threads=s.threads,
            max_payload=s.max_payload,
        )
        self.outbox = Outbox(self._large_buffers)
        self.line: ServingLink | None = None
        self._jobs: Channel | None = None
        self._control: Channel | None = None
        self._notes: LogNotes | None = None
        self._heard_at = self.began_at
        self._stdout: Output | None = None
        self._stderr: Output | None = None
        self._trouble = asyncio.Event()
        self._exited = asyncio.Event()
        self.killed = False
        self.pressed_at: float | None = None
        self._ignored = False
        self._said_hello = False
        self._wanted: signal.Signals | None = None
        self._launching: anyio.CancelScope | None = None

    async def live(self) -> None:
        """Start the worker, and return when it has ended and all is read.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means, such as descriptors.

        Cancellation:
            Costs the worker, which is killed.
        """
        try:
            await self._start()
            async with anyio.create_task_group() as watchers:
                watchers.start_soon(self._watch_exit)
                watchers.start_soon(self._watch_errors)
        finally:
            self.close()

    # What the pool does with it.

    @property
    def pid(self) -> int | None:
        """The number of its process."""
        return self.process.pid if self.process is not None else None

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines that it wrote to its stderr."""
        return self._stderr.tail if self._stderr is not None else ()

    @property
    def failed(self) -> bool:
        """Whether it has ended neither well, nor by a signal from here, nor unseen."""
        if not self.status:
            return False
        if self._wanted is None:
            return True
        ours = {-signal.SIGTERM, -signal.SIGKILL if self.killed else -signal.SIGTERM}
        return self.status < 0 and self.status not in ours

    def revoke(self, sequences: tuple[int, ...]) -> None:
        """Ask it not to begin what it got in these places."""
        self._say(FrameKind.REVOKE, pack_numbers(sequences))

    def interrupt(self, sequence: int) -> None:
        """Ask it to end what it got in this place, if that is what it runs."""
        self._say(FrameKind.INTERRUPT, pack_numbers((sequence,)))

    def fence(self, sequence: int, until: float) -> None:
        """Have it end itself at *until* if it runs what it got in this place then.

        The loop's clock is the one that all processes of a machine share.
        """
        self._say(FrameKind.FENCE, pack_moment(until), sequence)

    def give_credit(self, job: int, attempt: int, limit: int) -> None:
        """Let it send so many items of a stream in all."""
        self._say(FrameKind.CREDIT, b"", job, attempt, limit)

    def ask_for_stacks(self, job: int = 0, attempt: int = 0) -> None:
        """Have it write down on its page where its threads are, and that job, if any."""
        self._say(FrameKind.STACKS, b"", job, attempt)

    def ping(self) -> None:
        """Ask for a sign of life."""
        self._say(FrameKind.PING, b"")

    def tell_of_close(self) -> None:
        """Tell it that the whole cluster ends, while it drains."""
        self._say(FrameKind.CLOSING, b"")

    def catch_up(self) -> None:
        """Hear what it has said on its control channel by now."""
        assert self._control is not None
        self._control.read()

    def read_now(self) -> None:
        """Read what it has sent on its job channel by now, also if it is left alone."""
        assert self._jobs is not None
        self._jobs.read()

    def pause_reading(self) -> None:
        """Leave it alone: read none of its outcomes until :meth:`resume_reading`."""
        assert self._jobs is not None
        self._jobs.pause()

    def resume_reading(self) -> None:
        """Read its outcomes as they come."""
        assert self._jobs is not None
        self._jobs.resume()

    @property
    def heard_at(self) -> float:
        """When it last said something on its control channel, or was kept waiting."""
        if self._notes is not None and self._notes.paused:
            return self._loop.time()
        return self._heard_at

    def demand_stacks(self) -> None:
        """Have it write them down though no thread of Python's can run there."""
        if self.process is not None:
            self.process.signal(STACKS)

    def read_late_stacks(self) -> None:
        """Read where it was, which it was asked when its time was nearly over.

        What has ended by itself after that was not stuck there.
        """
        if self.pressed_at is not None and (self.status is None or self.status < 0):
            self.late_stacks = self.page.read_stacks()

    def stop(self) -> None:
        """Tell it that no job will come any more."""
        self._ignored = True
        self._shut_link()
        if self._jobs is not None:
            self._jobs.half_close()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._ignored = True
        self._shut_link()
        self._signal(signal.SIGTERM)

    def kill(self, reason: str = "") -> None:
        """Send it SIGKILL; the launcher sees to all that it has started."""
        self.detail = self.detail or reason
        self._ignored = self.killed = True
        self._shut_link()
        self._signal(signal.SIGKILL)
        if self.process is None and self._launching is not None:
            self._launching.cancel()

    def abandon(self) -> None:
        """Wait no longer for the end of its process."""
        if self.process is not None:
            self.process.ended(None)

    def close(self) -> None:
        """Let go of everything."""
        self._ignored = True
        self._large_buffers.close()
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            self.process.close()
        for part in (self._jobs, self._control, self._stdout, self._stderr):
            if part is not None:
                part.close()

    def _say(self, kind: FrameKind, payload: bytes, *fields: int) -> None:
        assert self._control is not None
        self._control.put(header(kind, len(payload), *fields), payload)
        self._control.flush()

    def _shut_link(self) -> None:
        if self.line is not None:
            self.line.shut()

    def _signal(self, number: signal.Signals) -> None:
        self._wanted = number
        if self.pressed_at is None:
            self.pressed_at = self._loop.time()
        if self.process is not None:
            self.process.signal(number)

    # Its beginning.

    async def _start(self) -> None:
        self._launching = anyio.CancelScope()
        if self.killed:
            self._launching.cancel()
        with contextlib.ExitStack() as theirs, self._launching:
            fds = self._open(theirs)
            self.process = await self._setup.launcher.launch(fds)
        if self.process is None:
            raise LaunchError("the launcher did not answer in time")
        for stream in (self._stdout, self._stderr):
            assert stream is not None
            stream.label = f"worker {self.pid} in slot {self.slot}"
        if self._wanted is not None:  # while it was on its way
            self.process.signal(self._wanted)
        self._listener.on_spawned(self)
        if self._said_hello:
            self._listener.on_ready(self)

    def _open(self, theirs: contextlib.ExitStack) -> list[int]:
        """Open both channels, the page and the pipes; return the worker's ends."""
        setup = self._setup
        ours, job_end = _pair(theirs)
        if setup.serving is None:
            self._jobs = self._channel(ours, setup.max_payload, self._on_job_frames)
        else:
            self.line = setup.serving.open_link(self, ours, self._open_link_channel)
            assert self._jobs is not None
        ours, control_end = _pair(theirs)
        self._control = self._channel(ours, _MAX_CONTROL, self._on_control_frames)
        self.outbox.connect(self._jobs)
        self._large_buffers.connect(self._jobs, self._control)
        self._notes = LogNotes(setup.journal, self, self._control)
        page = self.page.open()
        theirs.callback(os.close, page)
        out, out_end = _pipe(theirs)
        self._stdout = Output(self._loop, out, setup.output, err=False)
        err, err_end = _pipe(theirs)
        self._stderr = Output(self._loop, err, setup.output, err=True)
        for fd in setup.handed:
            self._control.put_descriptor(header(FrameKind.HANDED, 0), fd, keep=True)
        identity = identity_of(setup.pool, self.slot).pack()
        self._control.put(header(FrameKind.IDENTITY, len(identity)), identity)
        self._say(FrameKind.CONFIG, setup.listener.config_for(self))
        return [job_end, control_end, page, out_end, err_end]

    def _open_link_channel(self, sock: socket.socket) -> Channel:
        size = self._setup.max_payload
        self._jobs = self._channel(sock, size, self._on_link_frames)
        return self._jobs

    def _channel(
        self,
        sock: socket.socket,
        max_payload: int,
        on_frames: Callable[[list[Frame]], None],
    ) -> Channel:
        return Channel(
            self._loop,
            sock,
            buffer=self._setup.buffer,
            max_payload=max_payload,
            on_frames=on_frames,
            on_end=self._on_end,
        )

    # Its watchers.

    async def _watch_exit(self) -> None:
        assert self.process is not None
        assert self._jobs is not None
        self.status = await self.process.wait()
        # What it wrote before it died counts: an outcome, or the reason.
        for channel in (self._jobs, self._control):
            if channel is not None:
                channel.drain()
        self._listener.on_exit(self)
        self._exited.set()
        self._trouble.set()

    async def _watch_errors(self) -> None:
        await self._trouble.wait()
        if self.broke_protocol:
            self.kill()
        with anyio.move_on_after(_EXIT_GRACE):
            await self._exited.wait()
        if not self._exited.is_set():
            self.broke_protocol = True
            self.detail = self.detail or "it closed its channel and went on"
            self.kill()

    # What it says.

    def _on_job_frames(self, frames: list[Frame]) -> None:
        # Also of a worker that was killed: what it has done is not to be done again.
        if self.broke_protocol:
            return
        for frame in frames:
            if frame.kind is not FrameKind.VALUE and frame.kind is not FrameKind.ERROR:
                break
        else:
            if not self._large_buffers.pending:
                self._listener.on_outcomes(self, frames)
                return
        frames, bad_beat = self._take_beats(frames)
        frames, trouble = self._large_buffers.unload(frames)
        items = [frame for frame in frames if frame.kind is FrameKind.ITEM]
        if items:
            # A stream's outcome comes behind its items, and that of a job beside it has
            # nothing to do with them.
            self._listener.on_items(self, items)
            frames = [frame for frame in frames if frame.kind is not FrameKind.ITEM]
        if frames and not self.broke_protocol:
            self._listener.on_outcomes(self, frames)
        trouble = trouble or bad_beat
        if trouble is not None:
            self.accuse(trouble)

    def _take_beats(self, frames: list[Frame]) -> tuple[list[Frame], str | None]:
        """Return the frames that are no heartbeats, and what is wrong with the next."""
        others: list[Frame] = []
        for frame in frames:
            if frame.kind is not FrameKind.LAST_HEARTBEAT:
                others.append(frame)
                continue
            try:
                self._listener.on_last_beat(self, frame)
            except ProtocolError as error:
                return others, str(error)
        return others, None

    def _on_link_frames(self, frames: list[Frame]) -> None:
        # Also of a worker that was killed: what it has taken, it had.
        assert self.line is not None
        if not self.broke_protocol:
            try:
                self.line.on_frames(frames)
            except ProtocolError as error:
                self.accuse(str(error))

    def _on_control_frames(self, frames: list[Frame]) -> None:
        assert self._notes is not None
        if self.broke_protocol:
            return
        self._heard_at, rung = self._loop.time(), False
        for frame in frames:
            if frame.kind is FrameKind.HEARTBEAT:
                rung = True
                continue
            if frame.kind is FrameKind.RECORD:
                self._notes.add(frame.payload)
                continue
            try:
                self._on_control_frame(frame)
            except ProtocolError as error:
                self.accuse(str(error))
                return
        if rung and not self._ignored:
            self._listener.on_heartbeat(self)

    def _on_control_frame(self, frame: Frame) -> None:
        if frame.kind in _ANSWERS:
            # Where it is, one that drains may be asked too.
            drains = self.line is not None and not self.broke_protocol
            if not self._ignored or (frame.kind is FrameKind.STACKS and drains):
                self._on_answer(frame)
        elif frame.kind is FrameKind.HELLO and not self._said_hello:
            self._said_hello = True
            # A quick worker's hello can overtake the launcher's word of its birth.
            if self.process is not None:
                self._listener.on_ready(self)
        elif frame.kind is FrameKind.FAILED:
            if self.detail:
                return  # the first reason counts
            failure = Failure.unpack(frame.payload)
            self.detail = printable_lines(f"{failure.stage} failed: {failure.summary}")
            self.traceback = printable_lines(failure.text)
            if failure.stage == "thread" or (
                failure.stage == "serve" and self._said_hello
            ):
                self._listener.on_fault(self)
        else:
            raise ProtocolError(f"it sent {frame.kind.name} on its control channel")

    def _on_answer(self, frame: Frame) -> None:
        if frame.kind is FrameKind.REVOKED:
            self._listener.on_revoked(self, unpack_numbers(frame.payload))
        elif frame.kind is FrameKind.STACKS:
            self._listener.on_stacks(self, frame.job or None)
        elif frame.kind is FrameKind.RETIRE and frame.number:
            self._listener.on_worn(self, _reason_in(frame))
        elif frame.kind is FrameKind.RETIRE:
            self._listener.on_retire(self, _reason_in(frame))
        else:
            self._listener.on_pong(self)

    def _on_end(self, error: ProtocolError | None) -> None:
        # A frame that was cut short is no offence: that is how sudden deaths look.
        if error is not None:
            self.accuse(str(error))
        self._shut_link()
        self._trouble.set()

    def accuse(self, detail: str) -> None:
        """Treat the worker as one that cannot be trusted any more."""
        self.detail = detail
        self.broke_protocol = True
        self._ignored = True
        self._shut_link()
        self._trouble.set()


def _reason_in(frame: Frame) -> str:
    return printable(bytes(frame.payload[:MAX_REASON]).decode(errors="replace"))


def _pair(theirs: contextlib.ExitStack) -> tuple[socket.socket, int]:
    ours, other = socket.socketpair()
    theirs.callback(other.close)
    return ours, other.fileno()


def _pipe(theirs: contextlib.ExitStack) -> tuple[int, int]:
    ours, other = os.pipe()
    theirs.callback(os.close, other)
    return ours, other
