"""A worker page: memory that a worker shares with the pool, for notes that outlive the worker."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.machine import tell_refusal
from asyncpool._wire import page
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import tidy
from asyncpool._wire.text import printable_block

# The memory under a page, which its worker may try to take away.
#
# If somebody truncates a mapped file, the kernel kills each process that looks there with
# SIGBUS.  So the pool maps only a file that it can seal against truncation.  It reads and
# writes any other file with system calls.

# On Linux, files in this folder are memory.
_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - the file has no name


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


# Its slices name both a beginning and an end.
PageMemory: TypeAlias = mmap.mmap | _File


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
        instead = "workers share plain files with their pool"
        instead += ", and large objects go through sockets"
        tell_refusal("memfd_create", error, instead)
        return None
    return fd


def _plain_file(size: int) -> int:
    import tempfile  # noqa: PLC0415 - most systems have memfd_create, and this takes some ms

    folder = _IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None
    with tempfile.TemporaryFile(dir=folder) as file:
        file.truncate(size)
        # Or a worker learns of a full disk by SIGBUS.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        return os.dup(file.fileno())


_OUTCOMES = (FrameKind.VALUE, FrameKind.ERROR)

# How often the pool looks for heartbeats.  A lane has two records.  The worker may write into the
# first while the pool reads it, and then into the second, and then neither can be used.
_LOOKS = 5

R = TypeVar("R", bound=Callable[..., object])


def _or_else(otherwise: Callable[[], object]) -> Callable[[R], R]:
    """Have a method return something else if it cannot read the notes.

    The worker may have died while it wrote, or may have written anything; this process may
    have no memory left.  None of that may end the pool.
    """

    def decorate(read: R) -> R:
        @wraps(read)
        def read_or_else(*args: Any) -> object:
            try:
                return read(*args)
            except Exception as error:  # noqa: BLE001 - see above
                say.NOTES_UNREADABLE.log(LOGGER, {}, error=error)
                return otherwise()

        return cast("R", read_or_else)

    return decorate


class WorkerPage:
    """What one worker has noted.  While the page is not open, there are no notes.

    Args:
        width: How many jobs the worker runs at once.
    """

    def __init__(self, width: int = 1) -> None:
        self._layout = layout = page.PageLayout(width)
        self._stacks_at = slice(layout.stacks, layout.size)
        self._memory: PageMemory | None = None

    def open(self) -> int:
        """Make the memory; return a descriptor of it, which the caller closes.

        Raises:
            OSError: If the system refuses the memory.
        """
        size = self._layout.size
        try:
            fd, self._memory = make_memory(size)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            # To the kernel this memory is a file.  Few would think of that, so the message
            # names the limit.
            text = f"a worker shares {size} bytes of memory with its pool, and the limit of file"
            text += " size (RLIMIT_FSIZE, ulimit -f) is lower"
            raise OSError(errno.EFBIG, text) from error
        return fd

    def close(self) -> None:
        """Release the memory, and the notes with it."""
        if self._memory is not None:
            self._memory.close()
            self._memory = None

    @_or_else(lambda: True)  # an attempt that cannot be read counts as begun
    def begun(self, job: int, attempt: int) -> bool:
        """Return whether the worker has begun this attempt; the worker may be dead by now."""
        return self._lane(job, attempt) is not None

    @_or_else(list)
    def beats(self) -> list[page.Beat]:
        """Return the newest heartbeats of its jobs: two for each lane, the older one first."""
        memory, found = self._memory, list[page.Beat]()
        for lane in range(self._layout.width):
            start = self._layout.beats_offset(lane)
            if memory is not None and page.has_beats(memory, start):
                looks = (page.read_beats(memory, start) for _ in range(_LOOKS))
                found += next(filter(None, looks), [])
        return found

    @_or_else(partial(page.read_log, b""))  # so that no item is begun a second time
    def log(self, job: int, attempt: int) -> list[Any] | None:
        """Return the outcomes of the items of a chunk; ``None`` if it has not begun."""
        log = self.copy_log(job, attempt)
        return None if log is None else page.read_log(log)

    @_or_else(bytes)
    def copy_log(self, job: int, attempt: int) -> bytes | None:
        """Return a copy of the log of a chunk, unread; ``None`` if it has not begun."""
        lane = self._lane(job, attempt)
        if lane is None or self._memory is None:
            return None
        return page.copy_log(self._memory, self._layout.log_offset(lane), job, attempt)

    def stop_chunk(self, job: int, attempt: int) -> None:
        """Have the worker begin no other item of this chunk, if it runs the chunk now."""
        lane = self._lane(job, attempt)
        if lane is not None and self._memory is not None:
            page.ask_to_stop(self._memory, self._layout.log_offset(lane), job)

    @_or_else(str)
    def stack(self, job: int, attempt: int) -> str:
        """Return where the job's coroutine waits; empty with one lane, or if unknown."""
        lane = self._lane(job, attempt) if self._layout.width > 1 else None
        if lane is None or self._memory is None:
            return ""
        start = self._layout.stack_offset(lane)
        text = self._memory[start : start + page.LANE_STACK_SIZE]
        if page.JOB_KEY.unpack_from(text) != (job, attempt):
            return ""
        text, _, _ = text[page.JOB_KEY.size :].partition(b"\0")
        return printable_block(text.strip())

    @_or_else(dict)
    def outcomes(self) -> dict[tuple[int, int], Frame]:
        """Return the last outcome of each lane, by job and attempt.

        The worker may have sent it already.  A worker with one lane notes no outcomes.
        """
        found: dict[tuple[int, int], Frame] = {}
        if self._memory is None or self._layout.width == 1:
            return found
        for lane in range(self._layout.width):
            start = self._layout.outcome_offset(lane)
            noted = self._memory[start : start + page.LANE_OUTCOME_SIZE]
            job, attempt, kind, duration, size = page.NOTED.unpack_from(noted)
            if kind in _OUTCOMES and size <= page.LANE_OUTCOME_SIZE - page.NOTED.size:
                data = noted[page.NOTED.size : page.NOTED.size + size]
                frame = Frame(FrameKind(kind), job, attempt, duration, data)
                found[job, attempt] = frame
        return found

    @property
    def written_stacks(self) -> bytes:
        """What the worker has written of its stacks so far."""
        return self._stacks().rstrip(b"\0")

    @_or_else(str)
    def take_stacks(self) -> str:
        """Return the stacks that the worker has written, and erase them."""
        text = self._stacks().strip(b"\0")
        if self._memory is not None:
            self._memory[self._stacks_at] = bytes(page.STACKS_SIZE)
        return tidy(printable_block(text))

    @_or_else(bytes)
    def _stacks(self) -> bytes:
        return b"" if self._memory is None else self._memory[self._stacks_at]

    def _lane(self, job: int, attempt: int) -> int | None:
        """Return the lane in which this attempt has begun; the worker may be dead by now."""
        if self._memory is None:
            return None
        start, end = map(self._layout.begun_offset, (0, self._layout.width))
        table, place = self._memory[start:end], -1
        while (place := table.find(page.JOB_KEY.pack(job, attempt), place + 1)) >= 0:
            lane, inside = divmod(place, page.JOB_KEY.size)
            if not inside:
                return lane
        return None
