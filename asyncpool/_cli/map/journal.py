"""The journal: what is done of a run, in an SQLite database.

Each item that is done has a row with its line of the output, so the journal is the
truth, and the files are made from it.  *Position* is how far they are: what they hold up
to there was on the disk before the position was committed, so whatever comes behind it
in the files, whole lines, half a line or nothing, is cut off and written again.

In WAL mode with ``synchronous=NORMAL`` a commit that was made survives the death of the
process; a power loss may take the last ones, in order, and never damages the others.
Their items run again.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields as fields_of
from typing import Any, NamedTuple, TypeVar

_APPLICATION = 0x61737079  # "aspy", so that no other database is taken for a journal
_VERSION = 1

# How many rows one statement inserts.  Each step of a statement gives the GIL away, and
# beside a busy event loop it takes 5 ms to get it back: one row at a time made 200 rows
# a second.
_TOGETHER = (256, 16, 1)
_READ = 500  # rows, for the same reason

_SCHEMA = """
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (
    item INTEGER PRIMARY KEY,  -- its number in the input, from 0
    crc INTEGER NOT NULL,      -- of the item itself
    batch INTEGER NOT NULL,    -- which transaction it came with, from 1
    ok INTEGER NOT NULL,       -- whether the function returned
    line TEXT NOT NULL         -- for the output, or for the file of failures
);
"""


_TABLES = [("table", "items"), ("table", "run")]

# What SQLite says of statements that do not suit the tables, or what is in them.
_LOGICAL = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH}


class JournalError(Exception):
    """The journal cannot be used; the text says why, and what to do."""


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

# By the names that annotations have here.
_TYPES: dict[Any, type] = {"int": int, "str": str, "bool": bool}
R = TypeVar("R", RunIdentity, Position)


class Journal:
    """A journal that is open; nobody else can open it meanwhile.

    Its methods may be called from any thread.

    Args:
        path: Where it is; it is made if there is none.

    Raises:
        JournalError: If it is in use, damaged, or no journal at all; also by the methods.
        OSError: If there is no room, or the disk fails; likewise.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._batch = 0
        try:
            self._db = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise JournalError(f"cannot open {path}: {error}") from None
        try:
            with self._alone():
                self._prepare()
        except BaseException:
            self._db.close()
            raise

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Have the database for this thread, and say what its errors are about."""
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise _told(self.path, error) from error

    def _prepare(self) -> None:
        # Exclusive: the file stays locked until this process closes it or is dead.
        self._db.execute("PRAGMA locking_mode=EXCLUSIVE")
        # Nothing is changed before it is known whose it is.
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        new = not tables and not application
        known = self._db.execute("SELECT type, name FROM sqlite_master ORDER BY name")
        if not new and application != _APPLICATION:
            raise JournalError(
                f"{self.path} is a database of another program: name another file"
            )
        if not new and version != _VERSION:
            raise JournalError(
                f"{self.path} was made by another version of asyncpool (format "
                f"{version}, this one knows {_VERSION}): finish the run with that one, "
                "or name another journal"
            )
        if not new and known.fetchall() != _TABLES:
            raise _changed(self.path, "it has other tables than run and items")
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.execute("PRAGMA synchronous=NORMAL")
        self._db.execute("PRAGMA wal_autocheckpoint=4000")
        if new:
            self._db.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                self._db.execute(statement)
            self._db.execute(f"PRAGMA application_id={_APPLICATION}")
            self._db.execute(f"PRAGMA user_version={_VERSION}")
            self._db.execute("COMMIT")
        (last,) = self._db.execute("SELECT max(batch) FROM items").fetchone()
        if last is not None and type(last) is not int:
            raise _changed(self.path, f"batch {last!r} in items is no number")
        self._batch = last or 0

    def begin(self, identity: RunIdentity, size: int | None) -> None:
        """Make this the journal of a run, or check that it is.

        Args:
            identity: The run.
            size: The bytes of the input, if they are known.

        Raises:
            JournalError: If it belongs to another run, or the input has become shorter.
        """
        with self._alone():
            known = self._load("identity", RunIdentity)
            if known is None or not self._batch:
                # Nothing is done yet: the last run may have had a name misspelt.
                self._save("identity", asdict(identity))
                self._save("size", size)
            elif known != identity:
                raise JournalError(self._difference(asdict(known), asdict(identity)))
            before = self._load_size()
            if size is not None and before is not None and size < before:
                raise JournalError(
                    f"{identity.input} had {before} bytes and now has {size}: it is not "
                    f"the input that {self.path} was begun with; name another journal, "
                    "or remove this one to begin anew"
                )
            if size != before:
                self._save("size", size)

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
        with self._alone():
            done, failed = self._db.execute(
                "SELECT count(*), count(*) - coalesce(sum(ok), 0) FROM items"
            ).fetchone()
        return done, failed

    @property
    def position(self) -> Position:
        """How far the files are."""
        with self._alone():
            return self._load("position", Position) or START

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
        with self._alone():
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute("BEGIN")
            changed = self._db.execute(statement).rowcount
            self._save("position", asdict(START))
            self._db.execute("COMMIT")
            self._db.execute("PRAGMA synchronous=NORMAL")
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
        with self._alone():
            (text,) = self._db.execute(
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
                raise _changed(
                    self.path, f"item {number} in items has no crc, or no ok"
                )
            if line is not None and (type(line) is not str or "\n" in line):
                raise _changed(self.path, f"the line of item {number} in items is none")
        return rows

    def add(self, done: Sequence[Done], position: Position | None = None) -> int:
        """Commit what is done, and how far the files are; return the batch's number.

        Raises:
            OSError: If there is no room, or the disk fails; nothing of it is committed.
        """
        with self._alone():
            return self._add(done, position)

    def _add(self, done: Sequence[Done], position: Position | None) -> int:
        self._db.execute("BEGIN")
        if done:
            self._batch += 1
        start = 0
        for size in _TOGETHER:
            statement = _insert(size)
            while len(done) - start >= size:
                values: list[Any] = []
                for item in done[start : start + size]:
                    values += (item.number, item.crc, self._batch, item.ok, item.line)
                self._db.execute(statement, values)
                start += size
        if position is not None:
            self._save("position", asdict(position))
        self._db.execute("COMMIT")
        return self._batch

    def close(self) -> None:
        """Fold the log into the database, and let go of it."""
        with self._lock:
            self._db.close()

    def _load(self, name: str, cls: type[R]) -> R | None:
        """Return a row of ``run``, if it is there."""
        fields = self._value(name)
        if fields is None:
            return None
        types: dict[str, type] = {
            field.name: _TYPES[field.type] for field in fields_of(cls)
        }
        if (
            not isinstance(fields, dict)
            or {key: type(value) for key, value in fields.items()} != types
        ):
            raise _changed(
                self.path, f"row {name!r} in run does not say {', '.join(types)}"
            )
        for key, value in fields.items():
            if type(value) is int and value < 0:
                raise _changed(self.path, f"{key} in row {name!r} in run is negative")
        return cls(**fields)

    def _load_size(self) -> int | None:
        size = self._value("size")
        if size is not None and type(size) is not int:
            raise _changed(self.path, "row 'size' in run is no number")
        return size

    def _value(self, name: str) -> Any:
        found = self._db.execute(
            "SELECT value FROM run WHERE name = ?", (name,)
        ).fetchone()
        try:
            return None if found is None else json.loads(found[0])
        except (ValueError, TypeError, RecursionError):
            raise _changed(self.path, f"row {name!r} in run is no JSON") from None

    def _save(self, name: str, value: Any) -> None:
        self._db.execute(
            "INSERT OR REPLACE INTO run VALUES (?, ?)", (name, json.dumps(value))
        )


def _insert(rows: int) -> str:
    return f"INSERT INTO items VALUES {', '.join(['(?, ?, ?, ?, ?)'] * rows)}"  # noqa: S608 - only marks


def _changed(path: str, what: str) -> JournalError:
    """Return the error for what no run has written."""
    return JournalError(
        f"{path} was changed by somebody else: {what}; name another journal, or remove "
        "this one to begin anew"
    )


def _told(path: str, error: sqlite3.Error) -> JournalError | OSError:
    """Return the error that says what to do about this one of the database's."""
    # Without one it is text that cannot be decoded; beyond a byte are finer distinctions.
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
        return JournalError(
            f"{path} is in use by another run: wait for its end, or stop it"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return JournalError(f"{path} is not a journal: name another file")
    if code == sqlite3.SQLITE_CORRUPT:
        return JournalError(
            f"{path} is damaged: name another journal, or remove this one to begin anew"
        )
    if (
        code in _LOGICAL
    ):  # of statements that are right: something is not as it was left
        return _changed(path, f"{error}")
    return OSError(None, f"{error}", path)
