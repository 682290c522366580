"""End the running job from inside, by an exception in the main thread.

The pool names the job by its sequence number (see ``job_claims.py``).  The control thread
receives it, and sends the main thread a signal, which also ends a system call that the main
thread waits in.  The handler runs between two bytecodes of the main thread.  It raises only
if that job is running there.  If the job is about to begin, it finds the request when it
does.  If it is over, nothing happens.  Both threads write first and then read, so they need
no lock.

A job in an event loop is ended by a call that the loop makes.  While the main thread is in
the middle of a frame, the exception is held back.  If a worker runs several jobs at once,
``lanes.py`` knows them; this module knows the one that the main thread runs.

Before it ends a job, the control thread writes the stacks of all threads.  If C code holds the
GIL, the control thread cannot run, and a signal handler in C writes them.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from _thread import get_ident

from asyncpool._system.processes import INTERRUPT, STACKS
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import signal as _signal
    from collections.abc import Callable
    from types import FrameType
    from typing import Protocol

    from asyncpool._worker.job_ending.lease_fences import LeaseFences

    class Running(Protocol):
        """The jobs that run, if there may be several: see ``lanes.py``."""

        @property
        def running(self) -> tuple[int, int] | None:
            """The job and attempt that the main thread is in."""
            ...

        def runs(self, sequence: int) -> bool:
            """Tell whether that job is running."""
            ...

        def end_soon(self, sequence: int) -> None:
            """End that job; called by another thread."""
            ...

        def write_stack(self, job: int, attempt: int) -> None:
            """Write down where that job waits; called by another thread."""
            ...

        def waiting(self) -> dict[tuple[int, int], str]:
            """Tell where each job waits, called by another thread."""
            ...

        def become_nobody(self) -> None:
            """Change into the copy of a worker, in a process that a job has forked."""
            ...

else:
    # The C part of signal, whose own signal() touches many pages: see _worker/__init__.py.
    import _signal

_IMPORT = vars(sys.modules["_frozen_importlib"])


class Interrupts:
    """What the two threads of a worker know of a job that is to end.

    Args:
        stacks: The descriptor of the file that stacks are written to.
        start: Where in it they begin.

    Attributes:
        main: The thread that jobs run in.
        running: The sequence number of the job that the main thread runs, which may be ended
            at any bytecode; ``None`` between two jobs.
        error: The exception that ends the job.
        instead: Ends the job if it runs in an event loop; any thread may call it.
        stacks: Tells where such a job waits.
        main: The thread that jobs run in.
        lanes: The jobs that run, if there may be several.
        fences: End this process when a lease lapses; set once a job has had a lease.
    """

    def __init__(self, stacks: int, start: int) -> None:
        self.running: int | None = None
        self.error: type[BaseException] = JobCancelled
        self.instead: Callable[[], object] | None = None
        self.stacks: Callable[[], str] | None = None
        self.lanes: Running | None = None
        self.fences: LeaseFences | None = None
        self._held = False
        self._wanted: set[int] = set()
        self.main = get_ident()
        self._stacks, self._start = stacks, start
        os.lseek(stacks, start, os.SEEK_SET)
        # This handler is in C, so it works even if code never releases the GIL.
        faulthandler.register(STACKS, stacks)
        _signal.signal(INTERRUPT, self._on_signal)

    def begin(self, sequence: int) -> None:
        """Note which job the main thread runs now.

        Raises:
            JobCancelled: If that job is to end already.
        """
        self.running = sequence
        if self.fences is not None:
            self.fences.check(sequence)
        self._raise_if_wanted()

    def runs(self, sequence: int) -> bool:
        """Tell whether that job is running; called by another thread."""
        if self.lanes is None:
            return self.running == sequence
        return self.lanes.runs(sequence)

    def check(self) -> None:
        """Raise now, in case the signal of :meth:`ask` was blocked.

        Raises:
            JobCancelled: If the calling thread runs a job that is to end.
        """
        if self._wanted and get_ident() == self.main:
            self._raise_if_wanted()

    def hold(self) -> None:
        """Hold exceptions back until :meth:`release`."""
        self._held = True

    def release(self, *, soon: bool = False) -> None:
        """Raise the exception that was held back, if any, and hold no more back.

        Args:
            soon: Leave it to the other thread, which asks again after 20 ms.

        Raises:
            JobCancelled: If the job is to end.
        """
        self._held = False
        if not soon:
            self._raise_if_wanted()

    def ask(self, sequence: int) -> None:
        """End that job, if it has not ended yet; called by another thread."""
        lanes, instead = self.lanes, self.instead
        if lanes is None:
            self._wanted = {sequence}
        else:
            self._wanted.add(sequence)
        if lanes is not None and self.running != sequence:
            lanes.end_soon(sequence)
        elif instead is not None:
            instead()
        else:
            _signal.pthread_kill(self.main, INTERRUPT)

    def pending(self) -> bool:
        """Whether the running job is to end by an exception that was not raised yet."""
        return self.instead is None and self.running in self._wanted

    def ask_again(self) -> None:
        """End that job, if it may be ended now; called by another thread."""
        if self.pending():
            _signal.pthread_kill(self.main, INTERRUPT)

    def deliver(self) -> bool:
        """Tell once whether the running job is to end; the caller then ends it."""
        return self.running is not None and self.forget(self.running)

    def wants(self, sequence: int) -> bool:
        """Tell whether that job is to end."""
        return sequence in self._wanted

    def forget(self, sequence: int) -> bool:
        """Tell whether that job is to end, and forget that it is."""
        if sequence not in self._wanted:
            return False
        self._wanted.remove(sequence)
        return True

    @property
    def at_home(self) -> bool:
        """Whether the calling thread is the one that jobs run in."""
        return get_ident() == self.main

    def write_stacks(self, job: int = 0, attempt: int = 0) -> None:
        """Write the stacks of all threads; called by another thread.

        If several jobs run at once, the stack of the coroutine of *job* is among them.
        """
        os.lseek(self._stacks, self._start, os.SEEK_SET)
        faulthandler.dump_traceback(self._stacks)
        stacks = self.stacks
        if stacks is not None:
            os.write(self._stacks, stacks().encode(errors="replace"))
        if self.lanes is not None:
            self.lanes.write_stack(job, attempt)

    def _on_signal(self, *_: object) -> None:
        if self.instead is not None:
            self.instead()
        else:
            self._raise_if_wanted()

    def _raise_if_wanted(self) -> None:
        if self._held or self.running not in self._wanted:
            return
        if not _imports(sys._getframe()) and self.deliver():  # noqa: SLF001 - public
            raise self.error


def _imports(frame: FrameType | None) -> bool:
    """Tell whether an import is under way in *frame*, or in what has called it."""
    while frame is not None:
        if frame.f_globals is _IMPORT:
            return True
        frame = frame.f_back
    return False
