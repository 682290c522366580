"""The database of a journal: one file, which one process has open at a time.

It knows the tables and the errors of SQLite; ``journal.py`` knows what the rows mean.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import fields as fields_of
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_APPLICATION = 0x61737079  # "aspy", so that no other database is taken for a journal
_VERSION = 1

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


# By the names that annotations have in journal.py.
_TYPES: dict[Any, type] = {"int": int, "str": str, "bool": bool}
R = TypeVar("R", bound="DataclassInstance")


class JournalFile:
    """The database of a journal, locked until it is closed.

    Args:
        path: The path of the file, which is made if there is none.

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
            with self.alone():
                self._prepare()
        except BaseException:
            self._database.close()
            raise

    @contextmanager
    def alone(self) -> Generator[sqlite3.Connection]:
        """Give the database to this thread alone, and explain its errors."""
        with self._lock:
            try:
                yield self._database
            except sqlite3.Error as error:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise self._explained(error) from error

    def load(self, name: str, cls: type[R]) -> R | None:
        """Return a row of ``run``, if it is there; the caller has the database alone."""
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
            raise self.changed(f"row {name!r} in run does not say {', '.join(types)}")
        for key, value in fields.items():
            if type(value) is int and value < 0:
                raise self.changed(f"{key} in row {name!r} in run is negative")
        return cls(**fields)

    def load_size(self) -> int | None:
        """Return the size of the input that the last run has noted, if it has noted one."""
        size = self._value("size")
        if size is not None and type(size) is not int:
            raise self.changed("row 'size' in run is no number")
        return size

    def _value(self, name: str) -> Any:
        found = self._database.execute(
            "SELECT value FROM run WHERE name = ?", (name,)
        ).fetchone()
        try:
            return None if found is None else json.loads(found[0])
        except (ValueError, TypeError, RecursionError):
            raise self.changed(f"row {name!r} in run is no JSON") from None

    def save(self, name: str, value: Any) -> None:
        """Write a row of ``run``."""
        self._database.execute(
            "INSERT OR REPLACE INTO run VALUES (?, ?)", (name, json.dumps(value))
        )

    def close(self) -> None:
        """Fold the log into the database, and unlock the file."""
        with self._lock:
            self._database.close()

    def changed(self, what: str) -> JournalError:
        """Return the error for what no run has written."""
        return JournalError(
            f"{self.path} was changed by somebody else: {what}; name another journal, or remove "
            "this one to begin anew"
        )

    def _prepare(self) -> None:
        # Exclusive: the file stays locked until this process closes it or is dead.
        self._database.execute("PRAGMA locking_mode=EXCLUSIVE")
        # Nothing is changed before it is known which program made the file.
        (tables,) = self._database.execute(
            "SELECT count(*) FROM sqlite_master"
        ).fetchone()
        (application,) = self._database.execute("PRAGMA application_id").fetchone()
        (version,) = self._database.execute("PRAGMA user_version").fetchone()
        new = not tables and not application
        known = self._database.execute(
            "SELECT type, name FROM sqlite_master ORDER BY name"
        )
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
            raise self.changed("it has other tables than run and items")
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute("PRAGMA wal_autocheckpoint=4000")
        if new:
            self._database.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                self._database.execute(statement)
            self._database.execute(f"PRAGMA application_id={_APPLICATION}")
            self._database.execute(f"PRAGMA user_version={_VERSION}")
            self._database.execute("COMMIT")

    def _explained(self, error: sqlite3.Error) -> JournalError | OSError:
        """Return the error that says what to do about an *error* of the database."""
        # Without a code, it is text that cannot be decoded.  Bits beyond a byte tell finer kinds.
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return JournalError(
                f"{self.path} is in use by another run: wait for its end, or stop it"
            )
        if code == sqlite3.SQLITE_NOTADB:
            return JournalError(f"{self.path} is not a journal: name another file")
        if code == sqlite3.SQLITE_CORRUPT:
            return JournalError(
                f"{self.path} is damaged: name another journal, or remove this one to begin anew"
            )
        if (
            code in _LOGICAL
        ):  # of statements that are right: something is not as it was left
            return self.changed(f"{error}")
        return OSError(None, f"{error}", self.path)
