"""Collect workers that have ended, and kill the processes that they leave behind.

The launcher's process is the parent of all workers.  On Linux each worker adopts its
descendants that lose their parents, and the launcher adopts those of a worker that ends.  So
no process outlives its worker.  The launcher kills a worker's process group before it
collects the worker, because until then the kernel cannot give the pid to another process.
After that, a child of the launcher that is no worker was left by a dead worker.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

from asyncpool._worker.process.os_setup import children

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    import resource

# The longest wait for a process, in seconds: one in an uninterruptible sleep does not end.
_PATIENCE = 5.0


class Reaper:
    """The children of this process: workers by name, and adopted ones."""

    def __init__(self) -> None:
        self._workers: set[int] = set()

    def add(self, pid: int) -> None:
        """Add a worker that was started."""
        self._workers.add(pid)

    def reap(self) -> Iterator[tuple[int, int, int]]:
        """Yield pid, exit status and microseconds of CPU of every worker that has ended."""
        while (pid := self._next_zombie()) is not None:
            if pid in self._workers:
                self._workers.discard(pid)
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                yield pid, *_collect(pid)
            else:
                _collect(pid)
        _kill(children() - self._workers)

    def sweep(self, report: Callable[[int, int, int], None]) -> None:
        """Kill the processes that dead workers have left behind, and wait for their end.

        Args:
            report: Called with each worker that ends meanwhile, as :meth:`reap` yields it.
        """
        give_up_at = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up_at:
            for ended in self.reap():
                report(*ended)
            if not children() - self._workers:
                return
            time.sleep(0.001)

    def end_all(self) -> None:
        """Kill all workers, all adopted processes and their descendants, and wait."""
        for pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        _kill(self._workers)
        give_up_at = time.monotonic() + _PATIENCE
        while time.monotonic() < give_up_at:
            _kill(children())
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                time.sleep(0.001)

    def _next_zombie(self) -> int | None:
        """Return the pid of a child that has ended, which is not collected yet."""
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return next((pid for pid in self._workers if _is_zombie(pid)), None)
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return None
        return found.si_pid if found is not None else None


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
