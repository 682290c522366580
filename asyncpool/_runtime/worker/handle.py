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
import signal
from time import monotonic

import anyio

from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.launcher.process import Process
from asyncpool._runtime.worker.connections import WorkerConnections
from asyncpool._runtime.worker.incoming import IncomingFrames
from asyncpool._runtime.worker.setup import WorkerSetup
from asyncpool._system.signals import STACKS
from asyncpool.errors import ProtocolError

# A process whose channel has ended is ending too; if it does not, it is killed.
_EXIT_GRACE = 1.0


class WorkerHandle:
    """One generation of one slot.

    Attributes:
        slot: The slot.
        generation: Which worker of it this is.
        process: Its process; ``None`` until there is one.
        connections: The channels, the page and the pipes between it and the pool.
        page: What it has noted.
        outbox: The way of jobs to it.
        requests: What it is asked to do.
        incoming: What it says.
        status: Its exit status, once it has ended and if it is known.
        detail: What is known of the reason, if anything.
        traceback: That of the exception which was the reason, if it is known.
        silence: What it has failed to say for too long, if it was found hung.
        late_stacks: Where it was, if it was killed since it had not ended in time.
        broke_protocol: Whether it said something that a worker does not say.
        ignored: Whether it is to end, so that what it asks and answers counts no more.
        killed: Whether SIGKILL was sent to it from here.
        started_at: When its start began, by :func:`time.monotonic`.
        since: When it began to be what it is: to start, to be idle, or to run its first job.
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
        self.status: int | None = None
        self.detail = self.traceback = self.silence = self.late_stacks = ""
        self.broke_protocol = False
        self.began_at = loop.time()
        self.started_at = self.since = monotonic()
        self._loop = loop
        self._setup = s
        self._listener = s.listener
        self.connections = WorkerConnections(loop, s)
        self.page = self.connections.page
        self.outbox = self.connections.outbox
        self.requests = self.connections.requests
        self.incoming = IncomingFrames(loop, self, self.connections, s.listener)
        self._trouble = asyncio.Event()
        self._exited = asyncio.Event()
        self.killed = False
        self.pressed_at: float | None = None
        self.ignored = False
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
        stderr = self.connections.stderr
        return stderr.tail if stderr is not None else ()

    @property
    def failed(self) -> bool:
        """Whether it has ended neither well, nor by a signal from here, nor unseen."""
        if not self.status:
            return False
        if self._wanted is None:
            return True
        ours = {-signal.SIGTERM, -signal.SIGKILL if self.killed else -signal.SIGTERM}
        return self.status < 0 and self.status not in ours

    def catch_up(self) -> None:
        """Hear what it has said on its control channel by now."""
        channel = self.connections.control
        assert channel is not None
        channel.read()

    def read_now(self) -> None:
        """Read what it has sent on its job channel by now, also if it is left alone."""
        channel = self.connections.jobs
        assert channel is not None
        channel.read()

    def pause_reading(self) -> None:
        """Leave it alone: read none of its outcomes until :meth:`resume_reading`."""
        channel = self.connections.jobs
        assert channel is not None
        channel.pause()

    def resume_reading(self) -> None:
        """Read its outcomes as they come."""
        channel = self.connections.jobs
        assert channel is not None
        channel.resume()

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
        self.ignored = True
        self.connections.shut_link()
        if self.connections.jobs is not None:
            self.connections.jobs.half_close()

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self.ignored = True
        self.connections.shut_link()
        self._signal(signal.SIGTERM)

    def kill(self, reason: str = "") -> None:
        """Send it SIGKILL; the launcher sees to all that it has started."""
        self.detail = self.detail or reason
        self.ignored = self.killed = True
        self.connections.shut_link()
        self._signal(signal.SIGKILL)
        if self.process is None and self._launching is not None:
            self._launching.cancel()

    def abandon(self) -> None:
        """Wait no longer for the end of its process."""
        if self.process is not None:
            self.process.ended(None)

    def close(self) -> None:
        """Let go of everything."""
        self.ignored = True
        self.connections.large_buffers.close()
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            self.process.close()
        self.connections.close()

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
            fds = self.connections.open(self, theirs)
            self.process = await self._setup.launcher.launch(fds)
        if self.process is None:
            raise LaunchError("the launcher did not answer in time")
        self.connections.label_output(f"worker {self.pid} in slot {self.slot}")
        if self._wanted is not None:  # while it was on its way
            self.process.signal(self._wanted)
        self._listener.on_spawned(self)
        if self.incoming.said_hello:
            self._listener.on_ready(self)

    # Its watchers.

    async def _watch_exit(self) -> None:
        assert self.process is not None
        self.status = await self.process.wait()
        # What it wrote before it died counts: an outcome, or the reason.
        self.connections.drain()
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

    # How it breaks off.

    def on_end(self, error: ProtocolError | None) -> None:
        """Take note that a channel has ended, with *error* if the worker broke the protocol."""
        # A frame that was cut short is no offence: that is how sudden deaths look.
        if error is not None:
            self.accuse(str(error))
        self.connections.shut_link()
        self._trouble.set()

    def accuse(self, detail: str) -> None:
        """Treat the worker as one that cannot be trusted any more."""
        self.detail = detail
        self.broke_protocol = True
        self.ignored = True
        self.connections.shut_link()
        self._trouble.set()
