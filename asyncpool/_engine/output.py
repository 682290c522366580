"""What workers print and what their loggers record, passed on to loggers of the service.

Lines go to the logger ``asyncpool.worker``, with a tail for crash reports; records go to the
loggers of the same names here.  In one iteration of the loop the pool spends at most 0.25 ms on
records.  If a worker has sent too many, the pool stops reading its control channel until they are
passed on.  So that worker waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import select
import sys
from codecs import getincrementaldecoder
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from time import perf_counter
from typing import TYPE_CHECKING, Any, TextIO

from asyncpool._core import log_messages as say
from asyncpool._engine.life_log import LOGGER
from asyncpool._wire import log_records, text
from asyncpool.errors import ProtocolError

if TYPE_CHECKING:
    from asyncpool._engine.channel import Channel
    from asyncpool._engine.options import OutputMode
    from asyncpool._engine.worker import WorkerHandle

_ALL = logging.getLogger("asyncpool")
_LINES = logging.getLogger("asyncpool.worker")

# What the pool keeps of a worker's stderr for the report of its death.
#
# It keeps the last lines.  Since Python 3.14 ``faulthandler`` prints the C stack after
# the Python stacks, and the C stack alone may have as many lines.  But the error itself
# is the first line of all, and what the program itself said stands above it.  Then come
# the stacks of all threads; that of the thread that crashed stands anywhere among them.
# So the pool also keeps some lines around the error, and some from that stack on.

# The first words of a fatal error of the interpreter.
FATAL = b"Fatal Python error"

# How the stack of the thread that crashed begins.  Its C stack begins like that, too.
_CURRENT = b"Current thread "

_LAST = 40
# What the program said last, before the error.
_BEFORE = 10
# Room for the error, and for the stack of a worker's control thread while it waits.
_ERROR = 16
# Room for the beginning of the stack of the thread that crashed.
_STACK = 20
# In characters; each has four bytes at the most.
_WIDTH = 500


class StderrTail:
    """The last lines of a stream, and the telling ones of a fatal error."""

    def __init__(self) -> None:
        # Each line with its number.
        self._last: deque[tuple[int, bytes]] = deque(maxlen=_LAST)
        self._error: list[tuple[int, bytes]] = []
        self._count = self._room = 0  # of lines; how many of the next are of the error
        self._awaits_stack = False

    def extend(self, lines: Iterable[bytes]) -> None:
        """Add more *lines*."""
        for line in lines:
            if line.startswith(FATAL):
                self._error = list(self._last)[-_BEFORE:]
                self._room, self._awaits_stack = _ERROR, True
            elif self._awaits_stack and line.startswith(_CURRENT):
                self._room, self._awaits_stack = _STACK, False
            self._last.append((self._count, line[: 4 * _WIDTH]))
            self._count += 1
            if self._room:
                self._room -= 1
                self._error.append(self._last[-1])

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that are kept, oldest first."""
        kept = {**dict(self._error), **dict(self._last)}
        found: list[str] = []
        following = min(kept, default=0)
        for number, line in sorted(kept.items()):
            if number > following:
                found.append(f"({number - following} lines are left out here)")
            found.append(text.printable(line, _WIDTH))
            following = number + 1
        return tuple(found)


# A longer line is cut into several.  An iteration of the loop reads no more than this either, so a
# worker that floods its stderr slows down nobody but itself.
_CHUNK = 8192
_LINES_A_TURN = 64
_RETRY_AFTER = 0.05  # s, while nobody reads this process's own stdout
_LINES_AT_THE_END = 1024

# The lines of a fatal error that are held for the record of the crash, and for how many seconds:
# a process that dies of one is dead by then, unless it writes a large core file.
_REPORT_LINES = 200
_REPORT_TIME = 5.0


class Output:
    """Reads one output stream of one worker.

    Args:
        loop: The loop that watches the pipe.
        fd: The reading end; this object owns it and closes it.
        mode: Where lines go.  In mode ``"log"`` they go to the logger
            ``asyncpool.worker``.  If that would drop them, they go straight to this
            process's own streams, so that nothing that a job prints is lost.  In mode
            ``"inherit"`` they go there as they are.
        err: Whether the stream is the worker's stderr.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, mode: OutputMode, *, err: bool
    ) -> None:
        self._loop, self._fd, self._mode, self._err = loop, fd, mode, err
        self._message = say.ERROR_LINE if err else say.LINE
        self._rest = b""
        # In mode "inherit" a long line comes in pieces, and a character may be in two of them.
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._lines: deque[bytes] = deque()
        self._tail = StderrTail()
        self._may_hold = err  # what the interpreter says of a fatal error
        self._expiry: asyncio.TimerHandle | None = None
        self._words: dict[str, Any] = {"label": "worker", "trusted": False}
        self._extra: dict[str, object] = {"stream": "stderr" if err else "stdout"}
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read_some)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines of the stream, the oldest first."""
        return self._tail.lines

    def name(self, label: str, extra: dict[str, object], *, trusted: bool) -> None:
        """Begin each line in the log with *label*, and have each record have *extra*.

        A log in JSON takes a line of JSON as it is from a worker that is *trusted*.
        """
        self._words = {"label": label, "trusted": trusted}
        self._extra = {**extra, **self._extra}

    def end_report(self, *, crashed: bool) -> str:
        """Return what the interpreter has said of a fatal error, for the one record of the crash.

        If there is no crash, that is logged line by line.
        """
        report = ""
        if crashed and self._is_held():
            report = "\n".join(text.printable(bare(line)) for line in self._lines)
            self._lines.clear()
        self._end_hold()
        return report

    def close(self) -> None:
        """Read what is left from a worker that is gone, and close the pipe."""
        for _ in range(16):  # enough for twice what a pipe holds by default
            if self._fd < 0 or not self._read_some():
                break
        if self._fd >= 0:
            self._detach()

    def _read_some(self) -> bool:
        try:
            data = os.read(self._fd, _CHUNK)
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            data = b""
        if not data:
            self._detach()
            return False
        *lines, rest = (self._rest + data).split(b"\n")
        lines = [line + b"\n" for line in lines]
        self._rest = rest if self._mode == "inherit" else _seen(rest)
        if len(self._rest) > _CHUNK:
            lines.append(self._rest)
            self._rest = b""
        self._take(lines)
        self._go_on(reads=True)
        return True

    def _take(self, lines: list[bytes]) -> None:
        if self._err:
            self._tail.extend(map(bare, lines))
        self._lines.extend(lines)

    def _is_held(self) -> bool:
        """Tell whether the next line begins a fatal error, and waits for the record of the crash."""
        held = (
            self._may_hold
            and bool(self._lines)
            and self._lines[0].startswith(FATAL)
            and self._to_log()
            and LOGGER.isEnabledFor(logging.WARNING)
        )
        if held:
            # A process that prints so much more, or goes on, has only printed these words.
            self._may_hold = held = len(self._lines) <= _REPORT_LINES
        if held and self._expiry is None:
            self._expiry = self._loop.call_later(_REPORT_TIME, self._end_hold)
        return held

    def _end_hold(self) -> None:
        self._may_hold = False
        self._emit_some(len(self._lines))

    def _go_on(self, *, reads: bool = False) -> None:
        """Pass some lines on; read no more as long as there are others."""
        if self._fd < 0:
            return
        if self._emit_some():
            if reads:
                self._loop.remove_reader(self._fd)
            self._loop.call_later(0 if self._can_emit() else _RETRY_AFTER, self._go_on)
        elif not reads:
            self._loop.add_reader(self._fd, self._read_some)

    def _emit_some(self, most: int = _LINES_A_TURN) -> bool:
        """Pass some lines on; return whether there are more."""
        for _ in range(min(most, len(self._lines))):
            if self._is_held() or not self._can_emit():
                break
            self._emit(self._lines.popleft())
        return bool(self._lines) and not self._is_held()

    def _can_emit(self) -> bool:
        return self._to_log() or _is_writable(self._stream())

    def _to_log(self) -> bool:
        """Tell whether the logger has a handler for the line, or somebody has turned it off.

        The level of the root logger is not meant for what jobs print: that of ``basicConfig()``
        and of pytest is WARNING.
        """
        is_on = _LINES.isEnabledFor(self._message.level) or _LINES.level or _ALL.level
        return self._mode == "log" and _LINES.hasHandlers() and bool(is_on)

    def _stream(self) -> TextIO | None:
        return sys.stderr if self._err else sys.stdout

    def _detach(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        if self._rest:
            self._take([self._rest])
        dropped = len(self._lines) - _LINES_AT_THE_END
        if dropped > 0 and self._can_emit():
            self._emit(b"(%d lines are left out here)\n" % dropped)
            self._lines = deque(self._lines, _LINES_AT_THE_END)
        self._emit_some(len(self._lines))

    def _emit(self, line: bytes) -> None:
        if self._to_log():
            shown = text.printable(bare(line))
            self._message.log(_LINES, self._extra, line=shown, **self._words)
            return
        if self._mode == "inherit":
            shown = self._decode(line)
        elif self._words["trusted"]:
            shown = f"{bare(line).decode(errors='replace')}\n"
        else:
            shown = f"{text.printable(bare(line))}\n"
            if _LINES.hasHandlers():  # perhaps a log goes there
                shown = f"{self._words['label']}: {shown}"
        stream = self._stream()
        # The pool must survive if its service's own stdout is closed or full.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                stream.write(shown)
                stream.flush()


def bare(line: bytes) -> bytes:
    """Return what a line shows, without its end."""
    return _seen(line.removesuffix(b"\n")).rstrip(b"\r")


def _seen(line: bytes) -> bytes:
    """Return what a terminal shows of a line, as a progress bar writes each state over the last."""
    return line[line.rstrip(b"\r").rfind(b"\r") + 1 :]


def _is_writable(stream: TextIO | None) -> bool:
    """Return whether a line can be written now: perhaps nobody reads this process's stdout.

    If not, the worker has to wait, as if the stream were its own, and the loop does not.
    """
    try:
        poll = select.poll()
        poll.register(stream.fileno() if stream is not None else -1, select.POLLOUT)
    except (OSError, ValueError, AttributeError, OverflowError):
        return True  # it is no real file, so it does not block as a pipe does
    return bool(poll.poll(0))


# What loggers of workers record.

# How the names of the service's loggers begin, and what looks like them.
_OURS = re.compile(r"\W*asyncpool(?![\w-]|[^ -~])")

_TURN = 0.00025  # s
_AHEAD = 64

# Seconds that the pool spends on the remaining records when it closes.
_LAST_TURNS = 1.0


class WorkerLogs:
    """The records of all workers of a pool, in the order in which they came.

    Args:
        loop: The pool's loop.
        pool: Its name.

    Attributes:
        paused: The workers that have to wait, since they have sent too many.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, pool: str) -> None:
        self._loop, self._pool = loop, pool
        self._waiting: deque[tuple[WorkerHandle, Channel, bytes]] = deque()
        self._counts: Counter[WorkerHandle] = Counter()  # of those that wait
        self._empty = asyncio.Event()
        self._empty.set()
        self.paused: set[WorkerHandle] = set()

    async def finish(self) -> None:
        """Wait until all records are passed on, if that does not take too long.

        Cancellation:
            Safe: the records are still passed on.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_TURNS):
                await self._empty.wait()

    def close(self) -> None:
        """Drop the records that are left."""
        left = len(self._waiting)
        self._waiting.clear()
        if left:
            say.RECORDS_DROPPED.log(LOGGER, {"pool": self._pool, "records": left})

    def add(self, author: WorkerHandle, channel: Channel, payload: bytes) -> None:
        """Take the payload of a ``RECORD`` frame, to pass it on in one of the next turns."""
        self._waiting.append((author, channel, payload))
        self._counts[author] += 1
        if self._counts[author] == _AHEAD:
            self.paused.add(author)
            channel.pause()
        if self._empty.is_set():
            self._empty.clear()
            self._loop.call_soon(self._pass_on)

    def _pass_on(self) -> None:
        until = perf_counter() + _TURN
        try:
            while self._waiting:
                author, channel, payload = self._waiting.popleft()
                self._counts[author] -= 1
                if not self._counts[author]:
                    del self._counts[author]
                    if author in self.paused:
                        self.paused.remove(author)
                        channel.resume()
                self._hand_over(author, payload)
                if perf_counter() >= until:
                    break
        finally:
            if self._waiting:
                self._loop.call_soon(self._pass_on)
            else:
                self._empty.set()

    def _hand_over(self, author: WorkerHandle, payload: bytes) -> None:
        """Give a record to its logger, and survive whatever its handlers do."""
        whose = {it: getattr(author, it) for it in ("slot", "generation", "pid")}
        try:
            record = worker_record(payload, {"pool": self._pool, **whose})
        except ProtocolError as error:
            author.distrust(str(error))
            return
        # A handler or filter of the user's may raise anything.
        with contextlib.suppress(Exception, asyncio.CancelledError):
            _handle(record)


def explicit_levels() -> tuple[tuple[tuple[str, int], ...], int]:
    """Return the levels that this process has set for loggers, and the disabled level."""
    root = logging.getLogger()
    levels = [("", root.level)]
    for name, logger in list(root.manager.loggerDict.items()):
        if isinstance(logger, logging.Logger) and logger.level != logging.NOTSET:
            levels.append((name, logger.level))
    return tuple(levels), root.manager.disable


def _handle(record: logging.LogRecord) -> None:
    # If there is no such logger, take the next one above it, which would get the record too.
    # None is created, since loggers stay for ever, and a worker may invent any number of names.
    root: logging.Logger = logging.root
    logger, name, manager = root, record.name, logging.root.manager
    while name and logger is root:
        known = manager.loggerDict.get(name)
        logger = known if isinstance(known, logging.Logger) else logger
        name = name.rpartition(".")[0]
    if record.levelno < max(logger.getEffectiveLevel(), manager.disable + 1):
        return
    # Filters of another logger are not for this record.
    is_its_own = logger.name == record.name
    (logger.handle if is_its_own else logger.callHandlers)(record)


def _block(lines: str) -> str:
    return lines and text.indent(text.printable_block(lines))


# How texts are shown that are not a part of one line: nothing in a record controls a terminal, begins
# a line of the log, or hides in a name.
_SHOWN: dict[str, Callable[[str], str]] = {
    "name": text.printable_name,
    "msg": text.printable_text,
    "exc_text": _block,
    "stack_info": _block,
}
# Filters and alerts take an id for the service's word, unless only workers say this.
_IDS = {None, *log_records.IDS}


def worker_record(payload: bytes, whose: Mapping[str, object]) -> logging.LogRecord:
    """Return a record of a worker, in which nothing looks like something else.

    Args:
        payload: What the worker has packed.
        whose: Which pool, slot, generation and pid it has.

    Raises:
        ProtocolError: If the payload is no such record.
    """
    found, fields = log_records.read_record(payload)
    if _OURS.match(found["name"]):
        # What is under this name was said by the service.  A pool in a worker says it too,
        # and so may a worker that lies.
        found["name"] = text.JOB_LOGGER
    found |= whose
    found["pid"] = found["pid"] or found["process"]
    found["job_id"] = found["job_id"] if found["attempt"] else None
    record = logging.makeLogRecord({})
    since = found["created"] - record.created
    found["relativeCreated"] = record.relativeCreated + since * 1000
    attributes = vars(record)
    for name, value in fields.items():
        # A job's own logger may have set the same field.
        free = name if found.get(name, value) == value else f"extra_{name}"
        shown = text.printable_text(value) if isinstance(value, str) else value
        attributes[text.printable(free)] = shown
    if fields.get("message_id") not in _IDS:
        attributes["extra_message_id"] = attributes.pop("message_id")
    # No levelname looks like a level and a name.
    found["levelname"] = re.sub(r"[^\w +-]", "_", found["levelname"])
    for name in log_records.TEXTS:
        found[name] = _SHOWN.get(name, text.printable)(found[name])
    for name in ("taskName", "exc_text", "stack_info"):
        found[name] = found[name] or None
    path = PurePath(found["pathname"])
    attributes.update(
        found,
        args=None,
        filename=path.name,
        module=path.stem,
        msecs=found["created"] % 1 * 1000,
        exc_info=None,
    )
    return record
