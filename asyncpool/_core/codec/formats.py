"""How plain data becomes text, and typed data plain: JSON, msgspec, or a codec of the user's."""

from __future__ import annotations

import json
import re
import sys
from functools import cache

from asyncpool._core.codec.codec import Codec
from asyncpool._core.codec.plain_data import MalformedError, NotDataError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn


class MismatchError(TypeError):
    """A value is not of the type that the function's annotation names."""


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

    def plain(self, value: Any) -> Any:
        """Return the plain data of a value of an annotated type.

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

    def is_closed(self, kind: Any) -> bool:
        """Tell whether the type *kind* says of each value in it what it is, and hashes only texts.

        The hash of a number is known to whoever sends it.
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

    def reader(self, kind: Any) -> Callable[[bytes], Any]:
        decode = self._decoders.get(kind)
        if decode is None:
            decode = self._decoders[kind] = self._msgspec.json.Decoder(kind).decode
        return decode

    def plain(self, value: Any) -> Any:
        return self._msgspec.to_builtins(value, builtin_types=(bytes, bytearray))

    def typed_of(self, value: Any, kind: Any) -> Any:
        try:
            return self._msgspec.convert(value, kind, builtin_types=(bytes, bytearray))
        except self._msgspec.ValidationError as error:
            raise MismatchError(str(error)) from error

    def is_closed(self, kind: Any) -> bool:
        inspect = self._msgspec.inspect
        try:
            info = inspect.type_info(kind)
            self.reader(kind)
        except Exception:  # noqa: BLE001 - msgspec does not know it, or a user's class raises
            return False
        hashes = (
            inspect.DictType,
            inspect.FrozenDictType,
            inspect.SetType,
            inspect.FrozenSetType,
        )
        texts = (
            inspect.StrType,
            inspect.EnumType,
            inspect.LiteralType,
            inspect.BytesType,
        )
        open_ones = (
            inspect.AnyType,
            inspect.CustomType,
            inspect.RawType,
            inspect.ExtType,
        )
        seen: set[int] = set()
        parts: list[Any] = [info]
        while parts:
            part = parts.pop()
            if not isinstance(part, inspect.Type | inspect.Field) or id(part) in seen:
                continue
            seen.add(id(part))
            if isinstance(part, open_ones):
                return False
            key = getattr(part, "key_type", getattr(part, "item_type", None))
            if isinstance(part, hashes) and not isinstance(key, texts):
                return False
            for name in part.__struct_fields__:
                value = getattr(part, name)
                parts += value if isinstance(value, tuple) else (value,)
        return True


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

    def plain(self, value: Any) -> bytes:
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
