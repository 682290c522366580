"""The trace of one pool: from what it tells of its life and its jobs to the lines of a file."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic

from asyncpool._core import log_messages as say
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.life_log import NamedLog
from asyncpool._observe.traces import HEAD, TraceBook
from asyncpool.events import Event
from asyncpool.stats import PoolStats

# The file of a trace, written by a thread of its own.
#
# A disk that is slow or full must not hold up the pool.  So the event loop only hands lines over,
# and a bound on what waits for the disk keeps the memory small.


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
            log = NamedLog(name, self._title)
            extra = {"path": str(self._path)}
            log.now(say.TRACE_ENDED, extra, what=what, why=error.strerror)
        finally:
            os.close(self._file)

    def _write(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, memoryview(data)[written:])
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


# Seconds between two looks at the figures, and how long a line waits at most.
_INTERVAL = 0.5

# As many lines are handed over without waiting for that.
_MANY = 1000

_numbers = itertools.count()

# A process has at most 2**22 - 1 as its id, and a track's pid has 32 bits.
_POOLS = 1000


class Trace:
    """Hears the events of a pool, follows its jobs, and writes its trace.

    Args:
        path: The file.
        name: What the pool is called.
        concurrency: How many jobs each worker runs at once.
        hub: What tells the events.
        stats: Returns the pool's figures.
        most: How many jobs a second are shown; ``None`` for all.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(
        self,
        path: str,
        *,
        name: str,
        concurrency: int,
        hub: PoolHub,
        stats: Callable[[], PoolStats],
        most: int | None,
    ) -> None:
        title = f"pool {name}"
        self._file = TraceFile(path, title)
        self._hub = hub
        self._stats = stats
        self._book = TraceBook(
            title,
            # The pools of one service are told apart.
            os.getpid() * _POOLS + next(_numbers) % _POOLS,
            os.getpid(),
            concurrency,
            most=most,
            follow=hub.trace,
            clock=monotonic,
            on_job=self._hand_over_many,
        )
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_INTERVAL, self._look)
        hub.ends.append(self._end)
        hub.add_listener(self._hear)
        hub.add_tracer(self._book)

    def _hear(self, event: Event) -> None:
        self._book.happened(event)
        self._hand_over_many()

    def _look(self) -> None:
        if self._file.stopped:
            self._hub.remove_listener(self._hear)
            self._hub.remove_tracer(self._book)
            return
        self._timer = self._loop.call_later(_INTERVAL, self._look)
        self._count()
        self._hand_over()

    def _count(self) -> None:
        stats, now = self._stats(), monotonic()
        self._book.look(stats.slots, now)
        self._book.count(now, stats)

    def _end(self) -> None:
        """Write what is left, and close the file."""
        self._timer.cancel()
        try:
            self._count()
        finally:
            self._book.end()
            self._hand_over()
            self._file.close()

    def _hand_over_many(self) -> None:
        if len(self._book.lines) >= _MANY:
            self._hand_over()

    def _hand_over(self) -> None:
        file, book = self._file, self._book
        lost = file.lost
        if book.lines:
            file.put(book.lines)
            book.lines.clear()
        if file.lost == lost and lost:
            file.lost = 0
            book.lost(lost)
