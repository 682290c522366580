"""The worker's end of the control channel, and the thread that reads it.

This thread does no other work, so it can react while the main thread computes or sleeps.  It
notices that the pool wants a job back, and that the pool is gone.  Then the control channel
ends, and the thread ends the worker, with its whole process group.
"""

from __future__ import annotations

import _thread  # threading would do, see _worker/__init__.py
import contextlib
import errno
import json
import os
import pickle
import signal
import socket
import sys
import traceback
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from collections import deque
from select import POLLIN, poll

from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.messages import (
    MAX_CONFIG,
    MOMENT,
    Failure,
    Identity,
    cannot_succeed,
    pack_numbers,
    unpack_numbers,
)
from asyncpool._wire.page import STACKS_SIZE
from asyncpool._wire.pickling import format_error, text_of, users_traceback
from asyncpool._wire.posix import HANDED, memory_at_most, private_memory, receive_fds
from asyncpool._wire.profile import ProfileRequest

# Nothing is imported later, when it is needed: beside a job that computes, each of the hundred
# system calls of an import may cost this thread 20 ms until it has the GIL again, and it is late
# by two seconds then.
from asyncpool._wire.text import in_units
from asyncpool._worker.channel import LargeBuffers, receive
from asyncpool._worker.interrupts import Interrupts, JobClaims, LeaseFences
from asyncpool._worker.process import start_thread
from asyncpool._worker.profile import Sampler
from asyncpool._worker.stacks import StackWriter
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from logging import Logger
    from threading import ExceptHookArgs

    from asyncpool._worker.runner import JobRunner

# Seconds after which a job is signalled again if it has not begun to end.
_NEXT_SIGNAL = 0.02


class Control:
    """The worker's end of the control channel.

    Args:
        sock: The socket.
        page_fd: The worker page.
        large_buffers: Receive shared memory.

    Attributes:
        large_buffers: As above.
        claims: Decides whether a job can still be revoked.
        interrupts: End a job that has begun.
        stacks: Tell where the jobs are.
        runner: Runs the jobs.
        identity: The name and the parent of this worker.
        announced: Whether the worker has told the pool which error ends it.
        memory: How much memory is too much before the first job, and the text of that limit.
        on_thread_death: Called in a thread that ends with an error, once the pool was told.
        on_end_of_all: Called in the event loop when a draining worker learns that the whole cluster
            ends.  A worker that has this serves: its event loop answers pings.
    """

    identity: Identity
    runner: JobRunner

    def __init__(
        self, sock: socket.socket, page_fd: int, large_buffers: LargeBuffers
    ) -> None:
        self._socket = sock
        self.large_buffers = large_buffers
        self.claims = JobClaims()
        self.interrupts = Interrupts()
        self.stacks = StackWriter(page_fd, os.fstat(page_fd).st_size - STACKS_SIZE)
        self.announced = False
        self.memory: tuple[int, str] | None = None
        self.on_thread_death: Callable[[], None] | None = None
        self.on_end_of_all: Callable[[], None] | None = None
        self._lock = _thread.RLock()
        self._records: deque[bytes] = deque()
        self._sampler: Sampler | None = None
        self._tracker: SimpleQueue[int | None] = SimpleQueue()
        self._tracker_asked = False
        self._thread = 0
        self._show_thread = _thread._excepthook  # noqa: SLF001 - see start()
        self._decoder = FrameDecoder(max_payload=MAX_CONFIG)

    def receive_config(self) -> Frame:
        """Wait for the configuration, and for the frames before it.

        Raises:
            SystemExit: If the pool is gone before the configuration comes.
        """
        while True:
            fds: list[int] = []
            if self._decoder.target is not None:
                frames = receive(self._socket, self._decoder)
            else:
                data, fds, _ = receive_fds(self._socket, 65536, 1)
                frames = self._decoder.feed(data) if data else None
            if frames is None:
                raise SystemExit(0)
            for frame in frames:
                if frame.kind is FrameKind.HANDED:
                    HANDED.append(fds.pop() if fds else None)
                elif frame.kind is FrameKind.IDENTITY:
                    self.identity = pickle.loads(frame.payload)
                else:
                    return frame

    def fileno(self) -> int:
        """Return the descriptor of the channel."""
        return self._socket.fileno()

    def start(self) -> None:
        """Start to watch the channel, and the other threads of this process."""
        # It becomes threading.excepthook when that is imported, or has been.
        _thread._excepthook = self._report_thread  # noqa: SLF001
        if "threading" in sys.modules:
            vars(sys.modules["threading"])["excepthook"] = self._report_thread
        start_thread(self._watch)

    def send_hello(self) -> None:
        """Tell the pool that the worker is ready.

        Raises:
            RuntimeError: If it has more memory now than it may have.
        """
        if self.memory is not None:
            bound, text = self.memory
            most = memory_at_most(os.getpid())
            if most >= bound and (had := private_memory(os.getpid())) >= bound:
                raise RuntimeError(
                    f"it has {in_units(had)} of memory before its first job, and {text}: "
                    "raise the limit, or have workers import and initialize less"
                )
        self.send(FrameKind.HELLO)

    def report_failure(
        self, stage: str, error: BaseException, *, fixed: bool = False
    ) -> None:
        """Tell the pool of *error*, which ends the worker; see :func:`cannot_succeed`."""
        text = _format(error)
        summary = f"{type(error).__qualname__}: {text_of(error)}"
        final = cannot_succeed(error, fixed=fixed)
        failure = Failure(stage, summary, text, final)
        self.send(FrameKind.FAILED, failure.pack())
        self.announced = True

    def borrow_tracker(self) -> int | None:
        """Return the descriptor of the service's resource tracker; wait until it comes.

        It is ``None`` if the service has none, and in the thread that would have to receive it.
        """
        if _thread.get_ident() == self._thread:
            return None
        if not self._tracker_asked:
            self._tracker_asked = True
            self.send(FrameKind.TRACKER)
        # No exception comes between what a job has made and its entry at the tracker.
        self.interrupts.held = True
        try:
            fd = self._tracker.get()
            self._tracker.put(fd)  # for another thread
            return fd
        finally:
            self.interrupts.held = False

    def send(
        self, kind: FrameKind, payload: bytes = b"", *fields: int, flags: int = 0
    ) -> None:
        """Send a frame; if the pool is gone, the watching thread acts on that."""
        with self._lock, contextlib.suppress(OSError):
            frame = header(kind, len(payload), *fields) + payload
            self._socket.sendall(frame, flags)
        if self._records:  # of a finalizer that ran meanwhile
            self._send_records()

    def notify(self) -> None:
        """Ask the pool to look at the page, unless the socket is full."""
        if not self._lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001
            self.send(FrameKind.HEARTBEAT, flags=socket.MSG_DONTWAIT)

    def report(self, payload: bytes) -> None:
        """Send a log record.  In the middle of a frame it waits, and is sent after the frame.

        A signal handler or a finalizer may log in the middle of a frame.  The handler that
        interrupts a job may raise in this method.  A record is too small to be sent in part
        (see ``MAX_RECORD``), so at worst one record is lost.
        """
        self._records.append(header(FrameKind.RECORD, len(payload)) + payload)
        self._send_records()

    def close(self) -> None:
        """Close the descriptor, in a process that is not the worker."""
        self._socket.close()
        # Another thread may have held it at the fork.
        self._lock = _thread.RLock()

    def _send_records(self) -> None:
        # Look again when the lock is free: a late caller has left a record there.
        while self._records and not self._lock._is_owned():  # type: ignore[attr-defined] # noqa: SLF001
            with self._lock, contextlib.suppress(OSError, IndexError):
                while True:
                    self._socket.sendall(self._records.popleft())

    def _watch(self) -> None:
        self._thread = _thread.get_ident()
        try:
            while True:
                self._resend_signal()
                # Of several frames in one read, only the last can bring a descriptor.
                data, fds, _ = receive_fds(self._socket, 65536, 1)
                if not data:
                    break
                for frame in self._decoder.feed(data):
                    self._answer(frame, fds)
        except (OSError, ProtocolError) as error:
            if getattr(error, "errno", 0) in {errno.EBADF, errno.ENOTSOCK}:
                try:  # a job may have closed another descriptor, such as the page's
                    self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
                except OSError:
                    return  # the pool sees the end of this channel, and says so
        except BaseException:  # such as a lack of memory
            traceback.print_exc()
        # Without this thread nobody reads what the pool sends, or notices its end.
        if self._socket.fileno() >= 0:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            # The worker has a process group of its own, so this ends no other process.
            os.killpg(0, signal.SIGKILL)

    def _resend_signal(self) -> None:
        """Signal a job that is to end again and again, until the pool sends a frame.

        ``interrupts.py`` says why the first signal may have had no effect.
        """
        if not self.interrupts.pending():
            return
        channel = poll()
        channel.register(self._socket, POLLIN)
        while not channel.poll(_NEXT_SIGNAL * 1000) and self.interrupts.pending():
            self.interrupts.signal()

    def _answer(self, frame: Frame, fds: list[int]) -> None:
        kind = frame.kind
        if kind is FrameKind.REVOKE:
            won = self.claims.revoke(unpack_numbers(frame.payload))
            self.send(FrameKind.REVOKED, pack_numbers(won))
        elif kind is FrameKind.INTERRUPT:
            for sequence in unpack_numbers(frame.payload):
                if not self.interrupts.ask(sequence):
                    self.runner.end_soon(sequence)
        elif kind is FrameKind.FENCE:
            self._fence(frame.job, *MOMENT.unpack(frame.payload))
        elif kind is FrameKind.CREDIT:
            lane = self.runner.by_job.get((frame.job, frame.attempt))
            if lane is not None and lane.credit is not None:  # else the job is over
                lane.credit.raise_to(frame.number)
        elif kind is FrameKind.PING:
            serves = self.on_end_of_all is not None
            if not (serves and self.runner.call_in_loop(self.send, FrameKind.PONG)):
                self.send(FrameKind.PONG)
        elif kind is FrameKind.STACKS:
            self.stacks.write(frame.job, frame.attempt)
            self.send(FrameKind.STACKS, b"", frame.job, frame.attempt)
        elif kind is FrameKind.WHERE:
            try:
                text = self.stacks.live(frame.job)
            except Exception as error:
                # What is read here belongs to other threads, which may do anything to it.
                text = f"The stacks cannot be read: {error!r}".encode(errors="replace")
            self.send(FrameKind.WHERE, text, frame.job)
        elif kind is FrameKind.PROFILE:
            self._profile(frame)
        elif kind is FrameKind.CLOSING:
            if self.on_end_of_all is not None:
                self.runner.call_in_loop(self.on_end_of_all)
        elif kind is FrameKind.TRACKER:
            self._tracker.put(fds.pop() if fds else None)
        elif kind is FrameKind.SEGMENT:
            self.large_buffers.arrive(
                frame.number, fds.pop() if fds else None, frame.job
            )
        elif kind is FrameKind.GRANT:
            self.large_buffers.grant(frame.number)
        elif kind is FrameKind.DROP:
            self.large_buffers.drop(frame.number)
        else:
            raise ProtocolError(f"the pool sent {kind.name}")

    def _fence(self, sequence: int, until: float) -> None:
        fences = self.interrupts.fences
        if fences is None:
            fences = LeaseFences(self.claims, self.runner.runs, self._end_lapsed)
            self.interrupts.fences = fences
        fences.put(sequence, until)

    def _end_lapsed(self) -> None:
        """End this process and all that it has started, without waiting for the pool.

        The pool may be stopped, and then it reads nothing.
        """
        summary = "it has lapsed, and its job was still running"
        payload = Failure("lease", summary).pack()
        with contextlib.suppress(OSError):
            if self._lock.acquire(blocking=False):
                frame = header(FrameKind.FAILED, len(payload)) + payload
                self._socket.send(frame, socket.MSG_DONTWAIT)
        os.killpg(0, signal.SIGKILL)

    def _profile(self, frame: Frame) -> None:
        """Begin to sample what this worker does, or end that."""
        if self._sampler is not None:
            self._sampler.stop()
            self._sampler = None
        if not frame.payload:
            return

        def send(payload: bytes, last: bool) -> None:  # noqa: FBT001 - of its own callback
            self.send(FrameKind.SAMPLES, payload, frame.job, 0, int(last))

        try:
            request = ProfileRequest.unpack(frame.payload)
            self._sampler = Sampler(request, self.interrupts.main, send)
            self._sampler.start()
        except Exception as error:
            # A job may have taken away what it takes, such as threads.
            send(json.dumps([[], [], [0, 0, 0], repr(error)[:500]]).encode(), last=True)

    def _report_thread(self, args: ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        self._show_thread(args)
        kind, error, tb, thread = args
        name = thread.name if thread is not None else "a thread"
        summary = f"{kind.__qualname__} in thread {name!r}: {error}"
        text = "".join(traceback.format_exception(kind, error, tb))
        self.send(FrameKind.FAILED, Failure("thread", summary, text).pack())
        on_thread_death = self.on_thread_death
        if on_thread_death is not None:
            on_thread_death()


def print_error(error: BaseException) -> None:
    """Print the traceback to stderr, as :meth:`Control.report_failure` sends it."""
    sys.stderr.write(_format(error))


def _format(error: BaseException) -> str:
    # If all frames are our own, they tell where a start has failed.
    return format_error(error, users_traceback(error) or error.__traceback__)


def own_logger() -> Logger:
    """Return the logger of asyncpool, in a worker: most workers need none."""
    import logging  # noqa: PLC0415 - see the docstring

    return logging.getLogger("asyncpool")
