"""The trace of one pool: from what it tells of its life and its jobs to the lines of a file."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import SimpleQueue
from time import monotonic
from typing import Any

from asyncpool._core import log_messages as say
from asyncpool._core.deadlines import RateLimit
from asyncpool._engine.hub import Attempt, PoolHub
from asyncpool._engine.job import PoolJob
from asyncpool._engine.life_log import NamedLog
from asyncpool._engine.registry import job_ended, job_queued, job_started
from asyncpool._observe.traces import HEAD, LONG, TraceBook
from asyncpool.enums import JobOutcome
from asyncpool.events import Event, JobQueued, JobStarted
from asyncpool.stats import PoolStats, SlotStats

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


# Which jobs of a pool its trace shows: all of them, or a part if they are very many.
#
# What has failed is always shown, and so is what takes long: these jobs are followed from then on,
# and what was before is told with the times that it had.


class TracedJobs:
    """Tells the book of the jobs that the trace shows; see :class:`JobTracer` for its methods.

    Args:
        hub: What tells of the jobs.
        book: What makes lines of them.
        most: How many jobs a second are shown; ``None`` for all.
        on_line: Called when the book may have many lines.

    Attributes:
        limit: Which jobs are shown; it counts the others.
    """

    def __init__(
        self,
        hub: PoolHub,
        book: TraceBook,
        most: int | None,
        on_line: Callable[[], object],
    ) -> None:
        self._hub = hub
        self._book = book
        self._on_line = on_line
        self._open: set[int] = set()
        self.limit = RateLimit(most)

    def queued(self, job: PoolJob[Any], /) -> None:
        """Show a new job, unless they are too many."""
        at, limit = job.queued_at, self.limit
        if at < limit.next_at:  # the same as take(), whose call takes 60 ns
            limit.refused += 1
            return
        limit.take(at)
        number = job.id
        self._open.add(number)
        self._hub.trace(number)
        self._book.queued(job_queued(job, at))

    def sending(self, job: PoolJob[Any], slot: int, /) -> None:
        """Do nothing: how long a job waited is known when it ends."""

    def given_back(self, job: PoolJob[Any], /) -> None:
        """Show that an attempt has not begun after all."""
        if job.id in self._open:
            self._book.queued(job_queued(job, job.queued_at))

    def attempt_failed(
        self, job: PoolJob[Any], _: BaseException, attempt: Attempt | None, /
    ) -> None:
        """Show an attempt that has failed, and that the job waits again."""
        self._show(job, attempt)
        self._book.queued(job_queued(job, job.queued_at))

    def ended(
        self,
        job: PoolJob[Any],
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """Show the end of a job, and all of it if it has failed."""
        # A call that was refused has never waited.
        if job.id in self._open or (error and outcome is not JobOutcome.REFUSED):
            self._show(job, attempt)
        elif error is None:
            return
        self._open.discard(job.id)
        self._book.ended(job_ended(job, outcome, attempt))
        self._on_line()

    def look(self, slots: Iterable[SlotStats], now: float) -> None:
        """Show which attempts have been running for long."""
        for slot in slots:
            for job in slot.running:
                if job.seconds * 1e6 < LONG:
                    continue
                number, name, began = job.job_id, job.function, now - job.seconds
                if number not in self._open:
                    # How long it has waited is not known any more.
                    self._follow(number)
                    self._book.queued(
                        JobQueued(number, name, "submit", job.attempt - 1, began)
                    )
                self._book.started(
                    JobStarted(number, name, job.attempt, slot.slot, began)
                )
        self._book.look(now)

    def _show(self, job: PoolJob[Any], attempt: Attempt | None) -> None:
        """Show what there was of a job up to now."""
        if job.id not in self._open:
            self._follow(job.id)
            queued = job.queued_at if attempt is None else attempt.queued
            self._book.queued(job_queued(job, queued))
        if attempt is not None:
            self._book.started(job_started(job, attempt.slot, attempt.began))

    def _follow(self, number: int) -> None:
        self.limit.refused -= 1
        self._open.add(number)
        self._hub.trace(number)


# Seconds between two looks at the figures, and how long a line waits at most.
INTERVAL = 0.5

# As many lines are handed over without waiting for that.
_MANY = 1000

# The pools of one service are told apart by these.
_numbers = itertools.count()

# A process has at most 2**22 - 1 as its id, and a track's pid has 32 bits.
_POOLS = 1000


def next_number() -> int:
    """Return what the trace calls the next pool of this process."""
    return os.getpid() * _POOLS + next(_numbers) % _POOLS


class Trace:
    """Hears the events of a pool, follows its jobs, and writes its trace.

    Args:
        path: The file.
        name: What the pool is called.
        concurrency: How many jobs each worker runs at once.
        hub: What tells the events.
        stats: Returns the pool's figures.
        most: How many jobs a second are shown; ``None`` for all.

    Attributes:
        jobs: What follows the jobs.

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
        self._book = TraceBook(title, next_number(), os.getpid(), concurrency)
        self.jobs = TracedJobs(hub, self._book, most, self.hand_over_many)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(INTERVAL, self._look)
        hub.ends.append(self.end)
        hub.add_listener(self.hear)
        hub.add_tracer(self.jobs)

    def stop(self) -> None:
        """Hear of nothing any more but of the end."""
        self._hub.remove_listener(self.hear)
        self._hub.remove_tracer(self.jobs)

    def count(self) -> None:
        """Have the book note the figures, and which attempts run for long."""
        stats, now = self._stats(), monotonic()
        self.jobs.look(stats.slots, now)
        self._book.count(
            now,
            queued=stats.queued,
            busy=stats.busy,
            memory=sum(slot.memory for slot in stats.slots),
            omitted=self.jobs.limit.refused,
        )

    def hear(self, event: Event) -> None:
        """Take note of an event."""
        self._book.happened(event, monotonic())
        self.hand_over_many()

    def hand_over_many(self) -> None:
        """Hand the lines over, if they are many."""
        if len(self._book.lines) >= _MANY:
            self._hand_over()

    def end(self) -> None:
        """Write what is left, and close the file."""
        self._timer.cancel()
        try:
            self.count()
        finally:
            self._book.end(monotonic())
            self._hand_over()
            self._file.close()

    def _look(self) -> None:
        if self._file.stopped:
            self.stop()
            return
        self._timer = self._loop.call_later(INTERVAL, self._look)
        self.count()
        self._hand_over()

    def _hand_over(self) -> None:
        file, book = self._file, self._book
        lost = file.lost
        if book.lines:
            file.put(book.lines)
            book.lines.clear()
        if file.lost == lost and lost:
            file.lost = 0
            book.lost(monotonic(), lost)
