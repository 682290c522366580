"""Messages of the log."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import asyncpool
from asyncpool._cluster import log_messages as cluster_messages
from asyncpool._core import log_messages
from asyncpool._engine.output import StderrTail
from asyncpool._wire import log_records
from asyncpool._wire.log_records import LogMessage
from tests.helpers.log_table import ROWS


def test_the_table_has_each_message_and_its_level() -> None:
    modules = cluster_messages, log_messages, log_records
    every = [it for module in modules for it in vars(module).values()]
    found = {it.id: it.level for it in every if isinstance(it, LogMessage)}
    assert found == {name: getattr(logging, row.level) for name, row in ROWS.items()}


PACKAGE = Path(asyncpool.__file__).parent
OF_WORKERS = "connections worker"
IN_WORKERS = {
    PACKAGE / "_worker",
    PACKAGE / "cluster" / "_servers",
    *(PACKAGE / "_cluster" / f"{name}.py" for name in OF_WORKERS.split()),
}


def test_workers_say_these_and_no_others() -> None:
    """The service takes the id off every other one."""
    said, elsewhere = set[str](), set[str]()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        names = set(re.findall(r"\bsay\.([A-Z_]+)\.log\(", text))
        inside = not IN_WORKERS.isdisjoint({path, *path.parents})
        (said if inside else elsewhere).update(names)
    known = {it.replace("-", "_").upper() for it in log_records.IDS}
    assert said == known
    assert elsewhere.isdisjoint(known)


# What is kept of the stderr of a worker.

ERROR = "Fatal Python error: Segmentation fault"
CURRENT = "Current thread 0x00007f5ad4 [python] (most recent call first):"
C_STACK = "Current thread's C stack trace (most recent call first):"


def lines_of(*lines: str) -> tuple[str, ...]:
    tail = StderrTail()
    tail.extend(line.encode() for line in lines)
    return tail.lines


def numbered(count: int, name: str = "line") -> list[str]:
    return [f"{name} {number}" for number in range(count)]


def left_out(count: int) -> list[str]:
    return [f"({count} lines are left out here)"] if count > 0 else []


@pytest.mark.parametrize("more", [0, 20, 29])
def test_a_short_fatal_error_is_among_the_last_lines(more: int) -> None:
    found = lines_of(*numbered(50), ERROR, *numbered(more, "frame"))
    assert found == (*numbered(50), ERROR, *numbered(more, "frame"))[-40:]


@pytest.mark.parametrize("more", [30, 39, 40, 50, 55])
def test_a_longer_one_is_kept_whole_and_the_last_words_before_it(more: int) -> None:
    whole = (ERROR, *numbered(more, "frame"))
    assert lines_of(*numbered(50), *whole) == (*numbered(50)[-10:], *whole)


@pytest.mark.parametrize("threads", [0, 1, 15, 16, 60])
def test_the_stack_of_the_thread_that_crashed_is_kept_wherever_it_stands(
    threads: int,
) -> None:
    others = numbered(threads, "frame of another thread")
    stack = [CURRENT, *numbered(19, "frame of this thread")]
    found = lines_of("before", ERROR, *others, *stack, C_STACK, *numbered(80, "frame"))
    kept = ("before", ERROR, *others[:15], *left_out(threads - 15), *stack)
    assert found == (*kept, "(41 lines are left out here)", *numbered(80, "frame")[40:])


def test_only_the_first_thread_that_says_so_is_the_one_that_crashed() -> None:
    """A program that prints these words again and again does not fill the memory."""
    assert len(lines_of(ERROR, *[CURRENT] * 1000)) == 1 + 20 + 1 + 40
