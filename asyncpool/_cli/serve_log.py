"""What ``asyncpool serve`` prints: log records, and the lines of workers."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

from asyncpool._core.printable import printable_lines
from asyncpool.events import Crash

__all__ = ["ServeLog", "cannot_be_loaded", "user_traceback"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# What is longer is no traceback of a start.
_MOST_LINES = 500

# Frames that say nothing about the user's code.
_OURS = re.compile(
    r'\s*File "(?:<frozen [^"]*>|[^"]*/asyncpool/(?:_worker|cluster)/[^"]*'
    r'|[^"]*/asyncio/[^"]*|[^"]*/importlib/[^"]*)"'
)


class _OneLineEach(logging.Formatter):
    """Indents all lines of a message but the first, which else could pass for others."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the line, and what is behind it."""
        text = printable_lines(super().formatMessage(record))
        return text.replace("\n", "\n    ")


class ServeLog(logging.StreamHandler[TextIO]):
    """Prints records to stderr, and what workers print as it is.

    As long as no worker was ready yet, tracebacks are withheld: if the code cannot be
    loaded, what is told of that has them.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self._starting = True
        # By the workers' names: a traceback, and what came behind it.
        self._withheld: dict[object, list[logging.LogRecord]] = {}
        self.setFormatter(_OneLineEach(_FORMAT))

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
        if record.name == "asyncpool.worker" and isinstance(record.args, tuple):
            if not (self._starting and self._withhold(record, *record.args)):
                super().emit(record)
            return
        crash = record.args[1:2] if isinstance(record.args, tuple) else ()
        if self._starting and crash and isinstance(crash[0], Crash):
            if cannot_be_loaded(crash[0]):
                return  # that is told of when it has ended
            self._print_withheld(f"worker {crash[0].pid} in slot {crash[0].slot}")
        super().emit(record)

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

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record."""
        if record.name == "asyncpool.worker" and isinstance(record.args, tuple):
            return "{}: {}".format(*record.args)
        return super().format(record)

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
            yield
        finally:
            root.removeHandler(self)
            root.setLevel(before[0])
            chatty.setLevel(before[1])


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
