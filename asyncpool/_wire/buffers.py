"""Objects that are too large to travel, or even to be pickled, like all others.

Pickling with protocol 5 (PEP 574) gives two things: a *stream*, and the large *buffers*
that stay out of it and are not copied at all.  Together they are an
:class:`OutOfBandPickle`.  It is sent as *areas*: in memory that both processes see, one
after the other, or each in a frame.  The receiver makes them a
:class:`ReceivedPickle`.  The buffers of an object that is loaded from it stay where
they are.
"""

from __future__ import annotations

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import TypeAlias

    Pause: TypeAlias = Callable[[], None]
    Payload: TypeAlias = "bytes | memoryview | ReceivedPickle"
    Piece: TypeAlias = bytes | memoryview
    Packed: TypeAlias = "bytes | OutOfBandPickle"

# Buffers of at least this many bytes stay out of a pickle.
LARGE = 65_536

# A longer stream is neither written nor read on an event loop's thread: to pickle small
# objects of this size takes half a millisecond.
HEAVY = 131_072

# No shorter one is long to read, whatever it holds.
SURELY_QUICK = 2048

# Areas begin at multiples of this, which vector instructions and NumPy like best.
_ALIGNMENT = 64


class OverLimitError(Exception):
    """The stream has become longer than allowed; what was written of it is lost."""


class OutOfBandPickle:
    """A pickled object that is sent in parts.

    Attributes:
        pieces: The stream.
        buffers: What stays out of the stream: views of memory that the object owns.
    """

    __slots__ = ("_is_heavy", "buffers", "pieces")

    def __init__(self, pieces: Sequence[Piece], buffers: list[memoryview]) -> None:
        self.pieces: Sequence[Piece] = pieces
        self.buffers: list[memoryview] = buffers
        self._is_heavy = sum(map(len, pieces)) > HEAVY

    def __len__(self) -> int:
        """Return how many bytes it has in all."""
        return sum(map(len, (*self.pieces, *self.buffers)))

    @property
    def payload(self) -> bytes:
        """The payload of the frame itself: the stream, or nothing if that is long."""
        return b"" if self._is_heavy else b"".join(self.pieces)

    @property
    def areas(self) -> list[Sequence[Piece]]:
        """What travels beside the frame: the areas, each in pieces; none of a small object."""
        areas: list[Sequence[Piece]] = [[view] for view in self.buffers]
        return [self.pieces, *areas] if self._is_heavy else areas

    @property
    def sizes(self) -> list[int]:
        """How many bytes each area has."""
        return [sum(map(len, pieces)) for pieces in self.areas]


class ReceivedPickle:
    """An out-of-band pickle that has arrived.

    Attributes:
        stream: The stream, as a whole.
        buffers: The buffers that stayed out of it.
    """

    __slots__ = ("buffers", "stream")

    def __init__(self, payload: Piece, areas: list[memoryview]) -> None:
        self.stream: Piece = payload or (areas.pop(0) if areas else b"")
        self.buffers: list[memoryview] = areas

    def __len__(self) -> int:
        """Return how many bytes it has in all."""
        return sum(map(len, (self.stream, *self.buffers)))


def lay_out(sizes: Iterable[int]) -> tuple[list[int], int]:
    """Return where areas of *sizes* begin, and where the last one ends."""
    offsets, end = list[int](), 0
    for size in sizes:
        offsets.append(-(-end // _ALIGNMENT) * _ALIGNMENT)
        end = offsets[-1] + size
    return offsets, end


def cut(view: memoryview, sizes: Sequence[int]) -> list[memoryview]:
    """Return the areas of *sizes* that were laid out in *view*."""
    offsets, _ = lay_out(sizes)
    return [view[at : at + size] for at, size in zip(offsets, sizes, strict=True)]
