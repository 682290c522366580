"""How values become messages, and back: as JSON, by msgspec, or by a codec of the user's.

A :class:`Format` is one of these.  A :class:`Kind` is what an annotation says of values in it.
"""

from __future__ import annotations

import datetime as dt
import json
import pickle
import re
import sys
from binascii import b2a_base64
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain
from typing import Any, Protocol, get_args, get_origin, runtime_checkable

from asyncpool._wire import plain_data
from asyncpool._wire.pickling import SCALARS, Subject, describe, too_large
from asyncpool._wire.plain_data import HEAD, PIECE, MalformedError, NotDataError
from asyncpool._wire.text import printable_text
from asyncpool.errors import JobNotPicklableError, ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Literal, NoReturn

    from asyncpool._wire.buffers import Packed, Pause, Payload

    Convert = Callable[[Any, Any], Any]
    Direction = Literal["arguments", "result", "exception", "details"]
    Level = tuple[Sequence[Any], list[dict[Any, Any]], list[Any]]


@runtime_checkable
class Codec(Protocol):
    """Turns values into bytes and back, for :class:`asyncpool.Pool` with *codec*.

    It is pickled once and sent to the workers, so its class must be importable there.

    Its methods may be called in any thread.  :meth:`decode` reads what a worker has sent, which
    may be anything, and must run no code that the bytes name.

    Attributes:
        name: What errors call it.
    """

    @property
    def name(self) -> str:
        """What errors call it."""
        ...

    def encode(self, value: Any, /) -> bytes:
        """Return *value* as bytes.

        Raises:
            Exception: If the value cannot be sent, or would not come back as it is.
        """
        ...

    def decode(self, data: bytes, type: Any, /) -> Any:  # noqa: A002 - it is one
        """Return the value that *data* stands for.

        Args:
            data: What :meth:`encode` has returned; or anything, if the worker is hostile.
            type: What the function says of this argument or of its result; ``Any`` if it says
                nothing.

        Raises:
            Exception: If there is no such value of that type.
        """
        ...


class MismatchError(TypeError):
    """A value is not of the type that the function's annotation names."""


# What errors call most values.
RESULT = "the job's result"

# How deep the part of a value is looked for that cannot be sent, and what is told of deeper ones.
_DEEPEST_CULPRIT = 30
_DEEP = "it is nested too deeply, or holds itself"

# What JSON writes for a character beyond U+FFFF begins with it, and for half a surrogate pair.
_SURROGATES = "\\ud"

# What takes a time that grows with the square of its length, if the interpreter has no limit.
_MOST_DIGITS = 4300
_LONG_INT = re.compile(r"[0-9]{4301}")


def _refuse(text: str) -> NoReturn:
    raise MalformedError(f"{text} is no JSON")


_encode = json.JSONEncoder(
    allow_nan=False, separators=(",", ":"), check_circular=False
).encode
_decode = json.JSONDecoder(parse_constant=_refuse).decode


def _text(value: Any) -> bytes:
    text = _encode(value)
    if _SURROGATES in text and _decode(text) != value:
        what = "a text with both halves of a surrogate pair"
        raise NotDataError(f"{what} is no plain data: JSON joins them")
    return text.encode("ascii")


def _parse(data: bytes) -> Any:
    text = str(data, "ascii")
    limit = sys.get_int_max_str_digits()
    if not 0 < limit <= _MOST_DIGITS and _LONG_INT.search(text):
        raise MalformedError(f"an int has more than {_MOST_DIGITS} digits")
    return _decode(text)


@dataclass(eq=False)
class Format:
    """JSON by the standard library, by msgspec, or values by a codec of the user's.

    Two of one codec are the same, so that a view that is made for each job costs nothing.

    Attributes:
        number: What a message in it begins with.
        name: Its name in errors.
        kind: What is made of an annotation; raises any exception if that says too little.  ``None`` if
            annotations do not count.
        text: Returns what JSON knows as bytes; raises any exception if it does not know it.
        parse: Returns the value of such bytes; raises any exception if they are none.
        codec: What turns each value into bytes, if a user has written it.
        head: What a message begins with that is not in parts: the number, and another byte.
        wide: Whether it also sends tuples, sets, bytes, arrays, and dicts with other keys than texts, and
            annotations count.
    """

    number: int
    name: str
    kind: Callable[[Format, Any, str, Direction], Kind] | None = None
    text: Callable[[Any], bytes] = _text
    parse: Callable[[bytes], Any] = _parse
    codec: Any = None

    def __post_init__(self) -> None:
        self.head: bytes = bytes((self.number, 0))
        self.wide: bool = self.kind is not None
        self._key = self.name, id(self.codec)

    def kind_of(
        self, hint: Any, what: str = RESULT, direction: Direction = "result"
    ) -> Kind:
        """Return what is known of values that are annotated *hint*; see :class:`Kind`."""
        if self.kind is not None:
            with suppress(Exception):
                return self.kind(self, hint, what, direction)
        return Kind(self, Any, what, direction)

    @cached_property
    def spec(self) -> str:
        """What a worker makes such a format of: its name, or a pickled codec."""
        if self.codec is None:
            return self.name
        return b2a_base64(pickle.dumps(self.codec)).decode()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Format) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)


@dataclass(eq=False)
class Kind:
    """What an annotation says of values, and how they are sent and read.

    This class itself is for values of which it says nothing, or that they are of one class of plain
    data, which may be large and travel beside the message.

    Args:
        how: Their format.
        hint: The annotation; ``Any`` if it says nothing.
        what: What errors call such a value.
        direction: What errors say of its way.  A worker trusts the pool with the arguments of its jobs:
            they may hold any number of values, and make it import what they need; and the pool does not
            write into them later on.

    Attributes:
        how: The format.
        hint: The annotation.
        trusted: Whether these are arguments.
        typed: Whether the annotation says anything of them.
        whole: Whether no part of such a value can be sent by itself.
        parse: Returns the value of a text; raises what :meth:`made` raises.
        piece: How long a text may be that is read in one step.
        copies: How often each value is there: as it comes, and in what is made of it.
        tracked: Whether the garbage collector looks at objects made of texts.
    """

    whole = False
    piece = PIECE
    copies = 1
    tracked = False

    how: Format
    hint: Any = Any
    what: str = RESULT
    direction: Direction = "result"

    def __post_init__(self) -> None:
        self.trusted: bool = self.direction == "arguments"
        self.typed: bool = self.whole or self.hint is not Any
        own = self._made_of_text if self.typed else self.how.parse
        self.parse: Callable[[bytes], Any] = own

    def plain(self, value: Any) -> Any:
        """Return the plain data of a value.

        Raises:
            Exception: If there is none.
        """
        return value

    def made(self, data: Any) -> Any:
        """Return the value for plain data; if that may be anything, no single step takes long.

        Raises:
            NotDataError: If one step would take long.
            MismatchError: If it is for another type.
            Exception: If there is none.
        """
        if self.typed and type(data) is not self.hint:
            wanted, found = self.hint.__qualname__, type(data).__qualname__
            raise MismatchError(f"Expected `{wanted}`, got `{found}`")
        return data

    def _made_of_text(self, text: bytes) -> Any:
        return self.made(self.how.parse(text))

    def message(self, value: Any) -> Packed:
        """Return the message for a value, which :meth:`load` is to read.

        Raises:
            Exception: If there is none.
        """
        return plain_data.write(self, value)

    def pack(self, value: Any, limit: int | None = None) -> Packed:
        """Return the message for a value.

        Raises:
            JobNotPicklableError: If it is no plain data, and not of the annotated type, or has more than
                *limit* bytes.
        """
        try:
            data = self.message(value)
        except Exception as error:
            where, why = self.culprit([("$", value)]) or ("$", error)
            name = type(value).__qualname__
            what = f"{self.what}, of type {name},"
            raise unsendable(self.how, what, "result", name, where, why) from why
        if limit is not None and len(data) > limit:
            about, how = Subject(self.what, "result", ""), f"as {self.how.name}"
            raise too_large(len(data), limit, about, how)
        return data

    def load(self, payload: Payload, pause: Pause | None = None) -> Any:
        """Return the value that a worker has sent, which may be anything.

        Raises:
            JobNotPicklableError: If it is not of the annotated type, or cannot be had here.
            ProtocolError: If it is no message of this format.
        """
        try:
            return plain_data.read(self, payload, pause)
        except Exception as error:
            # What a codec of the user's raises is no fault of the worker's.
            own = self.how.codec is not None and not isinstance(error, MalformedError)
            if isinstance(error, MismatchError):
                told = f"is not what the function's annotation says: {reason_of(error)}"
            elif own or isinstance(error, plain_data.MissingPackageError):
                told = f"cannot be read here: {reason_of(error)}"
            else:
                told = f"it sent {self.what} that is no {self.how.name}: {reason_of(error)}"
                if self.direction != "details":  # whose worker may be gone
                    raise ProtocolError(told) from error
                told = f"cannot be read: {told}"
            told = f"{self.what} {told}"
            raise JobNotPicklableError(
                told, direction=self.direction, name=""
            ) from error

    def culprit(
        self, parts: Iterable[tuple[str, Any]], levels: int = _DEEPEST_CULPRIT
    ) -> tuple[str, Exception] | None:
        """Return the path of what cannot be sent of these *parts*, and why; ``None`` if each can be.

        Each part has its path.
        """
        for path, part in parts:
            try:
                self.message(part)
            except Exception as error:
                if not levels:
                    return path, NotDataError(_DEEP)
                inner = self.culprit(self._parts_of(part, path), levels - 1)
                return inner or (path, error)
        return None

    def _parts_of(self, value: Any, path: str) -> Iterator[tuple[str, Any]]:
        """Yield the parts of *value* that could be sent by themselves, with their paths."""
        cls = type(value)
        if self.whole:
            return
        if cls is dict:
            for key, one in value.items():
                named = type(key) is str and key.isidentifier()
                yield (f"{path}.{key}" if named else f"{path}[{key!r}]"), one
                yield f"{path}[{key!r}]", key
        elif cls is list or (self.how.wide and cls in (tuple, set, frozenset)):
            for index, one in enumerate(value):
                yield f"{path}[{'...' if cls in (set, frozenset) else index}]", one


def unsendable(
    how: Format, what: str, direction: Direction, name: str, where: str, why: Exception
) -> JobNotPicklableError:
    """Return the error for a call, or for *what* else, whose part at the path *where* cannot be sent."""
    text = f"{what} cannot be sent as {how.name}: {reason_of(why)} - at `{where}`"
    return JobNotPicklableError(text, direction=direction, name=name)


def reason_of(why: Exception, path: str = "$") -> str:
    """Return the text of an error that says why the value at *path* cannot be sent or read."""
    if isinstance(why, RecursionError):
        return _DEEP
    if isinstance(why, MismatchError):
        return printable_text(_path_from(str(why), path))
    own = isinstance(why, NotDataError | MalformedError)
    return printable_text(str(why) if own else describe(why))


def _path_from(text: str, root: str) -> str:
    """Return the text of a mismatch with the path of the value from *root* on."""
    before, mark, path = text.rpartition("`$")
    if not mark:
        return f"{text} - at `{root}`"
    return f"{before}`{root}{path}"


# Types, as msgspec's inspection calls them: those of any value; those whose values take long to make; the
# times among these; those that look at each character; and sets, what hashes, and texts that may be hashed.
_OPEN = frozenset(("AnyType", "CustomType", "RawType", "ExtType"))
_TIMES = frozenset(("DateTimeType", "TimeType"))
_SLOW = _TIMES.union(("UUIDType", "DecimalType", "DateType", "TimeDeltaType"))
_LOOKED = frozenset(("DecimalType", "EnumType", "LiteralType"))
_SETS = frozenset(("SetType", "FrozenSetType"))
_HASHING = _SETS.union(("DictType", "FrozenDictType"))
_HASHED = frozenset(("StrType", "EnumType", "LiteralType", "BytesType"))

# What is made of a value has its values too, and is larger; a set has them in another order.
_IN_BOTH = 3

# How many values are made in one step, if one alone does not hold more.  How many slow values one step
# makes at most; and how many objects a whole message, with those of defaults.
_STEP, _MOST_SLOW, _MOST = 4096, 50_000, 60_000

# How many bytes of texts are looked at in one value; several that are made in one step have at most half as
# many.  And how many characters of an error's text are kept at each end.
_MOST_LOOKED, _QUOTED = 1 << 20, 1000

# An int of more bits takes long to become a decimal.
_LONG_BITS = 64

# The factories of defaults that make one small object; what the call of another one counts, that the
# service has written; and how deep is looked for defaults.
_EMPTY: tuple[Any, ...] = (list, dict, set, frozenset, tuple, bytearray)
_FACTORY, _DEEPEST = 8, 4

# Fields with a default that take as long as an empty list.
_FIELDS = 8

# What plain data has beside JSON.
_KEPT = (bytes, bytearray)


class _Annotated(Kind):
    """Values of a type that msgspec knows, with what it costs to make them.

    Raises:
        Exception: If the annotation is no such type, or says too little.
    """

    whole = True

    def __init__(self, how: Format, hint: Any, what: str, direction: Direction) -> None:
        import msgspec  # noqa: PLC0415 - an extra

        super().__init__(how, hint, what, direction)
        self._msgspec: Any = msgspec
        parts = [*self._parts(msgspec.inspect.type_info(hint))]
        kinds = {type(part).__name__ for part, _ in parts}
        self._decode = msgspec.json.Decoder(hint).decode
        self._sets = bool(kinds & _SETS)
        self.copies = _IN_BOTH + self._sets
        self.tracked = "UUIDType" in kinds
        # Whether texts may become what takes long to make, and whether there may be times among these.
        self._slow, self._times = bool(kinds & _SLOW), bool(kinds & _TIMES)
        # How many objects the defaults of fields make that are not there, by the fields' names; how many
        # those of a list that stands for an object; and how many times as long as an empty list one value
        # may take with them.
        self._defaults, self._shortest, effort = Counter[str](), 0, 1
        # The names of the fields in which each character of a text is looked at, as for a decimal, or quoted
        # by an error, as if it is no member of an enum; and None, if that is so outside of named fields.
        self._looking = set[str | None]()
        for part, name in parts:
            kind = type(part).__name__
            hashed = getattr(part, "key_type", getattr(part, "item_type", None))
            others = kind in _HASHING and type(hashed).__name__ not in _HASHED
            if kind in _OPEN or others:
                raise NotDataError("there may be anything in it")
            fields = getattr(part, "fields", ())
            made = Counter({it.encode_name: self._made_for(it) for it in fields})
            effort = max(effort, 1 + made.total() + len(fields) // _FIELDS)
            if getattr(part, "array_like", False):
                self._shortest = max(self._shortest, made.total())
            self._defaults |= made  # the greater number for each name
            if (tag := getattr(part, "tag_field", None)) is not None:
                self._looking |= {tag, name} if _is_list(part) else {tag}
            if kind in _LOOKED or getattr(part, "pattern", None):
                self._looking.add(name)
        self.piece = PIECE // effort
        self._step = max(_STEP // effort, 1)

    def _parts(self, info: Any) -> Iterator[tuple[Any, str | None]]:
        """Yield the types and fields that a type is made of, and the named field that each is in."""
        known = self._msgspec.inspect.Type | self._msgspec.inspect.Field
        parts: list[tuple[Any, str | None]] = [(info, None)]
        seen = set[tuple[int, str | None]]()
        for part, name in parts:  # the list grows during the loop
            if not isinstance(part, known) or (id(part), name) in seen:
                continue
            seen.add((id(part), name))
            yield part, name
            for value in self._msgspec.structs.astuple(part):
                for one in value if isinstance(value, tuple) else (value,):
                    own = name if _is_list(part) else getattr(one, "encode_name", name)
                    parts.append((one, own))

    def _made_for(self, field: Any, depth: int = 0) -> int:
        """Return how many objects the default of a field makes, or takes as long as."""
        factory = field.default_factory
        if factory is self._msgspec.NODEFAULT:
            return 0
        if factory in _EMPTY or depth > _DEEPEST:
            return 1
        kinds = getattr(field.type, "types", (field.type,))
        return _FACTORY + max(
            sum(self._made_for(one, depth + 1) for one in getattr(kind, "fields", ()))
            for kind in kinds
        )

    def plain(self, value: Any) -> Any:
        if type(value) in SCALARS:
            return value
        write = self._msgspec.to_builtins
        if self._times:
            _check_folds(write(value, builtin_types=(*_KEPT, dt.datetime, dt.time)))
        return write(value, builtin_types=_KEPT)

    def message(self, value: Any) -> Packed:
        text = b"" if self._times else self.how.text(value)
        fits = 0 < len(text) <= self.piece - HEAD
        if fits and (value is None or b"null" not in text):  # which it writes for NaN
            return self.how.head + text
        data = self.plain(value)
        self._checked(data, lambda part, _: part)
        return plain_data.write(self, data)

    def made(self, data: Any) -> Any:
        return self._checked(data, self._convert)

    def _made_of_text(self, text: bytes) -> Any:
        try:
            return self._decode(text)
        except Exception:  # what comes next says what is wrong
            return super()._made_of_text(text)

    def _convert(self, data: Any, hint: Any) -> Any:
        try:
            return self._msgspec.convert(data, hint, builtin_types=_KEPT)
        except self._msgspec.ValidationError as error:
            text = str(error)
            if len(text) > 2 * _QUOTED:
                text = f"{text[:_QUOTED]}...{text[-_QUOTED:]}"
            raise MismatchError(text) from error

    def _checked(self, data: Any, convert: Convert) -> Any:
        """Return *data* as *convert* makes it: in steps, unless it is trusted or its defaults make too much."""
        if self.trusted:
            return convert(data, self.hint)
        objects, defaults = 0, self._defaults
        more = defaults or self._shortest
        for level, dicts, lists in _levels([data] if more or self._sets else []):
            if self._sets:
                plain_data.hash_long(level)
            objects += len(lists) * (1 + self._shortest)
            objects += len(dicts) * (1 + defaults.total())
            # Other keys do not stand for what is not there.
            objects -= sum(defaults.get(key, 0) for one in dicts for key in one)
        if more and objects > _MOST:
            raise NotDataError(
                f"with the defaults of its fields it holds more than {_MOST:,} lists, dicts or others, "
                "which would hold up the service: yield it in parts"
            )
        return self._in_steps(data, self.hint, convert)

    def _in_steps(self, data: Any, hint: Any, convert: Convert) -> Any:
        """Return *data* as the type *hint*, of which *convert* makes as much as takes one step."""
        if self._is_short([data]):
            return convert(data, hint)
        origin, args, cls = get_origin(hint), get_args(hint), type(data)
        if cls in (list, tuple) and (
            origin is list or (origin is tuple and args[1:] == (...,))
        ):
            made = self._elements(data, args[0], convert, "$[{}]")
            return made if origin is list else tuple(made)
        if cls is dict and origin is dict and {str, args[0]} == {*map(type, data), str}:
            made = self._elements([*data.values()], args[1], convert, "$[...]")
            return dict(zip(data, made, strict=True))
        name = getattr(hint, "__qualname__", hint)
        if self._slow and not _holds([data], _MOST_SLOW):
            raise NotDataError(
                f"one {name} of more than {_MOST_SLOW:,} values would hold up the service: "
                "return a list of smaller ones, or yield it in parts"
            )
        if self._looked_at([data]) > _MOST_LOOKED:
            raise NotDataError(
                f"one {name} whose decimals, enums, literals, tags and patterns have more than "
                f"{_MOST_LOOKED >> 20} MiB would hold up the service: annotate longer ones as str"
            )
        return convert(data, hint)

    def _elements(
        self, values: Sequence[Any], hint: Any, convert: Convert, path: str
    ) -> list[Any]:
        """Return *values*, each as the type *hint*; *path* is where errors say that one is."""
        made: list[Any] = []
        for run, short in plain_data.runs(values, self._step, self._is_short):
            with suppress(MismatchError):  # the next one says in which value it is
                if short:
                    made += convert(run, list[hint])
                    continue
            for one in run:
                try:
                    made.append(self._in_steps(one, hint, convert))
                except MismatchError as error:
                    found = _path_from(str(error), path.format(len(made)))
                    raise MismatchError(found) from error
        return made

    def _is_short(self, level: Sequence[Any]) -> bool | None:
        """Return true if all in *level* and below is made in one short step, or else ``None``."""
        few = _holds(level, self._step)
        return (few and self._looked_at(level) <= _MOST_LOOKED // 2) or None

    def _looked_at(self, level: Sequence[Any]) -> int:
        """Return how many bytes of texts, and bits of long ints, are looked at in *level* and below."""
        names, looked = self._looking, 0
        if not names:
            return 0
        if None not in names:
            tables = chain.from_iterable(dicts for _, dicts, _ in _levels(level, names))
            level = [it[name] for it in tables for name in names & it.keys()]
        for values, dicts, _ in _levels(level):
            for one in chain(values, *dicts):
                if type(one) is str:
                    looked += plain_data.size_of(one)
                elif type(one) is int and (bits := one.bit_length()) > _LONG_BITS:
                    looked += bits
        return looked


def _is_list(part: Any) -> bool:
    """Tell whether a type's objects come as lists of their fields."""
    named_tuple = type(part).__name__ == "NamedTupleType"
    return named_tuple or getattr(part, "array_like", False)


def _levels(level: Sequence[Any], but: Collection[str | None] = ()) -> Iterator[Level]:
    """Yield the values of each level, with the dicts among them, and the lists, tuples and sets.

    Those below the keys *but* are left out.
    """
    while level:
        dicts = [one for one in level if type(one) is dict]
        lists = [one for one in level if type(one) in (list, tuple, set, frozenset)]
        yield level, dicts, lists
        level = [*chain.from_iterable(lists)]
        if but:
            level += [v for one in dicts for k, v in one.items() if k not in but]
        else:
            level += chain.from_iterable(one.values() for one in dicts)


def _holds(values: Sequence[Any], most: int) -> bool:
    """Tell whether there are at most so many *values*, with those in them."""
    for level, dicts, lists in _levels(values):
        most -= len(level)
        if sum(map(len, chain(dicts, lists))) > most:  # before the next level is made
            return False
    return most >= 0


def _check_folds(value: Any) -> None:
    """Refuse the second of two local times that read the same: no text says which one it is."""
    for one in chain.from_iterable(level for level, _, _ in _levels([value])):
        local = isinstance(one, dt.datetime | dt.time) and one.tzinfo is None
        if local and one.fold:
            why = "would come back with fold=0, another instant: send an aware one"
            raise NotDataError(f"{one!r} {why}")


class _Plugged(Kind):
    """Values that a codec of the user's is asked for."""

    whole = True

    def plain(self, value: Any) -> bytes:
        data: object = self.how.codec.encode(value)
        if type(data) is not bytes:
            raise NotDataError(f"its encode() has returned a {type(data).__qualname__}")
        return data

    def made(self, data: Any) -> Any:
        return self.how.codec.decode(data, self.hint)

    def _made_of_text(self, text: bytes) -> Any:
        return self.made(text)

    def message(self, value: Any) -> Packed:
        return plain_data.packed([self.how.head, self.plain(value)])


JSON = Format(1, "json")
NAMES = ("json", "msgspec")


@cache
def _msgspec_format() -> Format:
    import msgspec  # noqa: PLC0415 - an extra

    encode, decode = msgspec.json.Encoder().encode, msgspec.json.Decoder().decode
    return Format(2, "msgspec", _by_msgspec, encode, decode)


def _by_msgspec(how: Format, hint: Any, what: str, direction: Direction) -> Kind:
    """Return what is known of values that are annotated *hint*.

    It raises an exception if the annotation does not say of each value in it what it is, or if it hashes
    others than texts: the hash of a number is known to whoever sends it.
    """
    own = hint is Any or hint in _KEPT
    return (Kind if own else _Annotated)(how, hint, what, direction)


def format_of(codec: object) -> Format:
    """Return the format of a codec, as users name it.

    Raises:
        ValueError: If there is no codec of that name.
        TypeError: If it is no codec.
        ImportError: If its package is not installed.
    """
    if codec == "json":
        return JSON
    if codec == "msgspec":
        try:
            return _msgspec_format()
        except ImportError as error:
            text = (
                "codec='msgspec' needs msgspec: install asyncpool-supervised[msgspec]"
            )
            raise ImportError(text) from error
    if isinstance(codec, str):
        raise ValueError(  # noqa: TRY004 - it is a name, and not a known one
            f"codec must be 'json', 'msgspec' or a Codec, not {codec!r}; without it, a pool "
            "uses pickle"
        )
    if isinstance(codec, type) or not isinstance(codec, Codec):
        raise TypeError(
            "codec must be 'json', 'msgspec' or an object with name, encode() and decode(), "
            f"not {codec!r}"
        )
    return Format(3, codec.name, _Plugged, codec=codec)
