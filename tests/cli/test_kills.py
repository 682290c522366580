"""The journal under SIGKILL: nothing is lost, and nothing that it has runs again."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.command import (
    ROOT,
    command_environment,
    run_command,
    start_command,
    wait_until,
    write_module,
)
from tests.helpers.killed_map import expected_line, fails

ITEMS = 12_000


class Server:
    """Asks for runs that are killed."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def run(
        self,
        folder: Path,
        seed: int,
        kill: tuple[int, float] | None,
        *,
        ordered: bool,
    ) -> int:
        """Return the exit status of a run; its log is of this run alone."""
        (folder / "begun.log").unlink(missing_ok=True)
        asked = {
            "folder": str(folder),
            "seed": seed,
            "kill": kill,
            "ordered": ordered,
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


@pytest.fixture
def server() -> Iterator[Server]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.helpers.killed_map"],
        cwd=ROOT,
        env=command_environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()


def journaled(folder: Path) -> dict[int, str]:
    """Return the lines that the journal has, by item."""
    path = folder / "run.db"
    if not path.exists():
        return {}
    database = sqlite3.connect(path)
    try:
        (count,) = database.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'items'"
        ).fetchone()
        if not count:
            return {}
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return dict(database.execute("SELECT item, line FROM items"))
    finally:
        database.close()


def check_journal(known: dict[int, str]) -> None:
    for number, line in known.items():
        assert line == expected_line(number)


def begun(folder: Path) -> list[int]:
    """Return which items the last run has begun."""
    path = folder / "begun.log"
    return whole_numbers(path) if path.exists() else []


def whole_numbers(path: Path) -> list[int]:
    """Return the numbers of a file without the last one if it is cut off.

    SIGKILL cuts a write between two pages of a file: of 3712 the 3 may be left.
    """
    lines = path.read_text().splitlines(keepends=True)
    return [int(line) for line in lines if line.endswith("\n")]


def check_files(folder: Path, *, ordered: bool) -> None:
    """Compare both files with what they must hold, line by line."""
    for name, wanted in (("out.jsonl", False), ("failed.jsonl", True)):
        lines = (folder / name).read_text().splitlines()
        expected = [expected_line(n) for n in range(ITEMS) if fails(n) is wanted]
        if not ordered:
            lines.sort()
            expected.sort()
        assert lines == expected


@pytest.mark.parametrize("rounds", [50, pytest.param(200, marks=pytest.mark.nightly)])
def test_kills_lose_nothing(server: Server, tmp_path: Path, rounds: int) -> None:
    draw = random.Random(20)
    kills, number, ended = 0, 0, 0
    while kills < rounds:
        number += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "in.jsonl").write_text("".join(f"{n}\n" for n in range(ITEMS)))
        ordered = bool(number % 2)
        known: dict[int, str] = {}
        # The last one may finish; about ten kills go before it.
        while kills < rounds:
            kill = draw.choice((0, 1, 2000, 4000)), 0.02 * draw.random()
            status = server.run(folder, kills, kill, ordered=ordered)
            again = known.keys() & set(begun(folder))
            assert not again, "these ran although the journal had them"
            known = journaled(folder)
            check_journal(known)
            if status == 0:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL
            kills += 1
        assert server.run(folder, 0, None, ordered=ordered) == 0
        assert not known.keys() & set(begun(folder))
        known = journaled(folder)
        check_journal(known)
        assert known.keys() == set(range(ITEMS))
        check_files(folder, ordered=ordered)
        ended += 1
    assert ended > 1


def test_the_command_goes_on_after_kills(tmp_path: Path) -> None:
    write_module(
        tmp_path,
        """
        import os

        def double(n):
            with open("begun.log", "a") as log:
                log.write(f"{n}\\n")
            return n * 2
        """,
    )
    count = 3000
    (tmp_path / "in.jsonl").write_text("".join(f"{n}\n" for n in range(count)))
    asked = ("map", "work:double", "in.jsonl", "-o", "out.jsonl", "--journal", "run.db")
    log = tmp_path / "begun.log"
    known: set[int] = set()
    for lines in (1, 300, 700):
        log.unlink(missing_ok=True)
        process = start_command(tmp_path, *asked)
        wait_until(log, lines)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        # Workers of a killed pool end at once, but not at the very same moment.
        assert not known & set(whole_numbers(log))
        known = set(journaled(tmp_path))
    log.unlink(missing_ok=True)
    done = run_command(tmp_path, *asked)
    assert done.code == 0, done.err
    assert not known & {int(line) for line in log.read_text().split()}
    assert (tmp_path / "out.jsonl").read_text().splitlines() == [
        f'{{"index": {n}, "input": {n}, "result": {n * 2}}}' for n in range(count)
    ]
