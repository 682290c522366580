"""Start workers, collect those that have ended, and kill the processes that they leave behind.

The launcher's process is the parent of all workers, and adopts their descendants that lose
their own parents.  So it collects those too when they end, and no worker gathers zombies, or
has to tell the children of its jobs from the orphans.

Each worker has a mark, which its descendants inherit, whatever they do: the soft limit of
RLIMIT_LOCKS, which Linux has kept for each process since version 2.4 and has heeded in none.
An adopted process with the mark of a living worker is left alone.  One with the mark of a dead
worker is killed.  One that has taken off its mark (``su`` may) may be any worker's, and is
killed when the next worker ends.

The launcher kills a worker's process group before it collects the worker, because until then
the kernel cannot give the pid to another process.  Where there are no marks, each worker adopts
its orphans itself, and what becomes the launcher's was left by a dead worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from asyncpool._worker.process.os_setup import adopt_orphans, children

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import resource

# The longest wait for a process, in seconds: one in an uninterruptible sleep does not end.
_PATIENCE = 5.0

_RLIMIT_LOCKS = 10

# The marks of one launcher follow on a random number, so that those of a launcher in a job differ.
_MOST_MARKS = 1 << 24


class Reaper:
    """The children of this process: workers, and those that it has adopted."""

    def __init__(self) -> None:
        self._workers: dict[int, int] = {}  # the mark of each
        self._adopted: dict[int, int] = {}
        self._first = int.from_bytes(os.urandom(4), "big") * _MOST_MARKS
        self._last = self._first
        self._marks = _can_mark(self._first)

    def fork(self) -> int:
        """Fork a worker, and return as :func:`os.fork` does.

        Raises:
            OSError: If the process cannot be made.
        """
        self._last += 1
        pid = os.fork()
        if pid:
            self._workers[pid] = self._last
        elif self._marks:
            with contextlib.suppress(
                OSError, ValueError
            ):  # this is no launcher any more
                _mark_self(self._last)
        else:
            adopt_orphans()
        return pid

    def reap(self) -> Iterator[tuple[int, int, int]]:
        """Yield pid, exit status and microseconds of CPU of every worker that has ended."""
        ended = False
        while (pid := self._next_zombie()) is not None:
            if self._workers.pop(pid, 0):
                ended = True
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                yield pid, *_collect(pid)
            else:
                self._adopted.pop(pid, 0)
                _collect(pid)
        _kill(self._left_behind(unmarked=ended))

    def sweep(self, report: Callable[[int, int, int], None]) -> None:
        """Kill the processes that dead workers have left behind, and wait for their end.

        Args:
            report: Called with each worker that ends meanwhile, as :meth:`reap` yields it.
        """
        give_up_at = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up_at:
            for ended in self.reap():
                report(*ended)
            left = self._left_behind(unmarked=True)
            if not left:
                return
            _kill(left)
            time.sleep(0.001)

    def end_all(self) -> None:
        """Kill all workers, all adopted processes and their descendants, and wait."""
        for pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        _kill({*self._workers})
        give_up_at = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up_at:
            _kill(children())
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                time.sleep(0.001)

    def _left_behind(self, *, unmarked: bool) -> set[int]:
        """Return the adopted processes that dead workers have left.

        Args:
            unmarked: Whether to return those too that have no mark of this launcher's.
        """
        adopted = children() - self._workers.keys()
        if not self._marks:
            return adopted
        before, self._adopted = self._adopted, {}
        for pid in adopted:
            self._adopted[pid] = before.get(pid) or _mark_of(pid)
        living = {*self._workers.values()}
        return {
            pid
            for pid, mark in self._adopted.items()
            if mark not in living and (unmarked or self._first < mark <= self._last)
        }

    def _next_zombie(self) -> int | None:
        """Return the pid of a child that has ended, which is not collected yet."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return next((pid for pid in self._workers if _is_zombie(pid)), None)
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return found.si_pid if found is not None else None


def _mark_self(mark: int) -> None:
    import resource  # noqa: PLC0415 - macOS has no use for it here

    _, hard = resource.getrlimit(_RLIMIT_LOCKS)
    resource.setrlimit(_RLIMIT_LOCKS, (mark, hard))


def _mark_of(pid: int) -> int:
    """Return the mark of a process; 0 if it has none, or is gone."""
    with contextlib.suppress(OSError, ValueError):
        # Not prlimit(), which tells nothing of other users' processes.
        with open(f"/proc/{pid}/limits", "rb") as limits:  # noqa: PTH123 - no pathlib here
            _, _, locks = limits.read().partition(b"Max file locks")
        return int(locks.split(None, 1)[0])
    return 0


def _can_mark(mark: int) -> bool:
    """Return whether this system keeps marks, and shows them."""
    with contextlib.suppress(Exception):  # a kernel or a sandbox may refuse anything
        import resource  # noqa: PLC0415 - see above

        before = resource.getrlimit(_RLIMIT_LOCKS)
        try:
            _mark_self(mark)
            return _mark_of(os.getpid()) == mark
        finally:
            resource.setrlimit(_RLIMIT_LOCKS, before)
    return False


_collected: dict[int, tuple[int, int]] = {}


def _is_zombie(pid: int) -> bool:
    # Without waitid() a look also collects the child, so keep its status for the next step.
    found, status, usage = os.wait4(pid, os.WNOHANG)
    if found:
        _collected[pid] = status, _cpu(usage)
    return bool(found)


def _collect(pid: int) -> tuple[int, int]:
    """Return the exit status of a process that has ended, and its microseconds of CPU."""
    known = _collected.pop(pid, None)
    if known is None:
        _, status, usage = os.wait4(pid, 0)
        known = status, _cpu(usage)
    return os.waitstatus_to_exitcode(known[0]), known[1]


def _cpu(usage: resource.struct_rusage) -> int:
    return int((usage.ru_utime + usage.ru_stime) * 1e6)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
