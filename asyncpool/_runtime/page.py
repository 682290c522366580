"""Memory that a worker shares with the pool: notes that outlive their writer."""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
from typing import Any

from asyncpool._core.beats import Beat, read
from asyncpool._core.chunks import ask_to_stop, read_log
from asyncpool._core.page import (
    BEATS_START,
    BEGUN,
    LOG_START,
    PAGE_SIZE,
    STACKS_SIZE,
    STACKS_START,
)
from asyncpool._core.stacks import tidy

__all__ = ["Page"]

# How often beats are looked for: both may be torn, if the first is read while it is
# written, and the second too.
_LOOKS = 5


class Page:
    """What one worker has noted; nothing, as long as it is not open."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def open(self) -> int:
        """Make the memory; return a descriptor of it, which the caller closes.

        Raises:
            OSError: If this process lacks the means.
        """
        fd = _anonymous_file(PAGE_SIZE)
        try:
            self._memory = mmap.mmap(fd, PAGE_SIZE)
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
        if self._memory is None:
            return False
        return BEGUN.unpack_from(self._memory) == (job, attempt)

    def beats(self) -> list[Beat]:
        """Return the newest beats of its jobs, two at the most, the older one first."""
        if self._memory is not None:
            for _ in range(_LOOKS):
                if found := read(self._memory, BEATS_START):
                    return found
        return []

    def log(self, job: int, attempt: int) -> list[Any] | None:
        """Return what has become of the items of that chunk, if it was the last one."""
        if self._memory is None:
            return None
        return read_log(self._memory, LOG_START, job, attempt)

    def stop_chunk(self) -> None:
        """Have no other item of the chunk begin that is running now."""
        if self._memory is not None:
            ask_to_stop(self._memory, LOG_START)

    @property
    def stacks_size(self) -> int:
        """How many bytes of its stacks it has written down so far."""
        if self._memory is None:
            return 0
        return len(self._memory[STACKS_START:].rstrip(b"\0"))

    def read_stacks(self) -> str:
        """Return what it has written down of its stacks, and wipe it out."""
        if self._memory is None:
            return ""
        text = self._memory[STACKS_START:].strip(b"\0")
        self._memory[STACKS_START:] = bytes(STACKS_SIZE)
        return tidy(text.decode(errors="replace"))


def _anonymous_file(size: int) -> int:
    if not hasattr(os, "memfd_create"):
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            return os.dup(file.fileno())
    fd = os.memfd_create("asyncpool-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    # Else a job that finds the descriptor and truncates the page would have this
    # process killed by SIGBUS when it looks there.
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd
