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
from contextlib import ExitStack, suppress
from queue import SimpleQueue

from asyncpool._core import log_messages as say
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.options import EngineConfig
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
        self._waiting = 0
        self._lines: SimpleQueue[str | None] = SimpleQueue()
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
        self._lines.put(text)

    def close(self) -> None:
        """Write what is left, and close the file; a disk that hangs has a moment."""
        self._lines.put(None)
        self._thread.join(_LAST_WRITES)

    def _work(self) -> None:
        size = 0  # of whole lines
        try:
            while (text := self._lines.get()) is not None:
                data, written = text.encode(), 0
                try:
                    while written < len(data):
                        written += os.write(self._file, memoryview(data)[written:])
                finally:
                    # What a full disk has taken, up to its last whole line.
                    size += data.rfind(b"\n", 0, written) + 1
                self._waiting -= len(text)
        except OSError as error:
            self.stopped = True
            with suppress(OSError):  # it is no file on a disk
                os.ftruncate(self._file, size)
            what, _, name = self._title.partition(" ")
            log = NamedLog(name, self._title)
            extra = {"path": str(self._path)}
            log.now(say.TRACE_ENDED, extra, what=what, why=error.strerror)
        finally:
            os.close(self._file)


def _open(path: str) -> int:
    """Open a file, and leave alone what is no trace, since it would be lost.

    Raises:
        OSError: If that cannot be, or another pool or cluster writes it.
    """
    # Without O_NONBLOCK a pipe would wait here until somebody reads it.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(path, flags, 0o666)
    with ExitStack() as stack:
        stack.callback(os.close, file)
        if not stat.S_ISCHR(os.fstat(file).st_mode):  # /dev/null, for one
            head = HEAD.encode()
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise OSError(errno.EINVAL, "it is no file")
            # A trace whose disk was full may have no whole head.
            if not head.startswith(os.pread(file, len(head), 0)):
                raise FileExistsError(errno.EEXIST, "there is a file that is no trace")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                in_use = "another pool or cluster writes it"
                raise FileExistsError(errno.EEXIST, in_use) from None
            except OSError:
                pass  # a file system without locks
            os.ftruncate(file, 0)
        stack.pop_all()
    return file


# Seconds between two looks at the figures, and how long a line waits at most.
_INTERVAL = 0.5

# As many lines are handed over without waiting for that.
_MANY = 1000

_numbers = itertools.count()

# A process has at most 2**22 - 1 as its id, and a track's pid has 32 bits.
_POOLS = 1000


class Trace(TraceBook):
    """Hears the events of a pool, follows its jobs, and writes its trace.

    Args:
        config: What the pool was told, also about its trace.
        hub: What tells the events.
        stats: Returns the pool's figures.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(
        self, config: EngineConfig, hub: PoolHub, stats: Callable[[], PoolStats]
    ) -> None:
        title, service = config.title, os.getpid()
        self._file = TraceFile(config.trace or "", title)
        self._stats = stats
        # The pools of one service are told apart.
        number = service * _POOLS + next(_numbers) % _POOLS
        concurrency, most = config.worker.concurrency, config.max_traced
        super().__init__(hub, title, number, service, concurrency, most)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(_INTERVAL, self._write_all)
        hub.ends.append(self._close)
        hub.add_listener(self._hear)
        hub.add_tracer(self)

    def _hear(self, event: Event) -> None:
        self.happened(event)
        self._hand_over_many()

    def _write_all(self) -> None:
        if self._file.stopped:
            self._hub.remove_listener(self._hear)
            self._hub.remove_tracer(self)
            return
        self._timer = self._loop.call_later(_INTERVAL, self._write_all)
        self._look_at_all()
        self._hand_over()

    def _look_at_all(self) -> None:
        stats = self._stats()
        self.look(stats.slots)
        self.count(stats)

    def _close(self) -> None:
        """Write what is left, and close the file."""
        self._timer.cancel()
        try:
            self._look_at_all()
        finally:
            self.end()
            self._hand_over()
            self._file.close()

    def _hand_over_many(self) -> None:
        if len(self.lines) >= _MANY:
            self._hand_over()

    def _hand_over(self) -> None:
        file, lost = self._file, self._file.lost
        if self.lines:
            file.put(self.lines)
            self.lines.clear()
        if file.lost == lost and lost:
            file.lost = 0
            self.lost(lost)
