"""Where items come from: lines of a file or of stdin, records of CSV, paths.

Everything here is read in a thread of its own, some thousand items ahead of the pool, so
a slow disk, or a stdin that is silent for an hour, does not hold up the event loop.
"""

from __future__ import annotations

import csv
import glob
import json
import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from zlib import crc32

from asyncpool._cli.targets import Form

Format = Literal["jsonl", "csv", "lines"]

_FORMS: dict[Format, Form] = {"jsonl": "json", "csv": "keywords", "lines": "text"}
_SUFFIXES: dict[str, Format] = {".jsonl": "jsonl", ".ndjson": "jsonl", ".csv": "csv"}
_BOM = b"\xef\xbb\xbf"
_READ = 1 << 16  # bytes; what a pipe holds
_TOGETHER = 512  # records or paths


class InputError(Exception):
    """The input cannot be read; the text says why."""


class Item(NamedTuple):
    """One item of the input.

    Attributes:
        number: Its place in the input, from 0.
        raw: Its text: a line, a CSV record as a JSON object, a path.
        crc: A checksum of the text, which shows that the input has changed.
    """

    number: int
    raw: bytes
    crc: int


@dataclass(slots=True)
class Input:
    """An input that can be read once.

    Attributes:
        name: Its name, the same in every run: an absolute path, ``-``, a pattern.
        form: What each item is.
        size: Its bytes, if it is a file.
        count: How many items there are, if that is known.
        consumed: The bytes that were read so far.
    """

    name: str
    form: Form
    size: int | None
    count: int | None
    _batches: Callable[[Input], Iterable[list[bytes]]]
    consumed: int = 0

    def items(self) -> Iterator[list[Item]]:
        """Yield lists of items, as many at a time as have been read.

        Raises:
            InputError: If the rest of the input cannot be read.
        """
        start = 0
        for batch in self._batches(self):
            together = [
                Item(n, raw, crc32(raw)) for n, raw in enumerate(batch, start=start)
            ]
            start += len(together)
            if together:
                yield together


def open_input(path: str | None, pattern: str | None, format: Format | None) -> Input:  # noqa: A002
    """Open a file, stdin (``-``), or all paths that match a pattern.

    Args:
        path: The file.
        pattern: The pattern, if there is no file; ``**`` matches any folders.
        format: What the file holds.  By default the suffix of its name tells; files with
            another suffix hold plain lines.

    Raises:
        InputError: If the file cannot be opened, or no path matches.
    """
    if path is None:
        return _matching(pattern or "")
    try:
        fd = os.dup(0) if path == "-" else os.open(path, os.O_RDONLY)
        os.read(fd, 0)  # a folder can be opened, but not read
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    name = "-" if path == "-" else str(Path(path).resolve())
    status = os.fstat(fd)
    # What is redirected to stdin may have begun anywhere in its file.
    is_file = path != "-" and stat.S_ISREG(status.st_mode)
    size = status.st_size if is_file else None
    chosen = format or _SUFFIXES.get(Path(path).suffix.lower(), "lines")
    read = {"jsonl": _filled_lines, "csv": _records, "lines": _lines}[chosen]
    return Input(name, _FORMS[chosen], size, None, lambda self: read(self, fd))


def _matching(pattern: str) -> Input:
    # Sorted, since every run has to see the same order.
    paths = sorted(p for p in glob.glob(pattern, recursive=True) if Path(p).is_file())  # noqa: PTH207 - it would lose how the pattern was written
    if not paths:
        raise InputError(f"no file matches {pattern!r}, seen from {Path.cwd()}")
    raw = [os.fsencode(path) for path in paths]

    def batches(_: Input) -> Iterator[list[bytes]]:
        for start in range(0, len(raw), _TOGETHER):
            yield raw[start : start + _TOGETHER]

    # Paths that begin elsewhere are other paths.
    name = str(Path.cwd() / pattern)
    return Input(name, "path", None, len(paths), batches)


def _lines(source: Input, fd: int) -> Iterator[list[bytes]]:
    """Yield lines as they come, without their line ends."""
    parts: list[bytes] = []
    first = True
    try:
        while data := os.read(fd, _READ):
            source.consumed += len(data)
            head, newline, tail = data.rpartition(b"\n")
            if not newline:
                parts.append(data)
                continue
            parts.append(head)
            lines = b"".join(parts).replace(b"\r\n", b"\n").split(b"\n")
            parts = [tail]
            # What is cut between \r and \n has its \r still.
            lines[-1] = lines[-1].removesuffix(b"\r")
            if first:
                lines[0] = lines[0].removeprefix(_BOM)
                first = False
            yield lines
        if last := b"".join(parts):
            yield [last.removeprefix(_BOM) if first else last]
    except OSError as error:
        raise InputError(f"cannot read {source.name}: {error.strerror}") from None
    finally:
        os.close(fd)


def _filled_lines(source: Input, fd: int) -> Iterator[list[bytes]]:
    """Yield the lines that are not blank."""
    for lines in _lines(source, fd):
        yield [line for line in lines if line and not line.isspace()]


def _records(source: Input, fd: int) -> Iterator[list[bytes]]:
    """Yield CSV records as JSON objects; the first one holds the names.

    What is complete goes on before there is any waiting for the rest of a record, which may take an
    hour to come.
    """
    csv.field_size_limit(sys.maxsize)
    names: list[str] | None = None
    taken: list[str] = []  # lines of a record that is not complete
    number = 0
    for lines in _lines(source, fd):
        together: list[bytes] = []
        for line in lines:
            number += 1
            taken.append(f"{line.decode(errors='surrogateescape')}\n")
            if len(taken) > 1 and b'"' not in line:
                continue  # a quoted field goes on in the next line
            try:
                [row] = csv.reader(taken, strict=True)
            except csv.Error as error:
                if "unexpected end" in str(error):
                    continue
                yield together
                raise InputError(f"{source.name}, line {number}: {error}") from None
            taken.clear()
            if names is None:
                names = row
                if len(set(names)) < len(names):
                    raise InputError(f"two columns of {source.name} have the same name")
            elif row:
                # One that does not fit fails by itself: it goes as a list.
                fits = len(row) == len(names)
                fields = dict(zip(names, row, strict=True)) if fits else row
                text = json.dumps(fields, ensure_ascii=False)
                # With the bytes that are not UTF-8, so that it fails by itself, too.
                together.append(text.encode(errors="surrogateescape"))
        yield together
    if taken:
        raise InputError(
            f"{source.name}, line {number - len(taken) + 1}: a quoted field of the record "
            "there has no end"
        )
