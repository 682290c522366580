"""The files that a run writes, results and failures, and how a failure is written."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from asyncpool._cli.journal.journal import START, Done, Position
from asyncpool._cli.journal.journal_file import JournalError
from asyncpool._cli.map.inputs import Item
from asyncpool._cli.targets import Form, FunctionRaisedError, shown
from asyncpool.errors import JobTimeoutError, WorkerCrashedError

# What each line in a file of failures begins with.
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
            name = "stdout" if self.path == "-" else self.path
            raise OSError(error.errno, error.strerror, name) from None

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Outputs:
    """Both files, in the input's order or as items are finished.

    Args:
        output: The path for results; ``-`` is stdout.
        failed: The path for failures.
        ordered: Whether they are in the input's order.
        position: How far they are at the beginning.
    """

    def __init__(
        self, output: str, failed: str, position: Position, *, ordered: bool
    ) -> None:
        self.position = position
        self._next = position.next
        self._batch: int | None = position.batch
        self._held: dict[int, Done] | None = {} if ordered else None
        self._output = Sink(output, position.output_bytes)
        self._failed = Sink(failed, position.failed_bytes)

    def open(self) -> None:
        """Open both files, and cut off what is behind the position.

        Raises:
            OSError: If one of the files cannot be opened.
        """
        self._output.open()
        self._failed.open(lazy=True)

    def write(self, done: list[Done], batch: int | None) -> list[Done]:
        """Write the lines that can be written now, and return them.

        Args:
            done: What was finished, each item once.
            batch: The batch of the journal that it came with; ``None`` if all of it was
                there before, and there may be more of that.

        Raises:
            OSError: If there is no room, the reader of a pipe has gone, or the disk fails.
        """
        ready = done if self._held is None else self._in_order(done)
        for ok, sink in ((True, self._output), (False, self._failed)):
            if lines := [item.line for item in ready if item.ok is ok]:
                sink.write(lines)
        self._batch = batch
        return ready

    def _in_order(self, done: list[Done]) -> list[Done]:
        held = self._held
        assert held is not None
        for item in done:
            held[item.number] = item
        ready: list[Done] = []
        while (following := held.pop(self._next, None)) is not None:
            ready.append(following)
            self._next += 1
        return ready

    def sync(self) -> Position:
        """Flush everything written to the disk; return how far the files are."""
        if self._held is None and self._batch is None:
            # In the middle of the items of earlier runs: no batch tells how far the files are.
            return self.position
        self.position = Position(
            next=self._next,
            batch=self._batch or 0,
            output=_name(self._output.path),
            output_bytes=self._output.sync(),
            failed=_name(self._failed.path),
            failed_bytes=self._failed.sync(),
        )
        return self.position

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
    for path, known, size in (
        (output, position.output, position.output_bytes),
        (failed, position.failed, position.failed_bytes),
    ):
        if _name(path) != known or _size(path) < size:
            return START
    for path, size in (
        (output, position.output_bytes),
        (failed, position.failed_bytes),
    ):
        if not _ends_line(path, size):
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


def describe(error: BaseException) -> dict[str, Any]:
    """Return what is known of a failure, for JSON.

    ``kind`` is ``"raised"``, ``"timeout"``, a kind of crash, or ``"failed"``.
    """
    if isinstance(error, FunctionRaisedError):
        return {
            "kind": "raised",
            "type": error.type,
            "message": error.message,
            "traceback": error.traceback,
        }
    known: dict[str, Any] = {
        "kind": "failed",
        "type": type(error).__name__,
        "message": str(error),
    }
    if isinstance(error, JobTimeoutError):
        known |= {"kind": "timeout", "attempt": error.attempt, "stack": error.stack}
    elif isinstance(error, WorkerCrashedError):
        known |= {
            "kind": error.kind,
            "attempt": error.attempt,
            "stack": error.stack,
            "crashes": [dataclasses.asdict(crash) for crash in error.crashes],
        }
    return known


def failure_line(item: Item, form: Form, error: BaseException) -> str:
    """Return the line for the file of failures."""
    text = json.dumps(describe(error))
    return f'{FAILURE.decode()}{item.number}, "input": {shown(item.raw, form)}, "error": {text}}}'


def _ends_line(path: str, size: int) -> bool:
    """Tell whether the first *size* bytes of a file end with a whole line, or are none."""
    if not size:
        return True
    with Path(path).open("rb") as file:
        file.seek(size - 1)
        return file.read(1) == b"\n"


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
