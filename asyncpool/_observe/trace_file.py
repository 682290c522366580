"""The file of a trace, written by a thread of its own.

A disk that is slow or full must not hold up the pool.  So the event loop only hands lines over,
and a bound on what waits for the disk keeps the memory small.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import stat
import threading
from contextlib import suppress
from queue import SimpleQueue

from asyncpool._core.logs import pool_messages as say
from asyncpool._core.trace.trace_lines import HEAD

_LOGGER = logging.getLogger("asyncpool")

# Characters that may wait for the disk; a job takes some 500.
_MOST_WAITING = 32 << 20

# Seconds that the end of a pool waits for a disk.
_LAST_WRITES = 2.0

_ADVICE = "name another file by trace, or leave trace out"


class TraceFile:
    """A file that gets lines, and never has half a line for long.

    Args:
        path: Where it is; an older trace there is replaced.
        title: What errors and logs call the pool, or the cluster.

    Attributes:
        stopped: Whether it cannot be written any more.
        lost: How many lines were left out since the disk was too slow.

    Raises:
        OSError: If it cannot be written, or is no trace.
    """

    def __init__(self, path: str, title: str) -> None:
        self._path = path
        self._title = title
        try:
            self._file = _open(path)
        except OSError as error:
            why = f"{error.strerror}: {title} cannot write its trace; {_ADVICE}"
            raise type(error)(error.errno, why, path) from None
        self.stopped = False
        self.lost = 0
        self._size = 0
        self._waiting = 0
        self._lines: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
        self._thread = threading.Thread(
            target=self._work, name="asyncpool-trace", daemon=True
        )
        self._thread.start()

    def put(self, lines: list[str]) -> None:
        """Have *lines* written; they are lost if too many wait already."""
        if self.stopped:
            return
        text = "".join(lines)
        if self._waiting > _MOST_WAITING:
            self.lost += len(lines)
            return
        # The thread takes away and this adds: only the sum of both is wrong for a moment.
        self._waiting += len(text)
        self._lines.put((text, len(text)))

    def close(self) -> None:
        """Write what is left, and close the file; a disk that hangs has a moment."""
        self._lines.put(None)
        self._thread.join(_LAST_WRITES)

    def _work(self) -> None:
        try:
            while (entry := self._lines.get()) is not None:
                text, size = entry
                self._write(text.encode())
                self._waiting -= size
        except OSError as error:
            self.stopped = True
            self._cut()
            what, _, name = self._title.partition(" ")
            extra = {"pool": name, "path": str(self._path)}
            say.TRACE_ENDED.log(
                _LOGGER, extra, what=what, title=self._title, why=error.strerror
            )
        finally:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        written, view = 0, memoryview(data)
        try:
            while written < len(data):
                written += os.write(self._file, view[written:])
        finally:
            # What a full disk has taken, up to its last whole line.
            self._size += data.rfind(b"\n", 0, written) + 1

    def _cut(self) -> None:
        """Take away half a line."""
        with suppress(OSError):  # it is no file on a disk
            os.ftruncate(self._file, self._size)


def _open(path: str) -> int:
    """Open a file, and leave alone what is no trace.

    Raises:
        OSError: If that cannot be, or another pool or cluster writes it.
    """
    # Without O_NONBLOCK a pipe would wait here until somebody reads it.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    try:
        if not stat.S_ISCHR(os.fstat(file).st_mode):  # /dev/null, for one
            _check_content(file)
            _lock(file)
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def _check_content(file: int) -> None:
    """Refuse a file that is no trace, since it would be lost."""
    if not stat.S_ISREG(os.fstat(file).st_mode):
        raise OSError(errno.EINVAL, "it is no file")
    head = HEAD.encode()
    begin = os.pread(file, len(head), 0)
    # A trace whose disk was full may have no whole head.
    if not head.startswith(begin):
        raise FileExistsError(errno.EEXIST, "there is a file that is no trace")


def _lock(file: int) -> None:
    """Refuse a file that another pool or cluster writes."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FileExistsError(
            errno.EEXIST, "another pool or cluster writes it"
        ) from None
    except OSError:
        pass  # a file system without locks
