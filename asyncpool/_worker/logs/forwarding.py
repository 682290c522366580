"""What loggers of a worker record, on its way to the pool's process.

A worker does not import ``logging``, which costs it 2 MB: it waits until a job does.
"""

from __future__ import annotations

import sys
from functools import partial

from asyncpool._worker.process.import_watch import ImportWatch

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from logging import Handler, LogRecord
    from typing import Any

_LOGGING = "logging"


class LogForwarding:
    """Has the root logger send home what reaches it, as soon as there is one.

    Args:
        send: Sends the payload of a ``RECORD`` frame.
        whose: Tells the job that is running here and its attempt, if any, for code that
            does not know.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        whose: Callable[[], tuple[int, int] | None],
    ) -> None:
        self._send = send
        self._whose = whose
        self._levels: Sequence[tuple[str, int]] = ()
        self._disabled = 0
        self._process_name = ""
        self._handler: Handler | None = None
        self._import_watch: ImportWatch | None = None

    def open(
        self,
        levels: Sequence[tuple[str, int]],
        disabled: int,
        process_name: str = "",
    ) -> None:
        """Begin, now or when there are loggers.

        Args:
            levels: The levels that they have at home, by name.
            disabled: The level up to which they are silent there.
            process_name: What records call this process.
        """
        self._levels, self._disabled = levels, disabled
        self._process_name = process_name
        self._import_watch = ImportWatch(_LOGGING, self._attach)

    def leave(self) -> None:
        """Leave all loggers alone, in a process that is not the worker."""
        if self._import_watch is not None:
            self._import_watch.end()
        if self._handler is not None:
            vars(sys.modules[_LOGGING])["root"].removeHandler(self._handler)

    def _attach(self) -> None:
        import logging  # noqa: PLC0415 - here it costs nothing

        from asyncpool._worker.logs.log_handler import RecordHandler  # noqa: PLC0415

        for name, level in self._levels:
            logging.getLogger(name).setLevel(level)
        logging.disable(self._disabled)
        self._handler = RecordHandler(self._send, self._whose)
        logging.getLogger().addHandler(self._handler)
        if self._process_name:
            make = logging.getLogRecordFactory()
            logging.setLogRecordFactory(partial(_named, make, self._process_name))


def _named(
    make: Callable[..., LogRecord], process_name: str, *args: Any, **kwargs: Any
) -> LogRecord:
    """Make a record, which knows the name of its process from ``multiprocessing`` alone."""
    record = make(*args, **kwargs)
    if record.processName and "multiprocessing" not in sys.modules:
        record.processName = process_name
    return record
