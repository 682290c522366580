"""The shared memory that the pool has made for this worker.

Descriptors arrive on the control channel, so the control thread receives the segments.  The
main thread uses them, and waits here for a segment that is still on its way.
"""

from __future__ import annotations

import errno
import os
from _queue import SimpleQueue  # queue would do, see _worker/__init__.py
from collections import deque
from functools import partial

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncpool._system.memory import Memory


class Segments:
    """The segments of a worker, by number.

    Attributes:
        returned: Segments without any view left; the main thread tells the pool of them.
    """

    def __init__(self) -> None:
        self.returned: deque[int] = deque()
        # The control thread rings after it has changed an attribute below.  Each change is
        # one step under the GIL, so no lock is needed.  A ring too many does no harm.
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._arrived: dict[int, tuple[int | None, int]] = {}
        self._grants: deque[int] = deque()
        self._mapped: dict[int, Memory] = {}
        self._viewed: set[int] = set()
        self._copied: set[int] = set()

    # The control thread.

    def arrive(self, number: int, fd: int | None, size: int) -> None:
        """Take a new segment, whose descriptor may have been lost on its way."""
        self._arrived[number] = fd, size
        self._bell.put(None)

    def grant(self, number: int) -> None:
        """Note which segment the pool has granted for an outcome; 0 for none."""
        self._grants.append(number)
        self._bell.put(None)

    def drop(self, number: int) -> None:
        """Forget segment *number*, which the main thread has no view of."""
        self._mapped.pop(number, None)
        fd, _ = self._arrived.pop(number, (None, 0))
        if fd is not None:
            os.close(fd)

    # The main thread.

    def wait_for_grant(self) -> int:
        """Wait for the segment that an outcome may go to; return its number, 0 for none."""
        while not self._grants:
            self._bell.get()
        return self._grants.popleft()

    def memory(self, number: int) -> Memory:
        """Return segment *number*.

        Raises:
            OSError: If this process may open no more descriptors, or has no room.
        """
        memory = self._mapped.get(number)
        if memory is not None:
            return memory
        while number not in self._arrived:
            self._bell.get()
        fd, size = self._arrived.pop(number)
        if fd is None:
            text = "the shared memory of a job cannot be received"
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {text}")
        from asyncpool._system.memory import Memory  # noqa: PLC0415 - few jobs need ctypes

        try:
            memory = self._mapped[number] = Memory(fd, size)
        finally:
            os.close(fd)
        return memory

    def view(self, number: int) -> memoryview:
        """Return a view of segment *number*, whose end is noted in ``returned``.

        Raises:
            OSError: If it cannot be mapped.
        """
        # Of the main thread, at any moment, or another one's: it must not do more.
        view = self.memory(number).lend(partial(self.returned.append, number))
        self._viewed.add(number)
        return view

    def after_fork(self) -> None:
        """Take note that a job has forked: its copy has views of its own."""
        self._copied |= self._viewed

    def take_back(self, number: int) -> bool:
        """Tell whether a segment that was returned may be used again."""
        self._viewed.discard(number)
        if number not in self._copied:
            return True
        self._copied.discard(number)
        self._mapped.pop(number, None)
        return False
