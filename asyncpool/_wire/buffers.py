"""Objects that are too large to travel, or even to be pickled, like all others.

Pickling with protocol 5 (PEP 574) gives two things: a *stream*, and the large *buffers*
that stay out of it and are not copied at all.  Together they are an
:class:`OutOfBandPickle`.  It is sent as *areas*: in memory that both processes see, one
after the other, or each in a frame.  The receiver makes them a
:class:`ReceivedPickle`.  The buffers of an object that is loaded from it stay where
they are.

The stream is written and read in pieces of about 64 KB, as pickle frames it.  Between
two pieces, a thread that does this can let others run.
"""

from __future__ import annotations

import copyreg
import pickle
import sys
from contextlib import suppress
from io import TextIOWrapper

from asyncpool._wire import scripts

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn, TypeAlias

    Pause: TypeAlias = Callable[[], None]
    Payload: TypeAlias = "bytes | memoryview | ReceivedPickle"
    Piece: TypeAlias = bytes | memoryview
    Reducers: TypeAlias = dict[type, Callable[[Any], Any]]

# Buffers of at least this many bytes stay out of a pickle.
LARGE = 65_536

# What the name of the main module looks like inside a pickle.  A string that happens to
# contain it only costs a second pickling.
MAIN = b"__main__"

# A longer stream is neither written nor read on an event loop's thread: to pickle small
# objects of this size takes half a millisecond.
HEAVY = 131_072

# No shorter one is long to read, whatever it holds.
SURELY_QUICK = 2048

# How many bytes are copied at once while the thread holds the GIL: in fresh memory that
# takes 0.2 ms.
_CHUNK = 262_144

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
        self.pieces, self.buffers = pieces, buffers
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
        stream = [self.pieces] if self._is_heavy else []
        return [*stream, *([view] for view in self.buffers)]

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
        self.stream = payload or (areas.pop(0) if areas else b"")
        self.buffers = areas

    def __len__(self) -> int:
        """Return how many bytes it has in all."""
        return sum(map(len, (self.stream, *self.buffers)))


def is_heavy(payload: Payload) -> bool:
    """Tell whether *payload* takes long to load."""
    stream = payload.stream if isinstance(payload, ReceivedPickle) else payload
    return len(stream) > HEAVY


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


def dump(
    value: object,
    *,
    limit: int | None = None,
    pause: Pause | None = None,
    watch: Callable[[Any], None] | None = None,
    in_band: bool = False,
    others: Callable[[], Reducers] | None = None,
) -> OutOfBandPickle:
    """Pickle *value*, by value where the other process would not find a reference.

    Args:
        value: Anything.
        limit: The most bytes that the stream may have.
        pause: Called between the pieces of the stream.
        watch: Called with each object of a user's class before it is pickled; may
            raise a :class:`OverLimitError`.
        in_band: Whether large buffers go into the stream, like everything else.
        others: Called for each try.  Returns how to reduce objects that pickle does
            not know.

    Raises:
        OverLimitError: If the stream gets longer than *limit*.
        Exception: Any that the value's own methods raise, or the serializer.
    """

    def write(pickler: Any, value: object) -> tuple[list[bytes], list[memoryview]]:
        writer = _Writer(limit, pause, without)
        buffers: list[memoryview] = []
        keep = None if in_band else keep_large(buffers)
        made = pickler(writer, 5, buffer_callback=keep)
        if watch is not None and pickler is not pickle.Pickler:
            made.watch = watch
        teach(made, taught)
        made.dump(value)
        return writer.pieces, buffers

    try:
        if not scripts.is_local(value):
            taught, without = others and others(), MAIN
            fast = pickle.Pickler if watch is None else _Watched
            return OutOfBandPickle(*write(fast, value))
    except OverLimitError:
        raise
    except Exception:  # noqa: BLE001, S110 - by value, then
        pass
    taught, without = others and others(), b""
    from asyncpool._wire.by_value import GlobalsPickler  # noqa: PLC0415 - workers need none

    return OutOfBandPickle(
        *GlobalsPickler(write, limit, pause).pack(value, warn=not in_band)
    )


def dumps_call(value: object, others: Callable[[], Reducers] | None = None) -> bytes:
    """Return *value* pickled for a worker, in one piece; see :func:`dump`."""
    return b"".join(dump(value, in_band=True, others=others).pieces)


def keep_large(buffers: list[memoryview]) -> Callable[[pickle.PickleBuffer], bool]:
    """Return a pickler's callback that keeps large buffers out of the stream."""

    def keep(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if len(view) < LARGE:
            return True
        buffers.append(view)
        return False

    return keep


def loads(payload: Payload, *, pause: Pause | None = None) -> Any:
    """Load the object from *payload*.

    Args:
        payload: A stream, or a pickle with its buffers.
        pause: Called between the pieces of the stream.

    Raises:
        BaseException: Any that unpickling raises.
    """
    if not isinstance(payload, ReceivedPickle):
        payload = ReceivedPickle(payload, [])
    if pause is None:
        return pickle.loads(payload.stream, buffers=payload.buffers)
    reader: Any = _Reader(payload.stream, pause)
    return pickle.Unpickler(reader, buffers=payload.buffers).load()


class _Watched(pickle.Pickler):
    """Calls ``watch`` with each object of a user's class, which takes 0.2 us."""

    watch: Any = None

    def reducer_override(self, value: object) -> Any:
        self.watch(value)
        return NotImplemented


class _Writer:
    """A file for a pickler, which writes a frame when it has 64 KB of it.

    A longer piece is the content of one bytes object, or the like.
    """

    def __init__(self, limit: int | None, pause: Pause | None, without: bytes) -> None:
        self.pieces: list[bytes] = []
        self._room, self._pause, self._without = limit, pause, without

    def write(self, data: bytes | bytearray | pickle.PickleBuffer) -> None:
        # A PickleBuffer is a large buffer that stays in the stream.
        piece = data.raw() if isinstance(data, pickle.PickleBuffer) else data
        if self._room is not None:
            self._room -= len(piece)
            if self._room < 0:
                raise OverLimitError
        if type(piece) is bytes:
            self._add(piece)
            return
        for start in range(0, len(piece), _CHUNK):  # memory that can change is copied
            self._add(bytes(memoryview(piece)[start : start + _CHUNK]))

    def _add(self, piece: bytes) -> None:
        if self._without:
            # It may only look like a frame; but to search 64 MB of a user's data takes 6 ms.
            short = len(piece) <= HEAVY or not self.pieces
            # A frame ends between two names, so that none is cut.
            if (short or piece[:1] == pickle.FRAME) and self._without in piece:
                raise pickle.PicklingError("the other process has another __main__")
        self.pieces.append(piece)
        if self._pause is not None:
            self._pause()


class _Reader:
    """A file for an unpickler, which reads a frame of 64 KB at a time.

    Each piece is a copy.  So another process that can still write to the memory cannot
    change a piece while it is unpickled.
    """

    def __init__(self, stream: Piece, pause: Pause) -> None:
        self._stream, self._pause = memoryview(stream), pause
        self._at = 0

    def read(self, size: int) -> bytes:
        self._pause()
        start, self._at = self._at, self._at + size
        return bytes(self._stream[start : self._at])

    def readinto(self, target: memoryview) -> int:
        """Read an object that is too large for a frame: one long bytes object."""
        source = self._stream[self._at : self._at + len(target)]
        self._at += len(target)
        for start in range(0, len(source), _CHUNK):
            self._pause()
            chunk = source[start : start + _CHUNK]
            target[start : start + len(chunk)] = chunk
        return len(source)

    # Only protocols that asyncpool does not write need it.
    def readline(self) -> bytes:
        raise pickle.UnpicklingError("the stream is malformed")


# Other ways to reduce objects that pickle gets wrong, or is slow with.
#
# Each pickler gets a table of its own.  So no other pickler in the process changes, as
# one would with ``copyreg``.
#
# Most of this is about arrays whose buffer NumPy copies into the pickle although it could
# stay out.
#
# NumPy keeps the buffer of an array out of a pickle if the buffer is in one piece and the
# buffer protocol knows its type.  NumPy copies strided arrays and arrays of dates as a
# whole instead, with the GIL held, and copies them once more when they are unpickled: 64
# MB of dates took 0.5 s there and back.  This makes these arrays fit: it copies
# strided arrays first, and pickles arrays of dates as numbers, with their type put back
# on the other side.
#
# What the other side calls is NumPy's own function, with the type that it is given.

ARRAYS = "numpy"
FRAMES = "polars"
CONNECTIONS = "multiprocessing.connection"

_DISPATCH_TABLE = vars(pickle.Pickler)["dispatch_table"]


def teach(pickler: Any, others: Reducers | None = None) -> None:
    """Let *pickler* reduce objects as this module says.

    *others* are for objects that this module does not know, and go before its own.
    """
    known = getattr(pickler, "dispatch_table", copyreg.dispatch_table)
    table: Reducers = {
        found: reduce
        for (module, name), reduce in _TAUGHT.items()
        # A module that is still being imported may not have the name yet.
        if (found := getattr(sys.modules.get(module), name, None))
    }
    files: Reducers = {TextIOWrapper: _reduce_file} if TextIOWrapper in known else {}
    if table or others or files:
        if maps := getattr(
            known, "maps", None
        ):  # cloudpickle's: to copy it takes 15 us
            known = {**copyreg.dispatch_table, **maps[0]}
        # cloudpickle's class has such an attribute too, which hides that of the
        # instance.
        table = {**known, **table} if others is None else {**table, **others, **known}
        _DISPATCH_TABLE.__set__(pickler, {**table, **files})


def _reduce_file(file: TextIOWrapper) -> Any:
    """Refuse an open file, as the standard library's pickler does.

    cloudpickle would send its whole content, and what the worker writes there would be
    lost.
    """
    for name in ("stdout", "stderr"):
        if file is getattr(sys, name):
            return getattr, (sys, name)
    raise TypeError(
        f"cannot send {file!r}, which is open here: send its path, or what is in it"
    )


def _refuse(connection: object) -> NoReturn:
    """Refuse a connection of ``multiprocessing``.

    The standard library's own pickler passes its descriptor on.  All other picklers see
    an object with a number in it.  The copy would use, and close, whatever descriptor
    has that number in the other process.
    """
    raise TypeError(
        f"cannot send {connection!r}, which is a descriptor of this process"
    )


def reduce_array(array: Any) -> Any:
    """Return the parts of *array*, for a pickler that keeps large buffers apart."""
    dtype, flags = array.dtype, array.flags
    if array.nbytes < LARGE or dtype.hasobject:
        return array.__reduce_ex__(5)
    try:
        memoryview(array)
    except Exception:  # noqa: BLE001 - NumPy may raise anything
        # NumPy has always made new arrays of these, so that one may write to them.
        if not (flags.forc and flags.writeable):
            array = array.copy("A")
        bare = array.view(f"V{dtype.itemsize}")
        function, (buffer, _, *rest) = bare.__reduce_ex__(5)
        return function, (buffer, dtype, *rest)
    if not flags.forc and not _is_transposed(array):
        array = array.copy()  # copying releases the GIL
    return array.__reduce_ex__(5)


def _size_of(value: Any) -> int:
    """Return how many bytes an array, a tensor or a table has; 0 if *value* is none of these."""
    cls = type(value)
    if cls.__module__ == "array":
        return memoryview(value).nbytes
    if hasattr(cls, "nbytes"):
        return int(value.nbytes)
    # As tables of polars say it.
    return value.estimated_size() if hasattr(cls, "estimated_size") else 0


def is_copied(value: Any, limit: int) -> bool:
    """Tell whether a pickler copies a buffer of *value* at once that is larger than *limit*.

    It does not if the buffer stays out of the pickle.  The pickle of a class that is derived from
    NumPy's, such as a masked array, has a copy of it, as that of the standard library's arrays.
    The pickle of an array of objects has a list.
    """
    try:
        if _size_of(value) <= limit:
            return False
        view, cls = memoryview(value), type(value)
        base: Any = getattr(sys.modules.get(ARRAYS), "ndarray", ())
        is_derived = cls is not base and issubclass(cls, base)
        in_one_piece = view.contiguous and "O" not in view.format
        return bool(is_derived or cls.__module__ == "array" or not in_one_piece)
    except Exception:  # noqa: BLE001 - it has no buffer to offer
        return True


def _reduce_tensor(tensor: Any) -> Any:
    """Return a tensor of PyTorch as the array that has its memory, if there can be one."""
    torch = sys.modules["torch"]
    with suppress(Exception):  # it is sparse, say, or on a GPU
        whole = tensor.untyped_storage().nbytes()  # less, if it repeats elements
        is_plain = not tensor.requires_grad and not vars(tensor)
        if is_plain and LARGE <= _size_of(tensor) <= whole:
            if tensor.dtype is torch.bfloat16:  # NumPy has no such type
                return torch.Tensor.view, (tensor.view(torch.int16), tensor.dtype)
            return torch.from_numpy, (tensor.numpy(),)
    return tensor.__reduce_ex__(5)


def _reduce_frame(frame: Any) -> Any:
    """Return a table of polars as the one of Arrow that has its memory, if there can be one."""
    polars = sys.modules["polars"]
    with suppress(Exception):  # there is no pyarrow, say, or a column of objects
        size = _size_of(frame)
        if size >= LARGE and "" not in frame.columns:  # from_arrow() would rename that
            table = frame.to_arrow(compat_level=polars.CompatLevel.newest())
            # Arrow sends the whole memory of what is a part of another table.
            if table.get_total_buffer_size() <= 2 * size:
                return polars.from_arrow, (table,)
    return frame.__reduce_ex__(5)


def _reduce_series(series: Any) -> Any:
    polars = sys.modules["polars"]
    if not series.name:
        return polars.Series.alias, (series.alias("series"), "")
    return polars.DataFrame.to_series, (series.to_frame(),)


# By the names of their modules, and by their own.
_TAUGHT: dict[tuple[str, str], Callable[[Any], Any]] = {
    (ARRAYS, "ndarray"): reduce_array,
    (FRAMES, "DataFrame"): _reduce_frame,
    (FRAMES, "Series"): _reduce_series,
    ("torch", "Tensor"): _reduce_tensor,
    (CONNECTIONS, "Connection"): _refuse,
}


def _is_transposed(array: Any) -> bool:
    """Tell whether *array* is in one piece except for the order of its axes.

    Newer versions of NumPy keep the buffers of such arrays out of a pickle, too.
    """
    axes = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return bool(array.transpose(axes).flags.c_contiguous)
