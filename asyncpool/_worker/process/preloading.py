"""Find threads that preloaded modules have left behind in the launcher, which must fork."""

from __future__ import annotations

import contextlib
import os
import sys
import time

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterator

# Seconds between looks whether a thread has ended; each is twice the last.
_FIRST_LOOK = 0.001
_LAST_LOOK = 1.0


def threads_left() -> list[str]:
    """Return the names of this process's other threads that a fork does not end.

    A fork copies the locks that these threads hold, but not the threads that would release
    them.  Python knows only the threads of ``threading``; only Linux lists all of them.
    """
    if named := _named():
        return named
    if not _unnamed():
        return []
    # A library may end its threads at each fork, as OpenBLAS does for NumPy.  Then no worker
    # has a copy of their locks.  A trial fork shows whether that is so.
    _fork_in_vain()
    wait = _FIRST_LOOK
    # Nor does the kernel let go of a thread at once that somebody has joined.
    while (left := _unnamed()) and wait < _LAST_LOOK:
        time.sleep(wait)
        wait *= 2
    return left


def _fork_in_vain() -> None:
    import warnings  # noqa: PLC0415 - few get here

    with warnings.catch_warnings():
        # From Python 3.12 on each fork beside threads is warned of, which may be an error.  This
        # copy does nothing.  And a thread that the rehearsal has started may be about to end.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _named() -> list[str]:
    if "threading" not in sys.modules:
        return []
    import threading  # noqa: PLC0415 - see _worker/__init__.py

    main = threading.main_thread()
    return sorted(thread.name for thread in threading.enumerate() if thread is not main)


def _unnamed() -> list[str]:
    return sorted(_tasks(os.getpid()))


def _tasks(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/task"
    with contextlib.suppress(OSError):  # no Linux
        for task in os.listdir(folder):  # noqa: PTH208 - see _worker/__init__.py
            with contextlib.suppress(OSError):  # it has just ended
                if task != str(pid):
                    with open(f"{folder}/{task}/comm") as name:  # noqa: PTH123
                        yield name.read().strip()
