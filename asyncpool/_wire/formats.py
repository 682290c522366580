"""How values become messages, and back: as JSON, by msgspec, or by a codec of the user's.

A :class:`Format` is one of these.  A :class:`Kind` is what an annotation says of values in it.
"""

from __future__ import annotations

import datetime as dt
import json
import re
import sys
from collections import Counter
from functools import cache
from itertools import chain
from typing import Any, Protocol, get_args, get_origin, runtime_checkable

from asyncpool._wire.pickling import describe, too_large
from asyncpool._wire.plain_data import (
    HEAD,
    PIECE,
    MalformedError,
    MissingPackageError,
    NotDataError,
    hash_long,
    packed,
    read,
    size_of,
    write,
)
from asyncpool._wire.text import printable_text
from asyncpool.errors import JobNotPicklableError, ProtocolError

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from typing import Literal, NoReturn, TypeAlias

    from asyncpool._wire.plain_data import Packed, Pause, Payload

    Convert: TypeAlias = Callable[[Any, Any], Any]
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

# How deep the part of a value is looked for that cannot be sent.
_DEEPEST_CULPRIT = 30

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
    codec: Any = None
    text: Callable[[Any], bytes] = staticmethod(_text)
    parse: Callable[[bytes], Any] = staticmethod(_parse)

    def kind_of(self, hint: Any, what: str = RESULT) -> Kind:
        """Return what is known of values that are annotated *hint*; errors call one *what*."""
        return Kind(self, hint, what)


class Kind:
    """What an annotation says of values, and how they are sent and read.

    This class itself is for values of which it says nothing: they are plain data.

    Args:
        how: Their format.
        hint: The annotation.
        what: What errors call such a value.
        direction: What errors say of its way.
        trusted: Whether a worker reads them.  For that one they may hold any number of values.  Whoever
            sends them does not write into them later on, and may make it import what they need.

    Attributes:
        how: The format.
        hint: The annotation.
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

    def __init__(
        self,
        how: Format,
        hint: Any = Any,
        what: str = RESULT,
        direction: Direction = "result",
        *,
        trusted: bool = False,
    ) -> None:
        self.how: Format = how
        self.hint: Any = hint
        self.trusted: bool = trusted
        self.read: Callable[[bytes], Any] | None = None if self.typed else how.parse
        self._head = how.head
        self._what = what
        self._direction: Direction = direction

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

    def pack(self, value: Any, limit: int | None = None) -> Packed:
        """Return the message for a value.

        Raises:
            JobNotPicklableError: If it is no plain data, and not of the annotated type, or has more than
                *limit* bytes.
        """
        name, codec = type(value).__qualname__, self.how.name
        try:
            data = self.message(value)
        except Exception as error:
            where, why = self.culprit(value, "$", error)
            raise JobNotPicklableError(
                f"{self._what}, of type {name}, cannot be sent as {codec}: {reason_of(why)} - at "
                f"`{where}`",
                direction="result",
                name=name,
            ) from why
        if limit is not None and len(data) > limit:
            raise too_large(len(data), limit, self._what, "result", "", f"as {codec}")
        return data

    def load(self, payload: Payload, pause: Pause | None = None) -> Any:
        """Return the value that a worker has sent, which may be anything.

        Raises:
            JobNotPicklableError: If it is not of the annotated type, or cannot be had here.
            ProtocolError: If it is no message of this format.
        """
        if (
            type(payload) is bytes
            and self.read is not None
            and payload[:HEAD] == self._head
            and len(payload) <= self.piece
        ):
            try:
                return self.read(payload[HEAD:])
            except Exception:  # noqa: S110 - what comes next says what is wrong
                pass
        foreign = False
        try:
            data = read(self, payload, pause)
            foreign = self.how.codec is not None
            return self.made_in_steps(data)
        except Exception as error:
            if isinstance(error, MismatchError):
                told = f"is not what the function's annotation says: {reason_of(error)}"
            elif foreign or isinstance(error, MissingPackageError):
                told = f"cannot be read here: {reason_of(error)}"
            else:
                raise ProtocolError(
                    f"it sent {self._what} that is no {self.how.name}: {reason_of(error)}"
                ) from error
            raise JobNotPicklableError(
                f"{self._what} {told}", direction=self._direction, name=""
            ) from error

    def culprit(
        self, value: Any, path: str, error: Exception, depth: int = _DEEPEST_CULPRIT
    ) -> tuple[str, Exception]:
        """Return the path of the part of *value* that cannot be sent, and why."""
        if not depth:
            return path, NotDataError("it is nested too deeply, or holds itself")
        for where, part in _parts_of(self, value, path):
            if (own := self.refusal(part)) is not None:
                return self.culprit(part, where, own, depth - 1)
        return path, error

    def refusal(self, value: Any) -> Exception | None:
        """Return why *value* cannot be sent; ``None`` if it can."""
        try:
            self.message(value)
        except Exception as error:
            return error
        return None


def _parts_of(kind: Kind, value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of *value* that could be sent by themselves, with their paths."""
    if kind.whole:
        return
    if type(value) is dict:
        for key, one in value.items():
            named = type(key) is str and key.isidentifier()
            yield (f"{path}.{key}" if named else f"{path}[{key!r}]"), one
            yield f"{path}[{key!r}]", key
    elif type(value) is list or (type(value) is tuple and kind.how.wide):
        for index, one in enumerate(value):
            yield f"{path}[{index}]", one
    elif type(value) in (set, frozenset) and kind.how.wide:
        for one in value:
            yield f"{path}[...]", one


def reason_of(why: Exception, path: str = "$") -> str:
    """Return the text of an error that says why the value at *path* cannot be sent or read."""
    if isinstance(why, RecursionError):
        return "it is nested too deeply, or holds itself"
    if isinstance(why, MismatchError):
        return printable_text(_path_from(str(why), path))
    own = isinstance(why, NotDataError | MalformedError | MissingPackageError)
    return printable_text(str(why) if own else describe(why))


class _Exactly(Kind):
    """Plain data of one class, which may be large and travel beside the message."""

    typed = True

    def made(self, data: Any) -> Any:
        if type(data) is not self.hint:
            wanted, found = self.hint.__qualname__, type(data).__qualname__
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
        self._kinds: dict[tuple[Any, str], Kind] = {}

    def kind_of(self, hint: Any, what: str = RESULT) -> Kind:
        """Return what is known of values that are annotated *hint*.

        That is nothing if it does not say of each value in it what it is, or if it hashes others than
        texts: the hash of a number is known to whoever sends it.
        """
        key = hint, what
        try:
            if hint is Any:
                return Kind(self, hint, what)
            if key not in self._kinds:
                cls = _Exactly if hint in _KEPT else _Annotated
                self._kinds[key] = cls(self, hint, what)
            return self._kinds[key]
        except Exception:
            return Kind(self, hint, what)


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

# Types whose values are short, and the same as plain data.
_NUMBERS: frozenset[type] = frozenset((int, float, bool, type(None)))

# What plain data has beside JSON.
_KEPT = (bytes, bytearray)


class _Annotated(Kind):
    """Values of a type that msgspec knows, with what it costs to make them.

    Raises:
        Exception: If the annotation is no such type, or says too little.
    """

    typed = True
    whole = True

    def __init__(self, how: MsgspecFormat, hint: Any, what: str) -> None:
        super().__init__(how, hint, what)
        self._msgspec = how.msgspec
        parts = [*self._parts(self._msgspec.inspect.type_info(hint))]
        kinds = {type(part).__name__ for part, _ in parts}
        hashed = {
            type(getattr(part, "key_type", getattr(part, "item_type", None))).__name__
            for part, _ in parts
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
        # The names of the fields in which each character of a text is looked at, as for a decimal, or quoted
        # by an error, as if it is no member of an enum; and None, if that is so outside of named fields.
        self._looking = {name for part, name in parts if _looks_at(part)}
        for part, _ in parts:
            fields = getattr(part, "fields", ())
            made = Counter({f.encode_name: self._made_for(f, 0) for f in fields})
            effort = max(effort, 1 + made.total() + len(fields) // _FIELDS)
            if getattr(part, "array_like", False):
                self._shortest = max(self._shortest, made.total())
            self._defaults |= made  # the greater number for each name
            if (tag := getattr(part, "tag_field", None)) is not None:
                self._looking.add(tag)
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
        self._checked(data, lambda part, _: part)
        return write(self, data)

    def made(self, data: Any) -> Any:
        return self._convert(data, self.hint)

    def made_in_steps(self, data: Any) -> Any:
        return self._checked(data, self._convert)

    def _convert(self, data: Any, hint: Any) -> Any:
        try:
            return self._msgspec.convert(data, hint, builtin_types=_KEPT)
        except self._msgspec.ValidationError as error:
            text = str(error)
            if len(text) > 2 * _QUOTED:
                text = f"{text[:_QUOTED]}...{text[-_QUOTED:]}"
            raise MismatchError(text) from error

    def _checked(self, data: Any, convert: Convert) -> Any:
        """Return *data* as *convert* makes it in steps, unless its defaults make too much."""
        objects, defaults = 0, self._defaults
        more = defaults or self._shortest
        for level, dicts, lists in _levels([data] if more or self._sets else []):
            if self._sets:
                hash_long(level)
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
        if (cls is list or cls is tuple) and (
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
        count = self._step
        while run := values[len(made) : len(made) + count]:
            count = len(run) // 2  # of the next run, if this one is not made
            try:
                if not count:
                    made.append(self._in_steps(run[0], hint, convert))
                elif self._is_short(run):
                    made += convert(run, list[hint])
                else:
                    continue
            except MismatchError as error:
                if count:
                    continue  # to say where it is in this run
                found = _path_from(str(error), path.format(len(made)))
                raise MismatchError(found) from error
            count = min(len(run) + len(run) // 8 + 1, self._step)
        return made

    def _is_short(self, level: Sequence[Any]) -> bool:
        """Tell whether all in *level* and below is made in one short step."""
        few = _holds(level, self._step)
        return few and self._looked_at(level) <= _MOST_LOOKED // 2

    def _looked_at(self, level: Sequence[Any]) -> int:
        """Return how many bytes of texts, and bits of long ints, are looked at in *level* and below."""
        if not self._looking:
            return 0
        if None not in self._looking:
            level = [
                part
                for _, dicts, _ in _levels(level, self._looking)
                for one in dicts
                for key, part in one.items()
                if key in self._looking
            ]
        looked = 0
        for values, dicts, _ in _levels(level):
            for one in chain(values, *dicts):
                if type(one) is str:
                    looked += size_of(one)
                elif type(one) is int and (bits := one.bit_length()) > _LONG_BITS:
                    looked += bits
        return looked


def _looks_at(part: Any) -> bool:
    """Tell whether texts are looked at for a value of this type, beside what is in it."""
    tagged = _is_list(part) and getattr(part, "tag_field", None) is not None
    pattern = getattr(part, "pattern", None)
    return tagged or bool(pattern) or type(part).__name__ in _LOOKED


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


def _path_from(text: str, root: str) -> str:
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
        self.codec = codec
        self.name = codec.name

    def kind_of(self, hint: Any, what: str = RESULT) -> Kind:
        """Return what calls the codec with *hint*."""
        return _Plugged(self, hint, what)

    # Two of one codec are the same, so that a view that is made for each job costs nothing.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PluggedFormat) and self.codec is other.codec

    def __hash__(self) -> int:
        return hash(id(self.codec))


class _Plugged(Kind):
    """Values that a codec of the user's is asked for."""

    typed = True
    whole = True

    def plain(self, value: Any) -> bytes:
        data: object = self.how.codec.encode(value)
        if type(data) is not bytes:
            raise NotDataError(f"its encode() has returned a {type(data).__qualname__}")
        return data

    def made(self, data: Any) -> Any:
        return self.how.codec.decode(data, self.hint)

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
