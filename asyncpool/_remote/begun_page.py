"""Memory in which an agent notes which jobs begin, where its client is on the same machine.

The client looks there only when it has to know: when the agent is lost, for example.  Other
carriers have ``BEGAN`` messages instead, which take a tenth more CPU time of both ends.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from asyncpool._wire.memory import Memory, available, create

_WORD = 8


class BegunPage:
    """For each place the number of the job that has begun there last.

    A place belongs to one job at a time.  A number is written at once or not at all.

    Args:
        memory: The memory.
    """

    def __init__(self, memory: Memory) -> None:
        self._words = memory.lend(_nothing).cast("Q")

    def mark(self, place: int, job: int) -> None:
        """Note that *job* begins, whose place that is."""
        self._words[place] = job

    def has_begun(self, place: int, job: int) -> bool:
        """Tell whether *job* has begun, whose place that is."""
        return self._words[place] == job


def make_page(places: int) -> tuple[int, BegunPage] | None:
    """Return a descriptor of a page, which the caller closes, and the page; ``None`` if refused."""
    if not available():
        return None
    size = places * _WORD
    try:
        fd = create(size)
    except OSError:
        return None
    try:
        return fd, BegunPage(Memory(fd, size))
    except OSError:
        os.close(fd)
        return None


def open_page(process: int | None, number: int, places: int) -> BegunPage | None:
    """Return the page whose descriptor the other process has as *number*.

    It is ``None`` if this process cannot open it, or if the other one could shrink it, which
    would kill this process when it looks there.
    """
    if not process or not number or not available():
        return None
    size = places * _WORD
    try:
        with Path(f"/proc/{process}/fd/{number}").open("r+b", buffering=0) as file:
            seals = fcntl.fcntl(file, fcntl.F_GET_SEALS)
            fits = os.fstat(file.fileno()).st_size >= size
            if not seals & fcntl.F_SEAL_SHRINK or not fits:
                return None
            return BegunPage(Memory(file.fileno(), size))
    except OSError:  # it is in another container, say
        return None


def _nothing() -> None:
    """Do nothing: the page lasts as long as its end of the connection."""
