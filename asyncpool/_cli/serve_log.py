"""What ``asyncpool serve`` prints: log records, and the lines of workers."""

from __future__ import annotations

import logging
import re
import sys
from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import TextIO

__all__ = ["ServeLog", "user_traceback"]

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

# Frames that say nothing about the user's code.
_OURS = re.compile(
    r'\s*File "(?:<frozen [^"]*>|[^"]*/asyncpool/(?:_worker|cluster)/[^"]*'
    r'|[^"]*/asyncio/[^"]*|[^"]*/importlib/[^"]*)"'
)


class ServeLog(logging.StreamHandler[TextIO]):
    """Prints records to stderr, and what workers print as it is.

    Attributes:
        starting: Whether no worker was ready yet: tracebacks of those that do not get
            there are withheld, since what is told of the failed start has them.
    """

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.starting = True
        self._dying: deque[object] = deque(maxlen=64)
        self.setFormatter(logging.Formatter(_FORMAT))

    def emit(self, record: logging.LogRecord) -> None:
        """Print one record."""
        if record.name == "asyncpool.worker" and isinstance(record.args, tuple):
            if not self._is_withheld(*record.args):
                super().emit(record)
        elif not (self.starting and record.msg == "%s: %s; %s"):
            super().emit(record)

    def _is_withheld(self, worker: object, line: object) -> bool:
        if self.starting and f"{line}".startswith("Traceback (most recent"):
            self._dying.append(worker)
        return worker in self._dying

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
