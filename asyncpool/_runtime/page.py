"""Memory that a worker shares with the pool: notes that outlive their writer."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import tempfile
from typing import Any

from asyncpool._core.beats import Beat, has_any, read
from asyncpool._core.chunks import ask_to_stop, read_log
from asyncpool._core.frames import Frame, Kind
from asyncpool._core.page import (
    BEGUN,
    LANE_OUTCOME_SIZE,
    LANE_STACK_SIZE,
    NOTED,
    STACKS_SIZE,
    Layout,
)
from asyncpool._core.stacks import tidy

__all__ = ["Page"]

_OUTCOMES = (Kind.VALUE, Kind.ERROR)

# How often beats are looked for: both may be torn, if the first is read while it is
# written, and the second too.
_LOOKS = 5


class Page:
    """What one worker has noted; nothing, as long as it is not open.

    Args:
        width: How many jobs it runs at once.
    """

    def __init__(self, width: int = 1) -> None:
        self._layout = Layout(width)
        self._memory: mmap.mmap | None = None

    def open(self) -> int:
        """Make the memory; return a descriptor of it, which the caller closes.

        Raises:
            OSError: If this process lacks the means.
        """
        size = self._layout.size
        try:
            fd = _anonymous_file(size)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            # Nobody thinks of files here: the memory is one to the kernel.
            raise OSError(
                errno.EFBIG,
                f"a worker shares {size} bytes of memory with its pool, and the limit of "
                "file size (RLIMIT_FSIZE, ulimit -f) is lower",
            ) from error
        try:
            self._memory = mmap.mmap(fd, size)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def close(self) -> None:
        """Forget what was noted."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    def begun(self, job: int, attempt: int) -> bool:
        """Tell whether the worker has begun this attempt; it may be dead by now."""
        return self._lane(job, attempt) is not None

    def beats(self) -> list[Beat]:
        """Return the newest beats of its jobs, two of each lane, the older one first."""
        found: list[Beat] = []
        for lane in range(self._layout.width):
            found += self._beats(self._layout.beats(lane))
        return found

    def log(self, job: int, attempt: int) -> list[Any] | None:
        """Return what has become of the items of that chunk, if they have begun."""
        lane = self._lane(job, attempt)
        if lane is None or self._memory is None:
            return None
        return read_log(self._memory, self._layout.log(lane), job, attempt)

    def stop_chunk(self, job: int, attempt: int) -> None:
        """Have no other item of that chunk begin, if it is running now."""
        lane = self._lane(job, attempt)
        if lane is not None and self._memory is not None:
            ask_to_stop(self._memory, self._layout.log(lane))

    def stack(self, job: int, attempt: int) -> str:
        """Return where its coroutine waits, if it is one of several and has said so."""
        lane = self._lane(job, attempt) if self._layout.width > 1 else None
        if lane is None or self._memory is None:
            return ""
        start = self._layout.stack(lane)
        if BEGUN.unpack_from(self._memory, start) != (job, attempt):
            return ""
        text = self._memory[start + BEGUN.size : start + LANE_STACK_SIZE]
        return text.partition(b"\0")[0].decode(errors="replace").strip()

    def outcomes(self) -> dict[tuple[int, int], Frame]:
        """Return the last outcomes, by job and attempt, if it runs several at once.

        They may have been sent, or not.
        """
        found: dict[tuple[int, int], Frame] = {}
        if self._memory is None or self._layout.width == 1:
            return found
        for lane in range(self._layout.width):
            start = self._layout.outcome(lane)
            job, attempt, kind, duration, size = NOTED.unpack_from(self._memory, start)
            if kind in _OUTCOMES and size <= LANE_OUTCOME_SIZE - NOTED.size:
                start += NOTED.size
                data = self._memory[start : start + size]
                found[job, attempt] = Frame(Kind(kind), job, attempt, duration, data)
        return found

    @property
    def stacks_size(self) -> int:
        """How many bytes of its stacks it has written down so far."""
        if self._memory is None:
            return 0
        return len(self._memory[self._layout.stacks :].rstrip(b"\0"))

    def read_stacks(self) -> str:
        """Return what it has written down of its stacks, and wipe it out."""
        if self._memory is None:
            return ""
        text = self._memory[self._layout.stacks :].strip(b"\0")
        self._memory[self._layout.stacks :] = bytes(STACKS_SIZE)
        return tidy(text.decode(errors="replace"))

    def _beats(self, start: int) -> list[Beat]:
        if self._memory is None or not has_any(self._memory, start):
            return []
        for _ in range(_LOOKS):
            if found := read(self._memory, start):
                return found
        return []

    def _lane(self, job: int, attempt: int) -> int | None:
        """Return the lane in which that has begun; the worker may be dead by now."""
        if self._memory is None:
            return None
        start, end = self._layout.begun(0), self._layout.begun(self._layout.width)
        wanted = BEGUN.pack(job, attempt)
        while (found := self._memory.find(wanted, start, end)) >= 0:
            lane, inside = divmod(found - self._layout.begun(0), BEGUN.size)
            if not inside:
                return lane
            start = found + 1
        return None


def _anonymous_file(size: int) -> int:
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    fd = os.memfd_create("asyncpool-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # Else a job that finds the descriptor and truncates the page would have this
        # process killed by SIGBUS when it looks there.
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd
