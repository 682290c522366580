"""Be the first process of a container, which has duties that no other has.

Every process that loses its parent becomes a child of the first one, which must collect it when
it ends.  To collect whatever ends would take the exits of children away from who has started
them, so the two are kept apart: the first process does nothing but that, and the work is done in
a child of it, as with tini or ``docker run --init``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

# What a process does to itself cannot be passed on, and the kernel tells of children.
_OWN = frozenset(
    (
        signal.SIGCHLD,
        signal.SIGSEGV,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)


def look_after_orphans() -> None:
    """Go on in a child; this process collects orphans, and ends as the child does.

    Signals are passed on to the child.  Nothing may have been started before, no thread
    either.  The exit code is the child's, or 128 and the number of the signal that has
    ended it.
    """
    every = signal.valid_signals() - _OWN | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    child = os.fork()
    if child == 0:
        # In a group of its own, so that Ctrl-C is not heard twice.
        os.setpgid(0, 0)
        _take_terminal()
        if os.environ.get("LISTEN_PID") == str(os.getppid()):
            os.environ["LISTEN_PID"] = str(os.getpid())
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    while True:
        number = signal.sigwait(every)
        if number != signal.SIGCHLD:
            with contextlib.suppress(OSError):
                os.kill(child, number)
        elif (status := _collect(child)) is not None:
            os._exit(status if status >= 0 else 128 - status)


def _collect(child: int) -> int | None:
    """Collect who has ended; return the exit status of the child, if it has."""
    found = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == child:
                found = os.waitstatus_to_exitcode(status)
    return found


def _take_terminal() -> None:
    """Become the group that the terminal's signals go to, if there is a terminal."""
    # Whoever is not that group is stopped for trying: all signals are blocked here.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        fd = sys.stdin.fileno()
        if os.isatty(fd):
            os.tcsetpgrp(fd, os.getpid())
