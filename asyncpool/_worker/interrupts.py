"""What ends a job before its time: it is revoked, interrupted, or its lease lapses.

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
service may be stopped, or its event loop blocked.  The thread here and the main thread need no
lock.  The main thread notes that a job runs, and then looks at the clock.  The thread here looks
at the clock, and then whether the job runs.
"""

from __future__ import annotations

import sys
from _thread import (  # threading would do, see _worker/__init__.py
    TIMEOUT_MAX,
    allocate_lock,
    get_ident,
)
from time import monotonic

from asyncpool._wire.posix import INTERRUPT
from asyncpool._worker.process import start_thread
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable, Iterable
    from types import FrameType
else:
    # The C part of signal, whose own signal() touches many pages: see _worker/__init__.py.
    import _signal

_IMPORT = vars(sys.modules["_frozen_importlib"])


class JobClaims:
    """The sequence numbers that were claimed, and those that were revoked before.

    Attributes:
        last_claimed: The last number that was claimed.
        closed: Whether no further number will be claimed.
    """

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self.last_claimed = 0
        self.closed = False
        self._revoked: set[int] = set()

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


class Interrupts:
    """What the two threads of a worker know of jobs that are to end.

    Attributes:
        main: The thread that jobs run in.
        running: The sequence number of the job that the main thread runs, which may be ended
            at any bytecode; ``None`` between two jobs, and in the event loop.
        requested: The sequence numbers of the jobs that are to end.
        error: The exception that ends the job.
        held: Whether exceptions are held back.  What was held back is raised within 20 ms after
            that, when the other thread asks again, or when the job itself looks.
        fences: End this process when a lease lapses; set once a job has had a lease.
    """

    def __init__(self) -> None:
        self.running: int | None = None
        self.requested: set[int] = set()
        self.error: type[BaseException] = JobCancelled
        self.fences: LeaseFences | None = None
        self.held = False
        self.main = get_ident()
        _signal.signal(INTERRUPT, self._on_signal)

    def begin(self, sequence: int) -> None:
        """Note which job the main thread runs now.

        Raises:
            JobCancelled: If that job is to end already.
        """
        self.running = sequence
        if self.fences is not None:
            self.fences.check(sequence)
        if self.requested:
            self._raise_if_requested()

    def check(self, sequence: int) -> None:
        """Raise now, in case the signal of :meth:`ask` was blocked, or the loop is.

        Raises:
            JobCancelled: If the calling thread runs that job, which is to end.
        """
        if self.requested and get_ident() == self.main:
            if self.running is not None:
                self._raise_if_requested()
            elif self.forget(sequence):
                raise JobCancelled

    def ask(self, sequence: int) -> bool:
        """End that job, if it has not ended yet; called by another thread.

        Returns:
            Whether the main thread is in its code.  If not, it may be in the event loop.
        """
        self.requested.add(sequence)
        if self.running != sequence:
            return False
        self.signal()
        return True

    def pending(self) -> bool:
        """Whether the running job is to end by an exception that was not raised yet."""
        return self.running in self.requested

    def signal(self) -> None:
        """Have the main thread end that job, if it may be ended now; called by another thread."""
        _signal.pthread_kill(self.main, INTERRUPT)

    def forget(self, sequence: int) -> bool:
        """Tell whether that job is to end, and forget that it is."""
        found = sequence in self.requested
        self.requested.discard(sequence)
        return found

    def forget_over(self, taken: int, runs: Callable[[int], bool]) -> None:
        """Forget the jobs that are over, up to the sequence number *taken*."""
        for sequence in list(self.requested):
            if sequence <= taken and not runs(sequence):
                self.requested.discard(sequence)

    def _on_signal(self, *_: object) -> None:
        self._raise_if_requested()

    def _raise_if_requested(self) -> None:
        if self.held or self.running not in self.requested:
            return
        if not _imports(sys._getframe()) and self.forget(self.running):  # noqa: SLF001 - public
            raise self.error


def _imports(frame: FrameType | None) -> bool:
    """Tell whether an import is under way in *frame*, or in what has called it."""
    while frame is not None:
        if frame.f_globals is _IMPORT:
            return True
        frame = frame.f_back
    return False


class LeaseFences:
    """Until when jobs may run, by their sequence numbers.

    Args:
        claims: Which number was claimed last.
        runs: Tells whether the job with a number is running.
        end: Ends this process.
    """

    def __init__(
        self, claims: JobClaims, runs: Callable[[int], bool], end: Callable[[], None]
    ) -> None:
        self._claims, self._runs, self._end = claims, runs, end
        self._until: dict[int, float] = {}
        self._bell = allocate_lock()
        self._bell.acquire()
        start_thread(self._watch)

    def put(self, sequence: int, until: float) -> None:
        """Let the job with the number *sequence* run until then, and forget the time before."""
        self._until[sequence] = until
        if self._bell.locked():
            self._bell.release()

    def check(self, sequence: int) -> None:
        """End this process if the job that begins now, *sequence*, came too late."""
        until = self._until.get(sequence)
        if until is not None and until <= monotonic():
            self._end()

    def _watch(self) -> None:
        try:
            while True:
                self._bell.acquire(timeout=self._look())
        finally:
            self._end()  # a MemoryError, say: nobody would watch the jobs

    def _look(self) -> float:
        """End this process if a lease has lapsed, or return the seconds until the next one.

        It forgets the jobs that are over.
        """
        wait = TIMEOUT_MAX
        for sequence, until in list(self._until.items()):
            # In this order: all jobs before the last claimed one had begun by then.
            now, taken, runs = (
                monotonic(),
                self._claims.last_claimed,
                self._runs(sequence),
            )
            if until <= now and runs:
                self._end()
            elif until > now:
                wait = min(wait, until - now)
            if sequence < taken and not runs:
                self._until.pop(sequence, None)
        return wait
