"""Plain data as bytes, in steps that are short for whoever reads it.

A short value that JSON knows is one JSON text.  Any other value is written in *parts*: the values
that JSON knows, in texts of at most :data:`PIECE` bytes, and a *program* for a stack that makes the
rest of them.  ``{1, 2}`` is the text ``[1,2]`` and the program "push 2, set of 2".  ``[(1, 2)] * 9`` is the
text of a list in which each tuple is a list too, and the program "push 9, tuples of the last 9, list of 9".

A message begins with the number of its format, which is only compared, and with whether its value
is written in parts.

Whoever reads believes nothing.  No step of C code takes long: JSON's keys are texts, whose hashes
nobody can choose, and a table with other keys is built here, some keys at a time, against a budget
of CPU time.  Python's threads take turns between two steps.
"""

from __future__ import annotations

import importlib
import math
import re
import sys
import time
from io import BytesIO
from itertools import chain, islice

from asyncpool._wire.buffers import (
    HEAVY,
    LARGE,
    OutOfBandPickle,
    ReceivedPickle,
)
from asyncpool._wire.pickling import FLAT

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any, TypeVar

    from asyncpool._wire.buffers import Packed, Pause, Payload
    from asyncpool._wire.formats import Kind

    T = TypeVar("T")

# The bytes of a message before its body.
HEAD = 2

# The most bytes of a text that is read in one step: of the densest JSON some 10 ms.
PIECE = HEAVY

# How much a result may hold: the garbage collector looks at all of it in one step, and one step frees
# it.  That takes up to 80 ns for each value, and for a list, dict or other as long as for five; for one
# in a set as long as for three, since it lies elsewhere in memory than its neighbour.  What has an
# instruction of its own weighs more, so that no value weighs less than its program.
_MOST, _CONTAINER, _MEMBER, _ALONE = 500_000, 5, 3, 3

# The most bytes of a result that do not travel beside it.  To free memory is one step too.
MOST_BYTES = 256 << 20

# How many keys a table may have that are no texts.  It grows in one step, which takes longer if their
# hashes were chosen.
_MOST_KEYS = 100_000

# Seconds of CPU time that the tables of a message may take, beside those for each key.
_FREE, _EACH_KEY = 0.005, 1e-6

# The most bytes of a text in memory, of which one step makes a whole.
_LONGEST = 16 << 20

# How deep values may be nested: to hash a tuple or to compare lists takes C's stack.
_DEEPEST = 1000

# What a value counts, beside its characters; what makes a text, which has at most 12 bytes for each, and
# so less than PIECE; and how deep is looked for that.
_EACH, _WEIGHT, _LEVELS = 8, 8192, 100
_CHARACTERS = 4096

# How many bytes are copied, and how many keys of texts are collected, while a thread holds the GIL.
_COPIED, _COLLECTED = 262_144, 4096

# How many other keys are collected before the next look at the clock.
_FEW = 16

# The instructions: what each makes of so many values on the stack, or with TUPLES of each of so many lists
# there; or, from BYTES on, of so many bytes, which follow each other, and large ones beside the message.
PUSH, LIST, DICT, TEXT, FLOAT, TUPLES, SET, FROZENSET, ARRAY = range(9)
BYTES, BYTEARRAY = 9, 10

# What those weigh that make one value without others in it; tuples have weighed as lists.
_WEIGHTS = {TEXT: _ALONE, FLOAT: _ALONE, BYTES: _ALONE, TUPLES: 0}

# Why JSON does not have some.
_NO_JSON: dict[type, str] = {
    tuple: "tuple is no JSON, and would come back as a list: send a list",
    dict: "a dict whose keys are not all str is no JSON",
}

# The types of arrays: booleans, numbers, times, and texts of fixed length.
_DTYPE = re.compile(r"[<>|=][biufcmMSU][1-9][0-9]{0,6}(\[[0-9]{0,6}[A-Za-zμ]{1,7}\])?")
_DIMENSIONS = 32

# The strings of a text; the last one may have no end, so that a search takes one pass.
_STRINGS = re.compile(rb'"(?:[^"\\]+|\\.)*+"?', re.DOTALL)

# A string that may stand for a UUID.
_LONG_TEXT = re.compile(rb'"(?:[^"\\]|\\.){32,}"', re.DOTALL)


class NotDataError(TypeError):
    """A value is no plain data."""


class MalformedError(Exception):
    """Bytes are no message of a format, or say of a value what cannot be."""


class MissingPackageError(NotDataError):
    """A value needs a package that this process has not imported."""


def weigh(
    values: Sequence[Any], most: int, *, beside: bool | None = None
) -> int | None:
    """Return how large the message for *values* gets, roughly; ``None`` if it gets larger than *most*.

    It goes from level to level: a value may be deep, or hold itself.

    Args:
        values: The values.
        most: How many bytes.
        beside: Whether large buffers do not count, since they travel beside the message.  ``None`` if
            it is to be a text: then ``None`` is returned, too, if JSON does not have all of the values.
    """
    level, weight = values, _EACH * len(values)
    for _ in range(_LEVELS):
        if weight > most:
            return None
        below: list[Any] = []
        for one in level:
            kind = type(one)
            parts: Collection[Any] = ()
            keys: Collection[Any] = ()
            if kind is str:
                weight += len(one)
            elif kind is int:
                weight += one.bit_length() >> 3
            elif kind is list:
                parts = one
            elif kind is dict:
                parts, keys = one.values(), one
            elif kind is float:
                if beside is None and not math.isfinite(one):
                    return None
            elif kind is not bool and one is not None:
                if beside is None:
                    return None
                size, parts = _measure(one)
                weight += 0 if beside and size >= LARGE else size
            if parts:
                weight += _EACH * len(parts)
                if weight > most:  # before any of them is looked at
                    return None
                below += parts
                for key in keys:
                    if type(key) is str:
                        weight += len(key)
                    elif beside is None:
                        return None
                    else:
                        weight += _EACH
                        below.append(key)
        if not below:
            return weight if weight <= most else None
        level = below
    return None


def _measure(value: Any) -> tuple[int, Collection[Any]]:
    """Return how many bytes a value has that JSON does not know, and the values in it."""
    cls = type(value)
    if cls is bytes or cls is bytearray:
        return len(value), ()
    if _is_array(cls):
        return value.nbytes, ()
    if cls is tuple or cls is set or cls is frozenset:
        return 0, value
    if (names := getattr(cls, "__struct_fields__", None)) is not None:
        return 0, [getattr(value, name) for name in names]
    attributes = getattr(value, "__dict__", None)
    return 0, attributes.values() if type(attributes) is dict else ()


def runs(
    values: Sequence[Any], most: int, find: Callable[[Sequence[Any]], T | None]
) -> Iterator[tuple[Sequence[Any], T | None]]:
    """Yield *values* in runs of at most so many, each with what *find* says of it.

    It says ``None`` of a run that is to be shorter, or of a single value.
    """
    at, count = 0, most
    while run := values[at : at + count]:
        found = find(run)
        if found is None and len(run) > 1:
            count = len(run) // 2
        else:
            yield run, found
            at += len(run)
            # The next ones are often like these.
            more = 0 if found is None else len(run) // 8 + 1
            count = min(len(run) + more, most)


def short(kind: Kind, value: Any) -> bytes | None:
    """Return the message for a short value that JSON knows; ``None`` if it is none.

    Raises:
        Exception: Whatever the format raises.
    """
    if weigh(value if type(value) is list else [value], kind.piece) is not None:
        text = kind.how.text(value)
        if len(text) + HEAD <= kind.piece:
            return kind.how.head + text
    return None


def write(kind: Kind, value: Any, *, in_band: bool = False) -> Packed:
    """Return the message for plain data.

    Args:
        kind: What whoever reads it knows of it.
        value: The plain data.
        in_band: Whether large buffers are part of it.

    Raises:
        NotDataError: If it is no plain data.
        RecursionError: If it holds itself, or is nested too deeply.
        Exception: Whatever else the format raises.
    """
    return short(kind, value) or _Writer(kind, in_band=in_band).message(value)


def packed(pieces: list[bytes], buffers: Sequence[memoryview] = ()) -> Packed:
    """Return the message in *pieces*, with what travels beside it."""
    if buffers or sum(map(len, pieces)) > HEAVY:
        return OutOfBandPickle(pieces, [*buffers])
    return b"".join(pieces)


def in_one_piece(message: Packed) -> bytes:
    """Return a message whose buffers are part of it."""
    return message if isinstance(message, bytes) else b"".join(message.pieces)


def read(kind: Kind, payload: Payload, pause: Pause | None = None) -> Any:
    """Return the value of a message.

    Args:
        kind: What is known of its value.
        payload: The message.
        pause: Called now and then.

    Raises:
        MalformedError: If it is no message of that format.
        MissingPackageError: If it is an array, and this process has not imported NumPy.
        Exception: If there is no such value, or none of that kind.
    """
    head = kind.how.head
    if type(payload) is bytes and payload[:HEAD] == head and len(payload) <= kind.piece:
        return kind.parse(payload[HEAD:])  # as most are
    buffers: list[memoryview] = []
    stream: Any = payload
    if isinstance(payload, ReceivedPickle):
        stream, buffers = payload.stream, payload.buffers
    how, pause = kind.how, pause or (lambda: None)
    # The codec's own bytes, of any length.
    own = how.codec is not None and not kind.trusted
    if len(stream) > MOST_BYTES + PIECE and not (own or kind.trusted):
        raise MalformedError("it is too long")
    if type(stream) is not bytes:
        # The worker may write to it while it is read.
        stream = _private(memoryview(stream).cast("B"), pause)
    if stream[:HEAD] == head:
        if len(stream) > kind.piece + HEAD and not own:
            raise MalformedError("it is too long for one part")
        return kind.parse(stream[HEAD:])
    if own or stream[:HEAD] != head[:1] + b"\1":
        raise MalformedError(f"it is no message of {how.name}")
    return kind.made(_Reader(kind, memoryview(stream)[HEAD:], buffers, pause).value())


class _Scales:
    """Weighs what a message holds, where it is written and where it is read."""

    def __init__(self, kind: Kind) -> None:
        self._how, self._trusted, self._tracked = kind.how, kind.trusted, kind.tracked
        self._most = _MOST // kind.copies
        self._weight = 0

    def _count(self, weight: int) -> None:
        self._weight += weight
        if self._weight > self._most and not self._trusted:
            raise NotDataError(
                f"it holds more than {self._most:,} values, of which each list, dict or "
                f"{'UUID' if self._tracked else 'other'} counts {_CONTAINER} more, which would hold up "
                "the service: send an array or bytes, or yield it in parts"
            )

    def _count_instruction(self, instruction: int, count: int) -> None:
        members = count if instruction in (SET, FROZENSET) else 0
        self._count(_WEIGHTS.get(instruction, _CONTAINER) + (_MEMBER - 1) * members)

    def _has_texts(self, table: str, keys: Collection[Any]) -> bool:
        """Tell whether all *keys* of a *table* are texts.

        Raises:
            NotDataError: If they are others than it may have.
        """
        if {str}.issuperset(map(type, keys)):
            return True
        if not self._how.wide or not all(map(_is_key, keys)):
            these = "texts, numbers, bytes, None, or tuples of up to 8 of these"
            raise NotDataError(f"the keys of a {table} must be {these}")
        if len(keys) > _MOST_KEYS and not self._trusted:
            raise NotDataError(
                f"a {table} of more than {_MOST_KEYS:,} such keys would hold up the service: send a list, "
                "or yield it in parts"
            )
        return False

    def _count_text(self, text: bytes) -> None:
        """Count the values of the list in a text, with those of its lists and dicts."""
        if self._trusted:
            return
        long = len(_LONG_TEXT.findall(text)) if self._tracked else 0
        # Without escapes it takes less time.
        outside = _STRINGS.split(text) if b"\\" in text else text.split(b'"')[::2]
        text = b"".join(outside)
        made = text.count(b"[") + text.count(b"{") - 1
        empty = text.count(b"[]") + text.count(b"{}")
        values = text.count(b",") + text.count(b":") + 1 - empty
        self._count(values + _CONTAINER * (made + long))


class _Writer(_Scales):
    """Writes a value in parts, once."""

    def __init__(self, kind: Kind, *, in_band: bool) -> None:
        super().__init__(kind)
        self._in_band = in_band
        self._program: list[int] = []
        # The values that come next, and what their text weighs.
        self._values: list[Any] = []
        self._pending = 0
        self._texts: list[bytes] = []
        self._bytes: list[bytes | memoryview] = []
        self._buffers: list[bytes | memoryview] = []

    def message(self, value: Any) -> Packed:
        """Return the message for *value*."""
        self._put([value])
        self._flush()
        size = sum(map(len, self._bytes))
        if size + sum(map(len, self._texts)) > MOST_BYTES and not self._trusted:
            what = f"its texts and short bytes have more than {MOST_BYTES >> 20} MiB"
            raise NotDataError(f"{what}: yield it in parts")
        starts = range(0, len(self._program), _CHARACTERS)
        program = [
            self._how.text(self._program[at : at + _CHARACTERS]) for at in starts
        ]
        pieces = [self._how.head[:1], b"\1", size.to_bytes(8), *map(bytes, self._bytes)]
        for text in (*program, b"", *self._texts, b""):
            pieces += (len(text).to_bytes(4), text)
        return packed(pieces, [memoryview(it) for it in self._buffers])

    def _put(self, values: list[Any]) -> None:
        """Put *values* on the stack: as they are if JSON knows them, each by itself if not."""
        for run, weight in runs(values, _WEIGHT // _EACH, self._weigh):
            if weight is None:
                self._put_one(run[0])
                continue
            if self._pending + weight > _WEIGHT:
                self._flush()
            self._pending += weight
            self._values += run
            if self._program[-2:-1] == [PUSH]:
                self._program[-1] += len(run)
            else:
                self._program += (PUSH, len(run))
            if type(run[0]) is tuple:
                self._add(TUPLES, len(run))

    def _weigh(self, run: Sequence[Any]) -> int | None:
        """Return the weight of values that JSON knows, or of tuples of these."""
        weight = weigh(run, _WEIGHT)
        if weight is None and self._how.wide and {tuple}.issuperset(map(type, run)):
            weight = weigh([*map(list, run)], _WEIGHT)
        return weight

    def _flush(self) -> None:
        if self._values:
            text = self._how.text(self._values)
            self._count_text(text)
            self._texts.append(text)
            self._values, self._pending = [], 0

    def _make(self, instruction: int, values: list[Any]) -> None:
        self._put(values)
        self._add(instruction, len(values))

    def _add(self, instruction: int, count: int) -> None:
        self._program += (instruction, count)
        self._count_instruction(instruction, count)

    def _put_one(self, value: Any) -> None:
        cls, wide = type(value), self._how.wide
        if cls is list:
            self._make(LIST, value)
        elif cls is dict and (wide or {str}.issuperset(map(type, value))):
            self._has_texts("dict", value)
            self._make(DICT, [*chain.from_iterable(value.items())])
        elif cls is str:
            if size_of(value) > _LONGEST:
                raise NotDataError(f"a text of {len(value)} characters: send bytes")
            starts = range(0, len(value), _CHARACTERS)
            self._make(TEXT, [value[at : at + _CHARACTERS] for at in starts])
        elif cls is int:
            # Which refuses it, if the interpreter has a limit.
            self._how.text(value)
            raise NotDataError("an int of more than 4300 digits is no plain data")
        elif not wide:
            name = value if cls is float else _name_of(cls)
            raise NotDataError(_NO_JSON.get(cls) or f"{name} is no JSON")
        elif cls is float:
            self._make(FLOAT, [repr(value)])
        elif cls is tuple:
            self._make(LIST, [*value])
            self._add(TUPLES, 1)
        elif cls is set or cls is frozenset:
            self._has_texts(cls.__name__, value)
            self._make(SET if cls is set else FROZENSET, [*value])
        elif cls is bytes or cls is bytearray:
            self._put_bytes(bytes(value))
            self._add(BYTES if cls is bytes else BYTEARRAY, len(value))
        elif _is_array(cls):
            self._put_array(value)
        else:
            raise NotDataError(f"{_name_of(cls)} is no plain data")

    def _put_bytes(self, view: bytes | memoryview) -> None:
        beside = len(view) >= LARGE and not self._in_band
        (self._buffers if beside else self._bytes).append(view)

    def _put_array(self, array: Any) -> None:
        dtype = array.dtype
        if not _DTYPE.fullmatch(dtype.str) or array.ndim > _DIMENSIONS:
            raise NotDataError(f"an array of type {dtype} is no plain data")
        if not array.flags.forc:
            array = array.copy("C")  # copying releases the GIL
        order = "C" if array.flags.c_contiguous else "F"
        view = memoryview(array.reshape(-1, order=order).view("u1"))
        self._put_bytes(view)
        self._make(ARRAY, [[dtype.str, [*array.shape], order], len(view)])


class _Reader(_Scales):
    """Reads a value that was written in parts, once."""

    def __init__(
        self, kind: Kind, body: memoryview, buffers: list[memoryview], pause: Pause
    ) -> None:
        super().__init__(kind)
        self._pause = pause
        self._buffers = buffers
        size = int.from_bytes(body[:8])
        self._bytes, self._rest = body[8 : 8 + size], body[8 + size :]
        self._free = _FREE

    def value(self) -> Any:
        """Return the value."""
        program = [*chain.from_iterable(self._texts())]
        self._weight = 0  # of the value, and not of its program
        values = chain.from_iterable(self._texts())
        stack: list[Any] = []
        # Where on the stack the instructions have put something, and how deep it is nested.
        made: list[tuple[int, int]] = []
        for instruction, count in zip(program[::2], program[1::2], strict=True):
            if type(count) is not int or count < 0:
                raise MalformedError("its program is none")
            if instruction == PUSH:
                end = len(stack) + count
                stack += islice(values, count)
                if len(stack) < end:
                    raise MalformedError("its program takes what is not there")
                continue
            self._pause()
            self._count_instruction(instruction, count)
            if instruction >= BYTES:
                stack.append(self._binary(instruction, count))
                continue
            start = len(stack) - count
            if start < 0:
                raise MalformedError("its program takes what is not there")
            parts = stack[start:]
            if instruction == TUPLES:
                if not {list}.issuperset(map(type, parts)):
                    raise MalformedError("it makes a tuple of what is no list")
                stack[start:] = map(tuple, parts)
                continue
            depth = 1
            while made and made[-1][0] >= start:
                depth = max(depth, made.pop()[1] + 1)
            if depth > _DEEPEST:
                raise MalformedError("it is nested too deeply")
            stack[start:] = (self._made(instruction, parts),)
            made.append((start, depth))
        if len(stack) != 1 or [*islice(values, 1)]:
            raise MalformedError("it is not one value")
        return stack[0]

    def _texts(self) -> Iterator[list[Any]]:
        while True:
            size = int.from_bytes(self._rest[:4])
            text, self._rest = bytes(self._rest[4 : 4 + size]), self._rest[4 + size :]
            if not size:
                return
            if size > PIECE:
                raise MalformedError("one of its parts is too long")
            self._pause()
            self._count_text(text)
            values = self._how.parse(text)
            if type(values) is not list:
                raise MalformedError("one of its parts is no list")
            yield values

    def _made(self, instruction: int, parts: list[Any]) -> Any:
        if instruction == LIST:
            return parts
        if instruction == DICT:
            keys, values = parts[::2], parts[1::2]
            return self._table({}, keys, zip(keys, values, strict=True))
        if instruction in (SET, FROZENSET):
            made = self._table(set(), parts, iter(parts))
            return made if instruction == SET else frozenset(made)
        if instruction == TEXT:
            width = 1 if all(map(str.isascii, parts)) else 4
            if sum(map(len, parts)) * width > _LONGEST:
                raise MalformedError("one of its texts is too long")
            return "".join(parts)
        if instruction == FLOAT:
            return float(*parts)
        return self._array(*parts)

    def _table(self, made: Any, keys: list[Any], entries: Iterator[Any]) -> Any:
        """Return the dict or set *made* with *entries* in it, whose keys are *keys*.

        Raises:
            MalformedError: If it takes longer than it would with keys that nobody has chosen.
        """
        texts = self._has_texts(type(made).__name__, keys)
        step, begin, late = _COLLECTED if texts else _FEW, time.thread_time(), 0.0
        for at in range(0, len(keys), step):
            hash_long(keys[at : at + step])
            made.update(islice(entries, step))
            if not texts:
                late = time.thread_time() - begin - _EACH_KEY * (at + step)
                if late > self._free and not self._trusted:
                    raise MalformedError("keys of a table were chosen for their hash")
            self._pause()
        self._free -= max(late, 0.0)
        return made

    def _binary(self, instruction: int, size: int) -> Any:
        view = self._view(size)
        if instruction == BYTES:
            return _private(view, self._pause)
        if instruction != BYTEARRAY:
            raise MalformedError("there is no such instruction")
        made = bytearray()
        _copy(view, made.extend, self._pause)
        return made

    def _view(self, size: int) -> memoryview:
        """Return the next bytes, and none twice: a message that named some often would take any memory."""
        if size >= LARGE and self._buffers:
            view = self._buffers.pop(0).cast("B")
        else:
            view, self._bytes = self._bytes[:size], self._bytes[size:]
        if len(view) != size:
            raise MalformedError("its bytes are not there")
        return view

    def _array(self, meta: list[Any], data: Any) -> Any:
        dtype, shape, order = meta
        if not (type(dtype) is str and _DTYPE.fullmatch(dtype) and order in ("C", "F")):
            raise MalformedError("there is no such type of array")
        sizes = type(shape) is list and all(type(it) is int and it >= 0 for it in shape)
        if not sizes or len(shape) > _DIMENSIONS:
            raise MalformedError("an array has no such shape")
        view = memoryview(data) if type(data) is bytes else self._view(data)
        if "numpy" not in sys.modules and not self._trusted:
            text = "a NumPy array has come, and this process has not imported numpy"
            raise MissingPackageError(text)
        numpy: Any = importlib.import_module("numpy")
        real = numpy.dtype(dtype)
        if len(view) != math.prod(shape) * real.itemsize:
            raise MalformedError("the bytes of an array do not fit its shape")
        array = numpy.ndarray(shape, real, view, order=order)
        # What is in the message itself cannot be written to.
        return array if self._trusted and not view.readonly else array.copy("A")


def _is_key(key: Any) -> bool:
    if type(key) is not tuple:
        return type(key) in FLAT
    return len(key) <= _EACH and set(map(type, key)) <= FLAT


def _is_array(cls: type) -> bool:
    return cls is getattr(sys.modules.get("numpy"), "ndarray", None)


def _name_of(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}".removeprefix("builtins.")


def size_of(text: str) -> int:
    """Return how many bytes a text may take in memory."""
    return len(text) * (1 if text.isascii() else 4)


def hash_long(values: Sequence[Any]) -> None:
    """Have each long text keep its hash, so that no later step computes all of them."""
    for value in values:
        if type(value) is str and len(value) > _CHARACTERS:
            hash(value)


def _private(view: memoryview, pause: Pause) -> bytes:
    """Return a copy that nobody else can write into."""
    copy = BytesIO()
    _copy(view, copy.write, pause)
    return copy.getvalue()  # which is the object itself, and no other copy


def _copy(view: memoryview, add: Callable[[memoryview], object], pause: Pause) -> None:
    for start in range(0, len(view), _COPIED):
        add(view[start : start + _COPIED])
        pause()
