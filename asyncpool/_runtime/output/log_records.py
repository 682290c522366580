"""What loggers of workers record, passed on to the loggers of the same names here.

In one turn of the loop the pool spends at most 0.25 ms on records.  If a worker has sent too
many, the pool stops reading its control channel until they are passed on.  So that worker waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from pathlib import PurePath
from time import perf_counter
from typing import Protocol

from asyncpool._core.base.names import JOB_LOGGER
from asyncpool._core.base.text import printable, printable_lines, printable_name
from asyncpool._core.logs import pool_messages as say, worker_messages
from asyncpool._core.wire.log_records import LogEntry
from asyncpool._runtime.channel.channel import Channel
from asyncpool.errors import ProtocolError

_LOGGER = logging.getLogger("asyncpool")
_OURS = "asyncpool."  # how the names of the service's other loggers begin

_TURN = 0.00025  # s
_AHEAD = 64

# Seconds that the pool spends on the remaining records when it closes.
_LAST_TURNS = 1.0


class Author(Protocol):
    """The worker, as far as this module needs to know it."""

    slot: int
    generation: int

    @property
    def pid(self) -> int | None:
        """The pid of its process."""

    def distrust(self, detail: str) -> None:
        """Trust the worker no more, since it has done what *detail* says."""


class WorkerLogs:
    """The records of all workers of a pool, in the order in which they came.

    Args:
        loop: The pool's loop.
        pool: Its name.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: str) -> None:
        self.pool = pool
        self._loop = loop
        self._waiting: deque[tuple[LogNotes, bytes]] = deque()
        self._emptied: asyncio.Future[None] | None = None

    async def finish(self) -> None:
        """Wait until all records are passed on, if that does not take too long.

        Cancellation:
            Safe: the records are still passed on.
        """
        if self._emptied is not None:
            await asyncio.wait((self._emptied,), timeout=_LAST_TURNS)

    def close(self) -> None:
        """Drop the records that are left."""
        left = len(self._waiting)
        self._waiting.clear()
        if left:
            extra = {"pool": self.pool, "records": left}
            say.RECORDS_DROPPED.log(_LOGGER, extra)

    def add(self, notes: LogNotes, payload: bytes) -> None:
        """Pass a record on in one of the next turns of the loop."""
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
        worker_logs: Passes them on.
        author: The worker.
        channel: The channel that they come from.

    Attributes:
        paused: Whether the worker has to wait, since it has sent too many.
    """

    def __init__(
        self, worker_logs: WorkerLogs, author: Author, channel: Channel
    ) -> None:
        self._worker_logs = worker_logs
        self._author = author
        self._channel = channel
        self._waiting = 0
        self.paused = False

    def add(self, payload: bytes) -> None:
        """Take the payload of a ``RECORD`` frame."""
        self._worker_logs.add(self, payload)
        self._waiting += 1
        if self._waiting == _AHEAD:
            self.paused = True
            self._channel.pause()

    def pass_on(self, payload: bytes) -> None:
        """Give a record to its logger, and survive whatever its handlers do."""
        self._waiting -= 1
        if not self._waiting and self.paused:
            self.paused = False
            self._channel.resume()
        try:
            entry = LogEntry.unpack(payload)
        except ProtocolError as error:
            self._author.distrust(str(error))
            return
        author = self._author
        ours: dict[str, object] = {
            "pool": self._worker_logs.pool,
            "slot": author.slot,
            "generation": author.generation,
            "pid": author.pid or entry.process,
            "job_id": entry.job,
            "attempt": entry.attempt,
        }
        # A handler or filter of the user's may raise anything.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            _hand_over(entry, ours)


def explicit_levels() -> tuple[tuple[tuple[str, int], ...], int]:
    """Return the levels that this process has set for loggers, and the disabled level."""
    root = logging.getLogger()
    levels = [("", root.level)]
    for name, logger in list(root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            levels.append((name, logger.level))
    return tuple(levels), root.manager.disable


def _hand_over(entry: LogEntry, ours: dict[str, object]) -> None:
    if entry.name == _LOGGER.name or entry.name.startswith(_OURS):
        # What is under this name was said by the service.  A pool in a worker says it too, and
        # so may a worker that lies.
        entry = entry._replace(name=JOB_LOGGER)
    root = logging.getLogger()
    found: object = root
    if entry.name != root.name:
        found = root.manager.loggerDict.get(entry.name)
    if isinstance(found, logging.Logger):
        if found.isEnabledFor(entry.level):
            found.handle(_record_of(entry, ours))
        return
    # If there is no such logger, take the next one above it, which would get the record too.
    # None is created, since loggers stay for ever, and a worker may invent any number of names.
    logger, name = root, entry.name
    while logger is root and "." in name:
        name = name.rpartition(".")[0]
        above = root.manager.loggerDict.get(name)
        logger = above if isinstance(above, logging.Logger) else root
    least = max(logger.getEffectiveLevel(), root.manager.disable + 1)
    if entry.level >= least:
        logger.callHandlers(_record_of(entry, ours))


def _record_of(entry: LogEntry, ours: dict[str, object]) -> logging.LogRecord:
    record = logging.makeLogRecord(entry.fields)
    for name in ours.keys() & entry.fields.keys():
        # A job's own logger may have set the same field.
        if (given := entry.fields[name]) != ours[name]:
            vars(record)[f"extra_{name}"] = given
    # Filters and alerts take it for the service's word, unless only workers say this.
    message_id = vars(record).get("message_id")
    if message_id is not None and message_id not in worker_messages.IDS:
        vars(record)["extra_message_id"] = vars(record).pop("message_id")
    path = PurePath(printable(entry.path))
    age = record.created - entry.created
    # Nothing in it controls a terminal, begins a line in a name, or hides in its own.
    vars(record).update(
        name=printable_name(entry.name),
        levelno=entry.level,
        levelname=printable(entry.level_name),
        msg=printable_lines(entry.message),
        args=None,
        pathname=printable(entry.path),
        filename=path.name,
        module=path.stem,
        lineno=entry.line,
        funcName=printable(entry.function),
        created=entry.created,
        msecs=entry.created % 1 * 1000,
        relativeCreated=record.relativeCreated - age * 1000,
        process=entry.process,
        processName=printable(entry.process_name),
        thread=entry.thread,
        threadName=printable(entry.thread_name),
        taskName=printable(entry.task_name) or None,
        exc_info=None,
        exc_text=printable_lines(entry.trace) or None,
        stack_info=printable_lines(entry.stack) or None,
        **ours,
    )
    return record
