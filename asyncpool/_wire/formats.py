"""How plain data becomes text, and typed data plain: JSON, msgspec, or a codec of the user's."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections import Counter
from functools import cache
from itertools import chain
from typing import Any, Protocol, get_args, get_origin, runtime_checkable

from asyncpool._wire.plain_data import (
    PIECE,
    MalformedError,
    NotDataError,
    hash_long,
    packed,
    size_of,
    write,
)

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn, TypeAlias

    from asyncpool._wire.plain_data import Packed

    Convert: TypeAlias = Callable[[Any, Any], Any]
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
        raise NotDataError(
            "a text with both halves of a surrogate pair is no plain data: JSON joins them"
        )
    return text.encode("ascii")


def _parse(data: bytes) -> Any:
    text = str(data, "ascii")
    limit = sys.get_int_max_str_digits()
    if not 0 < limit <= _MOST_DIGITS and _LONG_INT.search(text):
        raise MalformedError(f"an int has more than {_MOST_DIGITS} digits")
    return _decode(text)


class Format:
    """JSON, by the standard library.

    Attributes:
        head: What a message in it begins with: its number, and a byte for one that is not in parts.
        name: Its name in errors.
        wide: Whether it also sends tuples, sets, bytes, arrays, and dicts with other keys than texts, and
            annotations count.
        codec: What turns each value into bytes, if a user has written it.
        text: Returns what JSON knows as bytes; raises any exception if it does not know it.
        parse: Returns the value of such bytes; raises any exception if they are none.
    """

    head = b"\1\0"
    name = "json"
    wide = False
    codec: Codec | None = None
    text: Callable[[Any], bytes] = staticmethod(_text)
    parse: Callable[[bytes], Any] = staticmethod(_parse)

    def kind_of(self, hint: Any) -> Kind:
        """Return what is known of values that are annotated *hint*."""
        del hint
        return Kind(self)


class Kind:
    """What an annotation says of values: nothing, so that they are plain data.

    Args:
        how: Their format.
        trusted: Whether a worker reads them.  For that one they may hold any number of values.  Whoever
            sends them does not write into them later on, and may make it import what they need.

    Attributes:
        how: The format.
        trusted: As above.
        typed: Whether it says anything of them.
        whole: Whether no part of such a value can be sent by itself.
        read: Returns the value of a text; ``None`` if there is more to do.
        piece: How long a text may be that is read in one step.
        copies: How often each value is there: as it comes, and in what is made of it.
        tracked: Whether the garbage collector looks at objects made of texts.
    """

    typed = False
    whole = False
    piece = PIECE
    copies = 1
    tracked = False

    def __init__(self, how: Format, *, trusted: bool = False) -> None:
        self.how: Format = how
        self.trusted: bool = trusted
        self.read: Callable[[bytes], Any] | None = how.parse

    def plain(self, value: Any) -> Any:
        """Return the plain data of a value.

        Raises:
            Exception: If there is none.
        """
        return value

    def made(self, data: Any) -> Any:
        """Return the value for plain data.

        Raises:
            MismatchError: If it is for another type.
            Exception: If there is none.
        """
        return data

    def made_in_steps(self, data: Any) -> Any:
        """Return the value for plain data that may be anything, where no single step takes long.

        Raises:
            NotDataError: If one step would take long.
            MismatchError: If it is for another type.
            Exception: If there is none.
        """
        return self.made(data)

    def message(self, value: Any) -> Packed:
        """Return the message for a value, which :meth:`made_in_steps` is to read.

        Raises:
            Exception: If there is none.
        """
        return write(self, value)


class _Exactly(Kind):
    """Plain data of one class, which may be large and travel beside the message."""

    typed = True

    def __init__(self, how: Format, cls: type) -> None:
        super().__init__(how)
        self.read = None
        self._cls = cls

    def made(self, data: Any) -> Any:
        if type(data) is not self._cls:
            wanted, found = self._cls.__qualname__, type(data).__qualname__
            raise MismatchError(f"Expected `{wanted}`, got `{found}`")
        return data


class MsgspecFormat(Format):
    """JSON, by msgspec, which knows the types that annotations name."""

    head = b"\2\0"
    name = "msgspec"
    wide = True

    def __init__(self) -> None:
        import msgspec  # noqa: PLC0415 - an extra

        self.msgspec: Any = msgspec
        self.text = msgspec.json.Encoder().encode
        self.parse = msgspec.json.Decoder().decode
        self._kinds: dict[Any, Kind] = {
            Any: Kind(self),
            bytes: _Exactly(self, bytes),
            bytearray: _Exactly(self, bytearray),
        }

    def kind_of(self, hint: Any) -> Kind:
        """Return what is known of values that are annotated *hint*.

        That is nothing if it does not say of each value in it what it is, or if it hashes others than
        texts: the hash of a number is known to whoever sends it.
        """
        try:
            if hint not in self._kinds:
                self._kinds[hint] = _Annotated(self, hint)
            return self._kinds[hint]
        except Exception:  # noqa: BLE001 - msgspec does not know it, or a user's class raises
            return Kind(self)


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
_STEP, _MOST_SLOW, _MOST = 8192, 50_000, 60_000

# How many bytes of texts one step looks at; and of an error's text so many characters are kept at each end.
_MOST_LOOKED, _QUOTED = 1 << 20, 1000

# An int of more bits takes long to become a decimal.
_LONG_BITS = 64

# The factories of defaults that make one small object; what the call of another one counts, that the
# service has written; and how deep is looked for defaults.
_EMPTY: tuple[Any, ...] = (list, dict, set, frozenset, tuple, bytearray)
_FACTORY, _DEEPEST = 8, 4

# Fields with a default that take as long as an empty list.
_FIELDS = 8

# Types whose values are short, and the same as plain data.
_NUMBERS: frozenset[type] = frozenset((int, float, bool, type(None)))

# What plain data has beside JSON.
_KEPT = (bytes, bytearray)


class _Annotated(Kind):
    """Values of a type that msgspec knows, with what it costs to make them.

    Args:
        how: The format.
        hint: The type.

    Raises:
        Exception: If it is none, or says too little.
    """

    typed = True
    whole = True

    def __init__(self, how: MsgspecFormat, hint: Any) -> None:
        super().__init__(how)
        self._msgspec = how.msgspec
        self._hint = hint
        parts = [*self._parts(self._msgspec.inspect.type_info(hint))]
        kinds = {type(part).__name__ for part in parts}
        hashed = {
            type(getattr(part, "key_type", getattr(part, "item_type", None))).__name__
            for part in parts
            if type(part).__name__ in _HASHING
        }
        if kinds & _OPEN or hashed - _HASHED:
            raise NotDataError("there may be anything in it")
        self.read = self._msgspec.json.Decoder(hint).decode
        self._sets = bool(kinds & _SETS)
        self.copies = _IN_BOTH + self._sets
        self.tracked = "UUIDType" in kinds
        # Whether texts may become what takes long to make, and whether there may be times among these.
        self._slow, self._times = bool(kinds & _SLOW), bool(kinds & _TIMES)
        # How many objects the defaults of fields make that are not there, by the fields' names; how many
        # those of a list that stands for an object; and how many times as long as an empty list one value
        # may take with them.
        self._defaults, self._shortest, effort = Counter[str](), 0, 1
        # Whether each character of a text is looked at, as for a decimal, or quoted by an error, as if it is
        # no member of an enum; and the names of the fields for which that is so.
        self._looks, self._looking = self._looks_at(parts[0]), set[str]()
        for part in parts:
            fields = getattr(part, "fields", ())
            made = {field.encode_name: self._made_for(field, 0) for field in fields}
            effort = max(effort, 1 + sum(made.values()) + len(fields) // _FIELDS)
            if getattr(part, "array_like", False):
                self._shortest = max(self._shortest, sum(made.values()))
            self._defaults |= Counter(made)  # the greater number for each name
            self._looking |= {f.encode_name for f in fields if self._looks_at(f.type)}
            if (tag := getattr(part, "tag_field", None)) is not None:
                self._looking.add(tag)
        self.piece = PIECE // effort
        self._step = _STEP // effort

    def _looks_at(self, info: Any) -> bool:
        """Tell whether texts are looked at in a value of this type, beside its named fields."""
        return any(
            type(part).__name__ in _LOOKED
            or getattr(part, "pattern", None)
            or (_is_list(part) and getattr(part, "tag_field", None) is not None)
            for part in self._parts(info, named=False)
        )

    def _parts(self, info: Any, *, named: bool = True) -> Iterator[Any]:
        """Yield the types and fields that a type is made of, perhaps without *named* fields."""
        inspect = self._msgspec.inspect
        parts, seen = [info], set[int]()
        while parts:
            part = parts.pop()
            if not isinstance(part, inspect.Type | inspect.Field) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            if named or _is_list(part) or not hasattr(part, "fields"):
                for name in part.__struct_fields__:
                    value = getattr(part, name)
                    parts += value if isinstance(value, tuple) else (value,)

    def _made_for(self, field: Any, depth: int) -> int:
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
        if type(value) in _NUMBERS:
            return value
        write = self._msgspec.to_builtins
        if self._times:
            value = write(value, builtin_types=(*_KEPT, dt.datetime, dt.time))
            _check_folds(value)
        return write(value, builtin_types=_KEPT)

    def message(self, value: Any) -> Packed:
        if not self._times:
            text = self.how.text(value)
            # It writes NaN as null.
            if len(text) <= self.piece and b"null" not in text:
                return packed([self.how.head, text])
        data = self.plain(value)
        self._convert_in_steps(data, _leave)
        return write(self, data)

    def made(self, data: Any) -> Any:
        return self._convert(data, self._hint)

    def made_in_steps(self, data: Any) -> Any:
        return self._convert_in_steps(data, self._convert)

    def _convert(self, data: Any, hint: Any) -> Any:
        try:
            return self._msgspec.convert(data, hint, builtin_types=_KEPT)
        except self._msgspec.ValidationError as error:
            text = str(error)
            if len(text) > 2 * _QUOTED:
                text = f"{text[:_QUOTED]}...{text[-_QUOTED:]}"
            raise MismatchError(text) from error

    def _convert_in_steps(self, data: Any, convert: Convert) -> Any:
        objects, defaults = 0, self._defaults
        more = defaults or self._shortest
        for level, dicts, lists in _levels([data] if more or self._sets else []):
            if self._sets:
                hash_long(level)
            objects += len(lists) * (1 + self._shortest)
            objects += len(dicts) * (1 + defaults.total())
            # Other keys do not stand for what is not there.
            objects -= sum(
                defaults[key] for one in dicts for key in one if key in defaults
            )
        if more and objects > _MOST:
            raise NotDataError(
                f"with the defaults of its fields it holds more than {_MOST:,} lists, dicts or others, "
                "which would hold up the service: yield it in parts"
            )
        return self._in_steps(data, self._hint, convert)

    def _in_steps(self, data: Any, hint: Any, convert: Convert) -> Any:
        """Return *data* as the type *hint*, of which *convert* makes as much as takes one step."""
        if self._is_short([data]):
            return convert(data, hint)
        origin, args, cls = get_origin(hint), get_args(hint), type(data)
        if (cls is list or cls is tuple) and (
            origin is list or (origin is tuple and args[1:] == (...,))
        ):
            made = self._elements(data, range(len(data)), args[0], convert)
            return made if origin is list else tuple(made)
        if cls is dict and origin is dict and {str, args[0]} == {*map(type, data), str}:
            made = self._elements([*data.values()], None, args[1], convert)
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
        self, values: Sequence[Any], at: range | None, hint: Any, convert: Convert
    ) -> list[Any]:
        """Return *values* as the type *hint*; *at* is where they are in their list."""
        if self._is_short([values]):
            try:
                return list(convert(values, list[hint]))
            except MismatchError:
                pass  # which says where it is in this part
        if len(values) == 1:
            try:
                return [self._in_steps(values[0], hint, convert)]
            except MismatchError as error:
                root = "$[...]" if at is None else f"$[{at[0]}]"
                raise MismatchError(path_from(str(error), root)) from error
        half = len(values) // 2
        made = self._elements(values[:half], at and at[:half], hint, convert)
        made += self._elements(values[half:], at and at[half:], hint, convert)
        return made

    def _is_short(self, level: Sequence[Any]) -> bool:
        """Tell whether all in *level* and below is made in one short step."""
        return _holds(level, self._step) and self._looked_at(level) <= _MOST_LOOKED

    def _looked_at(self, level: Sequence[Any]) -> int:
        """Return how many bytes of texts, and bits of long ints, are looked at in *level* and below."""
        inside: Sequence[Any] = level if self._looks else []
        if self._looking and not self._looks:
            inside = [
                part
                for _, dicts, _ in _levels(level, self._looking)
                for one in dicts
                for key, part in one.items()
                if key in self._looking
            ]
        looked = 0
        for values, dicts, _ in _levels(inside):
            for one in chain(values, *dicts):
                if type(one) is str:
                    looked += size_of(one)
                elif type(one) is int and (bits := one.bit_length()) > _LONG_BITS:
                    looked += bits
        return looked


def _is_list(part: Any) -> bool:
    """Tell whether a type's objects come as lists of their fields."""
    named_tuple = type(part).__name__ == "NamedTupleType"
    return named_tuple or getattr(part, "array_like", False)


def _leave(data: Any, hint: Any) -> Any:
    del hint
    return data


def _levels(level: Sequence[Any], but: set[str] | None = None) -> Iterator[Level]:
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
        if sum(map(len, chain(dicts, lists))) > most:
            return False
    return most >= 0


def _check_folds(value: Any) -> None:
    """Refuse the second of two local times that read the same: no text says which one it is."""
    for level, _, _ in _levels([value]):
        for one in level:
            local = isinstance(one, dt.datetime | dt.time) and one.tzinfo is None
            if local and one.fold:
                raise NotDataError(
                    f"{one!r} would come back with fold=0, another instant: send an aware one"
                )


def path_from(text: str, root: str) -> str:
    """Return the text of a mismatch with the path of the value from *root* on."""
    before, mark, path = text.rpartition("`$")
    if not mark:
        return f"{text} - at `{root}`"
    return f"{before}`{root}{path}"


class PluggedFormat(Format):
    """A codec of the user's, which is asked for each argument."""

    head = b"\3\0"
    wide = True

    def __init__(self, codec: Codec) -> None:
        self.codec = self._own = codec
        self.name = codec.name

    def kind_of(self, hint: Any) -> Kind:
        """Return what calls the codec with *hint*."""
        return _Plugged(self, self._own, hint)

    # Two of one codec are the same, so that a view that is made for each job costs nothing.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PluggedFormat) and self.codec is other.codec

    def __hash__(self) -> int:
        return hash(id(self.codec))


class _Plugged(Kind):
    """Values that a codec of the user's is asked for."""

    typed = True
    whole = True

    def __init__(self, how: Format, codec: Codec, hint: Any) -> None:
        super().__init__(how)
        self.read = None
        self._codec, self._hint = codec, hint

    def plain(self, value: Any) -> bytes:
        data: object = self._codec.encode(value)
        if type(data) is not bytes:
            raise NotDataError(f"its encode() has returned a {type(data).__qualname__}")
        return data

    def made(self, data: Any) -> Any:
        return self._codec.decode(data, self._hint)

    def message(self, value: Any) -> Packed:
        return packed([self.how.head, self.plain(value)])


JSON = Format()
_msgspec_format = cache(MsgspecFormat)


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
            raise ImportError(
                "codec='msgspec' needs msgspec: install asyncpool-supervised[msgspec]"
            ) from error
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
    return PluggedFormat(codec)
