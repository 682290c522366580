"""What the payloads of ``PROFILE`` and ``SAMPLES`` frames mean.

The pool does not trust what a worker sends: a chunk of samples is JSON of bounded size, and all
that is in it is checked.  A chunk stands by itself: it has the names that its stacks refer to.
"""

from __future__ import annotations

import json

from asyncpool._core.base.names import MAX_NAME
from asyncpool._core.base.records import Record
from asyncpool._core.base.text import printable
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from asyncpool._core.profile.stack_counts import Stack

MAX_SECONDS = 3600
MAX_RATE = 1000

# A stack of that many calls with the longest names fits: a character has up to 4 bytes.
MAX_CHUNK = 1 << 17
MAX_DEPTH = 128

# More than the samples of all threads of a worker in the longest time.
MAX_COUNT = 1 << 32

_MAX_ERROR = 500

# The most bytes of a number in a stack with the comma behind it, and of all but names and stacks.
_NUMBER = 11
_REST = 4096


class ProfileRequest(Record):
    """What a worker is to sample.

    Attributes:
        seconds: For how long.
        rate: How often in a second.
        function: The function of the jobs that count, or the end of its name from a dot on;
            empty for all.
    """

    seconds: float
    rate: float
    function: str = ""

    def pack(self) -> bytes:
        """Return the payload of a ``PROFILE`` frame."""
        return json.dumps(tuple(self)).encode()

    @classmethod
    def unpack(cls, payload: bytes) -> ProfileRequest:
        """Read the payload of a ``PROFILE`` frame; it must come from the pool."""
        return cls(*json.loads(payload))

    def wants(self, function: str) -> bool:
        """Tell whether jobs of *function* count."""
        wanted = self.function
        return not wanted or function == wanted or function.endswith(f".{wanted}")


class SampleFigures(Record):
    """What a sampler has counted besides stacks.

    Attributes:
        idle: The samples that found no job.
        skipped: Those that found a job of another function.
        missed: Those that were taken late; they count for what was found then.
    """

    idle: int = 0
    skipped: int = 0
    missed: int = 0


class SampleChunk(Record):
    """A part of what a worker has found.

    Attributes:
        stacks: How many samples have found which stack.
        figures: What else was counted.
        error: Why the sampler has ended early, if it has.
    """

    stacks: dict[Stack, int]
    figures: SampleFigures
    error: str = ""

    def pack(self) -> Iterator[bytes]:
        """Yield the payloads of the ``SAMPLES`` frames, one at least.

        The figures and the error are in the first one.
        """
        figures, error = self.figures, self.error[:_MAX_ERROR]
        names: dict[str, int] = {}
        rows: list[list[int]] = []
        room = MAX_CHUNK - _REST
        for (function, frames), samples in self.stacks.items():
            calls = (function, *frames)
            size = _size_of(calls, names)
            if size > room:
                yield _dump([list(names), rows, figures, error])
                figures, error, names, rows = SampleFigures(), "", {}, []
                room, size = MAX_CHUNK - _REST, _size_of(calls, names)
            room -= size
            places = [names.setdefault(name, len(names)) for name in calls]
            rows.append([samples, *places])
        yield _dump([list(names), rows, figures, error])

    @classmethod
    def unpack(cls, payload: bytes) -> SampleChunk:
        """Read the payload of a ``SAMPLES`` frame.

        Raises:
            ProtocolError: If it is no such payload.
        """
        try:
            return cls._checked(payload)
        except (ValueError, TypeError, RecursionError) as wrong:
            raise ProtocolError("samples of stacks cannot be read") from wrong

    @classmethod
    def _checked(cls, payload: bytes) -> SampleChunk:
        if len(payload) > MAX_CHUNK:
            raise ValueError("it is too large")
        names, rows, figures, error = json.loads(payload)
        names = [_checked_name(name) for name in names]
        stacks: dict[Stack, int] = {}
        for samples, *row in rows:
            function, *frames = [names[_checked(place, len(names))] for place in row]
            if len(frames) > MAX_DEPTH:
                raise ValueError("a stack is too deep")
            stack = (function, tuple(frames))
            stacks[stack] = stacks.get(stack, 0) + _checked(samples, MAX_COUNT)
        counted = SampleFigures(*(_checked(each, MAX_COUNT) for each in figures))
        return cls(stacks, counted, printable(str(error)[:_MAX_ERROR]))


def as_name(text: str) -> str:
    """Return *text* as it may be in a chunk: printable, and not too long."""
    text = printable(text.encode(errors="replace").decode())
    return text if len(text) <= MAX_NAME else f"{text[: MAX_NAME - 3]}..."


def _size_of(calls: tuple[str, ...], known: dict[str, int]) -> int:
    """Return the most bytes that a stack adds to a chunk that has the names in *known*."""
    new = {name for name in calls if name not in known}
    size = sum(len(_dump(name)) + 1 for name in new)
    return size + _NUMBER * (len(calls) + 1)


def _checked_name(name: Any) -> str:
    if type(name) is not str or len(name) > MAX_NAME:
        raise ValueError("a name is no text, or too long")
    return as_name(name)


def _checked(number: Any, limit: int) -> int:
    if type(number) is not int or not 0 <= number < limit:
        raise ValueError("a number is out of range")
    return number


def _dump(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
