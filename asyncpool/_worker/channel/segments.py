"""The shared memory that the pool has made for this worker.

The control thread hears of it, since that is where descriptors come in; the main
thread uses it, and waits here for what is still on its way.
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
        returned: Those of which no view is left; the main thread tells the pool.
    """

    def __init__(self) -> None:
        self.returned: deque[int] = deque()
        # Rung when there is news.  What is told, in single steps that the GIL keeps
        # whole, is in the attributes below; a ring too many does no harm.
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
        """Hear which segment an outcome may go to; 0 for none."""
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
        """Return which segment an outcome may go to; 0 for none."""
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
            OSError: If there is no way to see it.
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
