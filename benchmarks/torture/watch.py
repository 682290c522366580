"""All processes of a cell, found even after their parents are gone."""

import contextlib
import os
import time
from collections.abc import Iterator

import psutil

MARK = "ASYNCPOOL_TORTURE_CELL"
TICK = 0.02


class Family:
    """The process of a cell and all that it started, directly or not.

    Three traces, since each can be lost: the tree of parents (until one dies), the
    session (until a process opens its own), and a mark in the environment (until a
    process overwrites its own to change its title).
    """

    def __init__(self, pid: int, mark: str) -> None:
        self.pid = pid
        self.mark = mark
        self.known: set[psutil.Process] = set()

    def look(self) -> list[psutil.Process]:
        """Find who is alive now; zombies are not."""
        self.known |= {p for p in psutil.process_iter() if self.is_ours(p)}
        with contextlib.suppress(psutil.NoSuchProcess):
            self.known |= set(psutil.Process(self.pid).children(recursive=True))
        self.known = {process for process in self.known if is_alive(process)}
        return list(self.known)

    def is_ours(self, process: psutil.Process) -> bool:
        try:
            return (
                os.getsid(process.pid) == self.pid
                or process.environ().get(MARK) == self.mark
            )
        except (OSError, psutil.Error):
            return False

    def gone_after(self, limit: float) -> float | None:
        """Wait until nobody is left; None means that some outlived the limit."""
        since = time.monotonic()
        while self.look():
            if time.monotonic() - since > limit:
                return None
            time.sleep(TICK)
        return time.monotonic() - since

    def alive_after(self, *moments: float) -> Iterator[int]:
        """Count the living at each of *moments*, in seconds from now."""
        since = time.monotonic()
        for moment in moments:
            remaining = moment - (time.monotonic() - since)
            if remaining > 0 and self.look():
                self.gone_after(remaining)
            yield len(self.look())

    def end(self) -> None:
        """Kill everybody, resource trackers last: they unlink what the others left."""
        for patience in (0.5, 0.0):
            while others := [p for p in self.look() if patience == 0 or not cleans(p)]:
                for process in others:
                    with contextlib.suppress(psutil.Error):
                        process.kill()
                time.sleep(TICK)
            self.gone_after(patience)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def cleans(process: psutil.Process) -> bool:
    try:
        return any("resource_tracker" in part for part in process.cmdline())
    except psutil.Error:
        return False
