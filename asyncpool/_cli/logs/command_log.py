"""What a command prints that serves for long: log records, and the lines of workers.

Of messages that come again and again, it shows a few, and then how many there were.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping
from contextlib import contextmanager
from typing import Any, TextIO, cast

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
        found: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
        }
        if is_printed(record):
            assert isinstance(record.args, Mapping)
            line = str(record.args["line"])
            if record.args.get("trusted") and _is_object(line):
                return line
            found["message"] = line
            found |= _extra(record)
        else:
            found["message"] = record.getMessage()
            found |= _extra(record)
            trace = record.exc_text
            if trace is None and record.exc_info:
                trace = self.formatException(record.exc_info)
            if trace:
                found["exception"] = trace
            if record.stack_info:
                found["stack"] = record.stack_info
        return json.dumps(found)


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, object] = {}
    left_out = _STANDARD
    if getattr(record, "job_id", None) is None:
        left_out = _STANDARD | _OF_JOBS
    for given, value in vars(record).items():
        if given not in left_out:
            name = given
            while name in _FIXED or name in found:
                name = f"extra_{name}"
            found[name] = value
    return plain_fields(found.items())


def _is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    """Refuse NaN and infinities: Python writes them into JSON, but few programs read them."""
    raise ValueError(f"{constant} is no JSON")


class CommandLog(logging.StreamHandler[TextIO]):
    """Prints records to stderr, and what workers print.

    From :meth:`start_over` until a worker was ready, it does not show crashes of code that cannot
    be loaded, nor that the server is broken: the message at the end of the command has the reason.  If a warning comes again and
    again, it shows the first few, and then how many there were: an application whose clients leave
    while it writes makes thousands in a second.

    Args:
        json: Whether each record is a line of JSON, rather than text.
    """

    def __init__(self, *, json: bool = False) -> None:
        self._lines = LogStream(sys.stderr, self._gap)
        super().__init__(cast("TextIO", self._lines))  # it needs no more of one
        self._json = json
        self._starting = False
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

    def start_over(self) -> None:
        """Note that workers are started."""
        self._starting = True

    def started(self) -> None:
        """Note that a worker was ready, or that none will be."""
        self._starting = False

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if is_printed(record):
            super().emit(record)
            return
        if not self._is_admitted(record):
            return
        if self._starting:  # what is left out is told of when all has ended
            crash = (
                record.args.get("crash") if isinstance(record.args, Mapping) else None
            )
            if isinstance(crash, Crash) and cannot_be_loaded(crash):
                return
            if getattr(record, "message_id", None) == POOL_BROKEN.id:
                return
        super().emit(record)

    def _gap(self, count: int) -> str:
        return f"{self.format(_record(LOG_UNREAD, {'records': count}))}\n"

    def _is_admitted(self, record: logging.LogRecord) -> bool:
        """Tell whether to print a record, given the earlier ones."""
        now = time.monotonic()
        self._tell_repeats(self._repeats.over(now))
        if record.levelno < logging.WARNING or record.exc_info or record.exc_text:
            return True
        kind = (
            record.name,
            record.levelno,
            record.levelname,
            record.getMessage(),
            getattr(record, "message_id", None),
        )
        return self._repeats.admits(kind, now)

    def _tell_repeats(self, over: list[tuple[Any, int]]) -> None:
        for (name, level, level_name, message, repeated), count in over:
            extra = {"count": count, "repeated": repeated}
            record = _record(REPEATED, extra, message=message)
            record.name, record.levelno, record.levelname = name, level, level_name
            super().emit(record)

    @contextmanager
    def on(self, level: int) -> Generator[None]:
        """Handle all records of this level and above while the context lasts."""
        root = logging.getLogger()
        chatty = logging.getLogger("uvicorn.error")
        before = root.level, chatty.level
        root.addHandler(self)
        root.setLevel(level)
        if level > logging.DEBUG:
            # Four lines for each worker that starts or ends.
            chatty.setLevel(logging.WARNING)
        try:
            with self._lines.in_a_thread():
                try:
                    yield
                finally:
                    self.acquire()
                    try:
                        self._tell_repeats(self._repeats.over(math.inf))
                    finally:
                        self.release()
        finally:
            root.removeHandler(self)
            root.setLevel(before[0])
            chatty.setLevel(before[1])


def _record(
    message: LogMessage, extra: Mapping[str, object], /, **words: object
) -> logging.LogRecord:
    """Return a record that has come through no logger."""
    return logging.makeLogRecord(
        {
            "name": "asyncpool",
            "levelno": message.level,
            "levelname": logging.getLevelName(message.level),
            "msg": message.text,
            "args": {**extra, **words},
            "message_id": message.id,
            **extra,
        }
    )


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
