"""Memory that a worker shares with the pool: notes that outlive their writer.

On the first page the worker notes which job it has begun.  Behind that is room for the
stacks of its threads.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile

from asyncpool._core.stacks import tidy

__all__ = ["Page"]

_BEGUN = struct.Struct("=QQ")

# How much of its stacks a worker can write down; memory is used only if it does.
_STACKS_SIZE = 1 << 16


class Page:
    """What one worker has noted; nothing, as long as it is not open."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def open(self) -> int:
        """Make the memory; return a descriptor of it, which the caller closes.

        Raises:
            OSError: If this process lacks the means.
        """
        size = mmap.PAGESIZE + _STACKS_SIZE
        fd = _anonymous_file(size)
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
        if self._memory is None:
            return False
        return _BEGUN.unpack_from(self._memory) == (job, attempt)

    @property
    def stacks_size(self) -> int:
        """How many bytes of its stacks it has written down so far."""
        if self._memory is None:
            return 0
        return len(self._memory[mmap.PAGESIZE :].rstrip(b"\0"))

    def read_stacks(self) -> str:
        """Return what it has written down of its stacks, and wipe it out."""
        if self._memory is None:
            return ""
        text = self._memory[mmap.PAGESIZE :].strip(b"\0")
        self._memory[mmap.PAGESIZE :] = bytes(_STACKS_SIZE)
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
