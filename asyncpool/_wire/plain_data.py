"""Plain data as bytes, in steps that are short for whoever reads it.

A short value that JSON knows is one JSON text.  Any other value is written in *parts*: the values
that JSON knows, in texts of at most :data:`PIECE` bytes, and a *program* for a stack that makes the
rest of them.  ``(1, [2, 3])`` is the text ``[1,[2,3]]`` and the program "push 2, tuple of 2".

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
    OverLimitError,
    ReceivedPickle,
)

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Any

    from asyncpool._wire.formats import Kind

    Packed = bytes | OutOfBandPickle
    Pause = Callable[[], None]
    Payload = bytes | memoryview | ReceivedPickle

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

# The instructions: what each makes of so many values on the stack; or, from BYTES on, of so many
# bytes, or of the buffer of that number.
PUSH, LIST, DICT, TEXT, FLOAT, TUPLE, SET, FROZENSET, ARRAY = range(9)
BYTES, BYTEARRAY, BUFFER, LARGE_BYTEARRAY = range(9, 13)

# Those that make one value without others in it.
_SMALL = frozenset((TEXT, FLOAT, BYTES, BUFFER))

_KEYS: frozenset[type] = frozenset((str, int, float, bool, type(None), bytes))

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


class MissingPackageError(Exception):
    """A value needs a package that this process has not imported."""


def weigh(values: Sequence[Any], most: int) -> int | None:
    """Return how large the text of *values* gets, roughly; ``None`` if JSON has none, or above *most*.

    It goes from level to level: a value may be deep, or hold itself.
    """
    level, weight = values, 0
    for _ in range(_LEVELS):
        weight += _EACH * len(level)
        if weight > most:
            return None
        below: list[Any] = []
        for one in level:
            kind = type(one)
            if kind is str:
                weight += len(one)
            elif kind is int:
                weight += one.bit_length() >> 3
            elif kind is dict:
                for key in one:
                    if type(key) is not str:
                        return None
                    weight += len(key)
                below += one.values()
            elif kind is list:
                below += one
            elif kind is float:
                if not math.isfinite(one):
                    return None
            elif kind is not bool and one is not None:
                return None
        if not below:
            return weight if weight <= most else None
        level = below
    return None


def write(
    kind: Kind, value: Any, *, limit: int | None = None, in_band: bool = False
) -> Packed:
    """Return the message for plain data.

    Args:
        kind: What whoever reads it knows of it.
        value: The plain data.
        limit: How large the message may become, roughly.
        in_band: Whether large buffers are part of it.

    Raises:
        NotDataError: If it is no plain data.
        OverLimitError: If *limit* is too low.
        RecursionError: If it holds itself, or is nested too deeply.
        Exception: Whatever else the format raises.
    """
    how, piece = kind.how, kind.piece
    if weigh([value], piece) is not None:
        text = how.text(value)
        if len(text) <= piece:
            return packed([how.head, text])
    buffers: list[memoryview] = []
    body = _Writer(kind, None if in_band else buffers, limit).body(value)
    return packed([how.head[:1], b"\1", *body], buffers)


def packed(pieces: list[bytes], buffers: Sequence[memoryview] = ()) -> Packed:
    """Return the message in *pieces*, with what travels beside it."""
    if buffers or sum(map(len, pieces)) > HEAVY:
        return OutOfBandPickle(pieces, [*buffers])
    return b"".join(pieces)


def in_one_piece(message: Packed) -> bytes:
    """Return a message whose buffers are part of it."""
    return message if isinstance(message, bytes) else b"".join(message.pieces)


def read(kind: Kind, payload: Payload, pause: Pause | None = None) -> Any:
    """Return the plain data of a message, or the bytes that a codec of the user's has written.

    Args:
        kind: What is known of its value.
        payload: The message.
        pause: Called now and then.

    Raises:
        MissingPackageError: If it is an array, and this process has not imported NumPy.
        Exception: If there is none.
    """
    received = payload if isinstance(payload, ReceivedPickle) else None
    stream: Any = payload if received is None else received.stream
    how, pause = kind.how, pause or _go_on
    own = how.codec is not None and not kind.trusted
    if len(stream) > MOST_BYTES + PIECE and not (own or kind.trusted):
        raise MalformedError("it is too long")
    if type(stream) is not bytes:
        # The worker may write to it while it is read.
        stream = _private(memoryview(stream).cast("B"), pause)
    if len(stream) < HEAD or stream[0] != how.head[0] or stream[1] > 1:
        raise MalformedError(f"it is no message of {how.name}")
    if stream[1]:
        buffers = [] if received is None else received.buffers
        return _Reader(kind, memoryview(stream)[HEAD:], buffers, pause).value()
    text = stream[HEAD:]
    if own:
        return text
    if len(text) > kind.piece:
        raise MalformedError("it is too long for one part")
    return how.parse(text)


class _Scales:
    """Weighs what a message holds, where it is written and where it is read."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind
        self._trusted = kind.trusted
        self._most: float = math.inf if kind.trusted else _MOST // kind.copies
        self._weight = 0

    def _count(self, weight: int) -> None:
        self._weight += weight
        if self._weight > self._most:
            others = "UUID" if self._kind.tracked else "other"
            raise NotDataError(
                f"it holds more than {self._most:,} values, of which each list, dict or {others} counts "
                f"{_CONTAINER} more, which would hold up the service: send an array or bytes, or yield it "
                "in parts"
            )

    def _count_instruction(self, instruction: int, count: int) -> None:
        if self._trusted:
            return
        members = count if instruction in (SET, FROZENSET) else 0
        alone = _ALONE if instruction in _SMALL else _CONTAINER
        self._count(alone + (_MEMBER - 1) * members)

    def _has_texts(self, table: str, keys: Collection[Any]) -> bool:
        """Tell whether all *keys* of a *table* are texts.

        Raises:
            NotDataError: If they are others than it may have.
        """
        if {str}.issuperset(map(type, keys)):
            return True
        if not self._kind.how.wide or not all(map(_is_key, keys)):
            raise NotDataError(
                f"the keys of a {table} must be texts, numbers, bytes, None, or tuples of up to 8 of these"
            )
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
        long = len(_LONG_TEXT.findall(text)) if self._kind.tracked else 0
        # Without escapes it takes less time.
        outside = _STRINGS.split(text) if b"\\" in text else text.split(b'"')[::2]
        text = b"".join(outside)
        made = text.count(b"[") + text.count(b"{") - 1
        empty = text.count(b"[]") + text.count(b"{}")
        values = text.count(b",") + text.count(b":") + 1 - empty
        self._count(values + _CONTAINER * (made + long))


class _Writer(_Scales):
    """Writes a value in parts, once; large buffers go to *buffers*, if there are any."""

    def __init__(
        self, kind: Kind, buffers: list[memoryview] | None, limit: int | None
    ) -> None:
        super().__init__(kind)
        self._buffers = buffers
        self._room: float = math.inf if limit is None else limit
        self._program: list[int] = []
        # The values that come next, and what their text weighs.
        self._values: list[Any] = []
        self._pending = 0
        self._texts: list[bytes] = []
        self._bytes: list[bytes | bytearray | memoryview] = []

    def body(self, value: Any) -> list[bytes]:
        """Return the body of the message for *value*, in pieces."""
        self._put([value])
        self._flush()
        size = sum(map(len, self._bytes))
        if size + sum(map(len, self._texts)) > MOST_BYTES and not self._trusted:
            raise NotDataError(
                f"its texts and short bytes have more than {MOST_BYTES >> 20} MiB: yield it in parts"
            )
        program = [
            self._kind.how.text(self._program[start : start + _CHARACTERS])
            for start in range(0, len(self._program), _CHARACTERS)
        ]
        pieces = [size.to_bytes(8), *map(bytes, self._bytes)]
        for text in (*program, b"", *self._texts, b""):
            pieces += (len(text).to_bytes(4), text)
        return pieces

    def _put(self, values: list[Any]) -> None:
        """Put *values* on the stack: as they are if JSON knows them, each by itself if not."""
        at, count = 0, len(values)
        while at < len(values):
            some = values[at : at + count]
            weight = weigh(some, _WEIGHT)
            if weight is not None:
                self._push(some, weight)
                if self._program[-2:-1] == [PUSH]:
                    self._program[-1] += len(some)
                else:
                    self._program += (PUSH, len(some))
                # The next ones are often like these: nearly as many as would have fitted in.
                fit = _WEIGHT * len(some) // weight
                count = max(1, min(2 * count, fit - fit // 8))
            elif len(some) == 1:
                self._put_one(some[0])
            elif not self._put_tuples(some):
                count //= 2
                continue
            at += len(some)

    def _spend(self, size: int) -> None:
        self._room -= size
        if self._room < 0:
            raise OverLimitError

    def _push(self, values: list[Any], weight: int) -> None:
        self._spend(weight)
        if self._pending + weight > _WEIGHT:
            self._flush()
        self._values += values
        self._pending += weight

    def _flush(self) -> None:
        if self._values:
            text = self._kind.how.text(self._values)
            self._count_text(text)
            self._texts.append(text)
            self._values, self._pending = [], 0

    def _put_tuples(self, values: list[Any]) -> bool:
        """Put *values* on the stack if all are tuples of what JSON knows, as rows of a table are."""
        if len(values) * _EACH > _WEIGHT or not (
            self._kind.how.wide and {tuple}.issuperset(map(type, values))
        ):
            return False
        flat = [*chain.from_iterable(values)]
        weight = weigh(flat, _WEIGHT)
        if weight is None:
            return False
        self._push(flat, weight)
        for value in values:
            self._program += (PUSH, len(value), TUPLE, len(value))
        self._spend(_EACH * len(values))
        self._count(_CONTAINER * len(values))
        return True

    def _make(self, instruction: int, values: list[Any]) -> None:
        if _EACH * len(values) > self._room:  # each takes as much: do not begin
            raise OverLimitError
        self._put(values)
        self._add(instruction, len(values))

    def _add(self, instruction: int, count: int) -> None:
        self._spend(_EACH)
        self._program += (instruction, count)
        self._count_instruction(instruction, count)

    def _put_one(self, value: Any) -> None:
        cls, wide = type(value), self._kind.how.wide
        if cls is list:
            self._make(LIST, value)
        elif cls is dict and (wide or {str}.issuperset(map(type, value))):
            self._has_texts("dict", value)
            self._make(DICT, [*chain.from_iterable(value.items())])
        elif cls is str:
            if len(value) > self._room:
                raise OverLimitError
            if size_of(value) > _LONGEST:
                raise NotDataError(f"a text of {len(value)} characters: send bytes")
            starts = range(0, len(value), _CHARACTERS)
            self._make(TEXT, [value[at : at + _CHARACTERS] for at in starts])
        elif cls is int:
            # Which refuses it, if the interpreter has a limit.
            self._kind.how.text(value)
            raise NotDataError("an int of more than 4300 digits is no plain data")
        elif not wide:
            name = value if cls is float else _name_of(cls)
            raise NotDataError(_NO_JSON.get(cls) or f"{name} is no JSON")
        elif cls is float:
            self._make(FLOAT, [repr(value)])
        elif cls is tuple:
            self._make(TUPLE, [*value])
        elif cls is set or cls is frozenset:
            self._has_texts(cls.__name__, value)
            self._make(SET if cls is set else FROZENSET, [*value])
        elif cls is bytes:
            self._put_bytes(value, BYTES, BUFFER)
        elif cls is bytearray:
            self._put_bytes(bytes(value), BYTEARRAY, LARGE_BYTEARRAY)
        elif cls is getattr(sys.modules.get("numpy"), "ndarray", None):
            self._put_array(value)
        else:
            raise NotDataError(f"{_name_of(cls)} is no plain data")

    def _put_bytes(self, view: bytes | memoryview, small: int, large: int) -> None:
        if len(view) < LARGE or self._buffers is None:
            self._spend(len(view))
            self._bytes.append(view)
            self._add(small, len(view))
            return
        number = len(self._buffers)
        self._buffers.append(memoryview(view))
        if large == PUSH:
            self._put([number])
        else:
            self._add(large, number)

    def _put_array(self, array: Any) -> None:
        dtype = array.dtype
        if not _DTYPE.fullmatch(dtype.str) or array.ndim > _DIMENSIONS:
            raise NotDataError(f"an array of type {dtype} is no plain data")
        if not array.flags.forc:
            array = array.copy("C")  # copying releases the GIL
        order = "C" if array.flags.c_contiguous else "F"
        self._put([[dtype.str, [*array.shape], order]])
        view = memoryview(array.reshape(-1, order=order).view("u1"))
        self._put_bytes(view, BYTES, PUSH)  # an array takes its buffer by number
        self._add(ARRAY, 2)


class _Reader(_Scales):
    """Reads a value that was written in parts, once."""

    def __init__(
        self, kind: Kind, body: memoryview, buffers: list[memoryview], pause: Pause
    ) -> None:
        super().__init__(kind)
        self._pause = pause
        self._buffers = dict(enumerate(buffers))
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
            depth = 1
            while made and made[-1][0] >= start:
                depth = max(depth, made.pop()[1] + 1)
            if depth > _DEEPEST:
                raise MalformedError("it is nested too deeply")
            parts = stack[start:]
            del stack[start:]
            stack.append(self._made(instruction, parts))
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
            values = self._kind.how.parse(text)
            if type(values) is not list:
                raise MalformedError("one of its parts is no list")
            yield values

    def _made(self, instruction: int, parts: list[Any]) -> Any:
        if instruction == LIST:
            return parts
        if instruction == TUPLE:
            return tuple(parts)
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

    def _binary(self, instruction: int, count: int) -> Any:
        if instruction in (BUFFER, LARGE_BYTEARRAY):
            view = self._buffer(count)
        elif count <= len(self._bytes):
            view, self._bytes = self._bytes[:count], self._bytes[count:]
        else:
            raise MalformedError("its bytes are not there")
        if instruction in (BYTES, BUFFER):
            return _private(view, self._pause)
        if instruction not in (BYTEARRAY, LARGE_BYTEARRAY):
            raise MalformedError("there is no such instruction")
        made = bytearray()
        _copy(view, made.extend, self._pause)
        return made

    def _buffer(self, index: int) -> memoryview:
        """Return a buffer, once: a message that named it often would take any memory."""
        found = self._buffers.pop(index, None)
        if found is None:
            raise MalformedError("there is no such buffer")
        return found.cast("B")

    def _array(self, meta: list[Any], data: Any) -> Any:
        dtype, shape, order = meta
        if not (type(dtype) is str and _DTYPE.fullmatch(dtype) and order in ("C", "F")):
            raise MalformedError("there is no such type of array")
        if (
            type(shape) is not list
            or len(shape) > _DIMENSIONS
            or any(type(size) is not int or size < 0 for size in shape)
        ):
            raise MalformedError("an array has no such shape")
        beside = type(data) is int
        if beside:
            data = self._buffer(data)
        elif type(data) is not bytes:
            raise MalformedError("an array has no bytes")
        if "numpy" not in sys.modules and not self._trusted:
            raise MissingPackageError(
                "a NumPy array has come, and this process has not imported numpy"
            )
        numpy: Any = importlib.import_module("numpy")
        real = numpy.dtype(dtype)
        if len(data) != math.prod(shape) * real.itemsize:
            raise MalformedError("the bytes of an array do not fit its shape")
        array = numpy.ndarray(shape, real, data, order=order)
        # What is in bytes cannot be written to.
        return array if beside and self._trusted else array.copy("A")


def _is_key(key: Any) -> bool:
    if type(key) is not tuple:
        return type(key) in _KEYS
    return len(key) <= _EACH and set(map(type, key)) <= _KEYS


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


def _go_on() -> None:
    """Do nothing, where others pause."""


def _private(view: memoryview, pause: Pause) -> bytes:
    """Return a copy that nobody else can write into."""
    copy = BytesIO()
    _copy(view, copy.write, pause)
    return copy.getvalue()  # which is the object itself, and no other copy


def _copy(view: memoryview, add: Callable[[memoryview], object], pause: Pause) -> None:
    for start in range(0, len(view), _COPIED):
        add(view[start : start + _COPIED])
        pause()
