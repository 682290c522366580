"""What a message consists of: values that a format writes, as they are or tagged.

A message begins with the number of its format, which is only compared, and with whether any of
its values is tagged.
"""

from __future__ import annotations

from asyncpool._core.codec.formats import Format, MismatchError
from asyncpool._core.codec.plain_data import NotDataError, Walk, is_native
from asyncpool._core.codec.tagged_values import (
    MalformedError,
    MissingPackageError,
    Untag,
    private,
)
from asyncpool._core.pickling.calls import describe, is_flat
from asyncpool._core.pickling.out_of_band import (
    HEAVY,
    OutOfBandPickle,
    ReceivedPickle,
)

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from asyncpool._core.codec.function_names import Place

    Payload = bytes | memoryview | ReceivedPickle

# The bytes of a message before its body.
HEAD = 2

# Types whose values are short.
NUMBERS: frozenset[type] = frozenset((int, float, bool, type(None)))

# So many arguments are few.
_FEW = 8

_TEXT: frozenset[type] = frozenset((str,))

# How deep the part of a value is looked for that cannot be sent.
_DEEPEST = 30


def _any() -> Any:
    from typing import Any as anything  # noqa: PLC0415, N813 - only pools with a codec need it

    return anything


ANY = _any()


def write_native(
    how: Format,
    places: Sequence[Place],
    values: tuple[Any, ...],
    message: Any,
    limit: int | None = None,
    *,
    in_band: bool = False,
) -> bytes | None:
    """Return *message* as bytes if the format writes all of its *values* as they are.

    Args:
        how: The format.
        places: What is known of the values; empty if nothing is.
        values: The values.
        message: What is written, if that is so.
        limit: How large the message may become, roughly.
        in_band: Whether large buffers are part of it.
    """
    loose: Sequence[Any] = values
    if places:
        pairs = [*zip(places, values, strict=True)]
        loose = [value for place, value in pairs if place.kind is None]
        if limit is not None:
            walk = Walk(how, None, limit=limit)
            for place, value in pairs:
                if place.kind is not None and type(value) not in NUMBERS:
                    walk.probe(value)
    if in_band or not (_are_simple(loose) or is_native(loose, how, limit)):
        return None
    try:
        return how.write(message)
    except Exception:
        return None  # a large int, perhaps, for which there is another way


def _are_simple(values: Sequence[Any]) -> bool:
    """Tell whether *values* are small and flat, which is quicker than :func:`is_native`."""
    if len(values) > _FEW:
        return False
    for value in values:
        cls = type(value)
        if cls is dict:
            if not (set(map(type, value)) <= _TEXT and is_flat(value)):
                return False
            if not is_flat(value.values()):
                return False
        elif not is_flat(value if cls is list else (value,)):
            return False
    return True


def part_of(walk: Walk, place: Place, value: Any) -> Any:
    """Return what the format writes for one value of a message."""
    if place.kind is None:
        return walk.plain(value)
    walk.probe(value)
    return value


def write_walked(
    how: Format,
    make: Callable[[Walk], Any],
    *,
    limit: int | None = None,
    in_band: bool = False,
) -> bytes | OutOfBandPickle:
    """Return the message that *make* makes of values, each of which a :class:`Walk` looks at."""
    buffers: list[memoryview] | None = None if in_band else []
    walk = Walk(how, buffers, limit=limit)
    try:
        body = how.write(make(walk))
    except (OverflowError, ValueError):
        # Perhaps an int is too large for the format.
        buffers = None if in_band else []
        walk = Walk(how, buffers, limit=limit, wide=True)
        body = how.write(make(walk))
    return joined(how, tagged=walk.tagged or bool(buffers), body=body, buffers=buffers)


def joined(
    how: Format,
    *,
    tagged: bool,
    body: bytes,
    buffers: list[memoryview] | None = None,
) -> bytes | OutOfBandPickle:
    """Return the message that has this body, and these large buffers beside it."""
    data = bytes((how.number, tagged)) + body
    if buffers or len(data) > HEAVY:
        return OutOfBandPickle([data], buffers or [])
    return data


def open_message(
    how: Format,
    payload: Payload,
    *,
    copy: bool,
    pause: Callable[[], None] | None = None,
) -> tuple[bytes, Untag | None]:
    """Return the body of a message, and what reads its tagged values, if there are any."""
    received = payload if isinstance(payload, ReceivedPickle) else None
    stream: Any = payload if received is None else received.stream
    if type(stream) is not bytes:
        # The worker may write to it while it is read.
        stream = private(memoryview(stream), pause)
    if stream[:1] != bytes((how.number,)) or stream[1:HEAD] not in (b"\0", b"\1"):
        raise MalformedError(f"it is no message of {how.name}")
    untag = None
    if stream[1]:
        buffers = [] if received is None else received.buffers
        untag = Untag(buffers, copy=copy, pause=pause)
    return stream[HEAD:], untag


def read_value(how: Format, place: Place, data: Any, untag: Untag | None) -> Any:
    """Return a value of a message.

    Raises:
        MismatchError: If it is not of the annotated type.
        Exception: If there is no value.
    """
    if place.read is not None:
        try:
            return place.read(data)
        except Exception:  # noqa: S110 - the format says what is wrong
            pass
    if place.kind is not None or not how.walks:
        return how.read_typed(data, ANY if place.kind is None else place.kind)
    value = how.read(data, untag)
    if place.expected is not None and type(value) is not place.expected:
        found = type(value).__qualname__
        raise MismatchError(f"Expected `{place.expected.__qualname__}`, got `{found}`")
    return value


def culprit_in(
    how: Format, place: Place, value: Any, path: str, error: Exception
) -> tuple[str, Exception]:
    """Return the path of the part of *value* that cannot be sent, and why."""
    if place.kind is not None or not how.walks:
        return path, error
    for _ in range(_DEEPEST):
        for where, part in _parts_of(value, path):
            own = refusal_of(how, place, part)
            if own is not None:
                value, path, error = part, where, own
                break
        else:
            return path, error
    return path, NotDataError("it is nested too deeply, or holds itself")


def _parts_of(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if type(value) is dict:
        for key, one in value.items():
            name = str(key) if type(key) is str and key.isidentifier() else None
            yield (f"{path}[{key!r}]" if name is None else f"{path}.{name}"), one
            yield f"{path}[{key!r}]", key
    elif type(value) in (list, tuple):
        for index, one in enumerate(value):
            yield f"{path}[{index}]", one
    elif type(value) in (set, frozenset):
        for one in value:
            yield f"{path}[...]", one


def refusal_of(how: Format, place: Place, value: Any) -> Exception | None:
    """Return why *value* cannot be sent; ``None`` if it can."""
    try:
        if how.walks:
            write_walked(how, lambda walk: part_of(walk, place, value))
        else:
            how.write(value)
    except Exception as error:
        return error
    return None


def reason_of(why: Exception) -> str:
    """Return the text of an error that says why a value cannot be sent or read."""
    if isinstance(why, RecursionError):
        return "it is nested too deeply, or holds itself"
    own = isinstance(why, NotDataError | MalformedError | MissingPackageError)
    return str(why) if own else describe(why)
