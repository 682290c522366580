"""Import modules, and find out which threads come with them and would be lost at a fork.

What follows from that is in ``_core/policies/starting.py``.
"""

from __future__ import annotations

import contextlib
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
    from collections.abc import Callable, Generator

# Seconds between looks whether a thread has ended; each is twice the last.
_FIRST_LOOK = 0.001
_LAST_LOOK = 1.0

# Seconds for what a library does in the copy of a process, right after the fork.
_COPY_GRACE = 5.0


class Preloading:
    """Knows which threads came with which import; those that are there already with none."""

    def __init__(self) -> None:
        self._threads: dict[int, Thread] = {}
        self._look(BEFORE_IMPORTS)

    @contextlib.contextmanager
    def step(self, origin: str) -> Generator[None]:
        """Import *origin* in this context."""
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        began = time.monotonic()
        yield
        self._look(origin, time.monotonic() - began)

    def lost(self) -> list[Thread]:
        """Return the threads that a fork of this process would lose, as a trial fork shows."""
        return self._try_fork(lost_at_fork)

    def left(self) -> list[Thread]:
        """Return the threads of this process that a fork does not end."""
        return self._try_fork(lambda _, kept, __: kept)

    def _try_fork(
        self,
        choose: Callable[
            [dict[int, Thread], dict[int, Thread], list[str]], dict[int, Thread]
        ],
    ) -> list[Thread]:
        before = self._look()
        if not before:
            return []
        copy, wait = _fork_in_vain(), _FIRST_LOOK
        while True:
            found = choose(before, self._look(), copy)
            # The kernel does not let go at once of a thread that somebody has joined.  But one
            # that sleeps has not ended.
            if wait > _LAST_LOOK or all(map(_sleeps, found)):
                return list(found.values())
            time.sleep(wait)
            wait *= 2

    def _look(
        self, origin: str | None = None, seconds: float = 0.0
    ) -> dict[int, Thread]:
        """Return the threads that there are; the new ones came with *origin*, or of late."""
        present = {}
        for number, (name, native) in _threads().items():
            if origin is None:
                origin = next(reversed(self._threads.values()), _NOBODY).origin
            thread = Thread(name, native, origin, seconds)
            present[number] = self._threads.setdefault(number, thread)
        return present


_NOBODY = Thread("", native=True, origin=BEFORE_IMPORTS)


def _fork_in_vain() -> list[str]:
    """Return the names of the threads that the copy of this process has right after a fork."""
    out, into = os.pipe()
    with forking():
        pid = os.fork()
    if pid == 0:
        os.write(into, "\0".join(name for name, _ in _threads().values()).encode())
        os._exit(0)
    os.close(into)
    poll = select.poll()
    poll.register(out)
    names = b""
    if poll.poll(_COPY_GRACE * 1e3):
        names = os.read(out, 65536)
    else:  # it hangs in what its libraries do there, so a worker would, too
        os.kill(pid, signal.SIGKILL)
    os.close(out)
    os.waitpid(pid, 0)
    return names.decode(errors="replace").split("\0") if names else []


@contextlib.contextmanager
def forking() -> Generator[None]:
    """Fork in this context where threads are that a fork does not lose, as far as is known.

    From Python 3.12 on each fork beside threads is warned of, and the warning may be an error.
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
    known: dict[int, str] = {}
    main = os.getpid()
    if "threading" in sys.modules:
        import threading  # noqa: PLC0415 - see _worker/__init__.py

        mine = threading.get_native_id()
        known = {it.native_id or id(it): it.name for it in threading.enumerate()}
        known.pop(mine, None)
    found = {number: (name, False) for number, name in known.items()}
    with contextlib.suppress(OSError):  # no Linux
        tasks = map(int, os.listdir(f"/proc/{main}/task"))  # noqa: PTH208 - see _worker/__init__.py
        found = {
            number: (known[number], False)
            if number in known
            else (_native_name(number), True)
            for number in tasks
            if number != main
        }
    return found


def _native_name(number: int) -> str:
    name = _read(number, "comm").strip()
    # Most have no name but that of their process.
    return "native" if name == _read(os.getpid(), "comm").strip() else name


def _sleeps(number: int) -> bool:
    return _read(number, "stat").rpartition(")")[2].split()[:1] in (["S"], ["T"])


def _read(number: int, what: str) -> str:
    try:
        with open(f"/proc/{os.getpid()}/task/{number}/{what}") as file:  # noqa: PTH123
            return file.read()
    except OSError:  # it has just ended
        return ""
