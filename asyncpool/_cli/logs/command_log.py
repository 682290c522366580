"""What a command prints that serves for long: log records, and the lines of workers.

Of messages that come again and again, it shows a few, and then how many there were.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from typing import Any, TextIO, cast

from asyncpool._cli.logs.log_formats import JsonFormat, TextFormat, is_printed
from asyncpool._cli.logs.log_stream import LogStream
from asyncpool._core.base.text import printable_lines
from asyncpool._core.logs.log_message import LogMessage
from asyncpool._core.logs.pool_messages import LOG_UNREAD, REPEATED
from asyncpool.enums import CrashKind
from asyncpool.events import Crash


class CommandLog(logging.StreamHandler[TextIO]):
    """Prints records to stderr, and what workers print.

    From :meth:`start_over` until a worker was ready, it does not show crashes of code that cannot
    be loaded: the message at the end of the command has the reason.  If a warning comes again and
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
                text = printable_lines(f"asyncpool: {record.getMessage()}")
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
        args = record.args if self._starting else None
        if isinstance(args, Mapping):
            crash = args.get("crash")
            if isinstance(crash, Crash) and cannot_be_loaded(crash):
                return  # that is told of when all has ended
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
