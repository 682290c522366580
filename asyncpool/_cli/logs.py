"""What a command prints that serves for long: log records, and the lines of workers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import os
import pickle
import select
import stat
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TextIO, cast

from asyncpool._core.log_messages import ERROR_LINE, LINE, LOG_UNREAD, POOL_BROKEN
from asyncpool._engine.output import bare, worker_record
from asyncpool._wire.log_records import LogMessage, plain_fields
from asyncpool._wire.text import (
    ACCESS_LOGGER,
    printable,
    printable_block,
    printable_text,
)
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


# A log that several processes write: a command, and the workers of its server.
#
# The reader of a log may stop: a terminal after Ctrl-S, a paused ``| tee``, a collector that
# hangs.  A process that wrote to it directly would stop too, and a server's port with its master.

# Bytes that wait for the reader: some seconds of a flood, and a minute of much traffic.
_MOST = 4 * 2**20

# Seconds for which a reader may take nothing while a writer waits for room.
_PATIENCE = 1.0

# Seconds at the end, for a reader that may yet read the last lines.
_LAST_WRITES = 0.5

# Bytes of a write, of whole lines.
_BATCH = 65_536


class LogStream:
    """A descriptor to which several processes write lines, and each line stays whole.

    A thread writes, in batches.  If the reader is slower than the log, many bytes wait.  Then a
    writer that *waits* gives the reader a second to take something; other lines are left out, and
    counted.

    Args:
        fd: The descriptor.
        on_gap: Returns the line that says how many records are left out at a place.
        waits: Whether writers wait for room.  They also write by themselves where nobody has to
            wait, so that the lines of a process that crashes are not lost.
    """

    def __init__(
        self, fd: int, on_gap: Callable[[int], str], *, waits: bool = False
    ) -> None:
        self._fd, self._on_gap, self._waits = fd, on_gap, waits
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        # A terminal says that it has room, and then takes less.
        self._is_direct = waits and not os.isatty(fd)
        self._poll = select.poll()
        self._poll.register(fd, select.POLLOUT)
        if waits:
            os.register_at_fork(after_in_child=self._begin)
        self._begin()

    def _begin(self) -> None:
        # Its lock may be taken twice: what is freed while a thread has it may log something.
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._size = self._left_out = 0
        self._moved_at = 0.0
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def write(self, text: str) -> None:
        """Write *text*, which is one line or several, or leave it out."""
        data = text.encode(errors="backslashreplace")
        with self._changed:
            if self._is_direct and not self._size:
                data = self._write_now(data)
            if not data:
                return
            if self._has_room(len(data)):
                self._put(data)
            else:
                # But for the further lines of records, which are indented.
                self._left_out += data.count(b"\n") - data.count(b"\n    ")

    def close(self, seconds: float = _LAST_WRITES) -> None:
        """Write what waits, if the reader takes it within some *seconds*."""
        with self._changed:
            if self._left_out:
                self._put(b"")
            self._is_closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(seconds)

    def _has_room(self, size: int) -> bool:
        while self._size and self._size + size > _MOST:
            left = self._moved_at + _PATIENCE - time.monotonic()
            if not self._waits or left <= 0:
                return False
            self._changed.wait(left)
        return True

    def _put(self, data: bytes) -> None:
        """Have the thread write *data*, behind the line about what was left out before it."""
        if self._left_out:
            data = self._on_gap(self._left_out).encode() + data
            self._left_out = 0
        if not self._size:
            self._moved_at = time.monotonic()
        self._size += len(data)
        self._waiting.append(data)
        if self._thread is None:
            # A daemon: a write that never returns must not keep the process.
            self._thread = threading.Thread(
                target=self._write_all, name="asyncpool log", daemon=True
            )
            self._thread.start()
        self._changed.notify_all()

    def _write_now(self, data: bytes) -> bytes:
        """Write what nobody has to wait for, and return the rest."""
        if self._is_file:
            with contextlib.suppress(OSError):
                _write(self._fd, data)
            return b""
        with contextlib.suppress(OSError), self._alone(os.F_TLOCK):
            # So much room has a pipe that has any.
            while data and self._poll.poll(0):
                end = data.rfind(b"\n", 0, select.PIPE_BUF) + 1
                if not end:
                    break
                data = data[os.write(self._fd, data[:end]) :]
        return data

    def _write_all(self) -> None:
        while True:
            with self._changed:
                while not self._waiting:
                    if self._is_closed:
                        return
                    self._changed.wait()
                batch = self._waiting.popleft()
                while self._waiting and len(batch) < _BATCH:
                    batch += self._waiting.popleft()
            with contextlib.suppress(OSError), self._alone(os.F_LOCK):
                _write(self._fd, batch)  # nobody may be able to read it any more
            with self._changed:
                self._size -= len(batch)
                self._moved_at = time.monotonic()
                self._changed.notify_all()

    @contextmanager
    def _alone(self, how: int) -> Generator[None]:
        """Keep other processes from writing: a pipe takes long lines, and batches, in pieces.

        Raises:
            BlockingIOError: If another one writes, and *how* says not to wait for it.
        """
        if self._is_file:
            yield  # takes each write as a whole
            return
        try:
            os.lockf(self._fd, how, 0)
        except (BlockingIOError, PermissionError):
            raise
        except OSError:  # another system may know no locks of pipes
            yield
            return
        try:
            yield
        finally:
            os.lockf(self._fd, os.F_ULOCK, 0)


def _write(fd: int, data: bytes) -> None:
    """Write all of *data*; not by a stream, whose lock the interpreter's end waits for."""
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
    """One line for each record, with the time, and further lines of it indented.

    Args:
        own: The pid that records need not name.
    """

    def __init__(self, own: int | None = None) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(who)s: %(message)s")
        self._own = os.getpid() if own is None else own

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the further lines."""
        if is_printed(record):
            return f"{self.formatTime(record)} {record.getMessage()}"
        is_ours = record.process in {None, self._own}
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
            "time": _utc(record.created),
            "level": record.levelname,
            "logger": record.name,
        }
        message = record.getMessage()
        if is_printed(record):
            assert isinstance(record.args, Mapping)
            message = str(record.args["line"])
            if record.args.get("trusted") and _is_object(message):
                return message
        found |= {"message": message} | _extra(record)
        trace = record.exc_text
        if trace is None and record.exc_info:
            trace = self.formatException(record.exc_info)
        if trace:
            found["exception"] = trace
        if record.stack_info:
            found["stack"] = record.stack_info
        return json.dumps(found)


def _utc(seconds: float) -> str:
    text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{text}.{int(seconds % 1 * 1000):03d}Z"


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

    Args:
        json: Whether each record is a line of JSON, rather than text.

    Attributes:
        starting: Whether no worker was ready yet.  Meanwhile it does not show crashes of code that
            cannot be loaded, nor that the server is broken: the message at the end of the command
            has the reason.
    """

    def __init__(self, *, json: bool = False) -> None:
        super().__init__(sys.stderr)
        self._json = json
        self.starting = False
        self.setFormatter(JsonFormat() if json else TextFormat())

    def of_workers(self) -> tuple[int, bytes] | None:
        """Return a descriptor to which workers can write, and the log that does, pickled.

        There is none if stderr is no file.
        """
        if (fd := _descriptor(sys.stderr)) is None:
            return None
        log = WorkerLog(logging.getLogger().level, json=self._json)
        return fd, pickle.dumps(log)

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
        if self.starting and not is_printed(record):
            about: Any = record.args if isinstance(record.args, Mapping) else {}
            crash, which = about.get("crash"), getattr(record, "message_id", None)
            if isinstance(crash, Crash) and cannot_be_loaded(crash):
                return
            if which == POOL_BROKEN.id:
                return
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
                # Some lines for each worker that starts or ends, and for each WebSocket.
                chatty.setLevel(logging.WARNING)
            if (fd := _descriptor(self.stream)) is not None:
                lines = LogStream(fd, partial(_gap, self))
                stack.callback(lines.close)
                stack.callback(self.setStream, self.stream)
                self.setStream(cast("TextIO", lines))  # it needs no more of one
            yield


def _descriptor(stream: TextIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, ValueError, AttributeError):  # somebody's own stream
        return None


def _gap(log: logging.Handler, count: int) -> str:
    return f"{log.format(_record(LOG_UNREAD, {'records': count}))}\n"


# The log of a worker, which writes to the same descriptor as the command: what it logs and prints
# costs the master nothing.

# Seconds, and lines, after which lines of the access log are written together.
_SOON, _SEVERAL = 0.05, 100

# Bytes after which a line is cut that has no end.
_LONGEST = 65_536


class WorkerLog:
    """What one worker logs and prints; it is pickled on its way to the worker.

    Args:
        level: What is logged at least.
        json: Whether each record is a line of JSON.
    """

    def __init__(self, level: int, *, json: bool) -> None:
        self._level, self._json = level, json

    def begin(self, fd: int, control: Any, whose: dict[str, object]) -> None:
        """Log from now on, in a worker.

        Args:
            fd: Where to.
            control: The control channel, on which records would go otherwise.
            whose: What each record has of its worker.
        """
        self._loop = asyncio.get_running_loop()
        self._whose = {**whose, "pid": os.getpid()}
        self._label = f"worker {os.getpid()} in slot {whose['slot']}"
        self._handler = logging.NullHandler()  # has the format
        self._handler.setFormatter(JsonFormat() if self._json else TextFormat(0))
        self._lines = LogStream(fd, partial(_gap, self._handler), waits=True)
        self._batch: list[str] = []
        self._second, self._text = 0, ""
        self._access = f" INFO {ACCESS_LOGGER} [{os.getpid()}]: "
        if self._json:
            head = {"level": "INFO", "logger": ACCESS_LOGGER, **self._whose}
            self._access = f'Z", {json.dumps(head)[1:-1]}, '
        self._printed: list[tuple[TextIO, _Printed]] = []
        control.report = self._report
        for name, message in (("stdout", LINE), ("stderr", ERROR_LINE)):
            stream = getattr(sys, name)
            printed = _Printed(stream.fileno(), partial(self._print, name, message))
            raw = io.BufferedWriter(printed)  # has a lock, for threads that print
            new = io.TextIOWrapper(raw, "utf-8", stream.errors, line_buffering=True)
            setattr(sys, name, new)
            self._printed.append((new, printed))

    def access(self, message: str, fields: dict[str, object]) -> None:
        """Write a line of the access log, soon.

        A record of ``logging`` would take as long as half of a small request.
        """
        now = time.time()  # noqa: TID251 - logging's clock
        line = f"{self._stamp(now)}{self._access}"
        if self._json:
            line += f'"message": {json.dumps(message)}, {json.dumps(fields)[1:]}'
        else:
            line += message
        self._batch.append(line)
        if len(self._batch) == _SEVERAL:
            self._write_batch()
        elif len(self._batch) == 1:
            self._loop.call_later(_SOON, self._write_batch)

    def end(self) -> None:
        """Write what is left."""
        self._write_batch()
        for stream, printed in self._printed:
            with contextlib.suppress(OSError, ValueError):  # somebody has closed it
                stream.flush()
            printed.end()
        self._lines.close()

    def _write_batch(self) -> None:
        if self._batch:
            self._lines.write("\n".join([*self._batch, ""]))
            self._batch.clear()

    def _report(self, payload: bytes) -> None:
        record = worker_record(payload, self._whose)
        if record.levelno >= self._level:
            self._lines.write(f"{self._handler.format(record)}\n")

    def _print(self, name: str, message: LogMessage, lines: list[bytes]) -> None:
        # As the handler would, in a tenth of the time.
        now = time.time()  # noqa: TID251 - as above
        begin = f"{self._stamp(now)} {self._label}: "
        head = {"time": _utc(now), "level": logging.getLevelName(message.level)}
        head["logger"] = "asyncpool.worker"
        tail = {"message_id": message.id, "stream": name, **self._whose}
        text = ""
        for line in map(printable, map(bare, lines)):
            if not self._json:
                text += f"{begin}{line}\n"
            elif line[:1] == "{" and _is_object(line):
                text += f"{line}\n"
            else:
                text += json.dumps({**head, "message": line, **tail}) + "\n"
        self._lines.write(text)

    def _stamp(self, now: float) -> str:
        if int(now) != self._second:
            utc, form = time.gmtime(now), '{"time": "%Y-%m-%dT%H:%M:%S.'
            if not self._json:
                utc, form = time.localtime(now), "%Y-%m-%d %H:%M:%S,"
            # In this order, since another thread may look at both.
            self._text, self._second = time.strftime(form, utc), int(now)
        return f"{self._text}{int(now % 1 * 1000):03d}"


class _Printed(io.RawIOBase):
    """What a worker prints, for a text stream on top of it.

    Args:
        fd: The descriptor of what it stands for, which programs that the worker starts inherit.
        take: Called with whole lines.
    """

    def __init__(self, fd: int, take: Callable[[list[bytes]], object]) -> None:
        self._fd, self._take = fd, take
        self.rest = b""

    def fileno(self) -> int:
        return self._fd

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        *lines, self.rest = (self.rest + bytes(data)).split(b"\n")
        if len(self.rest) > _LONGEST:
            lines.append(self.rest)
            self.rest = b""
        if lines:
            self._take(lines)
        return len(data)

    def end(self) -> None:
        """Pass on a line that has no end."""
        if self.rest:
            self.write(b"\n")


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
