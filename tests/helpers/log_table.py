"""The records of the package, and the table that tells what each of them means."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from asyncpool._core.cluster import server_messages
from asyncpool._core.logs import pool_messages, worker_messages
from asyncpool._core.logs.log_message import LogMessage

__all__ = ["MESSAGES", "Row", "log_again", "provoked", "rows"]

MESSAGES = {
    message.id: message
    for module in (pool_messages, server_messages, worker_messages)
    for message in vars(module).values()
    if isinstance(message, LogMessage)
}

TABLE = Path(__file__).parents[2] / "docs" / "log-records.md"

# | `id` | LEVEL | text | `key`, `key` | meaning, and what to do |
_ROW = re.compile(
    r"^\| `([a-z-]+)` \| ([A-Z]+) \| (.+?) \| (.*?) \| (.+?) \|$", re.MULTILINE
)

_STANDARD = {
    *vars(logging.makeLogRecord({})),
    "message",
    "asctime",
    "taskName",
    "message_id",
}
# What a pool adds to the records of its workers.
_OF_WORKERS = {"pool", "slot", "generation", "pid", "job_id", "attempt"}


class Row(NamedTuple):
    """One row of the table."""

    id: str
    level: str
    text: str
    keys: tuple[str, ...]
    meaning: str


def rows() -> list[Row]:
    """Return the rows of the table."""
    return [
        Row(name, level, text, tuple(re.findall("`(.*?)`", keys)), meaning)
        for name, level, text, keys, meaning in _ROW.findall(TABLE.read_text())
    ]


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def provoked(names: set[str]) -> Iterator[None]:
    """Check that the block logs a record of each of these messages, as the table has it."""
    assert names <= MESSAGES.keys()
    handler = _Records()
    logger = logging.getLogger("asyncpool")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
    found = set[str]()
    for record in handler.records:
        name = vars(record).get("message_id")
        assert name is not None, f"a record without a message_id: {record.getMessage()}"
        _check(record, MESSAGES[name])
        found.add(name)
    assert names <= found, f"not logged: {sorted(names - found)}"


def _check(record: logging.LogRecord, message: LogMessage) -> None:
    keys = vars(record).keys() - _STANDARD
    if record.process == os.getpid():
        assert keys == set(message.keys.split()), message.id
    else:
        assert keys == set(message.keys.split()) | _OF_WORKERS, message.id
    assert record.levelno == message.level, message.id
    assert not re.search(r"%\(\w+\)", record.getMessage()), message.id
    assert json.loads(json.dumps({key: vars(record)[key] for key in keys})) is not None


# How JSON calls what every record has.
_IN_JSON = {
    "level": "levelname",
    "message": "msg",
    "logger": "name",
    "exception": "exc_text",
    "stack": "stack_info",
}
# What JSON leaves out of records that are about no job.
_OF_JOBS = {"job_id", "attempt", "function"}


def log_again(text: str) -> None:
    """Log here what a command has logged as JSON, so that ``pytest.mark.logs`` looks at it."""
    for line in text.splitlines():
        fields = {_IN_JSON.get(key, key): it for key, it in json.loads(line).items()}
        del fields["time"]
        if "message_id" in fields:
            keys = MESSAGES[fields["message_id"]].keys.split()
            fields = dict.fromkeys(_OF_JOBS.intersection(keys)) | fields
            level = logging.getLevelNamesMapping()[fields["levelname"]]
            record = logging.makeLogRecord({**fields, "levelno": level})
            logging.getLogger("asyncpool").handle(record)
