"""Send the log records of a worker to the service.

A worker does not import ``logging``, which costs 2 MB, until a job does.
"""

from __future__ import annotations

import sys
from functools import partial

from asyncpool._worker.identity import ImportWatch

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from logging import Handler, LogRecord
    from typing import Any

_LOGGING = "logging"


class LogForwarding:
    """Gives the root logger a handler that sends records to the service.

    Args:
        send: Sends the payload of a ``RECORD`` frame.
        whose: Returns the running job and its attempt, if any, for code outside of its
            context.
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
        """Install the handler, now or when ``logging`` is imported.

        Args:
            levels: The levels of the loggers in the service, by name.
            disabled: The level up to which logging is disabled in the service.
            process_name: The ``processName`` of records.
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

        from asyncpool._worker.log_handler import RecordHandler  # noqa: PLC0415

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
