"""The logging handler of a worker, which sends records to the service.

This module is imported when a job imports ``logging``, which costs 2 MB, and not before.
"""

from __future__ import annotations

import logging
import os
import sys
from functools import partial

from asyncpool._wire.log_records import pack_record, plain_fields
from asyncpool._wire.text import JOB_LOGGER
from asyncpool._worker.api import current
from asyncpool._worker.runner import JobRunner

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# Attributes of every record, which are no extras.  A formatter sets the last two.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class _Root(logging.RootLogger):
    """The root logger of a worker: it hands its records to its parent, whatever configures it.

    ``propagate`` of the root logger has no meaning elsewhere, so many configurations turn it off.
    """

    propagate: Any = property(lambda _: True, lambda _, __: None)


class RecordHandler(logging.Handler):
    """Sends records to the service.

    It is the handler of a logger above the root logger, so that whoever configures logging in
    a worker, and takes all handlers away before, neither finds nor loses it.

    Args:
        runner: Has the control channel, the levels of the service's loggers, the ``processName`` of
            records, and the running job for threads outside of its context.
    """

    def __init__(self, runner: JobRunner) -> None:
        super().__init__()
        self._runner = runner
        for name, level in runner.config.levels:
            logging.getLogger(name).setLevel(level)
        logging.disable(runner.config.disabled)
        root = logging.getLogger()
        # Else each logging.info() would call basicConfig(), as do many scripts: a handler on stderr.
        self._quiet = logging.NullHandler()
        root.addHandler(self._quiet)
        root.__class__ = _Root
        root.parent = logging.RootLogger(logging.NOTSET)
        root.parent.addHandler(self)
        if process_name := runner.control.identity.name:
            make = logging.getLogRecordFactory()
            logging.setLogRecordFactory(partial(_named, make, process_name))
        os.register_at_fork(after_in_child=self._leave)

    def _leave(self) -> None:
        """Leave all loggers alone, in a process that is not the worker."""
        root = logging.getLogger()
        root.parent = None
        root.removeHandler(self._quiet)

    def createLock(self) -> None:  # noqa: N802 - logging's name
        """Use no lock: an interrupted job might never release it."""
        self.lock = None

    def handle(self, record: logging.LogRecord) -> bool:
        """Send *record*; what is wrong with it goes to stderr, as usual."""
        found: object = self.filter(record)
        if not found:
            return False
        if isinstance(found, logging.LogRecord):  # since Python 3.12
            record = found
        try:
            self._runner.control.report(self._pack(record))
        except Exception:
            self.handleError(record)
        return True

    def _pack(self, record: logging.LogRecord) -> bytes:
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        given = vars(record)
        fields = plain_fields(it for it in given.items() if it[0] not in _USUAL)
        job, attempt = fields.get("job_id"), fields.get("attempt")
        told = isinstance(job, int) and isinstance(attempt, int)
        if record.name != JOB_LOGGER or not told:
            known = current.get()
            whose = self._runner.only_running if known is None else known[:2]
            job, attempt = whose or (0, 0)
        ours = {"msg": record.getMessage(), "job_id": job, "attempt": attempt}
        return pack_record(given | ours, fields)


def _named(
    make: Callable[..., logging.LogRecord], process_name: str, *args: Any, **kwargs: Any
) -> logging.LogRecord:
    """Make a record, which knows the name of its process from ``multiprocessing`` alone."""
    record = make(*args, **kwargs)
    if record.processName and "multiprocessing" not in sys.modules:
        record.processName = process_name
    return record
