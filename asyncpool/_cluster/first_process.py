"""Be the first process of a container, which has a duty that no other process has.

A process that loses its parent becomes a child of the first process, which must collect it when
it ends.  A process that collects every child takes the exit status away from code that has started
that child itself.  So there are two processes: the first one only collects, and a child of it does
the work, as with tini or ``docker run --init``.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

# Signals that the first process must not pass on, since each process has its own: those of a fault
# in itself, and the one that a child has ended.
_NAMES = "SIGCHLD SIGSEGV SIGBUS SIGFPE SIGILL SIGABRT SIGSYS SIGTRAP"
_OWN = {signal.Signals[name] for name in _NAMES.split()}


def look_after_orphans() -> None:
    """Continue in a child; this process collects orphans, and ends when the child does.

    It passes signals on to the child.  Before this call, the program must not have started
    anything, not even a thread.  The exit code is that of the child, or 128 plus the number of
    the signal that has ended the child.
    """
    every = signal.valid_signals() - _OWN | {signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, every)
    child = os.fork()
    if child == 0:
        # A group of its own, so that the child gets Ctrl-C once: from this process.
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
    """Collect all that have ended; return the exit status of the child if it has ended."""
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
    """Become the process group that gets the terminal's signals, if there is a terminal."""
    # The kernel stops a process of another group that tries this, unless it blocks the signal.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        fd = sys.stdin.fileno()
        if os.isatty(fd):
            os.tcsetpgrp(fd, os.getpid())
