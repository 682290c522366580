"""How a command writes a log record: as text, or as one line of JSON."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

from asyncpool._core.base.text import printable_lines
from asyncpool._core.logs.pool_messages import ERROR_LINE, LINE
from asyncpool._core.wire.log_records import plain_fields

# What every record has; the rest is what somebody has added as "extra".
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
# What these names mean, no application changes.
_FIXED = frozenset(("time", "level", "logger", "message", "exception", "stack"))
# What is left out of records that are about no job.
_OF_JOBS = frozenset(("job_id", "attempt", "function"))
# Lines that workers have printed.
_LINES = frozenset((LINE.id, ERROR_LINE.id))


def is_printed(record: logging.LogRecord) -> bool:
    """Tell whether a record is a line that a worker has printed."""
    is_line = getattr(record, "message_id", None) in _LINES
    # The code of an application may have made up the id, in this process too.
    return is_line and isinstance(record.args, Mapping) and "line" in record.args


class TextFormat(logging.Formatter):
    """One line for each record, with the time, and further lines of it indented."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s%(who)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the further lines."""
        if is_printed(record):
            return f"{self.formatTime(record)} {record.getMessage()}"
        is_ours = record.process in {None, os.getpid()}
        record.who = "" if is_ours else f" [{record.process}]"
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Return the lines of the message, indented: else they could pass for other records."""
        text = printable_lines(super().formatMessage(record))
        return text.replace("\n", "\n    ")


class JsonFormat(logging.Formatter):
    """One object for each record, in one line.

    If an application adds a field with the name of one of ours, its name gets ``extra_`` before
    it.

    If a worker prints a line that is a JSON object, the line stays as it is: its
    application logs in JSON by itself.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        found: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname,
            "logger": record.name,
        }
        if is_printed(record):
            assert isinstance(record.args, Mapping)
            line = str(record.args["line"])
            if _is_object(line):
                return line
            found["message"] = line
            found |= _extra(record)
        else:
            found["message"] = record.getMessage()
            found |= _extra(record)
            trace = record.exc_text
            if trace is None and record.exc_info:
                trace = self.formatException(record.exc_info)
            if trace:
                found["exception"] = trace
            if record.stack_info:
                found["stack"] = record.stack_info
        return json.dumps(found)


def _time(record: logging.LogRecord) -> str:
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
    return f"{seconds}.{int(record.msecs):03d}Z"


def _extra(record: logging.LogRecord) -> dict[str, Any]:
    found: dict[str, object] = {}
    left_out = _STANDARD
    if getattr(record, "job_id", None) is None:
        left_out = _STANDARD | _OF_JOBS
    for given, value in vars(record).items():
        if given not in left_out:
            name = given
            while name in _FIXED or name in found:
                name = f"extra_{name}"
            found[name] = value
    return plain_fields(found.items())


def _is_object(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return isinstance(json.loads(line, parse_constant=_refuse), dict)
    except (ValueError, RecursionError):
        return False


def _refuse(constant: str) -> None:
    """Refuse NaN and infinities: Python writes them into JSON, but few programs read them."""
    raise ValueError(f"{constant} is no JSON")
