"""What ``asyncpool serve`` prints: log records, and the lines of workers."""

from __future__ import annotations

import contextlib
import logging
import math
import re
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, TextIO, cast

from asyncpool._cli.log_formats import JsonFormat, TextFormat, is_printed
from asyncpool._cli.log_stream import LogStream
from asyncpool._cli.repeats import Repeats
from asyncpool._core.printable import printable_lines
from asyncpool.events import Crash

__all__ = ["ServeLog", "cannot_be_loaded", "user_traceback"]

# What is longer is no traceback of a start.
_MOST_LINES = 500

# Frames that say nothing about the user's code.
_OURS = re.compile(
    r'\s*File "(?:<frozen [^"]*>|[^"]*/asyncpool/(?:_worker|cluster)/[^"]*'
    r'|[^"]*/asyncio/[^"]*|[^"]*/importlib/[^"]*)"'
)


class ServeLog(logging.StreamHandler[TextIO]):
    """Prints records to stderr, and what workers print.

    As long as no worker was ready yet, tracebacks are withheld: if the code cannot be
    loaded, what is told of that has them.  Of a warning that comes again and again the
    first few are shown, and then how many there were: an application whose clients leave
    while it writes makes thousands in a second.

    Args:
        json: Whether each record is a line of JSON, rather than text.
    """

    def __init__(self, *, json: bool = False) -> None:
        self._lines = LogStream(sys.stderr, self._gap)
        super().__init__(cast("TextIO", self._lines))  # it needs no more of one
        self._json = json
        self._starting = True
        self._repeats = Repeats()
        # By the workers' names: a traceback, and what came behind it.
        self._withheld: dict[object, list[logging.LogRecord]] = {}
        self.setFormatter(JsonFormat() if json else TextFormat())

    def tell(self, text: str, level: int = logging.INFO) -> None:
        """Print a text that is for people as it is; in JSON it is a record as others are."""
        if self._json:
            super().emit(_record(text.removeprefix("asyncpool: "), level))
        else:
            with contextlib.suppress(OSError):  # nobody may read it any more
                self.stream.write(f"{printable_lines(text)}\n")

    def start_over(self) -> None:
        """Take note that workers are started, and forget what was withheld."""
        with self._locked():
            self._starting = True
            self._withheld.clear()

    def started(self) -> None:
        """Take note that a worker was ready, or none will be; print what was withheld."""
        with self._locked():
            self._starting = False
            for worker in list(self._withheld):
                self._print_withheld(worker)

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if is_printed(record):
            if not (self._starting and self._withhold(record, *_line_of(record))):
                super().emit(record)
            return
        if not self._is_admitted(record):
            return
        crash = record.args[1:2] if isinstance(record.args, tuple) else ()
        if self._starting and crash and isinstance(crash[0], Crash):
            if cannot_be_loaded(crash[0]):
                return  # that is told of when it has ended
            self._print_withheld(f"worker {crash[0].pid} in slot {crash[0].slot}")
        super().emit(record)

    def _gap(self, count: int) -> str:
        record = _record(f"nobody read the log: {count} records are left out here")
        return f"{self.format(record)}\n"

    def _is_admitted(self, record: logging.LogRecord) -> bool:
        """Tell whether a record is to be printed, after what is known of earlier ones."""
        now = time.monotonic()
        self._tell_repeats(self._repeats.over(now))
        if record.levelno < logging.WARNING or record.exc_info or record.exc_text:
            return True
        kind = record.name, record.levelno, record.levelname, record.getMessage()
        return self._repeats.admits(kind, now)

    def _tell_repeats(self, over: list[tuple[Any, int]]) -> None:
        for (name, level, level_name, message), count in over:
            fields = {"name": name, "levelno": level, "levelname": level_name}
            text = f"{count} times more: {message}"
            super().emit(logging.makeLogRecord({**fields, "msg": text}))

    def _withhold(
        self, record: logging.LogRecord, worker: object, line: object
    ) -> bool:
        begins = f"{line}".startswith("Traceback (most recent")
        if not begins and worker not in self._withheld:
            return False
        lines = self._withheld.setdefault(worker, [])
        lines.append(record)
        if len(lines) >= _MOST_LINES:
            self._print_withheld(worker)
        return True

    def _print_withheld(self, worker: object) -> None:
        for record in self._withheld.pop(worker, ()):
            super().emit(record)

    @contextmanager
    def _locked(self) -> Generator[None]:
        self.acquire()
        try:
            yield
        finally:
            self.release()

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
                    with self._locked():
                        self._tell_repeats(self._repeats.over(math.inf))
        finally:
            root.removeHandler(self)
            root.setLevel(before[0])
            chatty.setLevel(before[1])


def _record(text: str, level: int = logging.WARNING) -> logging.LogRecord:
    name = logging.getLevelName(level)
    fields = {"name": "asyncpool", "levelno": level, "levelname": name, "msg": text}
    return logging.makeLogRecord(fields)


def _line_of(record: logging.LogRecord) -> tuple[Any, ...]:
    """Return who has printed a line, and the line."""
    assert isinstance(record.args, tuple)
    return record.args


def cannot_be_loaded(crash: Crash) -> bool:
    """Tell whether a worker has not got as far as serving, since its code has raised."""
    raised = crash.exit_code == 1 or "cannot be preloaded" in crash.detail
    return crash.kind == "failed start" and raised and bool(crash.detail)


def user_traceback(text: str) -> str | None:
    """Return a traceback without the frames that are ours, if there are any others."""
    kept: list[str] = []
    ours = found = False
    for line in text.splitlines():
        if line.startswith("  File "):
            ours = _OURS.match(line) is not None
            found = found or not ours
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return "\n".join(kept).rstrip() if found else None
