"""What connects the pool with one worker: two channels, a page, and the pipes of its output.

The pool opens them before the worker is forked, and closes its ends when the worker has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from asyncpool._core.wire.frames import Frame, FrameKind, header
from asyncpool._runtime.channel.channel import Channel
from asyncpool._runtime.channel.large_buffers import LargeBuffers
from asyncpool._runtime.channel.outbox import Outbox
from asyncpool._runtime.channel.page import WorkerPage
from asyncpool._runtime.output.log_records import LogNotes
from asyncpool._runtime.output.output import Output
from asyncpool._runtime.worker.control_requests import ControlRequests
from asyncpool._runtime.worker.identity import confined, identity_of
from asyncpool._runtime.worker.serving import ServingLink
from asyncpool._runtime.worker.setup import WorkerSetup
from asyncpool._system.sockets import socket_pair
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._runtime.sandbox.places import Place
    from asyncpool._runtime.worker.handle import WorkerHandle

_MAX_CONTROL = 1 << 20


class WorkerConnections:
    """The pool's ends of what one worker shares with it.

    Args:
        loop: The loop that watches them.
        setup: What all workers of the pool have in common.

    Attributes:
        page: The worker page.
        large_buffers: Moves large objects through shared memory.
        outbox: Puts jobs on the job channel.
        requests: Puts requests on the control channel.
        jobs: The job channel; ``None`` until it is open, or if the worker serves.
        control: The control channel; ``None`` until it is open.
        link: Reads and writes in place of the job channel if the worker serves.
        logs: The log records of the worker; ``None`` until the channels are open.
        stdout: What the worker writes to its stdout.
        stderr: What it writes to its stderr.
        lacked_memory: Whether the kernel has killed it since its cgroup was full.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, setup: WorkerSetup) -> None:
        self._loop = loop
        self._setup = setup
        self.page = WorkerPage(setup.concurrency)
        self.large_buffers = LargeBuffers(
            spawn=setup.tasks.create_task,
            segments=setup.segments,
            threads=setup.threads,
            max_payload=setup.max_payload,
            untrusted=setup.untrusted,
        )
        self.outbox = Outbox(self.large_buffers)
        self.requests = ControlRequests()
        self.jobs: Channel | None = None
        self.control: Channel | None = None
        self.link: ServingLink | None = None
        self.logs: LogNotes | None = None
        self.stdout: Output | None = None
        self.stderr: Output | None = None
        self.lacked_memory = False
        self._place: Place | None = None
        self._lent = False

    def open(self, worker: WorkerHandle, theirs: contextlib.ExitStack) -> list[int]:
        """Open everything, and send the worker its configuration.

        Args:
            worker: The worker's handle.
            theirs: Closes the worker's ends in this process.

        Returns:
            The worker's ends: job channel, control channel, page, stdout, stderr.

        Raises:
            OSError: If this process lacks the means.
        """
        setup = self._setup
        ours, job_end = _pair(theirs)
        self._open_jobs(worker, ours)
        ours, control_end = _pair(theirs)
        on_frames = worker.incoming.on_control_frames
        self.control = self._channel(worker, ours, _MAX_CONTROL, on_frames)
        assert self.jobs is not None
        self.outbox.connect(self.jobs)
        self.requests.connect(self.control)
        self.large_buffers.connect(self.jobs, self.control)
        self.logs = LogNotes(setup.worker_logs, worker, self.control)
        page = self.page.open()
        theirs.callback(os.close, page)
        out, out_end = _pipe(theirs)
        self.stdout = Output(self._loop, out, setup.output, err=False)
        err, err_end = _pipe(theirs)
        self.stderr = Output(self._loop, err, setup.output, err=True)
        self._send_configuration(worker, self.control)
        return [job_end, control_end, page, out_end, err_end]

    def _open_jobs(self, worker: WorkerHandle, ours: socket.socket) -> None:
        setup, incoming = self._setup, worker.incoming

        def make_channel(sock: socket.socket) -> Channel:
            size = setup.max_payload
            self.jobs = self._channel(worker, sock, size, incoming.on_link_frames)
            return self.jobs

        if setup.serving is None:
            size = setup.max_payload
            self.jobs = self._channel(worker, ours, size, incoming.on_job_frames)
        else:
            self.link = setup.serving.open_link(worker, ours, make_channel)

    def _send_configuration(self, worker: WorkerHandle, control: Channel) -> None:
        setup = self._setup
        for fd in setup.handed:
            control.put_descriptor(header(FrameKind.HANDED, 0), fd, keep=True)
        identity = identity_of(setup.pool, worker.slot, worker.rank, worker.environment)
        if setup.places is not None:
            self._place = setup.places.open()
            identity = confined(identity, self._place)
        packed = identity.pack()
        control.put(header(FrameKind.IDENTITY, len(packed)), packed)
        config = setup.listener.config_for(worker)
        control.put(header(FrameKind.CONFIG, len(config)), config)
        control.flush()

    def lend_tracker(self) -> None:
        """Send the worker the resource tracker of this program, which starts if need be.

        What its jobs share is unlinked at the end of the program if nobody has unlinked it.

        Raises:
            ProtocolError: If it may not have that.  With it, it could unlink what is others'.
        """
        control, setup = self.control, self._setup
        if self._lent or not setup.lends_tracker:
            raise ProtocolError("it asked for a resource tracker that it cannot have")
        assert control is not None
        self._lent = True

        def lend(tracker: asyncio.Future[int | None]) -> None:
            failed = tracker.cancelled() or tracker.exception() is not None
            fd, frame = (
                None if failed else tracker.result(),
                header(FrameKind.TRACKER, 0),
            )
            if fd is None:
                control.put(frame)
            else:
                control.put_descriptor(frame, fd, keep=True)
            control.flush()

        setup.threads.copy(_descriptor_of_tracker).add_done_callback(lend)

    def _channel(
        self,
        worker: WorkerHandle,
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
            on_end=worker.on_end,
        )

    def label_output(self, worker: WorkerHandle) -> None:
        """Have the log say of each line which worker has written it."""
        label = f"worker {worker.pid} in slot {worker.slot}"
        extra: dict[str, object] = {
            "pool": self._setup.pool,
            "slot": worker.slot,
            "generation": worker.generation,
            "pid": worker.pid,
        }
        for stream in (self.stdout, self.stderr):
            assert stream is not None
            stream.name(label, extra)

    def take_report(self) -> str:
        """Return what the interpreter has said of a fatal error; see :class:`Output`."""
        return "" if self.stderr is None else self.stderr.take_report()

    def release_report(self) -> None:
        """Log that line by line."""
        if self.stderr is not None:
            self.stderr.release_report()

    def drain(self) -> None:
        """Read to the end what a dead worker has sent."""
        for channel in (self.jobs, self.control):
            if channel is not None:
                channel.drain()

    def ignore(self) -> None:
        """Read nothing more of what the worker sends, since it is not trusted any longer."""
        for channel in (self.jobs, self.control):
            if channel is not None:
                channel.ignore()

    def shut_link(self) -> None:
        """Send nothing more to a worker that serves."""
        if self.link is not None:
            self.link.shut()

    def close(self) -> None:
        """Close everything but the page, which the pool still reads when the worker is gone."""
        for part in (self.jobs, self.control, self.stdout, self.stderr):
            if part is not None:
                part.close()
        place, self._place = self._place, None
        if place is not None and self._setup.places is not None:
            self.lacked_memory = place.lacked_memory()
            self._setup.places.release(place)


def _pair(theirs: contextlib.ExitStack) -> tuple[socket.socket, int]:
    ours, other = socket_pair()
    theirs.callback(other.close)
    return ours, other.fileno()


def _descriptor_of_tracker() -> int | None:
    from multiprocessing.resource_tracker import getfd  # noqa: PLC0415 - few programs need it

    return getfd()


def _pipe(theirs: contextlib.ExitStack) -> tuple[int, int]:
    ours, other = os.pipe()
    theirs.callback(os.close, other)
    return ours, other
