"""End the running job from inside, by an exception in the main thread.

The control thread hears the place of the job that is to end (see ``turns.py``), and sends
the main thread a signal, which also ends the system call that it may be waiting in.  The
handler, which runs between two bytecodes of the main thread, raises only if that job is
what runs there.  If it has not quite begun, it finds the wish when it does; if it is over,
nothing happens.  No lock is needed, since each side writes first and then looks.

Before that, the control thread writes down where all threads are.  Only if code that holds
the GIL keeps it from running, a signal handler in C does that.
"""

from __future__ import annotations

import faulthandler
import os
from _thread import get_ident

from asyncpool._signals import INTERRUPT, STACKS
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/records.py
if TYPE_CHECKING:
    import signal as _signal
else:
    # The C part of signal, whose own signal() touches many pages: see _worker/__init__.py.
    import _signal

__all__ = ["Interrupts"]


class Interrupts:
    """What the two threads of a worker know of a job that is to end.

    Args:
        stacks: The descriptor of the file that stacks are written to.
        start: Where in it they begin.

    Attributes:
        running: The place of the job that the main thread runs, and that may end at any
            bytecode; ``None`` in between.
    """

    def __init__(self, stacks: int, start: int) -> None:
        self.running: int | None = None
        self._wanted: int | None = None
        self._main = get_ident()
        self._stacks, self._start = stacks, start
        os.lseek(stacks, start, os.SEEK_SET)
        # In C: it also tells where code is that never lets go of the GIL.
        faulthandler.register(STACKS, stacks)
        _signal.signal(INTERRUPT, self._on_signal)

    def begin(self, place: int) -> None:
        """Take note of what the main thread runs now.

        Raises:
            JobCancelled: If it is to end already.
        """
        self.running = place
        self._raise_if_wanted()

    def check(self) -> None:
        """Do what :meth:`ask` has not managed to, since its signal was blocked, say.

        Raises:
            JobCancelled: If the calling thread runs a job that is to end.
        """
        if self._wanted is not None and get_ident() == self._main:
            self._raise_if_wanted()

    def ask(self, place: int) -> None:
        """Have that job end, if it has not ended yet; called by another thread."""
        self._wanted = place
        _signal.pthread_kill(self._main, INTERRUPT)

    def write_stacks(self) -> None:
        """Write down where all threads are; called by another one."""
        os.lseek(self._stacks, self._start, os.SEEK_SET)
        faulthandler.dump_traceback(self._stacks)

    def _on_signal(self, *_: object) -> None:
        self._raise_if_wanted()

    def _raise_if_wanted(self) -> None:
        if self._wanted is not None and self._wanted == self.running:
            self._wanted = None
            raise JobCancelled
