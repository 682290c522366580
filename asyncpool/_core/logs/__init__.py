"""One kind of log record of asyncpool: its id, its level, its text, and the data beside it.

The text and the data of a record come from the same values, so they cannot differ.  This module
does not import ``logging``, which costs a worker 2 MB: whoever logs has a logger.
"""

from __future__ import annotations

from functools import partial

from asyncpool._core.base.records import Record

TYPE_CHECKING = False  # see records.py
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# The levels of logging.
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40


class LogMessage(Record):
    """One kind of record; ``docs/log-records.md`` has a row for each.

    Attributes:
        level: Its level.
        id: What a filter or an alert finds it by, as the attribute ``message_id``.
        text: Its text, with the names of values, as in ``"%(pool)s is closed"``.
        keys: The names of the attributes that it has besides ``message_id``, in one string.
    """

    level: int
    id: str
    text: str
    keys: str = ""

    def log(
        self,
        logger: Any,
        extra: Mapping[str, object],
        *,
        error: BaseException | None = None,
        trace: str = "",
        stack: str = "",
        **words: Any,
    ) -> None:
        """Log one record in the name of the caller; nothing is done if its level is off.

        Whatever a handler or a filter of the user's raises is ignored: it must not hurt the pool.

        Args:
            logger: A logger of ``logging``, whose class workers must not have to import.
            extra: The attributes of the record: numbers, short texts, and ``None``.
            error: The exception that the record is about; its traceback is shown.
            trace: A traceback as text, in place of *error*.
            stack: Stacks of a worker.
            words: What only the text needs.
        """
        if not logger.isEnabledFor(self.level):
            return
        path, line, function, _ = logger.findCaller(stacklevel=2)
        data = {**extra, **words}
        seen = None if error is None else (type(error), error, error.__traceback__)
        try:
            record = logger.makeRecord(
                logger.name,
                self.level,
                path,
                line,
                self.text,
                (data,) if data else (),
                seen,
                function,
                {"message_id": self.id, **extra},
                stack or None,
            )
            record.exc_text = trace or None
            logger.handle(record)
        except Exception:  # noqa: BLE001, S110 - there is no other place to tell of it
            pass


debug = partial(LogMessage, DEBUG)
info = partial(LogMessage, INFO)
warning = partial(LogMessage, WARNING)
error = partial(LogMessage, ERROR)
