"""The parts of ``asyncpool map``: its journal, its inputs, and how much is under way."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpool._cli.map import journal as journals
from asyncpool._cli.map.inputs import InputError, Item, open_input
from asyncpool._cli.map.journal import (
    START,
    Done,
    Journal,
    JournalError,
    Outputs,
    Position,
    RunIdentity,
    usable,
)
from asyncpool._cli.map.map_command import Ended
from asyncpool._cli.map.run import Asked, Run, Tally
from asyncpool._cli.parameters import Exit
from asyncpool.pool import BoundPool
from tests.helpers.command import numbers, run_command, write_module
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE

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
        (position_of("2", '"abc"'), f"row 'position' in run does not say {POSITION}"),
        (position_of("true", "4"), f"row 'position' in run does not say {POSITION}"),
        (position_of("2", "-4"), "output_bytes in row 'position' in run is negative"),
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


# In which order the journal and the files are written, on which a power loss depends.


class Watched(Journal):
    """Notes with each commit what the files hold by then, and what the disk has."""

    def __init__(self, path: str, synced: dict[int, int]) -> None:
        super().__init__(path)
        self._synced = synced
        self.early: list[str] = []  # was in a file before it was in the journal
        self.claims: list[
            tuple[int, int]
        ] = []  # bytes said to be there, and on the disk

    def add(self, done: Sequence[Done], position: Position | None = None) -> int:
        for item in done:
            path = Path("out" if item.ok else "failed")
            if path.exists() and item.line in path.read_text().splitlines():
                self.early.append(item.line)
        if position is not None:
            for path, size in (
                (Path("out"), position.output_bytes),
                (Path("failed"), position.failed_bytes),
            ):
                inode = path.stat().st_ino if path.exists() else 0
                self.claims.append((size, self._synced.get(inode, 0)))
        return super().add(done, position)


@pytest.mark.parametrize("ordered", [True, False])
def test_no_position_is_committed_before_the_files_are_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, ordered: bool
) -> None:
    synced: dict[int, int] = {}
    fsync = os.fsync

    def note(fd: int) -> None:
        fsync(fd)
        status = os.fstat(fd)
        synced[status.st_ino] = status.st_size

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(journals, "_SYNC_EVERY", 0.0)  # with each commit
    journal = Watched("run.db", synced)
    outputs = Outputs(journal, "out", "failed", START, ordered=ordered)
    outputs.open()
    for n in range(20):
        outputs.write([Done(n, 0, ok=n % 3 > 0, line=f"line {n}")], [])
    outputs.sync()
    outputs.close()
    journal.close()
    assert journal.early == []
    assert all(on_disk >= size for size, on_disk in journal.claims)
    # The last ones are about all of both files.
    sizes = [Path(name).stat().st_size for name in ("out", "failed")]
    assert [size for size, _ in journal.claims[-2:]] == sizes


def test_what_earlier_runs_have_done_moves_no_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of it no batch tells how far unordered files are."""
    monkeypatch.chdir(tmp_path)
    with closing(Journal("run.db")) as journal:
        outputs = Outputs(journal, "out", "failed", START, ordered=False)
        outputs.open()
        outputs.write([], [Done(0, 0, ok=True, line="earlier")])
        assert outputs.flushed() is START
        outputs.write([Done(1, 0, ok=True, line="new")], [])
        position = outputs.flushed()
        assert (position.batch, position.output_bytes) == (1, len("earlier\nnew\n"))
        outputs.close()


# How many items of ``asyncpool map`` are read, under way, and held back.


def run_of(folder: Path, submit: Callable[..., Any], places: int = 2) -> Run:
    """Return a run whose pool has so many places, and makes jobs by *submit*."""
    path = folder / "in.jsonl"
    path.touch()
    about: Any = {"pattern": str(path), "workers": 2, "concurrency": places // 2}
    run = Run(Asked(target="work:f", input=None, **about), contextlib.ExitStack())
    run._view = cast("BoundPool", SimpleNamespace(submit=submit))
    return run


@BOTH_LOOPS
@pytest.mark.parametrize(("places", "least"), [(2, 1000), (2000, 2000)])
async def test_no_place_stays_empty_for_want_of_items(
    tmp_path: Path, places: int, least: int
) -> None:
    jobs: list[asyncio.Future[str]] = []

    def submit(*_: object) -> asyncio.Future[str]:
        jobs.append(asyncio.get_running_loop().create_future())
        return jobs[-1]

    items = [Item(n, b"", 0) for n in range(20_000)]
    running = asyncio.create_task(run_of(tmp_path, submit, places)._submit(items))
    before = -1
    while len(jobs) > before:  # until it waits
        before = len(jobs)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert least <= len(jobs) <= max(2048, 2 * places)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("count", "size"), [(1 << 16, 0), (1, 256 << 20)], ids=["items", "bytes"]
)
async def test_nothing_is_drawn_while_too_much_is_not_written(
    tmp_path: Path, count: int, size: int
) -> None:
    begun: list[int] = []

    def submit(_: object, number: int, __: bytes) -> asyncio.Future[str]:
        begun.append(number)
        return asyncio.get_running_loop().create_future()

    run = run_of(tmp_path, submit)
    run._unwritten, run._unwritten_bytes = count, size
    running = asyncio.create_task(run._submit([Item(0, b"", 0)]))
    for _ in range(3):
        await asyncio.sleep(0)
    assert begun == []
    run._unwritten = run._unwritten_bytes = 0
    run._changed.set()
    await running
    assert begun == [0]


class Large(bytes):
    """What debug logs need not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "large"


@BOTH_LOOPS
async def test_large_items_are_few_at_a_time(tmp_path: Path) -> None:
    jobs: list[asyncio.Future[str]] = []

    def submit(*_: object) -> asyncio.Future[str]:
        jobs.append(asyncio.get_running_loop().create_future())
        return jobs[-1]

    large = Large(10 << 20)
    items = [Item(n, large, 0) for n in range(20)]
    running = asyncio.create_task(run_of(tmp_path, submit)._submit(items))
    for expected in (7, 8, 9):  # beyond 64 MB there is no room
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(jobs) == expected
        jobs[expected - 7].set_result("")
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


# Where items of ``asyncpool map`` come from.


Found = queue.Queue[list[Item] | InputError | None]


@contextmanager
def reading() -> Generator[tuple[int, Found]]:
    """Have CSV read from a pipe while the context lasts; yield its end, and a queue.

    What is read comes in the queue, and at last an error, or ``None``.
    """
    found: Found = queue.Queue()
    ours, theirs = os.pipe()
    source = open_input(f"/dev/fd/{ours}", None, "csv")
    os.close(ours)

    def read() -> None:
        try:
            for items in source.items():
                found.put(items)
        except InputError as error:
            found.put(error)
        else:
            found.put(None)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield theirs, found
    finally:
        os.close(theirs)
        thread.join()


def items_of(found: Found) -> list[Item]:
    """Return the next items; they come although nothing is behind them."""
    items = found.get(timeout=PATIENCE)
    assert isinstance(items, list)
    return items


def next_of(found: Found) -> list[Any]:
    """Return the next records."""
    return [json.loads(item.raw) for item in items_of(found)]


def test_records_do_not_wait_for_those_that_are_not_there_yet() -> None:
    with reading() as (pipe, found):
        # A blank line, and half a one, are behind what is complete.
        for text, value in ((b"name\na\n\n", "a"), (b"b\nc", "b")):
            os.write(pipe, text)
            assert next_of(found) == [{"name": value}]
    [item] = items_of(found)
    assert (item.number, item.raw) == (2, b'{"name": "c"}')
    assert found.get() is None


def test_records_do_not_wait_for_the_rest_of_a_quoted_field() -> None:
    with reading() as (pipe, found):
        # Half of a record, of three lines, is behind two that are complete.
        os.write(pipe, b'name,size\na,1\nb,2\n"c\nd\n')
        assert next_of(found) == [
            {"name": "a", "size": "1"},
            {"name": "b", "size": "2"},
        ]
        os.write(pipe, b'e",')
        os.write(pipe, b"3\n")
        assert next_of(found) == [{"name": "c\nd\ne", "size": "3"}]
        # In pieces, and with others before and behind.
        for text in (b'f,"4', b"\n", b'"\ng,"'):
            os.write(pipe, text)
        assert next_of(found) == [{"name": "f", "size": "4\n"}]
        for text in (b"5", b'\n"\nh,'):
            os.write(pipe, text)
        assert next_of(found) == [{"name": "g", "size": "5\n"}]
    [item] = items_of(found)
    assert (item.number, item.raw) == (5, b'{"name": "h", "size": ""}')
    assert found.get() is None


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    ("rest", "complaint"),
    [
        ('"c\n\nd\n', "line 4: a quoted field of the record there has no end"),
        ('"c\nd" e\nf\n', "line 5: ',' expected after '\"'"),
    ],
)
def test_what_is_wrong_comes_behind_what_is_right(
    rest: str, complaint: str, *, at_once: bool
) -> None:
    """The record before it goes over two lines, which count."""
    good = 'name\n"a\nb"\n'
    with reading() as (pipe, found):
        for text in (good + rest,) if at_once else (good, rest):
            os.write(pipe, text.encode())
            if text == good:
                assert next_of(found) == [{"name": "a\nb"}]
        if at_once:
            assert next_of(found) == [{"name": "a\nb"}]
    error = found.get()
    assert isinstance(error, InputError)
    assert str(error).partition(", ")[2] == complaint


def test_a_header_that_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text('name,"size\na,1\n')
    with pytest.raises(InputError) as caught:
        list(open_input(str(path), None, None).items())
    assert str(caught.value) == (
        f"{path}, line 1: a quoted field of the record there has no end"
    )


# What a run says at its end.


@pytest.mark.parametrize(
    ("code", "tally", "said"),
    [
        (Exit.OK, Tally(done=60, written=60), "60 done in 0:02, 30/s"),
        (Exit.OK, Tally(done=60, found=60, written=60), "60 done in 0:02"),
        (Exit.UNFINISHED, Tally(done=9000), "0 done in 0:02"),
        (Exit.UNFINISHED, Tally(done=9000, written=400), "400 done in 0:02, 200/s"),
    ],
)
def test_the_rate_is_of_what_is_counted(code: int, tally: Tally, said: str) -> None:
    summary = Ended(code, "", tally, seconds=2.0)
    assert list(summary.lines(None)) == [said]
