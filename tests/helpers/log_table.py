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

__all__ = ["ROWS", "log_again", "provoked"]

TABLE = Path(__file__).parents[2] / "docs" / "log-records.md"

# | `id` | LEVEL | *group*, `key` | meaning, and what to do |
_ROW = re.compile(r"^\| `([a-z-]+)` \| ([A-Z]+) \| ([^|]*)\| ", re.MULTILINE)
_GROUPS = {
    "*worker*": "`pool` `slot` `generation` `pid`",
    "*job*": "`job_id` `attempt` `function`",
}


class Row(NamedTuple):
    """What the table tells of a message."""

    level: str
    keys: frozenset[str]


def _keys(column: str) -> frozenset[str]:
    for group, keys in _GROUPS.items():
        column = column.replace(group, keys)
    return frozenset(re.findall("`(.*?)`", column))


ROWS = {
    name: Row(level, _keys(column))
    for name, level, column in _ROW.findall(TABLE.read_text())
}

_STANDARD = {
    *vars(logging.makeLogRecord({})),
    "message",
    "asctime",
    "taskName",
    "message_id",
}
# What a pool adds to the records of its workers.
_OF_WORKERS = {"pool", "slot", "generation", "pid", "job_id", "attempt"}


class _Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@contextmanager
def provoked(names: set[str]) -> Iterator[None]:
    """Check that the block logs a record of each of these messages, as the table has it."""
    assert names <= ROWS.keys()
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
        _check(record, name, ROWS[name])
        found.add(name)
    assert names <= found, f"not logged: {sorted(names - found)}"


def _check(record: logging.LogRecord, name: str, row: Row) -> None:
    keys = vars(record).keys() - _STANDARD
    theirs = _OF_WORKERS if record.process != os.getpid() else set[str]()
    assert keys == row.keys | theirs, name
    assert record.levelname == row.level, name
    assert not re.search(r"%\(\w+\)", record.getMessage()), name
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
            keys = ROWS[fields["message_id"]].keys
            fields = dict.fromkeys(_OF_JOBS.intersection(keys)) | fields
            level = logging.getLevelNamesMapping()[fields["levelname"]]
            record = logging.makeLogRecord({**fields, "levelno": level})
            logging.getLogger("asyncpool").handle(record)
