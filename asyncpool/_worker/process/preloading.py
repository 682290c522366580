"""Import modules, and find out which threads come with them and would be lost at a fork.

What follows from that is in ``_core/policies/starting.py``.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import sys
import time

from asyncpool._core.policies.starting import (
    BEFORE_IMPORTS,
    QUIET,
    Thread,
    lost_at_fork,
)

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Generator

# Seconds between looks whether a thread has ended; each is twice the last.
_FIRST_LOOK = 0.001
_LAST_LOOK = 1.0

# Seconds for what a library does in the copy of a process, right after the fork.
_COPY_GRACE = 5.0


class Preloading:
    """Knows which threads came with which import; those that are there already with none."""

    def __init__(self) -> None:
        self._threads: dict[int, Thread] = {}
        self._origin, self._seconds = BEFORE_IMPORTS, 0.0
        self._look()

    @contextlib.contextmanager
    def step(self, origin: str) -> Generator[None]:
        """Import *origin* in this context."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        began = time.monotonic()
        yield
        self._origin, self._seconds = origin, time.monotonic() - began
        self._look()

    def left(self, *, whole: bool = False) -> list[Thread]:
        """Return the threads of this process that a fork does not end, as a trial fork shows.

        Args:
            whole: Leave out those that the copy can do without, or has again.
        """
        if not (before := self._look()):
            return []
        copy, wait = _fork_in_vain(), _FIRST_LOOK
        while True:
            after = self._look()
            left = lost_at_fork(before, after, copy) if whole else after
            # The kernel does not let go at once of a thread that somebody has joined.  But one
            # that sleeps has not ended.
            if wait > _LAST_LOOK or all(map(_sleeps, left)):
                return list(left.values())
            time.sleep(wait)
            wait *= 2

    def _look(self) -> dict[int, Thread]:
        """Return the threads that there are; the new ones came with the last import."""
        return {
            number: self._threads.setdefault(
                number, Thread(name, native, self._origin, self._seconds)
            )
            for number, (name, native) in _threads().items()
        }


def _fork_in_vain() -> list[str]:
    """Return the names of the threads that the copy of this process has right after a fork."""
    out, into = os.pipe()
    with forking():
        pid = os.fork()
    if pid == 0:
        try:
            names = [name for name, _ in _threads().values()]
            os.write(into, "\0".join(names).encode())
        finally:
            os._exit(0)
    os.close(into)
    if not select.select([out], [], [], _COPY_GRACE)[0]:
        os.kill(pid, signal.SIGKILL)  # it hangs in what its libraries do there
    told = os.read(out, 65536).decode(errors="replace")
    os.close(out)
    os.waitpid(pid, 0)
    return told.split("\0")


@contextlib.contextmanager
def forking() -> Generator[None]:
    """Fork in this context, also beside threads.

    From Python 3.12 on each such fork is warned of, and the warning may be an error.
    """
    if not _threads():
        yield
        return
    import warnings  # noqa: PLC0415 - few get here

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def _threads() -> dict[int, tuple[str, bool]]:
    """Return the other threads of this process, each with its name and whether it is native.

    Python knows only the threads of ``threading``; only Linux lists all of them.
    """
    found: dict[int, tuple[str, bool]] = {}
    with contextlib.suppress(OSError):  # no Linux
        for task in os.listdir(f"/proc/{os.getpid()}/task"):  # noqa: PTH208 - see _worker/__init__.py
            name = _read(int(task), "comm").strip()
            found[int(task)] = name, True
    # Most have no name but that of their process, or that which it had.
    program = os.path.basename(sys.executable)[:15]  # noqa: PTH119
    unnamed = {found.pop(os.getpid(), None), (program, True)}
    for number in [number for number in found if found[number] in unnamed]:
        found[number] = "native", True
    if "threading" in sys.modules:
        import threading  # noqa: PLC0415 - see _worker/__init__.py

        for thread in threading.enumerate():
            if thread is not threading.main_thread():
                found[thread.native_id or id(thread)] = thread.name, False
    return found


def _sleeps(number: int) -> bool:
    return _read(number, "stat").rpartition(")")[2].split()[:1] in (["S"], ["T"])


def _read(number: int, what: str) -> str:
    try:
        with open(f"/proc/{os.getpid()}/task/{number}/{what}") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # it has just ended
        return ""


# What is installed may be out of a sandbox's reach.  The modules of this package are not, and idna
# is asked for by each connection.
_NEEDED = (
    "asyncio",
    "cloudpickle",
    "ctypes",
    "encodings.idna",
    "json",
    "logging",
    "resource",
    "select",
    "threading",
    "typing",
)


def warm_up() -> None:
    """Import these modules, which forked workers then share."""
    for name in set(_NEEDED) - {*sys.modules}:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
