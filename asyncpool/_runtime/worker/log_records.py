"""What loggers of workers record: to the loggers of the same names here.

However much workers log, a turn of the loop spends no more than 0.25 ms on it: a
worker that is too far ahead is read no more until the rest is done, and has to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from pathlib import PurePath
from time import perf_counter
from typing import Protocol

from asyncpool._core.base.text import printable, printable_lines
from asyncpool._core.wire.log_records import LogEntry
from asyncpool._runtime.channel.channel import Channel
from asyncpool.errors import ProtocolError

_LOGGER = logging.getLogger("asyncpool")

_TURN = 0.00025  # s
_AHEAD = 64

# Seconds that handlers have at the end of a pool.
_LAST_TURNS = 1.0


class Author(Protocol):
    """What is to be known of a worker."""

    @property
    def pid(self) -> int | None:
        """The number of its process."""

    def accuse(self, detail: str) -> None:
        """Treat it as one that cannot be trusted any more."""


class WorkerLogs:
    """The records of all workers of a pool, in the order in which they came.

    Args:
        loop: The loop of which they take turns.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._waiting: deque[tuple[LogNotes, bytes]] = deque()
        self._emptied: asyncio.Future[None] | None = None

    async def finish(self) -> None:
        """Wait until all is passed on, if that does not take too long.

        Cancellation:
            Safe: it goes on.
        """
        if self._emptied is not None:
            await asyncio.wait((self._emptied,), timeout=_LAST_TURNS)

    def close(self) -> None:
        """Drop what is left."""
        left = len(self._waiting)
        self._waiting.clear()
        if left:
            _LOGGER.warning("%d records of workers are left out here", left)

    def add(self, notes: LogNotes, payload: bytes) -> None:
        """Have a record passed on, soon."""
        self._waiting.append((notes, payload))
        if self._emptied is None:
            self._emptied = self._loop.create_future()
            self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        until = perf_counter() + _TURN
        try:
            while self._waiting:
                notes, payload = self._waiting.popleft()
                notes.pass_on(payload)
                if perf_counter() >= until:
                    break
        finally:
            if self._waiting:
                self._loop.call_soon(self._pass_on)
            elif self._emptied is not None:
                self._emptied.set_result(None)
                self._emptied = None


class LogNotes:
    """The records of one worker.

    Args:
        journal: What passes them on.
        author: The worker.
        channel: Where they come from.

    Attributes:
        paused: Whether the worker has to wait, since it is too far ahead.
    """

    def __init__(self, journal: WorkerLogs, author: Author, channel: Channel) -> None:
        self._journal = journal
        self._author = author
        self._channel = channel
        self._waiting = 0
        self.paused = False

    def add(self, payload: bytes) -> None:
        """Take the payload of a ``RECORD`` frame."""
        self._journal.add(self, payload)
        self._waiting += 1
        if self._waiting == _AHEAD:
            self.paused = True
            self._channel.pause()

    def pass_on(self, payload: bytes) -> None:
        """Give a record to its logger, whatever its handlers make of it."""
        self._waiting -= 1
        if not self._waiting and self.paused:
            self.paused = False
            self._channel.resume()
        try:
            entry = LogEntry.unpack(payload)
        except ProtocolError as error:
            self._author.accuse(str(error))
            return
        # A handler or filter of the user's may raise anything.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            _hand_over(entry, self._author.pid or entry.process)


def explicit_levels() -> tuple[tuple[tuple[str, int], ...], int]:
    """Return the levels that loggers of this process were given, and the disabled one."""
    root = logging.getLogger()
    levels = [("", root.level)]
    for name, logger in list(root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            levels.append((name, logger.level))
    return tuple(levels), root.manager.disable


def _hand_over(entry: LogEntry, worker: int) -> None:
    root = logging.getLogger()
    found: object = root
    if entry.name != root.name:
        found = root.manager.loggerDict.get(entry.name)
    if isinstance(found, logging.Logger):
        if found.isEnabledFor(entry.level):
            found.handle(_record_of(entry, worker))
        return
    # It would do what the next one above does.  None is made, since loggers stay for
    # ever, and a worker may think of any number of names.
    logger, name = root, entry.name
    while logger is root and "." in name:
        name = name.rpartition(".")[0]
        above = root.manager.loggerDict.get(name)
        logger = above if isinstance(above, logging.Logger) else root
    least = max(logger.getEffectiveLevel(), root.manager.disable + 1)
    if entry.level >= least:
        logger.callHandlers(_record_of(entry, worker))


def _harmless(entry: LogEntry) -> LogEntry:
    """Return it without what would control a terminal, or begin a line in a name."""
    return entry._replace(
        name=printable(entry.name),
        level_name=printable(entry.level_name),
        message=printable_lines(entry.message),
        path=printable(entry.path),
        function=printable(entry.function),
        process_name=printable(entry.process_name),
        thread_name=printable(entry.thread_name),
        task_name=printable(entry.task_name),
        trace=printable_lines(entry.trace),
        stack=printable_lines(entry.stack),
    )


def _record_of(entry: LogEntry, worker: int) -> logging.LogRecord:
    record = logging.makeLogRecord(entry.fields)
    ours = {"job_id": entry.job, "attempt": entry.attempt, "worker": worker}
    for name in ours.keys() & entry.fields.keys():
        # A job's own logger has given the same.
        if (given := entry.fields[name]) != ours[name]:
            vars(record)[f"extra_{name}"] = given
    entry = _harmless(entry)
    path = PurePath(entry.path)
    age = record.created - entry.created
    vars(record).update(
        name=entry.name,
        levelno=entry.level,
        levelname=entry.level_name,
        msg=entry.message,
        args=None,
        pathname=entry.path,
        filename=path.name,
        module=path.stem,
        lineno=entry.line,
        funcName=entry.function,
        created=entry.created,
        msecs=entry.created % 1 * 1000,
        relativeCreated=record.relativeCreated - age * 1000,
        process=entry.process,
        processName=entry.process_name,
        thread=entry.thread,
        threadName=entry.thread_name,
        taskName=entry.task_name or None,
        exc_info=None,
        exc_text=entry.trace or None,
        stack_info=entry.stack or None,
        **ours,
    )
    return record
