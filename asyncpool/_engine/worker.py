"""One worker, as the pool sees it: a process, two channels, a page, its output.

Two tasks watch it.  The exit watcher waits for the end of the process.  The error watcher
waits for the end of a channel while the process lives, and for a worker that breaks the protocol:
such a process is killed, if it does not end by itself.  (An initializer that raises ends its
channels, and a thread that ends with an exception has the worker replaced.)  Both lead to the same
end: the process is gone, the engine hears of that once, and :meth:`WorkerHandle.run` returns.

The engine and its parts hear what the worker sends.  A method of theirs that reads it raises
:exc:`ProtocolError` if it breaks the protocol.  The handle then trusts the worker no more.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import pickle
import signal
import socket
import sys
import traceback
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from asyncpool._engine.channel import Channel, DescriptorSocket
from asyncpool._engine.launcher import LaunchError, Process
from asyncpool._engine.outbox import Outbox
from asyncpool._engine.output import Output
from asyncpool._engine.page import WorkerPage
from asyncpool._wire.frames import Frame, FrameKind, header
from asyncpool._wire.messages import (
    MAX_REASON,
    Failure,
    Identity,
    Variables,
    pack_numbers,
    unpack_numbers,
)
from asyncpool._wire.posix import STACKS, socket_pair
from asyncpool._wire.text import printable, printable_block, printable_text
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine
    from asyncpool._sandbox.places import Place

# Processes with the same authkey of multiprocessing accept each other's connections, so workers in a
# sandbox have another one than this process.
_OTHER_KEY = os.urandom(32)

# The start methods that any worker knows; that of a library, such as loky's, needs its import.
_START_METHODS = {"fork", "forkserver", "spawn"}

# Seconds that a process has to end by itself after its channel has ended.
_EXIT_GRACE = 1.0

_MAX_CONTROL = 1 << 20

# Frames that matter only while the worker is to go on working.
_ANSWERS = frozenset(
    {FrameKind.REVOKED, FrameKind.STACKS, FrameKind.PONG, FrameKind.RETIRE}
)

# How many cancelled jobs of a worker the log can name.
_CANCELLED_KEPT = 64


# A member of an enum costs 60 ns each time that it is looked up there.
_VALUE, _ERROR = FrameKind.VALUE, FrameKind.ERROR


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
        job_channel: The job channel; ``None`` until it is open.
        control_channel: The control channel; ``None`` until it is open.
        link: Reads and writes in place of the job channel if the worker serves; a ``WorkerLink`` of
            ``_cluster/link.py``.
        stdout: What the worker writes to its stdout.
        stderr: What it writes to its stderr.
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
        sent_in_trust: How many bytes of jobs it had been sent before it did that; -1 if it has not.
        ignored: Whether it is to end, so that its requests and answers no longer count.
        killed: Whether the pool has sent it SIGKILL.
        started_at: When its start began, by :func:`time.monotonic`.
        began_at: The same, by the clock of the loop.
        since: When its present state began: it starts, is idle, or runs its first job.
        cancelled: The last of its jobs that were cancelled, for the log.
        first_signal_at: When the pool first sent it a signal to end it; ``None`` before that.
    """

    def __init__(
        self, supervisor: Engine, slot: int, generation: int, rank: int
    ) -> None:
        self.slot, self.generation, self.rank = slot, generation, rank
        self.process: Process | None = None
        self.pid: int | None = None
        self.status: int | None = None
        self.detail = self.traceback = self.silence = self.late_stacks = ""
        self.broke_protocol = self.final = False
        self.sent_in_trust = -1
        self._pool = supervisor
        self._config = supervisor.config
        loop = self._loop = supervisor.loop
        self.began_at = self._heard_at = loop.time()
        self.started_at = self.since = monotonic()
        self.page = WorkerPage(self._config.worker.concurrency)
        self.outbox = Outbox(supervisor)
        self.job_channel: Channel | None = None
        self.control_channel: Channel | None = None
        self.link: Any = None
        self.stdout: Output | None = None
        self.stderr: Output | None = None
        self.said_hello = self.ignored = self.killed = self.lacked_memory = False
        self._place: Place | None = None
        self._lent = False
        self._over_or_faulty, self._exited = asyncio.Event(), asyncio.Event()
        self.first_signal_at: float | None = None
        self.cancelled: deque[CancelledJob] = deque(maxlen=_CANCELLED_KEPT)
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
            await self._start()
            whose = f"of worker {self.pid} in slot {self.slot} of {self._config.name}"
            async with asyncio.TaskGroup() as watchers:
                watchers.create_task(self._watch_exit(), name=f"asyncpool end {whose}")
                watchers.create_task(
                    self._watch_errors(), name=f"asyncpool errors {whose}"
                )
        finally:
            self.close()

    # What the pool does with it.

    @property
    def stderr_tail(self) -> tuple[str, ...]:
        """The last lines that it wrote to its stderr."""
        return self.stderr.tail if self.stderr is not None else ()

    @property
    def failed(self) -> bool:
        """Whether its exit status shows an error, and not a signal that the pool has sent."""
        if not self.status:
            return False
        if self._pending_signal is None:
            return True
        ours = {-signal.SIGTERM, -signal.SIGKILL if self.killed else -signal.SIGTERM}
        return self.status < 0 and self.status not in ours

    def read_control(self) -> None:
        """Read now what it has sent on its control channel."""
        assert self.control_channel is not None
        self.control_channel.read()

    def read_jobs(self) -> None:
        """Read now what it has sent on its job channel."""
        assert self.job_channel is not None
        self.job_channel.read()

    def ask(self, kind: FrameKind, payload: bytes = b"", *fields: int) -> None:
        """Send a request on the control channel: the worker answers even while it runs a job."""
        assert self.control_channel is not None
        self.control_channel.put(header(kind, len(payload), *fields), payload)
        self.control_channel.flush()

    def revoke(self, sequences: tuple[int, ...]) -> None:
        """Ask it not to begin the jobs with these sequence numbers."""
        self.ask(FrameKind.REVOKE, pack_numbers(sequences))

    def interrupt(self, sequence: int) -> None:
        """Ask it to end the running job with this sequence number."""
        self.ask(FrameKind.INTERRUPT, pack_numbers((sequence,)))

    def demand_stacks(self) -> None:
        """Have a signal handler write its stacks, since no thread of Python's may run there."""
        if self.process is not None:
            self.process.signal(STACKS)

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
        if self.job_channel is not None:
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
        if self.process is not None:
            self.process.signal(signal.SIGKILL)
            self.process.close()
        for part in (self.job_channel, self.control_channel, self.stdout, self.stderr):
            if part is not None:
                part.close()
        place, self._place = self._place, None
        if place is not None and self._pool.places is not None:
            self.lacked_memory = place.lacked_memory()
            self._pool.places.release(place)

    def _ignore(self) -> None:
        """Heed its requests and answers no more; send nothing more to it if it serves."""
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

    async def _start(self) -> None:
        variables = self._environment()
        with contextlib.ExitStack() as theirs:
            fds = self._open(theirs, variables)
            delay = 0 if self.killed else None
            try:
                async with asyncio.timeout(delay) as self._launching:
                    self.process = await self._pool.launcher.launch(fds, variables)
            except TimeoutError:
                if self._launching is None or not self._launching.expired():
                    raise
                text = "the launcher did not answer within start_timeout"
                raise LaunchError(text) from None
            finally:
                self._launching = None
        self.pid = self.process.pid
        self._label_output()
        if (
            self._pending_signal is not None
        ):  # the signal was asked for while it was starting
            self.process.signal(self._pending_signal)
        self._pool.on_spawned(self)
        if self.said_hello:
            self._pool.on_ready(self)

    def _environment(self) -> Variables:
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
                kind = type(error).__name__
                text = f"worker_env({self.rank}) raised {kind}: {text}"
            failure = LaunchError(text)
            failure.trace = traceback.format_exc()
            raise failure from error

    def _identity(self, variables: Variables) -> Identity:
        """Return what it is to :mod:`multiprocessing`: a child of this process.

        Its key must not be on a command line or in an environment, where others could see it.
        """
        this = multiprocessing.current_process()
        arguments: list[object] = [*sys.argv]
        method: str | None = multiprocessing.get_start_method(allow_none=True)
        identity = Identity(
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
        # In a sandbox it is told nothing of the service.
        cgroup = self._place.cgroup
        return identity._replace(
            authkey=_OTHER_KEY,
            argv=("",),
            folder=self._place.folder,
            cgroup="" if cgroup is None else str(cgroup.folder),
        )

    def _open(self, theirs: contextlib.ExitStack, variables: Variables) -> list[int]:
        """Open everything, and send the worker its configuration; *theirs* closes its ends here.

        Returns:
            The worker's ends: job channel, control channel, page, stdout, stderr.

        Raises:
            OSError: If this process lacks the means.
        """
        ours, job_end = _pair(theirs)
        pool, size = self._pool, self._config.worker.max_payload
        opened = partial(Channel, self._loop, buffer=pool.buffer, on_end=self.on_end)
        if pool.serving is None:
            on_frames = self._on_job_frames
            self.job_channel = opened(
                ours, max_payload=size, bare=True, on_frames=on_frames
            )
        else:
            ours, on_frames = DescriptorSocket(ours), self._on_link_frames
            self.job_channel = opened(ours, max_payload=size, on_frames=on_frames)
            self.link = pool.serving.open_link(self, ours, self.job_channel)
        ours, control_end = _pair(theirs)
        on_frames = self._on_control_frames
        control = opened(ours, max_payload=_MAX_CONTROL, on_frames=on_frames)
        self.control_channel = control
        self.outbox.connect(self.job_channel, control)
        page = self.page.open()
        theirs.callback(os.close, page)
        output = self._config.worker_output
        out, out_end = _pipe(theirs)
        self.stdout = Output(self._loop, out, output, err=False)
        err, err_end = _pipe(theirs)
        self.stderr = Output(self._loop, err, output, err=True)
        if self._config.handover is not None:
            for fd in self._config.handover.fds:
                control.put_descriptor(header(FrameKind.HANDED, 0), fd, keep=True)
        if pool.places is not None:
            self._place = pool.places.open()
        packed = pickle.dumps(self._identity(variables))
        control.put(header(FrameKind.IDENTITY, len(packed)), packed)
        serving, broadcasts = pool.serving, pool.broadcasts
        config = broadcasts.config() if serving is None else serving.config(self)
        self.ask(FrameKind.CONFIG, config)
        return [job_end, control_end, page, out_end, err_end]

    def _lend_tracker(self) -> None:
        """Send the worker the resource tracker of this program, which starts if need be.

        What its jobs share is unlinked at the end of the program if nobody has unlinked it.

        Raises:
            ProtocolError: If it may not have that.  With it, it could unlink what is others'.
        """
        control, config = self.control_channel, self._config
        if self._lent or config.confinement is not None or config.data is not None:
            raise ProtocolError("it asked for a resource tracker that it cannot have")
        assert control is not None
        self._lent = True

        def lend(tracker: asyncio.Future[int | None]) -> None:
            failed = tracker.cancelled() or tracker.exception() is not None
            fd = None if failed else tracker.result()
            if fd is not None:
                control.put_descriptor(header(FrameKind.TRACKER, 0), fd, keep=True)
                control.flush()
            else:
                self.ask(FrameKind.TRACKER)

        self._pool.threads.copy(_descriptor_of_tracker).add_done_callback(lend)

    def _label_output(self) -> None:
        """Have the log say of each line which worker has written it."""
        label = f"worker {self.pid} in slot {self.slot}"
        trusted = self._config.data is None and self._config.confinement is None
        extra: dict[str, object] = {
            "pool": self._config.name,
            "slot": self.slot,
            "generation": self.generation,
            "pid": self.pid,
        }
        for stream in (self.stdout, self.stderr):
            assert stream is not None
            stream.name(label, extra, trusted=trusted)

    # Its watchers.

    async def _watch_exit(self) -> None:
        assert self.process is not None
        self.status = await asyncio.shield(self.process.ended)
        # What it sent before it died counts: an outcome, or the reason of its death.
        for channel in (self.job_channel, self.control_channel):
            if channel is not None:
                channel.read_rest()
        self._pool.traffic.on_exit(self)
        self._pool.profiles.lose(self)
        self._exited.set()
        self._over_or_faulty.set()

    async def _watch_errors(self) -> None:
        await self._over_or_faulty.wait()
        if self.broke_protocol:
            self.kill()
        try:
            async with asyncio.timeout(_EXIT_GRACE):
                await self._exited.wait()
        except TimeoutError:
            self.broke_protocol = True
            self.detail = self.detail or "it closed its channel and went on"
            self.kill()

    # What it sends.

    @property
    def heard_at(self) -> float:
        """When it last gave a sign of life on its control channel, or was kept from giving one."""
        if self in self._pool.worker_logs.paused:
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
                self._pool.traffic.on_outcomes(self, frames)
                return
        frames = [Frame(*frame) for frame in frames]
        outcomes: list[Frame] = []
        try:
            for frame in frames:
                if frame.kind is FrameKind.LAST_HEARTBEAT:
                    self._pool.heartbeats.on_last_heartbeat(self, frame)
                elif frame.kind is _VALUE or frame.kind is _ERROR:
                    outcomes.append(outbox.complete(frame))
                elif frame.kind is FrameKind.ITEM:
                    # At once, before all outcomes: that of its stream comes behind it, and those
                    # of other jobs have nothing to do with it.
                    self._pool.traffic.on_item(self, outbox.complete(frame))
                else:
                    outbox.take(frame)
        except ProtocolError as error:
            trouble = str(error)
        if outcomes:
            self._pool.traffic.on_outcomes(self, outcomes)
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
        control, logs = self.control_channel, self._pool.worker_logs
        assert control is not None
        if self.broke_protocol:
            return
        has_heartbeats = False
        # Of a worker that serves only its loop's answers are a sign of life: any thread may log.
        if self.link is None:
            self._heard_at = self._loop.time()
        for frame in frames:
            if frame.kind is FrameKind.HEARTBEAT:
                has_heartbeats = True
                continue
            if frame.kind is FrameKind.RECORD:
                logs.add(self, control, frame.payload)
                continue
            try:
                self._on_control_frame(frame)
            except ProtocolError as error:
                self.distrust(str(error))
                return
        if has_heartbeats and not self.ignored:
            self._pool.heartbeats.on_notice(self)

    def _on_control_frame(self, frame: Frame) -> None:
        pool, kind = self._pool, frame.kind
        if kind in _ANSWERS and self.ignored:
            # The pool may ask a worker that drains for its stacks too, so that answer counts.
            drains = self.link is not None and not self.broke_protocol
            if not (kind is FrameKind.STACKS and drains):
                return
        match kind:
            case FrameKind.REVOKED:
                pool.traffic.on_revoked(self, unpack_numbers(frame.payload))
            case FrameKind.STACKS:
                pool.stacks.written(self, frame.job or None)
            case FrameKind.RETIRE:
                asked = pool.replacement
                leave = asked.replace if frame.number else asked.retire_now
                leave(self, printable(frame.payload[:MAX_REASON]))
            case FrameKind.PONG:
                pool.on_pong(self)
            case FrameKind.SAMPLES:
                pool.profiles.hear(self, frame)
            case FrameKind.WHERE:
                pool.stacks.answered(self, frame.job, frame.payload)
            case FrameKind.HELLO if not self.said_hello:
                self.said_hello = True
                # If a worker is quick, its hello may come before the launcher's answer.
                if self.process is not None:
                    pool.on_ready(self)
            case FrameKind.FAILED:
                self._on_failure(frame)
            case FrameKind.TRACKER:
                self._lend_tracker()
            case _:
                raise ProtocolError(f"it sent {kind.name} on its control channel")

    def _on_failure(self, frame: Frame) -> None:
        if self.detail:
            return  # only the first reason counts
        failure = Failure.unpack(frame.payload)
        self.detail = printable_text(f"{failure.stage} failed: {failure.summary}")
        self.traceback = printable_block(failure.text)
        self.final = failure.final
        if failure.stage == "thread" or (failure.stage == "serve" and self.said_hello):
            self._pool.on_fault(self)

    # How its channels end.

    def on_end(self, error: ProtocolError | None) -> None:
        """Note that a channel has ended, with *error* if the worker broke the protocol."""
        # A frame that is cut short breaks no rule: a sudden death looks like that.
        if error is not None:
            self.distrust(str(error))
        self._shut_link()
        self._over_or_faulty.set()

    def distrust(self, detail: str) -> None:
        """Trust the worker no more, since it has done what *detail* says: it will be killed."""
        self.detail = detail
        if not self.broke_protocol:
            self.sent_in_trust = self.outbox.sent_bytes
        self.broke_protocol = True
        self._ignore()
        for channel in (self.job_channel, self.control_channel):
            if channel is not None:
                channel.ignore()
        self._over_or_faulty.set()


def _descriptor_of_tracker() -> int | None:
    from multiprocessing.resource_tracker import getfd  # noqa: PLC0415 - few programs need it

    return getfd()


def _pair(theirs: contextlib.ExitStack) -> tuple[socket.socket, int]:
    ours, other = socket_pair()
    theirs.callback(other.close)
    return ours, other.fileno()


def _pipe(theirs: contextlib.ExitStack) -> tuple[int, int]:
    ours, other = os.pipe()
    theirs.callback(os.close, other)
    return ours, other
