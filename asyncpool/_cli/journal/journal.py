"""The journal: what is done of a run, in an SQLite database.

Each item that is done has a row with its line of the output.  So the journal is the
truth, and the files are made from it.  *Position* says how far the files are.  What they hold up
to there was on the disk before the position was committed.  Whatever comes behind it
in the files, whole lines, half a line or nothing, is cut off and written again.

In WAL mode with ``synchronous=NORMAL`` a commit survives the death of the process.  A power loss
may take the last commits, in order, and never damages the others.  The items of lost commits run
again.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from asyncpool._cli.journal.journal_file import JournalError, JournalFile

# How many rows one statement inserts.  Each step of a statement gives the GIL away, and
# beside a busy event loop it takes 5 ms to get it back: one row at a time made 200 rows
# a second.
_TOGETHER = (256, 16, 1)
_READ = 500  # rows, for the same reason


class Done(NamedTuple):
    """An item that is done.

    Attributes:
        number: Its place in the input, from 0.
        crc: Its checksum.
        ok: Whether the function returned.
        line: For the output, or for the file of failures.
    """

    number: int
    crc: int
    ok: bool
    line: str


class Row(NamedTuple):
    """What the journal says of an item; *line* only if the files do not have it."""

    number: int
    crc: int
    ok: bool
    line: str | None


@dataclass(frozen=True, slots=True)
class RunIdentity:
    """What must be the same for a run to go on.

    Attributes:
        target: The function.
        input: The input's name.
        form: What each item is.
        ordered: Whether the output is in the input's order.
        bare: Whether its lines are results alone.
    """

    target: str
    input: str
    form: str
    ordered: bool
    bare: bool


@dataclass(frozen=True, slots=True)
class Position:
    """How far the files are.

    Attributes:
        next: The first item that they lack; in an unordered run not used.
        batch: The last batch that they have; in an ordered run not used.
        output: The output's path.
        output_bytes: The bytes of it.
        failed: The path of the file of failures.
        failed_bytes: The bytes of it.
    """

    next: int = 0
    batch: int = 0
    output: str = ""
    output_bytes: int = 0
    failed: str = ""
    failed_bytes: int = 0


START = Position()


class Journal:
    """An open journal; no other process can open it meanwhile.

    Its methods may be called from any thread.

    Args:
        path: The path of its file, which is made if there is none.

    Raises:
        JournalError: If it is in use, damaged, or no journal at all; also by the methods.
        OSError: If there is no room, or the disk fails; likewise.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = JournalFile(path)
        try:
            self._batch = self._last_batch()
        except BaseException:
            self._file.close()
            raise

    def _last_batch(self) -> int:
        with self._file.alone() as database:
            (last,) = database.execute("SELECT max(batch) FROM items").fetchone()
        if last is not None and type(last) is not int:
            raise self._file.changed(f"batch {last!r} in items is no number")
        return last or 0

    def begin(self, identity: RunIdentity, size: int | None) -> None:
        """Make this the journal of a run, or check that it is.

        Args:
            identity: The run.
            size: The bytes of the input, if they are known.

        Raises:
            JournalError: If it belongs to another run, or the input has become shorter.
        """
        with self._file.alone():
            known = self._file.load("identity", RunIdentity)
            if known is None or not self._batch:
                # Nothing is done yet: the last run may have had a name misspelt.
                self._file.save("identity", asdict(identity))
                self._file.save("size", size)
            elif known != identity:
                raise JournalError(self._difference(asdict(known), asdict(identity)))
            before = self._file.load_size()
            if size is not None and before is not None and size < before:
                raise JournalError(
                    f"{identity.input} had {before} bytes and now has {size}: it is not "
                    f"the input that {self.path} was begun with; name another journal, "
                    "or remove this one to begin anew"
                )
            if size != before:
                self._file.save("size", size)

    def _difference(self, known: dict[str, Any], asked: dict[str, Any]) -> str:
        name = next(name for name in asked if known.get(name) != asked[name])
        texts = {
            "target": f"function {known['target']}, not {asked['target']}",
            "input": f"input {known['input']}, not {asked['input']}",
            "form": f"items as {known['form']}, not as {asked['form']} (--format)",
            "ordered": "run with"
            + ("" if asked["ordered"] else "out")
            + " --unordered",
            "bare": "run with" + ("" if known["bare"] else "out") + " --bare",
        }
        return (
            f"{self.path} is the journal of another run: of the {texts[name]}. Name "
            "another journal, or remove this one to begin anew"
        )

    def counts(self) -> tuple[int, int]:
        """Return how many items are done, and how many of these have failed."""
        with self._file.alone() as database:
            done, failed = database.execute(
                "SELECT count(*), count(*) - coalesce(sum(ok), 0) FROM items"
            ).fetchone()
        return done, failed

    @property
    def position(self) -> Position:
        """How far the files are."""
        with self._file.alone():
            return self._file.load("position", Position) or START

    def retry_failed(self) -> int:
        """Forget the failures, so that these items run again; return how many.

        What the files hold is forgotten too: they are written anew from the journal.
        """
        return self._begin_files_anew("DELETE FROM items WHERE NOT ok")

    def begin_files_anew(self) -> None:
        """Forget what the files hold; call it before they are cut off."""
        self._begin_files_anew("SELECT 1")

    def _begin_files_anew(self, statement: str) -> int:
        # On the disk when this returns: else a power loss could bring back a position
        # that is about what the files held before.
        with self._file.alone() as database:
            database.execute("PRAGMA synchronous=FULL")
            database.execute("BEGIN")
            changed = database.execute(statement).rowcount
            self._file.save("position", asdict(START))
            database.execute("COMMIT")
            database.execute("PRAGMA synchronous=NORMAL")
        return max(changed, 0)

    def rows(self, position: Position, *, ordered: bool) -> Iterator[Row]:
        """Yield what is known of each item that is done, in the input's order."""
        after = -1
        first = position.next if ordered else 0
        batch = -1 if ordered else position.batch
        while rows := self._read(after, first, batch):
            for number, crc, ok, line in rows:
                yield Row(number, crc, bool(ok), line)
            after = rows[-1][0]

    def _read(self, after: int, first: int, batch: int) -> list[tuple[Any, ...]]:
        with self._file.alone() as database:
            (text,) = database.execute(
                "SELECT json_group_array(json_array(item, crc, ok, "
                "CASE WHEN item >= ?2 AND batch > ?3 THEN "
                # Which SQLite takes for JSON, from some version on.
                "CASE typeof(line) WHEN 'blob' THEN 0 ELSE line END END)) FROM "
                "(SELECT * FROM items WHERE item > ?1 ORDER BY item LIMIT ?4)",
                (after, first, batch, _READ),
            ).fetchone()
        rows: list[tuple[Any, ...]] = json.loads(text)
        for number, crc, ok, line in rows:
            if type(crc) is not int or ok not in {0, 1}:
                raise self._file.changed(f"item {number} in items has no crc, or no ok")
            if line is not None and (type(line) is not str or "\n" in line):
                raise self._file.changed(f"the line of item {number} in items is none")
        return rows

    def add(self, done: Sequence[Done], position: Position | None = None) -> int:
        """Commit what is done, and how far the files are; return the batch's number.

        Raises:
            OSError: If there is no room, or the disk fails; nothing of it is committed.
        """
        with self._file.alone() as database:
            return self._add(database, done, position)

    def _add(
        self,
        database: sqlite3.Connection,
        done: Sequence[Done],
        position: Position | None,
    ) -> int:
        database.execute("BEGIN")
        if done:
            self._batch += 1
        start = 0
        for size in _TOGETHER:
            statement = _insert(size)
            while len(done) - start >= size:
                values: list[Any] = []
                for item in done[start : start + size]:
                    values += (item.number, item.crc, self._batch, item.ok, item.line)
                database.execute(statement, values)
                start += size
        if position is not None:
            self._file.save("position", asdict(position))
        database.execute("COMMIT")
        return self._batch

    def close(self) -> None:
        """Fold the log into the database, and let go of it."""
        self._file.close()


def _insert(rows: int) -> str:
    return f"INSERT INTO items VALUES {', '.join(['(?, ?, ?, ?, ?)'] * rows)}"  # noqa: S608 - only marks
