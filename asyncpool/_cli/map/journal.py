"""What is done of a run: the journal, in an SQLite database, and the files that are made from it.

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
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from asyncpool._cli.call import describe
from asyncpool._cli.map.inputs import Item
from asyncpool._cli.targets import Form, shown

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_APPLICATION = 0x61737079  # "aspy", so that no other database is taken for a journal
_VERSION = 1

_SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE items (
    item INTEGER PRIMARY KEY,  -- its number in the input, from 0
    crc INTEGER NOT NULL,      -- of the item itself
    batch INTEGER NOT NULL,    -- which transaction it came with, from 1
    ok INTEGER NOT NULL,       -- whether the function returned
    line TEXT NOT NULL         -- for the output, or for the file of failures
);
PRAGMA application_id={_APPLICATION};
PRAGMA user_version={_VERSION};
COMMIT;
"""
_TABLES = [("table", "items"), ("table", "run")]

# What SQLite says of statements that do not suit the tables, or what is in them.
_LOGICAL = {sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_MISMATCH}

# How many rows one statement inserts at most.  Each step of a statement gives the GIL away, and
# beside a busy event loop it takes 5 ms to get it back: one row at a time made 200 rows
# a second.
_TOGETHER = 256
_READ = 500  # rows, for the same reason

_ANEW = "name another journal, or remove this one to begin anew"

# By the names that annotations have here.
_TYPES: dict[Any, type] = {"int": int, "str": str, "bool": bool}
R = TypeVar("R", bound="DataclassInstance")


class JournalError(Exception):
    """The journal cannot be used; the text says why, and what to do."""


class Done(NamedTuple):
    """An item that is done.

    Attributes:
        number: Its place in the input, from 0.
        crc: Its checksum.
        ok: Whether the function returned.
        line: For the output, or for the file of failures; ``""`` if the file has it.
    """

    number: int
    crc: int
    ok: bool
    line: str


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
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                path, timeout=0, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise JournalError(f"cannot open {path}: {error}") from None
        try:
            with self._alone():
                self._batch = self._prepare()
        except BaseException:
            self._database.close()
            raise

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
                raise JournalError(self._difference(known, identity))
            before = self._value("size")
            if before is not None and type(before) is not int:
                raise self._changed("row 'size' in run is no number")
            if size is not None and before is not None and size < before:
                raise JournalError(
                    f"{identity.input} had {before} bytes and now has {size}: it is not "
                    f"the input that {self.path} was begun with; {_ANEW}"
                )
            if size != before:
                self._save("size", size)

    def _difference(self, known: RunIdentity, asked: RunIdentity) -> str:
        old, new = asdict(known), asdict(asked)
        name = next(name for name in new if old[name] != new[name])
        texts = {
            "target": f"function {known.target}, not {asked.target}",
            "input": f"input {known.input}, not {asked.input}",
            "form": f"items as {known.form}, not as {asked.form} (--format)",
            "ordered": f"run with{'' if asked.ordered else 'out'} --unordered",
            "bare": f"run with{'' if known.bare else 'out'} --bare",
        }
        return (
            f"{self.path} is the journal of another run: of the {texts[name]}. "
            f"{_ANEW[0].upper()}{_ANEW[1:]}"
        )

    def counts(self) -> tuple[int, int]:
        """Return how many items are done, and how many of these have failed."""
        query = "SELECT count(*), count(*) - coalesce(sum(ok), 0) FROM items"
        with self._alone() as database:
            done, failed = database.execute(query).fetchone()
        return done, failed

    @property
    def position(self) -> Position:
        """How far the files are."""
        with self._alone():
            return self._load("position", Position) or START

    def begin_files_anew(self, *, retry_failed: bool = False) -> None:
        """Forget what the files hold; call it before they are cut off.

        Args:
            retry_failed: Whether to forget the failures too, so that these items run again.
        """
        # On the disk when this returns: else a power loss could bring back a position
        # that is about what the files held before.
        with self._alone() as database:
            database.execute("PRAGMA synchronous=FULL")
            database.execute("BEGIN")
            if retry_failed:
                database.execute("DELETE FROM items WHERE NOT ok")
            self._save("position", asdict(START))
            database.execute("COMMIT")
            database.execute("PRAGMA synchronous=NORMAL")

    def rows(self, position: Position, *, ordered: bool) -> Iterator[Done]:
        """Yield what is known of each item that is done, in the input's order.

        Its line is there only if the files do not have it.
        """
        after = -1
        first, batch = (position.next, -1) if ordered else (0, position.batch)
        while rows := self._read(after, first, batch):
            for number, crc, ok, line in rows:
                yield Done(number, crc, bool(ok), line or "")
            after = rows[-1][0]

    def _read(self, after: int, first: int, batch: int) -> list[tuple[Any, ...]]:
        with self._alone():
            text = self._one(
                "SELECT json_group_array(json_array(item, crc, ok, "
                "CASE WHEN item >= ?2 AND batch > ?3 THEN "
                # Which SQLite takes for JSON, from some version on.
                "CASE typeof(line) WHEN 'blob' THEN 0 ELSE line END END)) FROM "
                "(SELECT * FROM items WHERE item > ?1 ORDER BY item LIMIT ?4)",
                *(after, first, batch, _READ),
            )
        rows: list[tuple[Any, ...]] = json.loads(text)
        for number, crc, ok, line in rows:
            if type(crc) is not int or ok not in {0, 1}:
                raise self._changed(f"item {number} in items has no crc, or no ok")
            is_line = type(line) is str and line and "\n" not in line
            if line is not None and not is_line:
                raise self._changed(f"the line of item {number} in items is none")
        return rows

    def add(self, done: Sequence[Done], position: Position | None = None) -> int:
        """Commit what is done, and how far the files are; return the batch's number.

        Raises:
            OSError: If there is no room, or the disk fails; nothing of it is committed.
        """
        with self._alone() as database:
            database.execute("BEGIN")
            self._batch += bool(done)
            for start in range(0, len(done), _TOGETHER):
                values: list[Any] = []
                for number, crc, ok, line in done[start : start + _TOGETHER]:
                    values += (number, crc, self._batch, ok, line)
                marks = ", ".join(["(?, ?, ?, ?, ?)"] * (len(values) // 5))
                database.execute(f"INSERT INTO items VALUES {marks}", values)  # noqa: S608 - only marks
            if position is not None:
                self._save("position", asdict(position))
            database.execute("COMMIT")
            return self._batch

    def close(self) -> None:
        """Fold the log into the database, and unlock the file."""
        with self._lock:
            self._database.close()

    # The tables, and the errors of SQLite.

    @contextmanager
    def _alone(self) -> Generator[sqlite3.Connection]:
        """Give the database to this thread alone, and explain its errors."""
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise self._explained(error) from error

    def _prepare(self) -> int:
        """Check the tables, or make them; return the number of the last batch."""
        # Exclusive: the file stays locked until this process closes it or is dead.
        self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
        # Nothing is changed before it is known which program made the file.
        query = "SELECT type, name FROM sqlite_master ORDER BY name"
        tables = self._database.execute(query).fetchall()
        application = self._one("PRAGMA application_id")
        version = self._one("PRAGMA user_version")
        new = not tables and not application
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
        if not new and tables != _TABLES:
            raise self._changed("it has other tables than run and items")
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute("PRAGMA wal_autocheckpoint=4000")
        if new:
            self._database.executescript(_SCHEMA)
        last = self._one("SELECT max(batch) FROM items")
        if last is not None and type(last) is not int:
            raise self._changed(f"batch {last!r} in items is no number")
        return last or 0

    def _one(self, query: str, *values: Any) -> Any:
        (found,) = self._database.execute(query, values).fetchone()
        return found

    def _load(self, name: str, cls: type[R]) -> R | None:
        """Return a row of ``run``, if it is there."""
        found = self._value(name)
        if found is None:
            return None
        types = {field.name: _TYPES[field.type] for field in fields(cls)}
        if (
            not isinstance(found, dict)
            or {key: type(value) for key, value in found.items()} != types
        ):
            raise self._changed(f"row {name!r} in run does not say {', '.join(types)}")
        for key, value in found.items():
            if type(value) is int and value < 0:
                raise self._changed(f"{key} in row {name!r} in run is negative")
        return cls(**found)

    def _value(self, name: str) -> Any:
        query = "SELECT value FROM run WHERE name = ?"
        found = self._database.execute(query, (name,)).fetchone()
        try:
            return None if found is None else json.loads(found[0])
        except (ValueError, TypeError, RecursionError):
            raise self._changed(f"row {name!r} in run is no JSON") from None

    def _save(self, name: str, value: Any) -> None:
        self._database.execute(
            "INSERT OR REPLACE INTO run VALUES (?, ?)", (name, json.dumps(value))
        )

    def _changed(self, what: str) -> JournalError:
        """Return the error for what no run has written."""
        return JournalError(
            f"{self.path} was changed by somebody else: {what}; {_ANEW}"
        )

    def _explained(self, error: sqlite3.Error) -> JournalError | OSError:
        """Return the error that says what to do about an *error* of the database."""
        # Without a code, it is text that cannot be decoded.  Bits beyond a byte tell finer kinds.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in _LOGICAL:  # of right statements: something is not as it was left
            return self._changed(f"{error}")
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            text = "in use by another run: wait for its end, or stop it"
        elif code == sqlite3.SQLITE_NOTADB:
            text = "not a journal: name another file"
        elif code == sqlite3.SQLITE_CORRUPT:
            text = f"damaged: {_ANEW}"
        else:
            return OSError(None, f"{error}", self.path)
        return JournalError(f"{self.path} is {text}")


# The files: results, and failures.

_SYNC_EVERY = 1.0  # s; what the files hold beyond that is written again after a crash

# What each line of failures begins with.
FAILURE = b'{"index": '


class Sink:
    """A file that lines are appended to, or stdout.

    Args:
        path: The file; ``-`` is stdout.
        start: How many of its bytes stay.
    """

    def __init__(self, path: str, start: int) -> None:
        self.path = path
        self._at = start
        self._fd = -1
        self._dirty = False

    def open(self, *, lazy: bool = False) -> None:
        """Open it; if *lazy*, make it only when there is something to write.

        Raises:
            OSError: If it cannot be opened.
        """
        if lazy and not self._at:
            # One of another run would be taken for this one's.
            if Path(self.path).is_file():
                Path(self.path).unlink()
            return
        if self.path == "-":
            self._fd = os.dup(1)
            return
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        if stat.S_ISREG(os.fstat(self._fd).st_mode):
            os.ftruncate(self._fd, self._at)
            os.lseek(self._fd, self._at, os.SEEK_SET)

    def write(self, lines: list[str]) -> None:
        """Write lines.

        Raises:
            OSError: If they cannot be written, or only in part.
        """
        if self._fd < 0:
            self.open()
        data = memoryview(("\n".join(lines) + "\n").encode())
        self._dirty = True
        with self._named():
            while data:
                written = os.write(self._fd, data)
                self._at += written
                data = data[written:]

    def sync(self) -> int:
        """Flush everything written to the disk; return how many bytes that is.

        Raises:
            OSError: If the disk fails.
        """
        if self._dirty and stat.S_ISREG(os.fstat(self._fd).st_mode):
            with self._named():
                os.fsync(self._fd)
        self._dirty = False
        return self._at

    @contextmanager
    def _named(self) -> Generator[None]:
        """Put the path of the file into errors."""
        try:
            yield
        except OSError as error:
            error.filename = "stdout" if self.path == "-" else self.path
            raise

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Outputs:
    """Both files, in the input's order or as items are finished.

    What they have, the journal has already.

    Args:
        journal: The journal, if there is one.
        output: The path for results; ``-`` is stdout.
        failed: The path for failures.
        position: How far they are at the beginning.
        ordered: Whether they are in the input's order.
    """

    def __init__(
        self,
        journal: Journal | None,
        output: str,
        failed: str,
        position: Position,
        *,
        ordered: bool,
    ) -> None:
        self._journal, self._position = journal, position
        self._next = position.next
        self._batch: int | None = position.batch
        self._held: dict[int, Done] | None = {} if ordered else None
        self._output = Sink(output, position.output_bytes)
        self._failed = Sink(failed, position.failed_bytes)
        self._sync_at = time.monotonic() + _SYNC_EVERY

    def open(self) -> None:
        """Open both files, and cut off what is behind the position.

        Raises:
            OSError: If one of the files cannot be opened.
        """
        self._output.open()
        self._failed.open(lazy=True)

    def write(self, fresh: list[Done], replayed: list[Done]) -> list[Done]:
        """Write the lines that can be written now, and return them.

        Args:
            fresh: What was finished, each item once.
            replayed: What the journal has already, of which there may be more.

        Raises:
            OSError: If there is no room, the reader of a pipe has gone, or the disk fails.
        """
        if not fresh and not replayed:
            return []  # which says nothing of any batch
        batch = position = None
        if self._journal is not None and fresh:
            if time.monotonic() >= self._sync_at:
                position = self.flushed()
                self._sync_at = time.monotonic() + _SYNC_EVERY
            batch = self._journal.add(fresh, position)
        ready = done = fresh + replayed
        if self._held is not None:
            ready = list[Done]()
            self._held |= {item.number: item for item in done}
            while (following := self._held.pop(self._next, None)) is not None:
                ready.append(following)
                self._next += 1
        for ok, sink in ((True, self._output), (False, self._failed)):
            if lines := [item.line for item in ready if item.ok is ok]:
                sink.write(lines)
        self._batch = batch
        return ready

    def sync(self) -> None:
        """Flush everything written to the disk, and commit how far the files are."""
        if self._journal is not None:
            self._journal.add((), self.flushed())

    def flushed(self) -> Position:
        """Flush everything written to the disk; return how far the files are."""
        if self._held is None and self._batch is None:
            # In the middle of the items of earlier runs: no batch tells how far the files are.
            return self._position
        self._position = Position(
            next=self._next,
            batch=self._batch or 0,
            output=_name(self._output.path),
            output_bytes=self._output.sync(),
            failed=_name(self._failed.path),
            failed_bytes=self._failed.sync(),
        )
        return self._position

    def close(self) -> None:
        """Let go of the files."""
        self._output.close()
        self._failed.close()


def usable(position: Position, output: str, failed: str) -> Position:
    """Return how far these files are, if they are the files of *position*.

    Both files are begun anew if one is shorter (a power loss took its end, or somebody removed
    it), or cannot be cut off, such as a pipe.

    Raises:
        JournalError: If that would leave a part of a line.
    """
    files = (
        (output, position.output, position.output_bytes),
        (failed, position.failed, position.failed_bytes),
    )
    if any(_name(path) != known or _size(path) < size for path, known, size in files):
        return START
    for path, _, size in files:
        if not size:
            continue
        with Path(path).open("rb") as file:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                raise JournalError(
                    f"no line of {path} ends at byte {size}, where the journal has it end: "
                    "one of the two was changed; name another journal, or remove this one "
                    "to begin anew"
                )
    return position


def is_foreign(path: str, begin: bytes) -> bool:
    """Tell whether there is a file that no run has written: those of runs begin with *begin*."""
    place = Path(path)
    if not place.is_file():
        return False
    with suppress(OSError), place.open("rb") as file:  # what opens it to write says so
        return not begin.startswith(file.read(len(begin)))
    return False


def failure_line(item: Item, form: Form, error: BaseException) -> str:
    """Return the line for the file of failures."""
    text = json.dumps(describe(error))
    return f'{FAILURE.decode()}{item.number}, "input": {shown(item.raw, form)}, "error": {text}}}'


def _size(path: str) -> int:
    """Return the bytes of a file, or -1 if it is a stream."""
    if path == "-":
        return -1
    try:
        status = Path(path).stat()
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _name(path: str) -> str:
    return path if path == "-" else str(Path(path).resolve())
