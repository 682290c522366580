"""The logging handler of a worker, which sends records to the service.

This module is imported together with ``logging``, and not before: see ``log_forwarding.py``.
"""

from __future__ import annotations

import logging

from asyncpool._core.base.names import JOB_LOGGER
from asyncpool._core.wire.log_records import LogEntry, plain_fields
from asyncpool._worker.api import running

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

_FORMATTER = logging.Formatter()

# Attributes of every record, which are no extras.  A formatter sets the last two.
_USUAL = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class RecordHandler(logging.Handler):
    """Sends records to the service.

    Args:
        send: Sends the payload of a ``RECORD`` frame.
        whose: Returns the running job, for threads outside of its context.
    """

    def __init__(
        self,
        send: Callable[[bytes], None],
        whose: Callable[[], tuple[int, int] | None],
    ) -> None:
        super().__init__()
        self._send = send
        self._whose = whose

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
            self._send(self._entry_of(record).pack())
        except Exception:
            self.handleError(record)
        return True

    def _entry_of(self, record: logging.LogRecord) -> LogEntry:
        if record.exc_info and not record.exc_text:
            record.exc_text = _FORMATTER.formatException(record.exc_info)
        extra = [pair for pair in vars(record).items() if pair[0] not in _USUAL]
        fields = plain_fields(extra)
        job, attempt = self._job_of(record, fields)
        return LogEntry(
            name=str(record.name),
            level=record.levelno,
            level_name=str(record.levelname),
            message=record.getMessage(),
            path=str(record.pathname),
            line=record.lineno,
            function=str(record.funcName or ""),
            created=record.created,
            process=record.process or 0,
            process_name=str(record.processName or ""),
            thread=record.thread or 0,
            thread_name=str(record.threadName or ""),
            task_name=str(getattr(record, "taskName", None) or ""),
            trace=str(record.exc_text or ""),
            stack=_FORMATTER.formatStack(record.stack_info or ""),
            job=job,
            attempt=attempt,
            fields=fields,
        )

    def _job_of(
        self, record: logging.LogRecord, fields: dict[str, object]
    ) -> tuple[int | None, int]:
        if record.name == JOB_LOGGER:
            job, attempt = fields.get("job_id"), fields.get("attempt")
            if isinstance(job, int) and isinstance(attempt, int):
                return job, attempt
        known = running.get()
        found = known[:2] if known is not None else self._whose()
        return found if found is not None else (None, 0)
