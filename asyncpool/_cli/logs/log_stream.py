"""A stream for a log whose writers never wait for its reader.

The reader of a log may stop: a terminal after Ctrl-S, a paused ``| tee``, a collector that
hangs.  A process that wrote to it directly would stop too, and a server's port with its master.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import TextIO

# Bytes that wait for the reader: some seconds of a flood, and a minute of much traffic.
_MOST = 4 * 2**20

# Seconds at the end, for a reader that may yet read the last lines.
_LAST_WRITES = 0.5


class LogStream:
    """A stream whose ``write`` returns at once, while a thread of its own writes.

    Without that thread it writes at once.  If the reader is slower than the log, *most* bytes
    wait; the lines beyond that are left out and counted.

    Args:
        stream: Where lines go.
        on_gap: Returns the line that says how many lines are left out at a place.
        most: How many bytes may wait.
    """

    def __init__(
        self, stream: TextIO, on_gap: Callable[[int], str], *, most: int = _MOST
    ) -> None:
        self._stream = stream
        self._on_gap = on_gap
        self._most = most
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = self._left_out = 0
        self._writes = self._ends = False

    @property
    def idle(self) -> bool:
        """Whether no line waits."""
        return not self._size

    def write(self, text: str) -> None:
        """Write *text*, which is one line or several, or leave it out."""
        if not self._writes:
            self._stream.write(text)
            self._stream.flush()
            return
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._size + len(data) > self._most:
                self._left_out += 1
                return
            self._tell_gap()
            self._put(data)
            self._changed.notify()

    def flush(self) -> None:
        """Do nothing: no writer waits."""

    @contextlib.contextmanager
    def in_a_thread(self, *, last_writes: float = _LAST_WRITES) -> Generator[None]:
        """Have a thread write while the context lasts, if the stream is a file.

        Args:
            last_writes: Seconds that the thread has at the end for the lines that wait.
        """
        try:
            fd = self._stream.fileno()
        except (OSError, ValueError, AttributeError):
            yield  # somebody's own stream
            return
        thread = threading.Thread(
            # A daemon: a write that never returns must not keep the process.
            target=self._write_all,
            args=(fd,),
            name="asyncpool log",
            daemon=True,
        )
        self._writes, self._ends = True, False
        thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._tell_gap()
                self._ends = True
                self._changed.notify()
            thread.join(last_writes)
            self._writes = thread.is_alive()  # else the next one would wait for it

    def _tell_gap(self) -> None:
        if self._left_out:
            self._put(self._on_gap(self._left_out).encode())
            self._left_out = 0

    def _put(self, data: bytes) -> None:
        self._waiting.append(data)
        self._size += len(data)

    def _write_all(self, fd: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                data = self._waiting.popleft()
            with contextlib.suppress(OSError):  # nobody can read it any more
                _write(fd, data)
            with self._changed:
                self._size -= len(data)


def _write(fd: int, data: bytes) -> None:
    """Write all of *data*; not by the stream, whose lock the interpreter's end waits for."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # somebody who shares it wants it so
            select.select([], [fd], [])
