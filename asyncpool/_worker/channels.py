"""The worker's ends of its channels, the thread that reads one, and what ends a job before its time.

Large buffers travel beside the frames: in segments, the shared memory that the pool has made for
this worker, or in frames of their own.  Descriptors arrive on the control channel, so the control
thread receives the segments.  The main thread uses them, and waits for a segment that is still on
its way.

The control thread does no other work, so it can react while the main thread computes or sleeps.
It notices that the pool wants a job back, and that the pool is gone.  Then the control channel
ends, and the thread ends the worker, with its whole process group.

The n-th job that a worker receives has the sequence number n, and the pool names the job by it.

*Revoked*: the main thread claims one number after the other.  Meanwhile the pool may revoke
numbers, through the control thread.  A lock gives each number to exactly one of the two threads.
It costs 60 ns, while a job costs some microseconds.

*Interrupted*: the running job ends from inside, by an exception in the main thread.  The control
thread sends the main thread a signal, which also ends a system call that the main thread waits
in.  The handler runs between two bytecodes of the main thread.  It raises only if that job is
running there.  If the job is about to begin, it finds the request when it does.  If it is over,
nothing happens.  Both threads write first and then read, so they need no lock.  A job in the
event loop is ended by a call that the loop makes.  While the main thread is in the middle of a
frame, the exception is held back.

*Fenced*: this process ends when the lease of a job that it runs lapses.  The pool sends that time
in advance, and again at each renewal.  So the worker does not need the pool at that moment: the
service may be stopped, or its event loop blocked.  A thread of its own watches the leases, since
the control thread may wait until the pool reads.  That thread and the main thread need no lock.
The main thread notes that a job runs, and then looks at the clock.  The other one looks at the
clock, and then whether the job runs.
"""

from __future__ import annotations

import _thread  # threading would do, see _worker/__init__.py
import contextlib
import errno
import faulthandler
import os
import pickle
import signal
import socket
import sys
import traceback
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from collections import deque
from functools import partial
from select import POLLIN, poll
from time import monotonic

from asyncpool._wire import messages, posix, scripts
from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle, cut, lay_out
from asyncpool._wire.frames import Frame, FrameDecoder, FrameKind, header
from asyncpool._wire.page import STACKS_SIZE
from asyncpool._wire.pickling import format_error, text_of, users_traceback
from asyncpool._wire.profile import ProfileRequest, SampleChunk

# Nothing is imported later, when it is needed: beside a job that computes, each of the hundred
# system calls of an import may cost this thread 20 ms until it has the GIL again, and it is late
# by two seconds then.
from asyncpool._wire.text import in_units
from asyncpool._worker.profile import Sampler
from asyncpool._worker.stacks import live_stacks, start_thread, write_stacks
from asyncpool.errors import JobCancelled, ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterable
    from logging import Logger
    from threading import ExceptHookArgs
    from types import FrameType
    from typing import Any

    from asyncpool._wire.memory import Memory
    from asyncpool._worker.runner import JobRunner
else:
    # The C part of signal, whose own signal() touches many pages: see _worker/__init__.py.
    import _signal

# Seconds after which a job is signalled again if it has not begun to end.
_NEXT_SIGNAL = 0.02

# Seconds, or a moment: the longest that a lock waits for.
_NEVER = _thread.TIMEOUT_MAX

_IMPORT = vars(sys.modules["_frozen_importlib"])


def receive(
    sock: socket.socket, decoder: FrameDecoder, *, wait: bool = True
) -> list[Frame] | None:
    """Wait for whole frames, or only return those that have come; ``None`` means the end."""
    while True:
        if decoder.target is not None:
            size = sock.recv_into(decoder.target)
            frames = decoder.fill(size)
        else:
            data = sock.recv(65536)
            size, frames = len(data), decoder.feed(data)
        if frames:
            return frames
        if not (wait and size):
            return [] if size else None


# Up to here one system call and a copy are cheaper than two system calls.
SMALL = 65_536


def send(sock: socket.socket, head: bytes, payload: bytes) -> None:
    """Send a frame."""
    if len(payload) <= SMALL:
        sock.sendall(head + payload)
    else:
        sock.sendall(head)
        sock.sendall(payload)


class LargeBuffers:
    """The large objects of one worker's jobs, and the segments that they travel in, by number.

    Args:
        jobs: The job channel.

    Attributes:
        in_use: Whether there was a large buffer.  If not, small outcomes need no look here.
    """

    def __init__(self, jobs: socket.socket) -> None:
        self._job_socket = jobs
        self.in_use = False
        # The control thread rings after it has changed the next one.  Each change is one step
        # under the GIL, so no lock is needed.  A ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._arrived: dict[int, tuple[int | None, int]] = {}
        self._grants: SimpleQueue[int] = SimpleQueue()
        self._mapped: dict[int, Memory] = {}
        # What the pool is to be told of: segments without any view left, and others that this
        # process cannot map.
        self._unsent: deque[tuple[FrameKind, int]] = deque()
        # What has come ahead of the next job.
        self._lent: Frame | None = None
        self._areas: list[memoryview] = []

    # The control thread.

    def arrive(self, number: int, fd: int | None, size: int) -> None:
        """Take a new segment, whose descriptor may have been lost on its way."""
        self._arrived[number] = fd, size
        self._bell.put(None)

    def grant(self, number: int) -> None:
        """Note which segment the pool has granted for an outcome; 0 for none."""
        self._grants.put(number)

    def drop(self, number: int) -> None:
        """Forget segment *number*, which the main thread has no view of."""
        self._mapped.pop(number, None)
        fd, _ = self._arrived.pop(number, (None, 0))
        if fd is not None:
            os.close(fd)

    # The main thread.

    def take(self, frame: Frame) -> None:
        """Keep a buffer that comes before the job that it belongs to."""
        self.in_use = True
        if frame.kind is FrameKind.AREA:
            data = frame.payload
            # A job may change its arguments, wherever they come from.
            area = memoryview(bytearray(data)) if type(data) is bytes else data
            self._areas.append(area)
        else:
            self._lent = frame

    def complete(
        self, payload: bytes | memoryview
    ) -> bytes | memoryview | ReceivedPickle:
        """Return the payload of the next job together with the buffers that came before it.

        Raises:
            OSError: If this process cannot get at the memory.
        """
        if self._lent is None and not self._areas:
            return payload
        areas, self._areas = self._areas, []
        lent, self._lent = self._lent, None
        if lent is not None:
            # Of the main thread, at any moment, or another one's: it must not do more.
            returned = FrameKind.SEGMENT_RETURNED, lent.number
            at_end = partial(self._unsent.append, returned)
            try:
                whole = self._memory(lent.number).lend(at_end)
            except OSError:
                self._unsent.append((FrameKind.LOST, lent.number))
                raise
            areas = cut(whole, messages.unpack_numbers(lent.payload))
        return ReceivedPickle(payload, areas)

    def discard(self) -> None:
        """Drop the buffers of a job that will not begin."""
        self._areas = []
        if self._lent is not None:
            self._unsent.append((FrameKind.SEGMENT_RETURNED, self._lent.number))
            self._lent = None
            self._job_socket.sendall(self._news())

    def put(self, outcome: bytes | OutOfBandPickle) -> tuple[bytes, bytes]:
        """Send the buffers of an outcome, or copy them into shared memory.

        Returns:
            The bytes to send before its frame, and the payload of the frame.
        """
        if type(outcome) is bytes:
            return self._news(), outcome
        assert isinstance(outcome, OutOfBandPickle)
        self.in_use = True
        payload, ahead = outcome.payload, self._put(outcome)
        outcome.buffers.clear()  # it may be all that keeps a view of the arguments
        return self._news() + ahead, payload

    def _put(self, pickled: OutOfBandPickle) -> bytes:
        areas, sizes = pickled.areas, pickled.sizes
        self._job_socket.sendall(header(FrameKind.WANT, 0, lay_out(sizes)[1]))
        # The pool answers with the number of a segment, or with 0 for none.
        if number := self._grants.get():
            with contextlib.suppress(OSError):
                self._memory(number).fill(pickled)
                numbers = messages.pack_numbers(sizes)
                head = header(FrameKind.LENT, len(numbers), number=number)
                return head + numbers
            self._unsent.append((FrameKind.LOST, number))
        for size, pieces in zip(sizes, areas, strict=True):
            self._job_socket.sendall(header(FrameKind.AREA, size))
            for piece in pieces:
                self._job_socket.sendall(piece)
        return b""

    def _memory(self, number: int) -> Memory:
        """Return segment *number*, and wait for it if it is on its way.

        Raises:
            OSError: If this process may open no more descriptors, or has no room.
        """
        memory = self._mapped.get(number)
        if memory is not None:
            return memory
        while number not in self._arrived:
            self._bell.get()
        fd, size = self._arrived.pop(number)
        if fd is None:
            text = "the shared memory of a job cannot be received"
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {text}")
        from asyncpool._wire.memory import Memory  # noqa: PLC0415 - few jobs need ctypes

        try:
            memory = self._mapped[number] = Memory(fd, size)
        finally:
            os.close(fd)
        return memory

    def _news(self) -> bytes:
        """Return the frames that tell the pool which segments are free again, or lost."""
        news = b""
        while self._unsent:
            kind, number = self._unsent.popleft()
            memory = self._mapped.get(number)
            if memory is not None and memory.copied:  # by a fork of a job
                kind = FrameKind.LOST
                del self._mapped[number]
            news += header(kind, 0, number=number)
        return news


class Hold:
    """Holds back, in a ``with`` block, the exceptions by which jobs end.

    What was held back is raised within 20 ms after that, when the other thread asks again, or when
    the job itself looks.
    """

    is_on = False

    def __enter__(self) -> None:
        self.is_on = True

    def __exit__(self, *_: object) -> None:
        self.is_on = False


class EndRequests:
    """What the threads of a worker know of jobs that are to end before their time.

    Args:
        runs: Tells whether the job with a sequence number is running.
        lapse: Ends this process, because the lease of a running job has lapsed.

    Attributes:
        main: The thread that jobs run in.
        last_claimed: The last sequence number that was claimed.
        closed: Whether no further number will be claimed.
        interruptible: The sequence number of the job that the main thread runs, which may be ended
            at any bytecode; ``None`` between two jobs, and in the event loop.
        requested: The sequence numbers of the jobs that are to end.
        error: The exception that ends the job.
        hold: Holds exceptions back.
    """

    def __init__(self, runs: Callable[[int], bool], lapse: Callable[[], None]) -> None:
        self.main = _thread.get_ident()
        self._runs, self._lapse = runs, lapse
        self._lock = _thread.allocate_lock()
        self.last_claimed, self.closed = 0, False
        self._revoked: set[int] = set()
        self.interruptible: int | None = None
        self.requested: set[int] = set()
        self.error: type[BaseException] = JobCancelled
        self.hold = Hold()
        # Until when jobs may run, and what wakes the thread that looks, once a job has had a lease.
        self._leases: dict[int, float] = {}
        self._bell: Any = None
        _signal.signal(posix.INTERRUPT_SIGNAL, self._raise_if_requested)

    def claim(self) -> bool:
        """Claim the next number, and tell whether its job may begin."""
        with self._lock:
            self.last_claimed += 1
            if self.last_claimed not in self._revoked:
                return True
            self._revoked.remove(self.last_claimed)
            return False

    def revoke(self, sequences: Iterable[int]) -> list[int]:
        """Revoke jobs that have not begun; return those of *sequences* that never will."""
        with self._lock:
            won = [sequence for sequence in sequences if sequence > self.last_claimed]
            self._revoked.update(won)
        return won

    def begin(self, sequence: int) -> None:
        """Note which job the main thread runs now.

        It ends this process if the job has come when its lease was over.

        Raises:
            JobCancelled: If that job is to end already.
        """
        self.interruptible = sequence
        if self._leases and self._leases.get(sequence, _NEVER) <= monotonic():
            self._lapse()
        if self.requested:
            self._raise_if_requested()

    def check(self, sequence: int) -> None:
        """Raise now, in case the signal of :meth:`request` was blocked, or the loop is.

        Raises:
            JobCancelled: If the calling thread runs that job, which is to end.
        """
        if self.requested and _thread.get_ident() == self.main:
            if self.interruptible is not None:
                self._raise_if_requested()
            elif self.take(sequence):
                raise JobCancelled

    def request(self, sequence: int) -> bool:
        """End that job, if it has not ended yet; called by another thread.

        Returns:
            Whether the main thread is in its code.  If not, it may be in the event loop.
        """
        self.requested.add(sequence)
        if self.interruptible != sequence:
            return False
        self.signal()
        return True

    def pending(self) -> bool:
        """Whether the running job is to end by an exception that was not raised yet."""
        return self.interruptible in self.requested

    def signal(self) -> None:
        """Have the main thread end that job, if it may be ended now; called by another thread."""
        _signal.pthread_kill(self.main, posix.INTERRUPT_SIGNAL)

    def take(self, sequence: int) -> bool:
        """Take the request to end that job; return whether there was one."""
        found = sequence in self.requested
        self.requested.discard(sequence)
        return found

    def forget_over(self) -> None:
        """Forget the jobs that are over."""
        for sequence in list(self.requested):
            if sequence <= self.last_claimed and not self._runs(sequence):
                self.requested.discard(sequence)

    def _raise_if_requested(self, *_: object) -> None:
        if self.hold.is_on or self.interruptible not in self.requested:
            return
        if scripts.importing:  # else the next job would begin that import anew
            return
        frame: FrameType | None = sys._getframe()  # noqa: SLF001 - public
        while frame is not None:
            if frame.f_globals is _IMPORT:
                return  # an import is under way
            frame = frame.f_back
        if self.take(self.interruptible):
            raise self.error

    def fence(self, sequence: int, until: float) -> None:
        """Let that job run until then, and forget the time before."""
        self._leases[sequence] = until
        if self._bell is None:
            self._bell = _thread.allocate_lock()
            self._bell.acquire()
            start_thread(self._watch_leases)
        elif self._bell.locked():
            self._bell.release()

    def _watch_leases(self) -> None:
        try:
            while True:
                self._bell.acquire(timeout=self._look())
        finally:
            self._lapse()  # a MemoryError, say: nobody would watch the jobs

    def _look(self) -> float:
        """End this process if a lease has lapsed, or return the seconds until the next one.

        It forgets the jobs that are over.
        """
        wait = _NEVER
        for sequence, until in list(self._leases.items()):
            # In this order: all jobs before the last claimed one had begun by then.
            now, taken = monotonic(), self.last_claimed
            runs = self._runs(sequence)
            if until <= now and runs:
                self._lapse()
            elif until > now:
                wait = min(wait, until - now)
            if sequence < taken and not runs:
                self._leases.pop(sequence, None)
        return wait


class Control:
    """The worker's end of the control channel.

    Args:
        jobs: The job channel.
        sock: The socket.
        page_fd: The worker page.

    Attributes:
        job_socket: The job channel.
        page_fd: As above.
        large_buffers: What travels beside jobs and outcomes.
        endings: Knows which jobs are to end before their time.
        runner: Runs the jobs.
        identity: The name and the parent of this worker.
        announced: Whether the worker has told the pool which error ends it.
        on_thread_death: Called in a thread that ends with an error, once the pool was told.
        on_end_of_all: Called in the event loop when a draining worker learns that the whole cluster
            ends.  A worker that has this serves: its event loop answers pings.
    """

    identity: messages.Identity
    runner: JobRunner

    def __init__(self, jobs: socket.socket, sock: socket.socket, page_fd: int) -> None:
        self.job_socket, self._socket, self.page_fd = jobs, sock, page_fd
        self.large_buffers = LargeBuffers(jobs)
        # The runner does not exist yet.
        self.endings = EndRequests(lambda it: self.runner.runs(it), self._end_lapsed)  # noqa: PLW0108
        self.announced = False
        self.on_thread_death: Callable[[], None] | None = None
        self.on_end_of_all: Callable[[], None] | None = None
        self._lock = _thread.RLock()
        self._records: deque[bytes] = deque()
        self._sampler: Sampler | None = None
        self._tracker: SimpleQueue[int | None] = SimpleQueue()
        self._tracker_asked = False
        self._thread = 0
        self._show_thread = _thread._excepthook  # noqa: SLF001 - see start()
        self._decoder = FrameDecoder(max_payload=messages.MAX_CONFIG)
        # This handler is in C, so it works even if code never releases the GIL.
        os.lseek(page_fd, -STACKS_SIZE, os.SEEK_END)
        faulthandler.register(posix.STACKS_SIGNAL, page_fd)

    def receive_config(self) -> messages.WorkerConfig:
        """Wait for the configuration, and for the frames before it.

        Raises:
            SystemExit: If the pool is gone before the configuration comes.
        """
        while True:
            frames, fds = self._receive()
            if frames is None:
                raise SystemExit(0)
            for frame in frames:
                if frame.kind is FrameKind.HANDED:
                    posix.HANDED.append(fds.pop() if fds else None)
                elif frame.kind is FrameKind.IDENTITY:
                    self.identity = pickle.loads(frame.payload)
                else:
                    return pickle.loads(frame.payload)  # type: ignore[no-any-return]

    def _receive(self) -> tuple[list[Frame] | None, list[int]]:
        """Wait for frames, and the descriptor that the last of them may bring; ``None`` is the end."""
        if self._decoder.target is not None:
            return receive(self._socket, self._decoder), []
        data, fds, _ = posix.receive_fds(self._socket, 65536, 1)
        return (self._decoder.feed(data) if data else None), fds

    def fds(self) -> tuple[int, int, int]:
        """Return the descriptors of the channels, and of the page."""
        return self.job_socket.fileno(), self._socket.fileno(), self.page_fd

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
        if self.runner.config.memory is not None:
            bound, text = self.runner.config.memory
            most = posix.memory_at_most(os.getpid())
            if most >= bound and (had := posix.private_memory(os.getpid())) >= bound:
                raise RuntimeError(
                    f"it has {in_units(had)} of memory before its first job, and {text}: "
                    "raise the limit, or have workers import and initialize less"
                )
        self.send(FrameKind.HELLO)

    def report_failure(
        self, stage: str, error: BaseException, *, fixed: bool = False
    ) -> None:
        """Tell the pool of *error*, which ends the worker; see :func:`is_final`."""
        summary = f"{type(error).__qualname__}: {text_of(error)}"
        final = messages.is_final(error, fixed=fixed)
        failure = messages.Failure(stage, summary, _format(error), final)
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
        with self.endings.hold:
            fd = self._tracker.get()
            self._tracker.put(fd)  # for another thread
            return fd

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
        """Close the channels, in a process that is not the worker."""
        self.job_socket.close()
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
        channel = poll()
        channel.register(self._socket, POLLIN)
        try:
            while True:
                # The first signal may have had no effect, see EndRequests._raise_if_requested().
                while self.endings.pending() and not channel.poll(_NEXT_SIGNAL * 1000):
                    # The job may be over by now: a signal would interrupt C code of the next one.
                    if self.endings.pending():
                        self.endings.signal()
                frames, fds = self._receive()
                if frames is None:
                    break
                for frame in frames:
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

    def _answer(self, frame: Frame, fds: list[int]) -> None:
        kind, buffers = frame.kind, self.large_buffers
        if kind is FrameKind.REVOKE:
            won = self.endings.revoke(messages.unpack_numbers(frame.payload))
            self.send(FrameKind.REVOKED, messages.pack_numbers(won))
        elif kind is FrameKind.INTERRUPT:
            for sequence in messages.unpack_numbers(frame.payload):
                if not self.endings.request(sequence):
                    self.runner.call_in_loop(self.runner.end_in_loop, sequence)
        elif kind is FrameKind.FENCE:
            self.endings.fence(frame.job, *messages.MOMENT.unpack(frame.payload))
        elif kind is FrameKind.CREDIT:
            lane = self.runner.by_job.get((frame.job, frame.attempt))
            if lane is not None and lane.ring is not None:  # else the job is over
                lane.credit = frame.number
                # It may have heard the last ring, and not waited.
                with contextlib.suppress(RuntimeError):
                    lane.ring()
        elif kind is FrameKind.PING:
            serves = self.on_end_of_all is not None
            if not (serves and self.runner.call_in_loop(self.send, FrameKind.PONG)):
                self.send(FrameKind.PONG)
        elif kind is FrameKind.STACKS:
            write_stacks(self.runner, frame.job, frame.attempt)
            self.send(FrameKind.STACKS, b"", frame.job, frame.attempt)
        elif kind is FrameKind.WHERE:
            try:
                text = live_stacks(self.runner, frame.job)
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
            buffers.arrive(frame.number, fds.pop() if fds else None, frame.job)
        elif kind is FrameKind.GRANT:
            buffers.grant(frame.number)
        elif kind is FrameKind.DROP:
            buffers.drop(frame.number)
        else:
            raise ProtocolError(f"the pool sent {kind.name}")

    def _end_lapsed(self) -> None:
        """End this process and all that it has started, without waiting for the pool.

        The pool may be stopped, and then it reads nothing.
        """
        summary = "it has lapsed, and its job was still running"
        payload = messages.Failure("lease", summary).pack()
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
            self._sampler = Sampler(request, self.endings.main, send)
        except Exception as error:
            # A job may have taken away what it takes, such as threads.
            [payload] = SampleChunk({}, error=repr(error)).pack()
            send(payload, last=True)

    def _report_thread(self, args: ExceptHookArgs) -> None:
        if args.exc_type is SystemExit:
            return
        self._show_thread(args)
        kind, error, tb, thread = args
        name = thread.name if thread is not None else "a thread"
        summary = f"{kind.__qualname__} in thread {name!r}: {error}"
        text = "".join(traceback.format_exception(kind, error, tb))
        self.send(FrameKind.FAILED, messages.Failure("thread", summary, text).pack())
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
