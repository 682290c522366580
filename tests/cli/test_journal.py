"""Tests of asyncpool/_cli/journal/journal.py: one that was changed by hand is refused in one line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from asyncpool._cli.journal.journal import Done, Journal, Position, RunIdentity
from asyncpool._cli.journal.journal_file import JournalError
from asyncpool._cli.map.outputs import usable
from tests.helpers.command import numbers, run_command, write_module

IDENTITY = RunIdentity("work:double", "in.jsonl", "jsonl", ordered=True, bare=False)
HINT = "; name another journal, or remove this one to begin anew"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the journal of a run that has two items, and is to have more."""
    path = tmp_path / "run.db"
    with closing(Journal(str(path))) as journal:
        journal.begin(IDENTITY, 100)
        done = [Done(n, 7, ok=True, line=f"{n}") for n in range(2)]
        journal.add(done, Position(2, 1, "out", 4, "bad", 0))
    return path


def edit(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def go_on(path: Path) -> None:
    """Read all that a run reads."""
    with closing(Journal(str(path))) as journal:
        journal.begin(IDENTITY, 100)
        assert journal.position == Position(2, 1, "out", 4, "bad", 0)
        assert journal.counts() == (2, 0)
        position = replace(journal.position, next=0)
        assert [row.line for row in journal.rows(position, ordered=True)] == ["0", "1"]
        journal.add([Done(2, 7, ok=True, line="2")])


def test_one_that_nobody_has_changed_goes_on(path: Path) -> None:
    go_on(path)


def row(name: str, value: str) -> str:
    return f"UPDATE run SET value = {value!r} WHERE name = {name!r}"


POSITION = "next, batch, output, output_bytes, failed, failed_bytes"


def position_of(after: str, size: str) -> str:
    """Return the statement that has the position say this."""
    files = f'"output": "out", "output_bytes": {size}, "failed": "bad"'
    return row(
        "position", f'{{"next": {after}, "batch": 1, {files}, "failed_bytes": 0}}'
    )


@pytest.mark.parametrize(
    ("statement", "what"),
    [
        (
            row("position", '{"evil": 1}'),
            f"row 'position' in run does not say {POSITION}",
        ),
        (row("position", "[1, 2]"), f"row 'position' in run does not say {POSITION}"),
        (row("position", "x"), "row 'position' in run is no JSON"),
        (
            "UPDATE run SET value = x'ff' WHERE name = 'position'",
            "row 'position' in run is no JSON",
        ),
        (
            position_of("2", '"abc"'),
            f"row 'position' in run does not say {POSITION}",
        ),
        (
            position_of("true", "4"),
            f"row 'position' in run does not say {POSITION}",
        ),
        (
            position_of("2", "-4"),
            "output_bytes in row 'position' in run is negative",
        ),
        (
            row("identity", "3"),
            "row 'identity' in run does not say target, input, form, ordered, bare",
        ),
        (row("size", '"large"'), "row 'size' in run is no number"),
        ("UPDATE items SET line = x'00'", "the line of item 0 in items is none"),
        (
            "UPDATE items SET line = 'a' || char(10) || 'b'",
            "the line of item 0 in items is none",
        ),
        (
            "UPDATE items SET crc = 'x' WHERE item = 1",
            "item 1 in items has no crc, or no ok",
        ),
        ("UPDATE items SET batch = 'last'", "batch 'last' in items is no number"),
        ("ALTER TABLE items RENAME COLUMN line TO text", "no such column: line"),
        ("DROP TABLE run", "it has other tables than run and items"),
        ("CREATE VIEW more AS SELECT 1", "it has other tables than run and items"),
        (
            "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM run; END",
            "it has other tables than run and items",
        ),
    ],
)
def test_one_that_was_changed_is_refused_in_one_line(
    path: Path, statement: str, what: str
) -> None:
    edit(path, statement)
    with pytest.raises(JournalError) as caught:
        go_on(path)
    assert str(caught.value) == f"{path} was changed by somebody else: {what}{HINT}"


def test_a_view_for_a_table_is_none(path: Path) -> None:
    edit(path, "ALTER TABLE items RENAME TO i", "CREATE VIEW items AS SELECT * FROM i")
    with pytest.raises(JournalError, match="other tables than run and items"):
        go_on(path)


def test_a_file_is_not_cut_off_in_the_middle_of_a_line(tmp_path: Path) -> None:
    out, bad = tmp_path / "out", tmp_path / "bad"
    out.write_text('{"index": 0}\n{"index": 1}\n')
    position = Position(1, 1, str(out), 13, str(bad), 0)
    assert usable(position, str(out), str(bad)) is position
    with pytest.raises(JournalError) as caught:
        usable(replace(position, output_bytes=3), str(out), str(bad))
    assert str(caught.value) == (
        f"no line of {out} ends at byte 3, where the journal has it end: one of the two "
        "was changed" + HINT
    )


def test_the_command_says_it_in_one_line_and_leaves_the_output_alone(
    tmp_path: Path,
) -> None:
    write_module(tmp_path, "def double(n): return 2 * n")
    numbers(tmp_path, 5)
    asked = ["map", "work:double", "in.jsonl", "-o", "out", "--journal", "run.db"]
    assert run_command(tmp_path, *asked).code == 0
    before = (tmp_path / "out").read_text()
    edit(tmp_path / "run.db", row("position", "[1, 2]"))
    done = run_command(tmp_path, *asked)
    assert done.code == 2
    assert done.err == (
        "asyncpool: run.db was changed by somebody else: row 'position' in run does not say "
        + POSITION
        + HINT
        + "\n"
    )
    assert "Traceback" not in done.err
    assert (tmp_path / "out").read_text() == before


@pytest.mark.parametrize("text", ["my precious data\n", "{}", '{"index" : 0}'])
def test_a_file_of_failures_that_no_run_has_written_is_left_alone(
    tmp_path: Path, text: str
) -> None:
    write_module(tmp_path, "def double(n): return 2 * n")
    numbers(tmp_path, 2)
    place = tmp_path / "failed.jsonl"
    place.write_text(text)
    done = run_command(tmp_path, "map", "work:double", "in.jsonl", "-o", "out")
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1] == (
        "Error: failed.jsonl is no file of failures, and this run would write over it: "
        "name another one by --failed, or move it away."
    )
    assert place.read_text() == text
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text", ["", '{"ind', '{"index": 3, "input": 1, "error": {}}\n']
)
def test_a_file_of_failures_of_another_run_is_removed(
    tmp_path: Path, text: str
) -> None:
    write_module(tmp_path, "def double(n): return 2 * n")
    numbers(tmp_path, 2)
    place = tmp_path / "failed.jsonl"
    place.write_text(text)
    done = run_command(tmp_path, "map", "work:double", "in.jsonl", "-o", "out")
    assert done.code == 0
    assert not place.exists()
