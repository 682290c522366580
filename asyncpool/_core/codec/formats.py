"""How plain data becomes bytes: JSON, msgspec's MessagePack, or a codec of the user's."""

from __future__ import annotations

import json
from functools import cache, cached_property

from asyncpool._core.codec.codec import Codec
from asyncpool._core.codec.map_keys import KeyCheck
from asyncpool._core.codec.plain_data import NotDataError
from asyncpool._core.codec.tagged_values import MalformedError, Untag

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class MismatchError(TypeError):
    """A value is not of the type that the function's annotation names."""


class Format:
    """A way to write values.

    Attributes:
        number: What the messages in it begin with.
        name: Its name in errors.
        has_bytes: Whether it writes bytes.
        key_types: The types of the keys of dicts that it writes.
        typed: Whether it reads values as the types that annotations name.
        walks: Whether a :class:`Walk` makes plain data for it.
    """

    number: int
    name: str
    has_bytes = False
    key_types: frozenset[type] = frozenset((str,))
    typed = False
    walks = True

    @cached_property
    def untagged(self) -> bytes:
        """What messages begin with that have no tagged value."""
        return bytes((self.number, 0))

    def tag(self, name: str, content: Any) -> Any:
        """Return what stands for a tagged value."""
        raise NotImplementedError

    def write(self, value: Any) -> bytes:
        """Return plain data, or a value of an annotated type, as bytes.

        Raises:
            Exception: If the format does not know the value.
        """
        raise NotImplementedError

    def read(self, data: bytes, untag: Untag | None) -> Any:
        """Return the plain data in *data*; *untag* is ``None`` if no value is tagged.

        Raises:
            Exception: If there is none.
        """
        raise NotImplementedError

    def read_typed(self, data: Any, kind: Any) -> Any:
        """Return the value of the type *kind* in *data*.

        Raises:
            MismatchError: If it has another type.
            Exception: If there is no value.
        """
        raise NotImplementedError

    def reader(self, kind: Any) -> Callable[[bytes], Any]:
        """Return what reads a message without tagged values, which is of the type *kind*.

        ``None`` stands for plain data.  It raises any exception if there is no such value.
        """
        raise NotImplementedError

    def is_closed(self, kind: Any) -> bool:
        """Tell whether the type *kind* says of each value in it what it is."""
        raise NotImplementedError


# What JSON writes for a character beyond U+FFFF begins with it, and for half a surrogate pair.
_SURROGATES = "\\ud"


def _refuse(text: str) -> NoReturn:
    raise MalformedError(f"{text} is no JSON")


class JsonFormat(Format):
    """JSON, by the standard library; a tagged value is an object with one name, ``$tuple``."""

    number = 1
    name = "json"

    def __init__(self) -> None:
        self._encode = json.JSONEncoder(
            allow_nan=False, separators=(",", ":"), check_circular=False
        ).encode
        self._decode = json.JSONDecoder(parse_constant=_refuse).decode

    def tag(self, name: str, content: Any) -> Any:
        return {f"${name}": content}

    def write(self, value: Any) -> bytes:
        text = self._encode(value)
        if _SURROGATES in text and self._decode(text) != value:
            raise NotDataError(
                "a text with both halves of a surrogate pair is no plain data: JSON joins them"
            )
        return text.encode("ascii")

    def reader(self, kind: Any) -> Callable[[bytes], Any]:  # noqa: ARG002 - has no types
        decode = self._decode
        return lambda data: decode(str(data, "ascii"))

    def read(self, data: bytes, untag: Untag | None) -> Any:
        text = str(data, "ascii")
        if untag is None:
            return self._decode(text)

        def hook(found: dict[str, Any]) -> Any:
            if len(found) == 1:
                [(name, content)] = found.items()
                if name[:1] == "$":
                    return untag(name[1:], content)
            return found

        return json.JSONDecoder(parse_constant=_refuse, object_hook=hook).decode(text)


# The numbers of tagged values in MessagePack.
_EXTENSIONS = (
    "tuple",
    "set",
    "frozenset",
    "dict",
    "bytearray",
    "int",
    "buffer",
    "array",
)


class MsgspecFormat(Format):
    """MessagePack, by msgspec, which knows the types that annotations name."""

    number = 2
    name = "msgspec"
    has_bytes = True
    key_types = frozenset((str, int))
    typed = True

    def __init__(self) -> None:
        import msgspec  # noqa: PLC0415 - an extra

        self._msgspec = msgspec
        self._ext = msgspec.msgpack.Ext
        self._encode = msgspec.msgpack.Encoder().encode
        self._keys = KeyCheck(msgspec)
        self._decode: Callable[[bytes], Any] = self._keys.before(
            msgspec.msgpack.Decoder(ext_hook=_refuse_extension).decode
        )
        self._decoders: dict[Any, Callable[[Any], Any]] = {}

    def tag(self, name: str, content: Any) -> Any:
        return self._ext(_EXTENSIONS.index(name), self._encode(content))

    def write(self, value: Any) -> bytes:
        return self._encode(value)

    def read(self, data: bytes, untag: Untag | None) -> Any:
        if untag is None:
            return self._decode(data)

        def hook(number: int, content: memoryview) -> Any:
            if not 0 <= number < len(_EXTENSIONS):
                _refuse_extension(number, content)
            return untag(_EXTENSIONS[number], decode(content))

        decode = self._keys.before(self._msgspec.msgpack.Decoder(ext_hook=hook).decode)
        return decode(data)

    def reader(self, kind: Any) -> Callable[[bytes], Any]:
        if kind is None:
            return self._decode
        decode = self._decoders.get(kind)
        if decode is None:
            decode = self._msgspec.msgpack.Decoder(kind).decode
            self._decoders[kind] = decode
        return decode

    def read_typed(self, data: Any, kind: Any) -> Any:
        try:
            return self.reader(kind)(data)
        except self._msgspec.ValidationError as error:
            raise MismatchError(str(error)) from error

    @cached_property
    def split(self) -> Callable[[bytes], Any]:
        """Reads a call whose arguments are to be read one by one."""
        raw = self._msgspec.Raw
        return self.reader(tuple[list[raw], list[str], list[raw]])  # type: ignore[valid-type]

    def is_closed(self, kind: Any) -> bool:
        inspect = self._msgspec.inspect
        try:
            info = inspect.type_info(kind)
            self._msgspec.msgpack.Decoder(kind)
        except Exception:  # noqa: BLE001 - msgspec does not know it, or a user's class raises
            return False
        open_ones = (
            inspect.AnyType,
            inspect.CustomType,
            inspect.RawType,
            inspect.ExtType,
        )
        return _all_known(info, inspect.Type, inspect.Field, open_ones, set())


def _refuse_extension(number: int, _: object) -> NoReturn:
    raise MalformedError(f"there is no extension {number}")


def _all_known(
    info: Any, kind: type, field: type, open_ones: tuple[type, ...], seen: set[int]
) -> bool:
    """Tell whether no part of a type that msgspec describes is one of *open_ones*."""
    if isinstance(info, open_ones):
        return False
    if id(info) in seen:
        return True
    seen.add(id(info))
    parts: list[Any] = []
    for name in info.__struct_fields__:
        value = getattr(info, name)
        parts += value if isinstance(value, tuple) else (value,)
    return all(
        _all_known(part, kind, field, open_ones, seen)
        for part in parts
        if isinstance(part, kind | field)
    )


class PluggedFormat(Format):
    """A codec of the user's, which is asked for each argument."""

    number = 3
    typed = True
    walks = False

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.name = codec.name

    # Two of one codec are the same, so that a view that is made for each job costs nothing.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PluggedFormat) and self.codec is other.codec

    def __hash__(self) -> int:
        return hash(id(self.codec))

    def write(self, value: Any) -> bytes:
        data: object = self.codec.encode(value)
        if type(data) is not bytes:
            raise NotDataError(f"its encode() has returned a {type(data).__qualname__}")
        return data

    def read_typed(self, data: Any, kind: Any) -> Any:
        return self.codec.decode(bytes(data), kind)


@cache
def json_format() -> JsonFormat:
    """Return the format for JSON."""
    return JsonFormat()


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
