"""The memory under a page, which its worker may try to take away.

If somebody truncates a mapped file, the kernel kills each process that looks there with
SIGBUS.  So the pool maps only a file that it can seal against truncation.  It reads and
writes any other file with system calls.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from pathlib import Path
from typing import Protocol

from asyncpool._runtime.base.refusals import is_refusal, tell_once

# On Linux, files in this folder are memory.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - the file has no name


class PageMemory(Protocol):
    """Shared memory; its slices name both a beginning and an end."""

    def __getitem__(self, where: slice, /) -> bytes: ...
    def __setitem__(self, where: slice, data: bytes, /) -> None: ...
    def close(self) -> None:
        """Release it."""


def make_memory(size: int) -> tuple[int, PageMemory]:
    """Make shared memory.

    Returns:
        A descriptor of it, which the caller closes; and the memory, *size* bytes of zeros.

    Raises:
        OSError: If the system refuses it.
    """
    fd = _sealed_file(size) if hasattr(os, "memfd_create") else None
    sealed = fd is not None
    if fd is None:
        fd = _plain_file(size)
    try:
        return fd, mmap.mmap(fd, size) if sealed else _File(fd)
    except BaseException:
        os.close(fd)
        raise


class _File:
    """A file that somebody may truncate at any time; what is missing reads as zeros."""

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)

    def __getitem__(self, where: slice) -> bytes:
        size = where.stop - where.start
        return os.pread(self._fd, size, where.start).ljust(size, b"\0")

    def __setitem__(self, where: slice, data: bytes) -> None:
        os.pwrite(self._fd, data, where.start)

    def close(self) -> None:
        os.close(self._fd)


def _sealed_file(size: int) -> int | None:
    """Return a descriptor of memory that nobody can truncate; ``None`` if it is refused."""
    fd = -1
    try:
        fd = os.memfd_create("asyncpool-page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        if not is_refusal(error):
            raise
        tell_once(
            "memfd_create",
            error,
            "workers share plain files with their pool, and large objects go through "
            "sockets",
        )
        return None
    return fd


def _plain_file(size: int) -> int:
    import tempfile  # noqa: PLC0415 - most systems have memfd_create, and this takes some ms

    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        if hasattr(
            os, "posix_fallocate"
        ):  # or a worker learns of a full disk by SIGBUS
            os.posix_fallocate(file.fileno(), 0, size)
        return os.dup(file.fileno())
