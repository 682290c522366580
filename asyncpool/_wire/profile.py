"""Samples of stacks: when they are taken, how they are counted, and what their frames mean.

The pool does not trust what a worker sends: a chunk of samples is JSON of bounded size, and all
that is in it is checked.  A chunk stands by itself: it has the names that its stacks refer to.
"""

from __future__ import annotations

import json

from asyncpool._wire.records import Record
from asyncpool._wire.text import MAX_NAME, printable, short_name
from asyncpool.errors import ProtocolError

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

# The function of the job, and the calls inside it, the outermost first.
Stack = tuple[str, tuple[str, ...]]

# What stands in place of the job's function for stacks that were not kept apart, and for those
# that belong to no job.
OTHER = "(other)"
NO_JOB = "(no job)"


def count_stack(
    counts: dict[Stack, int], stack: Stack, samples: int, most: int
) -> None:
    """Count *samples* that have found *stack*.

    Only *most* different stacks are counted.  The samples of all others count together, as those
    of ``OTHER``.
    """
    if stack not in counts and len(counts) >= most:
        stack = (OTHER, ())
    counts[stack] = counts.get(stack, 0) + samples


# The range of the generator of pseudo-random numbers, and its constants.  The module random
# would cost a worker 300 KB.
_RANGE = 1 << 31
_FACTOR, _STEP = 1_103_515_245, 12_345


def sampling_times(rate: float, seconds: float, now: float) -> Iterator[float]:
    """Yield the times at which a sampler looks, until its time is over.

    The distance between two looks varies by half of its mean.  With equal distances, a job
    that does the same every 10 ms would be met at the same place each time.

    Args:
        rate: How many looks there are in a second.
        seconds: For how long.
        now: When that begins.
    """
    due, end, random = now, now + seconds, int(now * 1e6) % _RANGE
    while True:
        random = (random * _FACTOR + _STEP) % _RANGE
        due += (0.5 + random / _RANGE) / rate
        if due >= end:
            return
        yield due


MAX_SECONDS = 3600
MAX_RATE = 1000

# A stack of that many calls with the longest names fits: a character has up to 4 bytes.
MAX_CHUNK = 1 << 17
MAX_DEPTH = 128

# More than the samples of all threads of a worker in the longest time.
MAX_COUNT = 1 << 32

_MAX_ERROR = 500


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


class SampleChunk(Record):
    """A part of what a worker has found.

    Attributes:
        stacks: How many samples have found which stack.
        figures: How many samples have found no job, and how many a job of another function; and
            how many were taken late, which count for what was found then.
        error: Why the sampler has ended early, if it has.
    """

    stacks: dict[Stack, int]
    figures: tuple[int, int, int] = (0, 0, 0)
    error: str = ""

    def pack(self) -> Iterator[bytes]:
        """Yield the payloads of the ``SAMPLES`` frames, one at least.

        The figures and the error are in the first one.
        """
        names: dict[str, int] = {}
        rows = [
            [samples, *(names.setdefault(it, len(names)) for it in (function, *frames))]
            for (function, frames), samples in self.stacks.items()
        ]
        told = [list(names), rows, self.figures, self.error[:_MAX_ERROR]]
        payload = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()
        if len(payload) <= MAX_CHUNK:
            yield payload
            return
        # One stack always fits.
        stacks, half = list(self.stacks.items()), len(self.stacks) // 2
        yield from SampleChunk(dict(stacks[:half]), self.figures, self.error).pack()
        yield from SampleChunk(dict(stacks[half:])).pack()

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
        idle, skipped, missed = (_checked(each, MAX_COUNT) for each in figures)
        counted = idle, skipped, missed
        return cls(stacks, counted, printable(str(error), _MAX_ERROR))


def as_name(text: str) -> str:
    """Return *text* as it may be in a chunk: printable, and not too long."""
    return short_name(printable(text))


def _checked_name(name: Any) -> str:
    if type(name) is not str or len(name) > MAX_NAME:
        raise ValueError("a name is no text, or too long")
    return as_name(name)


def _checked(number: Any, limit: int) -> int:
    if type(number) is not int or not 0 <= number < limit:
        raise ValueError("a number is out of range")
    return number
