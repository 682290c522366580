"""The table of log records, the code that makes them, and the tests that provoke them agree."""

from __future__ import annotations

import ast
import logging
import re
from collections import Counter
from pathlib import Path

import pytest

import asyncpool
from tests.helpers.log_table import MESSAGES, Row, rows

PACKAGE = Path(asyncpool.__file__).parent
TESTS = Path(__file__).parent

ROWS = {row.id: row for row in rows()}

# What is no record of asyncpool: the loggers of others, and the command's own handler.
_NOT_OURS = {
    "cluster/_servers/uvicorn_parts.py",
    "_core/logs/log_message.py",
}
_CALLS = {"debug", "info", "warning", "error", "exception", "critical"}


def calls() -> list[tuple[str, ast.Call]]:
    """Return all calls of methods in the package, with the file of each."""
    return [
        (str(path.relative_to(PACKAGE)), node)
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]


def test_every_record_has_a_row_and_every_row_a_record() -> None:
    assert [row.id for row in rows()] == list(dict.fromkeys(row.id for row in rows()))
    assert ROWS.keys() == MESSAGES.keys()


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.id)
def test_a_row_tells_level_keys_and_text_as_they_are(row: Row) -> None:
    message = MESSAGES[row.id]
    assert row.level == logging.getLevelName(message.level)
    assert Counter(row.keys) == Counter(message.keys.split())
    # The table shows an example, or a name in braces, for each value.
    pieces = re.split(r"%\(\w+\)[^ a-z]*[a-z]", message.text)
    pattern = ".*".join(re.escape(piece.replace("\n", " ")) for piece in pieces)
    assert re.fullmatch(pattern, row.text.replace("\\|", "|").strip("`")), row.text


@pytest.mark.parametrize("message", MESSAGES.values(), ids=lambda it: it.id)
def test_no_key_is_an_attribute_of_every_record(message: object) -> None:
    standard = vars(logging.makeLogRecord({})).keys() | {"message", "asctime"}
    keys = MESSAGES[message.id].keys.split()  # type: ignore[attr-defined]
    assert standard.isdisjoint(keys)


def test_the_package_logs_in_no_other_way() -> None:
    strange = [
        f"{name}:{call.lineno}"
        for name, call in calls()
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in _CALLS
        and re.search(r"log", ast.unparse(call.func.value), re.IGNORECASE)
        and name not in _NOT_OURS
    ]
    assert strange == []


def test_every_message_is_used() -> None:
    words = Counter[str]()
    for path in PACKAGE.rglob("*.py"):
        words.update(re.findall(r"\w+", path.read_text()))
    from asyncpool._core.cluster import server_messages
    from asyncpool._core.logs import pool_messages, worker_messages

    names = [
        name
        for module in (pool_messages, server_messages, worker_messages)
        for name, value in vars(module).items()
        if getattr(value, "id", None) in MESSAGES
    ]
    assert [name for name in names if words[name] < 2] == []


def marked() -> set[str]:
    """Return what tests say that they provoke, by ``pytest.mark.logs``."""
    return {
        argument.value
        for path in TESTS.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.logs"
        for argument in node.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    }


def test_every_record_is_provoked_by_a_test() -> None:
    """Each of these tests fails if it does not come, or comes with another level or data."""
    assert marked() == MESSAGES.keys()
