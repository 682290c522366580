"""What a command prints that serves for long: log records, and the lines of workers.

Of messages that come again and again, it shows a few, and then how many there were.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import queue
import select
import sys
import threading
import time
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, TextIO, cast

from asyncpool._core.log_messages import (
    ERROR_LINE,
    LINE,
    LOG_UNREAD,
    POOL_BROKEN,
    REPEATED,
)
from asyncpool._wire.log_records import LogMessage, plain_fields
from asyncpool._wire.text import printable_block, printable_text
from asyncpool.enums import CrashKind
from asyncpool.events import Crash


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """The options of a command about its log.

    Attributes:
        log_level: What is logged at least, here and in workers.
        log_format: How records are written: as text, or each as a line of JSON, what workers print
            and log included.
    """

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"


# A stream for a log whose writers never wait for its reader.
#
# The reader of a log may stop: a terminal after Ctrl-S, a paused ``| tee``, a collector that
# hangs.  A process that wrote to it directly would stop too, and a server's port with its master.

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
        self._stream, self._on_gap, self._most = stream, on_gap, most
        self._lock = threading.Lock()
        # What the thread writes, if there is one; None has it end behind the rest.
        self._waiting: queue.SimpleQueue[bytes | None] | None = None
        self._size = self._left_out = 0

    @property
    def idle(self) -> bool:
        """Whether no line waits."""
        return not self._size

    def write(self, text: str) -> None:
        """Write *text*, which is one line or several, or leave it out."""
        if self._waiting is None:
            self._stream.write(text)
            self._stream.flush()
            return
        data = text.encode(errors="backslashreplace")
        with self._lock:
            if self._size + len(data) > self._most:
                self._left_out += 1
            else:
                self._put(self._waiting, data)

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
        waiting = self._waiting = queue.SimpleQueue()
        # A daemon: a write that never returns must not keep the process.
        thread = threading.Thread(
            target=self._write_all,
            args=(fd, waiting),
            name="asyncpool log",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            with self._lock:
                self._put(waiting, b"")
            waiting.put(None)
            thread.join(last_writes)
            if not thread.is_alive():  # else the next one would wait for it
                self._waiting = None

    def _put(self, waiting: queue.SimpleQueue[bytes | None], data: bytes) -> None:
        """Have the thread write *data*, behind the line about what was left out before it."""
        if self._left_out:
            data = self._on_gap(self._left_out).encode() + data
            self._left_out = 0
        self._size += len(data)
        waiting.put(data)

    def _write_all(self, fd: int, waiting: queue.SimpleQueue[bytes | None]) -> None:
        while (data := waiting.get()) is not None or not waiting.empty():
            if data is None:
                waiting.put(None)  # behind what has come since
                continue
            with contextlib.suppress(OSError):  # nobody can read it any more
                _write(fd, data)
            with self._lock:
                self._size -= len(data)


def _write(fd: int, data: bytes) -> None:
    """Write all of *data*; not by the stream, whose lock the interpreter's end waits for."""
    while data:
        try:
            data = data[os.write(fd, data) :]
        except BlockingIOError:  # somebody who shares it wants it so
            select.select([], [fd], [])


# How a command writes a log record: as text, or as one line of JSON.

# What every record has; the rest is what somebody has added as "extra".
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
# What these names mean, no application changes.
_FIXED = frozenset(("time", "level", "logger", "message", "exception", "stack"))
# What is left out of records that are about no job.
_OF_JOBS = frozenset(("job_id", "attempt", "function"))
# Lines that workers have printed.
_LINES = frozenset((LINE.id, ERROR_LINE.id))


def is_printed(record: logging.LogRecord) -> bool:
    """Tell whether a record is a line that a worker has printed."""
    is_line = getattr(record, "message_id", None) in _LINES
    # The code of an application may have made up the id, in this process too.
    return is_line and isinstance(record.args, Mapping) and "line" in record.args


class TextFormat(logging.Formatter):
    """One line for each record, with the time, and further lines of it indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(who)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the further lines."""
        if is_printed(record):
            return f"{self.formatTime(record)} {record.getMessage()}"
        is_ours = record.process in {None, os.getpid()}
        record.who = "" if is_ours else f" [{record.process}]"
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the lines of the message, indented: else they could pass for other records."""
        return printable_text(super().formatMessage(record))


class JsonFormat(logging.Formatter):
    """One object for each record, in one line.

    If an application adds a field with the name of one of ours, its name gets ``extra_`` before
    it.

    If a worker prints a line that is a JSON object, the line stays as it is: its
    application logs in JSON by itself.  Not so if its pool does not trust it: the line could
    pose as a record of this log.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        found: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "logger": record.name,
        }
        if is_printed(record):
            assert isinstance(record.args, Mapping)
            line = str(record.args["line"])
            if record.args.get("trusted") and _is_object(line):
                return line
            return json.dumps(found | {"message": line} | _extra(record))
        found |= {"message": record.getMessage()} | _extra(record)
        trace = record.exc_text
        if trace is None and record.exc_info:
            trace = self.formatException(record.exc_info)
        if trace:
            found["exception"] = trace
        if record.stack_info:
            found["stack"] = record.stack_info
        return json.dumps(found)


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, object] = {}
    is_of_job = getattr(record, "job_id", None) is not None
    left_out = _STANDARD if is_of_job else _STANDARD | _OF_JOBS
    for given, value in vars(record).items():
        if given not in left_out:
            name = given
            while name in _FIXED or name in found:
                name = f"extra_{name}"
            found[name] = value
    return plain_fields(found.items())


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    """Refuse NaN and infinities: Python writes them into JSON, but few programs read them."""
    raise ValueError(f"{constant} is no JSON")


class CommandLog(logging.StreamHandler[TextIO]):
    """Prints records to stderr, and what workers print.

    If a warning comes again and again, it shows the first few, and then how many there were: an
    application whose clients leave while it writes makes thousands in a second.

    Args:
        json: Whether each record is a line of JSON, rather than text.

    Attributes:
        starting: Whether no worker was ready yet.  Meanwhile it does not show crashes of code that
            cannot be loaded, nor that the server is broken: the message at the end of the command
            has the reason.
    """

    def __init__(self, *, json: bool = False) -> None:
        self._lines = LogStream(sys.stderr, self._gap)
        super().__init__(cast("TextIO", self._lines))  # it needs no more of one
        self._json = json
        self.starting = False
        self._repeats = Repeats()
        self.setFormatter(JsonFormat() if json else TextFormat())

    def tell(
        self, message: LogMessage, extra: Mapping[str, object], /, **words: object
    ) -> None:
        """Print a message for people as it is, at any level; in JSON it is a record like others.

        Args:
            message: What to print.
            extra: The attributes of the record.
            words: What only the text needs.
        """
        record = _record(message, extra, **words)
        if self._json:
            super().emit(record)
        else:
            with contextlib.suppress(OSError):  # nobody may read it any more
                text = printable_block(f"asyncpool: {record.getMessage()}")
                self.stream.write(f"{text}\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if is_printed(record) or (
            self._is_admitted(record) and not self._is_left_out(record)
        ):
            super().emit(record)

    def _is_left_out(self, record: logging.LogRecord) -> bool:
        if not self.starting:
            return False
        if isinstance(record.args, Mapping):
            crash = record.args.get("crash")
            if isinstance(crash, Crash) and cannot_be_loaded(crash):
                return True
        return getattr(record, "message_id", None) == POOL_BROKEN.id

    def _gap(self, count: int) -> str:
        return f"{self.format(_record(LOG_UNREAD, {'records': count}))}\n"

    def _is_admitted(self, record: logging.LogRecord) -> bool:
        """Tell whether to print a record, given the earlier ones."""
        now = time.monotonic()
        self._tell_repeats(self._repeats.over(now))
        if record.levelno < logging.WARNING or record.exc_info or record.exc_text:
            return True
        repeated = getattr(record, "message_id", None)
        kind = record.name, record.levelno, record.levelname, record.getMessage()
        return self._repeats.admits((*kind, repeated), now)

    def _tell_repeats(self, over: list[tuple[Any, int]]) -> None:
        for (name, level, level_name, message, repeated), count in over:
            extra = {"count": count, "repeated": repeated}
            record = _record(REPEATED, extra, message=message)
            record.name, record.levelno, record.levelname = name, level, level_name
            super().emit(record)

    @contextmanager
    def on(self, level: int) -> Generator[None]:
        """Handle all records of this level and above while the context lasts."""
        root, chatty = logging.getLogger(), logging.getLogger("uvicorn.error")
        with contextlib.ExitStack() as stack:
            stack.callback(root.setLevel, root.level)
            stack.callback(chatty.setLevel, chatty.level)
            stack.callback(root.removeHandler, self)
            root.addHandler(self)
            root.setLevel(level)
            if level > logging.DEBUG:
                # Four lines for each worker that starts or ends.
                chatty.setLevel(logging.WARNING)
            stack.enter_context(self._lines.in_a_thread())
            try:
                yield
            finally:
                with self.lock:  # type: ignore[union-attr]  # a handler has one
                    self._tell_repeats(self._repeats.over(math.inf))


def _record(
    message: LogMessage, extra: Mapping[str, object], /, **words: object
) -> logging.LogRecord:
    """Return a record that has come through no logger."""
    level = message.level
    record = logging.LogRecord("asyncpool", level, "", 0, message.text, (), None)
    fields = {"args": {**extra, **words}, "message_id": message.id, **extra}
    vars(record).update(fields)
    return record


def cannot_be_loaded(crash: Crash) -> bool:
    """Tell whether a worker ended before it served, since its code raised."""
    raised = crash.exit_code == 1 or crash.final
    return crash.kind is CrashKind.FAILED_START and raised and bool(crash.detail)


# So many of a kind are shown in each window of so many seconds.
_SHOWN = 5
_WINDOW = 10.0

# How many messages are remembered; a log with more different ones does not repeat itself.
_KINDS = 1000


class Repeats:
    """Counts equal messages, and tells which of them to leave out."""

    def __init__(self) -> None:
        self._kinds: dict[Hashable, tuple[float, int]] = {}

    def admits(self, kind: Hashable, now: float) -> bool:
        """Tell whether to show one more message like this."""
        began, count = self._kinds.get(kind, (now, 0))
        if len(self._kinds) >= _KINDS and not count:
            return True
        self._kinds[kind] = began, count + 1
        return count < _SHOWN

    def over(self, now: float) -> list[tuple[Hashable, int]]:
        """Return the messages whose window is over, with how many were left out; forget them."""
        over = {
            kind: count
            for kind, (began, count) in self._kinds.items()
            if now - began >= _WINDOW
        }
        for kind in over:
            del self._kinds[kind]
        return [(kind, n - _SHOWN) for kind, n in over.items() if n > _SHOWN]
