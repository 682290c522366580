"""How plain data becomes text, and typed data plain: JSON, msgspec, or a codec of the user's."""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from functools import cache
from itertools import chain
from typing import Any, NamedTuple, Protocol, get_args, get_origin, runtime_checkable

from asyncpool._wire.plain_data import MalformedError, NotDataError, hash_long, size_of

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import NoReturn

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


class Cost(NamedTuple):
    """What it costs to make values of an annotated type, beside what has come of them.

    Attributes:
        copies: How often each value is there: as it comes, and in what is made of it.
        effort: How many times as long as an empty list one of them may take.
        defaults: How many objects the defaults of fields make that are not there, by the fields' names.
        shortest: How many those make of a list that stands for an object.
        slow: Whether texts may become what takes long to make, such as a UUID.
        tracked: Whether the garbage collector looks at objects made of texts.
        times: Whether there may be a ``datetime`` or a ``time``.
        looks: Whether each character of a text is looked at, as for a decimal, or quoted by an error, as if
            it is no member of an enum.
        looking: The names of the fields for which that is so.
    """

    copies: int = 1
    effort: int = 1
    defaults: Mapping[str, int] = {}
    shortest: int = 0
    slow: bool = False
    tracked: bool = False
    times: bool = False
    looks: bool = False
    looking: frozenset[str] = frozenset()


PLAIN = Cost()

# What is made of a value has its values too, and is larger; a set has them in another order.
_IN_BOTH = 3

# How many values are made in one step, if one alone does not hold more.  How many slow values one step
# makes at most; and how many objects a whole message, with those of defaults.
_STEP, _MOST_SLOW, _MOST = 8192, 50_000, 60_000

# How many bytes of texts one step looks at; and of an error's text so many characters are kept at each end.
_MOST_LOOKED, _QUOTED = 1 << 20, 1000

# An int of more bits takes long to become a decimal.
_LONG_BITS = 64

# What the call of a default's factory counts that the service has written.
_FACTORY = 8

# Fields with a default that take as long as an empty list.
_FIELDS = 8

# What JSON writes for a character beyond U+FFFF begins with it, and for half a surrogate pair.
_SURROGATES = "\\ud"

# What takes a time that grows with the square of its length, if the interpreter has no limit.
_MOST_DIGITS = 4300
_LONG_INT = re.compile(r"[0-9]{4301}")


def _refuse(text: str) -> NoReturn:
    raise MalformedError(f"{text} is no JSON")


class Format:
    """JSON, by the standard library.

    Attributes:
        number: What the messages in it begin with.
        name: Its name in errors.
        wide: Whether it also sends tuples, sets, bytes, arrays, and dicts with other keys than texts.
        typed: Whether it reads values as the types that annotations name.
        codec: What turns each value into bytes, if a user has written it.
        text: Returns what JSON knows as bytes; raises any exception if it does not know it.
        parse: Returns the value of such bytes; raises any exception if they are none.
    """

    number = 1
    name = "json"
    wide = False
    typed = False
    codec: Codec | None = None

    def __init__(self) -> None:
        self.text: Callable[[Any], bytes] = self._text
        self.parse: Callable[[bytes], Any] = self._parse
        self._encode = json.JSONEncoder(
            allow_nan=False, separators=(",", ":"), check_circular=False
        ).encode
        self._decode = json.JSONDecoder(parse_constant=_refuse).decode

    def _text(self, value: Any) -> bytes:
        text = self._encode(value)
        if _SURROGATES in text and self._decode(text) != value:
            raise NotDataError(
                "a text with both halves of a surrogate pair is no plain data: JSON joins them"
            )
        return text.encode("ascii")

    def _parse(self, data: bytes) -> Any:
        text = str(data, "ascii")
        limit = sys.get_int_max_str_digits()
        if not 0 < limit <= _MOST_DIGITS and _LONG_INT.search(text):
            raise MalformedError(f"an int has more than {_MOST_DIGITS} digits")
        return self._decode(text)

    def reader(self, kind: Any) -> Callable[[bytes], Any]:
        """Return what reads a text of a value of the type *kind*; ``None`` stands for plain data."""
        assert kind is None
        return self.parse

    def plain(self, value: Any, cost: Cost) -> Any:
        """Return the plain data of a value of an annotated type, with its *cost*.

        Raises:
            Exception: If there is none.
        """
        raise NotImplementedError

    def typed_of(self, value: Any, kind: Any) -> Any:
        """Return the value of the type *kind* for plain data.

        Raises:
            MismatchError: If it is for another type.
            Exception: If there is none.
        """
        raise NotImplementedError

    def in_steps(self, value: Any, kind: Any, cost: Cost, *, make: bool = True) -> Any:
        """Return the value of the type *kind*, of which no single step takes long.

        Args:
            value: The plain data.
            kind: The type.
            cost: What it costs.
            make: Whether it is made, and not only checked.

        Raises:
            NotDataError: If one step would take long.
            MismatchError: If it is for another type.
        """
        raise NotImplementedError

    def cost(self, kind: Any) -> Cost | None:
        """Return what values of the type *kind* cost.

        Returns:
            ``None`` if the type does not say of each value in it what it is, or if it hashes others than
            texts: the hash of a number is known to whoever sends it.
        """
        raise NotImplementedError


class MsgspecFormat(Format):
    """JSON, by msgspec, which knows the types that annotations name."""

    number = 2
    name = "msgspec"
    wide = True
    typed = True

    def __init__(self) -> None:
        import msgspec  # noqa: PLC0415 - an extra

        self._msgspec = msgspec
        self.text = msgspec.json.Encoder().encode
        self.parse = msgspec.json.Decoder().decode
        self._decoders: dict[Any, Callable[[bytes], Any]] = {None: self.parse}
        self._costs: dict[Any, Cost | None] = {}

    def reader(self, kind: Any) -> Callable[[bytes], Any]:
        decode = self._decoders.get(kind)
        if decode is None:
            decode = self._decoders[kind] = self._msgspec.json.Decoder(kind).decode
        return decode

    def plain(self, value: Any, cost: Cost) -> Any:
        write = self._msgspec.to_builtins
        if cost.times:
            kept = (bytes, bytearray, dt.datetime, dt.time)
            value = write(value, builtin_types=kept)
            _check_folds(value)
        return write(value, builtin_types=(bytes, bytearray))

    def typed_of(self, value: Any, kind: Any) -> Any:
        try:
            return self._msgspec.convert(value, kind, builtin_types=(bytes, bytearray))
        except self._msgspec.ValidationError as error:
            text = str(error)
            if len(text) > 2 * _QUOTED:
                text = f"{text[:_QUOTED]}...{text[-_QUOTED:]}"
            raise MismatchError(text) from error

    def in_steps(self, value: Any, kind: Any, cost: Cost, *, make: bool = True) -> Any:
        if cost.copies > _IN_BOTH:
            for level, _, _ in _levels([value]):
                hash_long(level)
        if (cost.defaults or cost.shortest) and _objects(value, cost) > _MOST:
            raise NotDataError(
                f"with the defaults of its fields it holds more than {_MOST:,} lists, dicts or others, "
                "which would hold up the service: yield it in parts"
            )
        return self._in_steps(value, kind, cost, make=make)

    def _in_steps(self, value: Any, kind: Any, cost: Cost, *, make: bool) -> Any:
        convert = self.typed_of if make else _leave
        if _is_short([value], cost):
            return convert(value, kind)
        origin, args, cls = get_origin(kind), get_args(kind), type(value)
        if (cls is list or cls is tuple) and (
            origin is list or (origin is tuple and args[1:] == (...,))
        ):
            made = self._elements(value, range(len(value)), args[0], cost, make=make)
            return made if origin is list else tuple(made)
        if (
            cls is dict
            and origin is dict
            and {str, args[0]} == {*map(type, value), str}
        ):
            values = [*value.values()]
            made = self._elements(values, None, args[1], cost, make=make)
            return dict(zip(value, made, strict=True))
        if cost.slow and not _holds([value], _MOST_SLOW):
            raise NotDataError(
                f"one {_name_of(kind)} of more than {_MOST_SLOW:,} values would hold up the service: "
                "return a list of smaller ones, or yield it in parts"
            )
        if _looked_at([value], cost) > _MOST_LOOKED:
            raise NotDataError(
                f"one {_name_of(kind)} whose decimals, enums, literals, tags and patterns have more than "
                f"{_MOST_LOOKED >> 20} MiB would hold up the service: annotate longer ones as str"
            )
        return convert(value, kind)

    def _elements(
        self,
        values: Sequence[Any],
        at: range | None,
        kind: Any,
        cost: Cost,
        *,
        make: bool,
    ) -> list[Any]:
        """Return *values* as the type *kind*; *at* is where they are in their list."""
        if _is_short([values], cost):
            try:
                return list(self.typed_of(values, list[kind]) if make else values)
            except MismatchError:
                pass  # which says where it is in this part
        if len(values) == 1:
            try:
                return [self._in_steps(values[0], kind, cost, make=make)]
            except MismatchError as error:
                place = "[...]" if at is None else f"[{at[0]}]"
                raise MismatchError(path_from(str(error), f"${place}")) from error
        half = len(values) // 2
        made = self._elements(values[:half], at and at[:half], kind, cost, make=make)
        made += self._elements(values[half:], at and at[half:], kind, cost, make=make)
        return made

    def cost(self, kind: Any) -> Cost | None:
        try:
            if kind not in self._costs:
                self.reader(kind)
                info = self._msgspec.inspect.type_info(kind)
                self._costs[kind] = self._cost(info)
            return self._costs[kind]
        except Exception:  # noqa: BLE001 - msgspec does not know it, or a user's class raises
            return None

    def _cost(self, info: Any) -> Cost | None:
        found = [*self._parts(info)]
        kinds = {type(part).__name__ for part in found}
        hashed = [
            type(getattr(part, "key_type", getattr(part, "item_type", None))).__name__
            for part in found
            if type(part).__name__ in _HASHING
        ]
        if kinds & _OPEN or not _HASHED.issuperset(hashed):
            return None
        defaults: dict[str, int] = {}
        effort = 1
        shortest = 0
        looking: set[str] = set()
        for part in found:
            fields = getattr(part, "fields", ())
            made = {field.encode_name: self._made_for(field, 0) for field in fields}
            effort = max(effort, 1 + sum(made.values()) + len(fields) // _FIELDS)
            if getattr(part, "array_like", False):
                shortest = max(shortest, sum(made.values()))
            for name, count in made.items():
                if count:
                    defaults[name] = max(count, defaults.get(name, 0))
            looking.update(f.encode_name for f in fields if self._looks(f.type))
            if (tag := getattr(part, "tag_field", None)) is not None:
                looking.add(tag)
        return Cost(
            copies=_IN_BOTH + bool(kinds & _SETS),
            effort=effort,
            defaults=defaults,
            shortest=shortest,
            slow=bool(kinds & _SLOW),
            tracked="UUIDType" in kinds,
            times=bool(kinds & _TIMES),
            looks=self._looks(info),
            looking=frozenset(looking),
        )

    def _looks(self, info: Any) -> bool:
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


# The factories of defaults that make one small object.
_EMPTY: tuple[Any, ...] = (list, dict, set, frozenset, tuple, bytearray)
_DEEPEST = 4

# Types, as msgspec's inspection calls them: those of any value; those whose values take long to make; the
# times among these; those that look at each character; and sets, what hashes, and texts that may be hashed.
_OPEN = frozenset(("AnyType", "CustomType", "RawType", "ExtType"))
_TIMES = frozenset(("DateTimeType", "TimeType"))
_SLOW = _TIMES.union(("UUIDType", "DecimalType", "DateType", "TimeDeltaType"))
_LOOKED = frozenset(("DecimalType", "EnumType", "LiteralType"))
_SETS = frozenset(("SetType", "FrozenSetType"))
_HASHING = _SETS.union(("DictType", "FrozenDictType"))
_HASHED = frozenset(("StrType", "EnumType", "LiteralType", "BytesType"))


def _is_list(part: Any) -> bool:
    """Tell whether a type's objects come as lists of their fields."""
    named_tuple = type(part).__name__ == "NamedTupleType"
    return named_tuple or getattr(part, "array_like", False)


def _leave(value: Any, kind: Any) -> Any:
    del kind
    return value


def _name_of(kind: Any) -> str:
    return str(getattr(kind, "__qualname__", kind))


def _levels(level: Sequence[Any], but: frozenset[str] = frozenset()) -> Iterator[Level]:
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


def _is_short(level: Sequence[Any], cost: Cost) -> bool:
    """Tell whether all in *level* and below is made in one short step."""
    return (
        _holds(level, _STEP // cost.effort) and _looked_at(level, cost) <= _MOST_LOOKED
    )


def _looked_at(level: Sequence[Any], cost: Cost) -> int:
    """Return how many bytes of texts, and bits of long ints, a type looks at in *level* and below."""
    inside: Sequence[Any] = level if cost.looks else []
    if cost.looking and not cost.looks:
        inside = [
            part
            for _, dicts, _ in _levels(level, cost.looking)
            for one in dicts
            for key, part in one.items()
            if key in cost.looking
        ]
    looked = 0
    for values, dicts, _ in _levels(inside):
        for one in chain(values, *dicts):
            if type(one) is str:
                looked += size_of(one)
            elif type(one) is int and (bits := one.bit_length()) > _LONG_BITS:
                looked += bits
    return looked


def _check_folds(value: Any) -> None:
    """Refuse the second of two local times that read the same: no text says which one it is."""
    for level, _, _ in _levels([value]):
        for one in level:
            local = isinstance(one, dt.datetime | dt.time) and one.tzinfo is None
            if local and one.fold:
                raise NotDataError(
                    f"{one!r} would come back with fold=0, another instant: send an aware one"
                )


def _objects(value: Any, cost: Cost) -> int:
    """Return how many lists, dicts and objects of defaults a type makes of *value*."""
    made, defaults, all_of_them = 0, cost.defaults, sum(cost.defaults.values())
    for _, dicts, lists in _levels([value]):
        made += len(dicts) + len(lists) * (1 + cost.shortest)
        if defaults:
            # Other keys do not stand for what is not there.
            made += all_of_them * len(dicts)
            made -= sum(
                defaults[key] for one in dicts for key in one if key in defaults
            )
    return made


def path_from(text: str, root: str) -> str:
    """Return the text of a mismatch with the path of the value from *root* on."""
    before, mark, path = text.rpartition("`$")
    if not mark:
        return f"{text} - at `{root}`"
    return f"{before}`{root}{path}"


class PluggedFormat(Format):
    """A codec of the user's, which is asked for each argument."""

    number = 3
    wide = True
    typed = True

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = self._own = codec
        self.name = codec.name

    # Two of one codec are the same, so that a view that is made for each job costs nothing.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PluggedFormat) and self.codec is other.codec

    def __hash__(self) -> int:
        return hash(id(self.codec))

    def plain(self, value: Any, cost: Cost) -> bytes:
        del cost
        data: object = self._own.encode(value)
        if type(data) is not bytes:
            raise NotDataError(f"its encode() has returned a {type(data).__qualname__}")
        return data

    def typed_of(self, value: Any, kind: Any) -> Any:
        return self._own.decode(value, kind)


@cache
def json_format() -> Format:
    """Return the format for JSON."""
    return Format()


@cache
def _msgspec_format() -> MsgspecFormat:
    return MsgspecFormat()


def format_of(codec: object) -> Format:
    """Return the format of a codec, as users name it.

    Raises:
        ValueError: If there is no codec of that name.
        TypeError: If it is no codec.
        ImportError: If its package is not installed.
    """
    if codec == "json":
        return json_format()
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
