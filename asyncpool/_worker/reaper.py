"""Collect the dead, and whatever they leave behind.

The launcher's process is the parent of all workers and, on Linux, adopts every
descendant of theirs that loses its own parent.  So a worker never leaves anything
running: its process group is killed while its own pid still cannot be given to
anybody else, and what it had started in other groups or sessions is found among
the adopted: by the mark in the environment of the programs that a worker starts,
or, where there is none, by having lost its parent in the same moment.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

from asyncpool._worker.kernel import children, mark_of

__all__ = ["Reaper"]

# A process in an uninterruptible sleep cannot be waited for any longer than this.
_PATIENCE = 5.0


class Reaper:
    """The children of this process: workers by name, and adopted ones."""

    def __init__(self) -> None:
        self._workers: set[int] = set()
        self._adopted: set[int] = set()
        self._condemned: set[int] = set()

    def add(self, pid: int) -> None:
        """Take note of a worker that was started."""
        self._workers.add(pid)
        self._adopted = children() - self._workers

    def reap(self) -> Iterator[tuple[int, int]]:
        """Yield the pid and exit status of every worker that has ended."""
        died = False
        while (pid := _next_zombie()) is not None:
            if pid in self._workers:
                died = True
                self._workers.discard(pid)
                with contextlib.suppress(OSError):
                    os.killpg(pid, signal.SIGKILL)
                yield pid, _collect(pid)
            else:
                # Those whom it leaves behind come here next, and share its fate.
                died = died or pid in self._condemned
                self._condemned.discard(pid)
                _collect(pid)
        strays = children() - self._workers
        doomed = {pid for pid in strays if self._is_left_over(pid, died=died)}
        _kill(doomed)
        self._condemned |= doomed
        self._adopted = strays

    def _is_left_over(self, pid: int, *, died: bool) -> bool:
        """Tell whether an adopted process was started by a worker that is gone."""
        worker = mark_of(pid)
        if worker is not None:
            return worker not in self._workers
        # Without a mark it is a mere fork.  If it is new here it lost its parent just
        # now; that a living worker's came in the same instant is the lesser evil.
        return died and pid not in self._adopted

    def end_all(self) -> None:
        """Kill every worker and every adopted process, and theirs, and wait."""
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


def _next_zombie() -> int | None:
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return found.si_pid if found is not None else None


def _collect(pid: int) -> int:
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def _kill(pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
