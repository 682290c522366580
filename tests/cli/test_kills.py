"""The journal under SIGKILL: nothing is lost, and nothing that it has runs again."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
from pathlib import Path

import pytest

from tests.helpers.command import lines, numbers, start_code, wait_until, write_module
from tests.helpers.patience import PATIENCE

ITEMS = 20_000
FAILED = [n for n in range(ITEMS) if n % 7 == 3]
GOOD = [n for n in range(ITEMS) if n % 7 != 3]

WORK = """
    def double(n):
        with open("begun.log", "a") as log:
            log.write(f"{n}\\n")
        if n % 7 == 3:
            raise ValueError(n)
        return n * 2
"""

# The files are synced in each run, then, and not only in long ones.
MAP = """
from tests.helpers.inside import sync_every
sync_every(0.1)
from asyncpool._cli import main
main()
"""


def journaled(folder: Path) -> dict[int, str]:
    """Return the lines that the journal has, by item."""
    path = folder / "run.db"
    if not path.exists():
        return {}
    database = sqlite3.connect(path)
    try:
        tables = "SELECT count(*) FROM sqlite_master WHERE name = 'items'"
        (count,) = database.execute(tables).fetchone()
        if not count:
            return {}
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return dict(database.execute("SELECT item, line FROM items"))
    finally:
        database.close()


def whole_numbers(path: Path) -> set[int]:
    """Return the numbers of a file without the last one if it is cut off.

    SIGKILL cuts a write between two pages of a file: of 3712 the 3 may be left.
    """
    if not path.exists():
        return set()
    found = path.read_text().splitlines(keepends=True)
    return {int(line) for line in found if line.endswith("\n")}


def line_of(number: int) -> str:
    return f'{{"index": {number}, "input": {number}, "result": {number * 2}}}'


@pytest.mark.parametrize("order", [[], ["--unordered"]], ids=["ordered", "unordered"])
@pytest.mark.parametrize(
    "seed", [20, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(10))]
)
def test_kills_lose_nothing(tmp_path: Path, order: list[str], seed: int) -> None:
    write_module(tmp_path, WORK)
    numbers(tmp_path, ITEMS)
    asked = ["map", "work:double", "in.jsonl", "-o", "out", "--journal", "run.db"]
    log, draw, known = tmp_path / "begun.log", random.Random(seed), dict[int, str]()
    for _ in range(6):
        log.unlink(missing_ok=True)
        process = start_code(tmp_path, MAP, *asked, *order)
        wait_until(log, draw.choice((1, 500, 1000, 2000)))
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        # Workers of a killed pool end at once, but not at the very same moment.
        assert not known.keys() & whole_numbers(log), "the journal had them"
        known = journaled(tmp_path)
        assert all(known[n] == line_of(n) for n in known.keys() & set(GOOD))
    log.unlink(missing_ok=True)
    process = start_code(tmp_path, MAP, *asked, *order)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, err  # since items have failed
    assert not known.keys() & whole_numbers(log)
    assert journaled(tmp_path).keys() == set(range(ITEMS))
    found = (tmp_path / "out").read_text().splitlines()
    failed = [each["index"] for each in lines(tmp_path / "failed.jsonl")]
    if order:
        found.sort()
        failed.sort()
    good = [line_of(n) for n in GOOD]
    assert found == (sorted(good) if order else good)
    assert failed == FAILED
