"""One worker, as the pool sees it: a process, two channels, a page, its output.

Two tasks watch it.  The exit watcher waits for the end of the process.  The error watcher
waits for any other fault while the process lives: a channel ends or breaks the protocol, an
initializer raises, or a thread of the worker ends with an exception.  Both lead to the same
end: the process is gone, the listener hears of that once, and :meth:`WorkerHandle.run`
returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import deque
from time import monotonic
from typing import NamedTuple

import anyio

from asyncpool._core.wire.messages import Variables
from asyncpool._runtime.launcher.launcher_process import LaunchError
from asyncpool._runtime.launcher.process import Process
from asyncpool._runtime.worker.connections import WorkerConnections
from asyncpool._runtime.worker.environment import environment_of
from asyncpool._runtime.worker.incoming import IncomingFrames
from asyncpool._runtime.worker.setup import WorkerSetup
from asyncpool._system.signals import STACKS
from asyncpool.errors import ProtocolError

# Seconds that a process has to end by itself after its channel has ended.
_EXIT_GRACE = 1.0


# How many cancelled jobs of a worker the log can name.
_CANCELLED_KEPT = 64


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
        rank: The number by which its jobs know it; see ``_core/slots/ranks.py``.
        environment: The environment variables that it alone has.
        process: Its process; ``None`` until there is one.
        connections: The channels, the page and the pipes between it and the pool.
        page: What the worker has noted.
        outbox: Puts jobs on the job channel.
        requests: Puts requests on the control channel.
        incoming: Reads what the worker sends.
        status: Its exit status, once it has ended and if it is known.
        detail: Why it has ended, as far as that is known.
        traceback: The traceback of the exception that has ended it, if there is one.
        final: Whether another start would fail in the same way.
        silence: What has been missing for how long, if it counts as hung.
        late_stacks: Its stacks, if it was killed since it had not ended in time.
        broke_protocol: Whether it has sent something that the protocol does not allow.
        taken_in_trust: How many bytes of jobs it had taken before it did that; -1 if it has not.
        ignored: Whether it is to end, so that its requests and answers no longer count.
        killed: Whether the pool has sent it SIGKILL.
        started_at: When its start began, by :func:`time.monotonic`.
        since: When its present state began: it starts, is idle, or runs its first job.
        cancelled: The last of its jobs that were cancelled, for the log.
        pressed_at: When the pool first sent it a signal to end it; ``None`` before that.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        slot: int,
        generation: int,
        rank: int,
        s: WorkerSetup,
    ) -> None:
        self.slot = slot
        self.generation = generation
        self.rank = rank
        self.environment: Variables = ()
        self.process: Process | None = None
        self.status: int | None = None
        self.detail = self.traceback = self.silence = self.late_stacks = ""
        self.broke_protocol = self.final = False
        self.taken_in_trust = -1
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
        self.cancelled: deque[CancelledJob] = deque(maxlen=_CANCELLED_KEPT)
        self._wanted: signal.Signals | None = None
        self._launching: anyio.CancelScope | None = None

    async def run(self) -> None:
        """Start the worker; return when it has ended and all that it sent has been read.

        Raises:
            LaunchError: If it cannot be started.
            OSError: If this process lacks the means, such as descriptors.

        Cancellation:
            Kills the worker.
        """
        try:
            await self._start()
            async with anyio.create_task_group() as watchers:
                whose = (
                    f"of worker {self.pid} in slot {self.slot} of {self._setup.pool}"
                )
                end, trouble = f"asyncpool end {whose}", f"asyncpool errors {whose}"
                watchers.start_soon(self._watch_exit, name=end)
                watchers.start_soon(self._watch_errors, name=trouble)
        finally:
            self.close()

    # What the pool does with it.

    @property
    def pid(self) -> int | None:
        """The pid of its process."""
        return self.process.pid if self.process is not None else None

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines that it wrote to its stderr."""
        stderr = self.connections.stderr
        return stderr.tail if stderr is not None else ()

    @property
    def lacked_memory(self) -> bool:
        """Whether the kernel has killed it, or a child of it, since its own cgroup was full."""
        return self.connections.lacked_memory

    @property
    def failed(self) -> bool:
        """Whether its exit status shows an error, and not a signal that the pool has sent."""
        if not self.status:
            return False
        if self._wanted is None:
            return True
        ours = {-signal.SIGTERM, -signal.SIGKILL if self.killed else -signal.SIGTERM}
        return self.status < 0 and self.status not in ours

    def catch_up(self) -> None:
        """Read now what it has sent on its control channel."""
        channel = self.connections.control
        assert channel is not None
        channel.read()

    def read_now(self) -> None:
        """Read now what it has sent on its job channel."""
        channel = self.connections.jobs
        assert channel is not None
        channel.read()

    def demand_stacks(self) -> None:
        """Have a signal handler write its stacks, since no thread of Python's may run there."""
        if self.process is not None:
            self.process.signal(STACKS)

    def read_requested_stacks(self) -> None:
        """Read the stacks that it was asked for shortly before its time to end was over.

        If it then ended by itself, it did not hang there, and the stacks do not matter.
        """
        if self.pressed_at is not None and (self.status is None or self.status < 0):
            self.late_stacks = self.page.read_stacks()

    def stop(self) -> None:
        """Tell it that no more jobs will come."""
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
        """Send it SIGKILL; the launcher kills all processes that it has started."""
        self.detail = self.detail or reason
        self.ignored = self.killed = True
        self.connections.shut_link()
        self._signal(signal.SIGKILL)
        if self.process is None and self._launching is not None:
            self._launching.cancel()

    def abandon(self) -> None:
        """Stop waiting for the end of its process."""
        if self.process is not None:
            self.process.ended(None)

    def close(self) -> None:
        """Kill it if it still runs, and close everything but the page."""
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

    # Its start.

    async def _start(self) -> None:
        setup = self._setup
        self.environment = environment_of(
            setup.worker_env, self.rank, forked=setup.forked
        )
        self._launching = anyio.CancelScope()
        if self.killed:
            self._launching.cancel()
        with contextlib.ExitStack() as theirs, self._launching:
            fds = self.connections.open(self, theirs)
            self.process = await setup.launcher.launch(fds, self.environment)
        if self.process is None:
            raise LaunchError("the launcher did not answer within start_timeout")
        self.connections.label_output(self)
        if self._wanted is not None:  # the signal was asked for while it was starting
            self.process.signal(self._wanted)
        self._listener.on_spawned(self)
        if self.incoming.said_hello:
            self._listener.on_ready(self)

    # Its watchers.

    async def _watch_exit(self) -> None:
        assert self.process is not None
        self.status = await self.process.wait()
        # What it sent before it died counts: an outcome, or the reason of its death.
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

    # How its channels end.

    def on_end(self, error: ProtocolError | None) -> None:
        """Note that a channel has ended, with *error* if the worker broke the protocol."""
        # A frame that is cut short breaks no rule: a sudden death looks like that.
        if error is not None:
            self.distrust(str(error))
        self.connections.shut_link()
        self._trouble.set()

    def distrust(self, detail: str) -> None:
        """Trust the worker no more, since it has done what *detail* says: it will be killed."""
        self.detail = detail
        if not self.broke_protocol:
            self.taken_in_trust = self.outbox.taken
        self.broke_protocol = True
        self.ignored = True
        self.connections.shut_link()
        self.connections.ignore()
        self._trouble.set()
