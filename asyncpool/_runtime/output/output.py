"""What workers print: line by line into ``logging``, with a tail for crash reports."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import sys
from collections import deque
from collections.abc import Iterable
from typing import TextIO

from asyncpool._core.base.text import printable
from asyncpool._core.logs import pool_messages as say
from asyncpool._runtime.options import OutputMode

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
        self._count = 0
        self._room = 0  # how many of the next lines are of the error
        self._awaits_stack = False

    def extend(self, lines: Iterable[bytes]) -> None:
        """Add more *lines*."""
        for line in lines:
            if line.startswith(FATAL):
                self._error = list(self._last)[-_BEFORE:]
                self._room = _ERROR
                self._awaits_stack = True
            elif self._awaits_stack and line.startswith(_CURRENT):
                self._room = _STACK
                self._awaits_stack = False
            numbered = (self._count, line[: 4 * _WIDTH])
            self._count += 1
            self._last.append(numbered)
            if self._room:
                self._room -= 1
                self._error.append(numbered)

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines that are kept, oldest first."""
        kept = {**dict(self._error), **dict(self._last)}
        found: list[bytes] = []
        following = min(kept, default=0)
        for number, line in sorted(kept.items()):
            if number > following:
                found.append(b"(%d lines are left out here)" % (number - following))
            found.append(line)
            following = number + 1
        return tuple(printable(text(line)[:_WIDTH]) for line in found)


def text(line: bytes) -> str:
    """Return a line without its end, whatever bytes it has."""
    return line.decode(errors="replace").rstrip("\r")


_LOGGER = logging.getLogger("asyncpool.worker")
_CRASHES = logging.getLogger("asyncpool")

# A longer line is cut into several.  A turn of the loop reads no more than this either, so a
# worker that floods its stderr slows down nobody but itself.
_CHUNK = 8192
_LINES_A_TURN = 64
_RETRY_AFTER = 0.05  # s, while nobody reads this process's own stdout
_LINES_AT_THE_END = 1024

# The lines of a fatal error that are kept for the record of the crash, and for how many seconds:
# a process that dies of one is dead by then, unless it writes a large core file.
_REPORT_LINES = 200
_REPORT_TIME = 5.0


class Output:
    """Reads one output stream of one worker.

    Args:
        loop: The loop that watches the pipe.
        fd: The reading end; this object owns it and closes it.
        mode: Where lines go.  In mode ``"log"`` they go to the logger
            ``asyncpool.worker``.  If nobody has configured logging, they go straight to
            this process's own streams, so that nothing that a job prints is lost.
        err: Whether the stream is the worker's stderr.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, fd: int, mode: OutputMode, *, err: bool
    ) -> None:
        self._loop = loop
        self._fd = fd
        self._mode = mode
        self._err = err
        self._rest = b""
        self._lines: deque[bytes] = deque()
        self._tail = StderrTail()
        self._report: list[bytes] | None = None
        self._no_report = False
        self._label, self._trusted = "worker", False
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
        self._label, self._trusted = label, trusted
        self._extra = {**extra, **self._extra}

    def take_report(self) -> str:
        """Return what the interpreter has said of a fatal error, for one record of the crash."""
        lines, self._report = self._report or (), None
        return "\n".join(printable(text(line)) for line in lines)

    def release_report(self) -> None:
        """Log line by line what was kept for the record of a crash: there is no crash."""
        lines, self._report = self._report or (), None
        for line in lines:
            self._emit(text(line))

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
        if len(rest) > _CHUNK:
            lines.append(rest)
            rest = b""
        self._rest = rest
        if self._err:
            self._tail.extend(lines)
            lines = self._keep_report(lines)
        self._lines.extend(lines)
        if self._emit_some():
            self._loop.remove_reader(self._fd)
            self._go_on_later()
        return True

    def _keep_report(self, lines: list[bytes]) -> list[bytes]:
        """Keep the lines of a fatal error, and return the others.

        A process that prints so much more, or goes on, has only printed these words.
        """
        if self._report is None:
            starts = (n for n, line in enumerate(lines) if line.startswith(FATAL))
            start = next(starts, None)
            if start is None or self._no_report or not self._to_record():
                return lines
            self._report = lines[start:]
            self._loop.call_later(_REPORT_TIME, self._expire_report)
            lines = lines[:start]
        else:
            self._report += lines
            lines = []
        if len(self._report) > _REPORT_LINES:
            lines += self._report
            self._report, self._no_report = None, True
        return lines

    def _expire_report(self) -> None:
        if self._fd >= 0 and self._report is not None:
            self._no_report = True
            self.release_report()

    def _to_record(self) -> bool:
        return self._to_log() and _CRASHES.isEnabledFor(logging.WARNING)

    def _go_on_later(self) -> None:
        if self._can_emit():
            self._loop.call_soon(self._go_on)
        else:
            self._loop.call_later(_RETRY_AFTER, self._go_on)

    def _go_on(self) -> None:
        if self._fd < 0:
            return
        if self._emit_some():
            self._go_on_later()
        else:
            self._loop.add_reader(self._fd, self._read_some)

    def _emit_some(self) -> bool:
        """Pass some lines on; return whether there are more."""
        for _ in range(min(_LINES_A_TURN, len(self._lines))):
            if not self._can_emit():
                break
            self._emit(text(self._lines.popleft()))
        return bool(self._lines)

    def _can_emit(self) -> bool:
        return self._to_log() or _is_writable(self._stream())

    def _to_log(self) -> bool:
        return self._mode == "log" and _LOGGER.hasHandlers()

    def _stream(self) -> TextIO | None:
        return sys.stderr if self._err else sys.stdout

    def _detach(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1
        if self._rest:
            lines, self._rest = [self._rest], b""
            if self._err:
                self._tail.extend(lines)
                lines = self._keep_report(lines)
            self._lines.extend(lines)
        dropped = len(self._lines) - _LINES_AT_THE_END
        if dropped > 0 and self._can_emit():
            self._emit(f"({dropped} lines are left out here)")
            for _ in range(dropped):
                self._lines.popleft()
        while self._lines and self._can_emit():
            self._emit(text(self._lines.popleft()))

    def _emit(self, text: str) -> None:
        if self._to_log():
            message = say.ERROR_LINE if self._err else say.LINE
            line = printable(text)
            message.log(
                _LOGGER,
                self._extra,
                label=self._label,
                line=line,
                trusted=self._trusted,
            )
            return
        stream = self._stream()
        # The pool must survive if its service's own stdout is closed or full.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if stream is not None:
                stream.write(f"{text}\n")
                stream.flush()


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
