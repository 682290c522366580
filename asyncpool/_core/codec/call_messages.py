"""Calls and results as messages of a format.

A message begins with the number of its format, which is only compared, and with whether any of
its values is tagged.  A call is three lists: its arguments, and the names and values of its
keyword arguments.
"""

from __future__ import annotations

import json
import struct
from functools import partial

from asyncpool._core.codec.formats import (
    Format,
    MismatchError,
    MsgspecFormat,
)
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
    StreamTooLongError,
)
from asyncpool.errors import JobNotPicklableError, ProtocolError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    from asyncpool._core.codec.function_names import Place, Plan

    Payload = bytes | memoryview | ReceivedPickle
    Direction = Literal["arguments", "result", "exception", "details"]

_HEAD = 2
_SIZE = struct.Struct("!I")

# So many arguments are few.
_FEW = 8

_TEXT: frozenset[type] = frozenset((str,))

# Types whose values are short.
_NUMBERS: frozenset[type] = frozenset((int, float, bool, type(None)))

# How deep the part of a value is looked for that cannot be sent.
_DEEPEST = 30


def pack_call(
    how: Format,
    plan: Plan,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    limit: int | None = None,
    in_band: bool = False,
) -> bytes | OutOfBandPickle:
    """Return a call as a message.

    Args:
        how: The format.
        plan: What the function takes.
        args: The arguments.
        kwargs: The keyword arguments.
        limit: How large it may become, roughly.
        in_band: Whether large buffers are part of the message.

    Raises:
        StreamTooLongError: If *limit* is too low.
        JobNotPicklableError: If an argument is no plain data, and not of the annotated type.
    """
    try:
        if how.walks:
            values = (*args, *kwargs.values())
            places = _places(plan, args, kwargs)
            message = args, (*kwargs,), values[len(args) :]
            body = _native(how, places, values, message, limit, in_band=in_band)
            if body is not None:
                return _joined(how, tagged=False, body=body)
            return _pack(
                how,
                lambda walk: (
                    [
                        _part(walk, plan.argument(index), value)
                        for index, value in enumerate(args)
                    ],
                    [*kwargs],
                    [
                        _part(walk, plan.named(name), value)
                        for name, value in kwargs.items()
                    ],
                ),
                limit=limit,
                in_band=in_band,
            )
        return _joined(how, tagged=False, body=_pack_parts(how, args, kwargs))
    except StreamTooLongError:
        raise
    except Exception as error:
        name, where, why = _find_culprit(how, plan, args, kwargs, error)
        raise JobNotPicklableError(
            f"{name} cannot be sent as {how.name}: {_say(why)} - at `{where}`",
            direction="arguments",
            name=name,
        ) from why


def packer(how: Format, plan: Plan) -> Callable[..., bytes | OutOfBandPickle]:
    """Return :func:`pack_call` for one function, which is faster for small calls."""
    write, untagged = how.write, how.untagged

    def pack(
        args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int | None
    ) -> bytes | OutOfBandPickle:
        if is_flat(args) and (not kwargs or is_flat(kwargs.values())):
            try:
                return untagged + write((args, (*kwargs,), (*kwargs.values(),)))
            except Exception:  # noqa: S110 - a large int, or JSON's lack of bytes
                pass
        return pack_call(how, plan, args, kwargs, limit=limit)

    if how.walks and not plan.typed:
        return pack
    return partial(_pack_call, how, plan)


def _pack_call(
    how: Format,
    plan: Plan,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    limit: int | None,
) -> bytes | OutOfBandPickle:
    return pack_call(how, plan, args, kwargs, limit=limit)


def loader(how: Format, place: Place, what: str) -> Callable[..., Any]:
    """Return :func:`load_value` for one function, which is faster for small results."""
    if not how.walks or place.expected is not None:
        return partial(_load_value, how, place, what)
    read, untagged = how.reader(place.kind), how.untagged

    def load(payload: Payload, pause: Callable[[], None] | None = None) -> Any:
        if type(payload) is bytes and payload[:_HEAD] == untagged:
            try:
                return read(payload[_HEAD:])
            except Exception:  # noqa: S110 - what comes next says what is wrong
                pass
        return load_value(how, place, payload, what=what, pause=pause)

    return load


def _load_value(
    how: Format,
    place: Place,
    what: str,
    payload: Payload,
    pause: Callable[[], None] | None = None,
) -> Any:
    return load_value(how, place, payload, what=what, pause=pause)


def load_call(
    how: Format, plan: Plan, payload: Payload
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, which must come from the pool.

    Raises:
        JobNotPicklableError: If one is not of the annotated type, or cannot be had here.
    """
    where = "the call"
    plain = not plan.typed and how.walks
    try:
        if plain and type(payload) is bytes and payload[:_HEAD] == how.untagged:
            args, names, values = how.read(payload[_HEAD:], None)
            return args, dict(zip(names, values, strict=True)) if names else {}
        body, untag = _open(how, payload, copy=False)
        if plain:
            args, names, values = how.read(body, untag)
            return args, dict(zip(names, values, strict=True)) if names else {}
        args, names, values = _split(how, body)
        for index, part in enumerate(args):
            where = f"args[{index}]"
            args[index] = _read(how, plan.argument(index), part, untag)
        kwargs: dict[str, Any] = {}
        for name, part in zip(names, values, strict=True):
            where = f"kwargs[{name!r}]"
            kwargs[name] = _read(how, plan.named(name), part, untag)
    except Exception as error:
        text = _say(error)
        if isinstance(error, MismatchError):
            text = _at(str(error), f"$.{where}")
        raise JobNotPicklableError(
            f"{where} cannot be read: {text}", direction="arguments", name=where
        ) from error
    return args, kwargs


def pack_value(
    how: Format, place: Place, value: Any, what: str, limit: int | None
) -> bytes | OutOfBandPickle:
    """Return a result as a message.

    Args:
        how: The format.
        place: What the function's annotation says of it.
        value: The result.
        what: What errors call it.
        limit: How many bytes it may have.

    Raises:
        JobNotPicklableError: If it is no plain data, and not of the annotated type, or too large.
    """
    if type(value) in _NUMBERS and how.walks:
        try:
            return how.untagged + how.write(value)
        except Exception:  # noqa: S110 - a large int, or no number in JSON
            pass
    name = type(value).__qualname__
    try:
        if not how.walks:
            data = _joined(how, tagged=False, body=how.write(value))
        elif (body := _native(how, (place,), (value,), value)) is not None:
            data = _joined(how, tagged=False, body=body)
        else:
            data = _pack(how, lambda walk: _part(walk, place, value))
    except Exception as error:
        where, why = _culprit(how, place, value, "$", error)
        raise JobNotPicklableError(
            f"{what}, of type {name}, cannot be sent as {how.name}: {_say(why)} - at "
            f"`{where}`",
            direction="result",
            name=name,
        ) from why
    if limit is not None and len(data) > limit:
        raise JobNotPicklableError(
            f"{what} has {len(data)} bytes as {how.name}, and max_message_size is {limit}",
            direction="result",
            name="",
        )
    return data


def load_value(
    how: Format,
    place: Place,
    payload: Payload,
    *,
    what: str = "the job's result",
    direction: Direction = "result",
    pause: Callable[[], None] | None = None,
) -> Any:
    """Return what a worker has sent, which may be anything.

    Raises:
        JobNotPicklableError: If it is not of the annotated type, or cannot be had here.
        ProtocolError: If it is no message of this format.
    """
    try:
        body, untag = _open(how, payload, copy=True, pause=pause)
        return _read(how, place, body, untag)
    except MismatchError as error:
        raise JobNotPicklableError(
            f"{what} is not what the function's annotation says: {_at(str(error), '$')}",
            direction=direction,
            name="",
        ) from error
    except Exception as error:
        here = not how.walks or isinstance(error, MissingPackageError)
        if isinstance(error, MalformedError) or not here:
            text = f"it sent {what} that is no {how.name}: {_say(error)}"
            raise ProtocolError(text) from error
        raise JobNotPicklableError(
            f"{what} cannot be read here: {_say(error)}",
            direction=direction,
            name="",
        ) from error


def _say(why: Exception) -> str:
    if isinstance(why, RecursionError):
        return "it is nested too deeply, or holds itself"
    own = isinstance(why, NotDataError | MalformedError | MissingPackageError)
    return str(why) if own else describe(why)


def _places(
    plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Place]:
    if not plan.typed:
        return []
    places = [plan.argument(index) for index in range(len(args))]
    return [*places, *map(plan.named, kwargs)]


def _native(
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
                if place.kind is not None and type(value) not in _NUMBERS:
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


def _part(walk: Walk, place: Place, value: Any) -> Any:
    if place.kind is None:
        return walk.plain(value)
    walk.probe(value)
    return value


def _pack(
    how: Format,
    make: Callable[[Walk], Any],
    *,
    limit: int | None = None,
    in_band: bool = False,
) -> bytes | OutOfBandPickle:
    buffers: list[memoryview] | None = None if in_band else []
    walk = Walk(how, buffers, limit=limit)
    try:
        body = how.write(make(walk))
    except (
        OverflowError,
        ValueError,
    ):  # perhaps an int that is too large for the format
        buffers = None if in_band else []
        walk = Walk(how, buffers, limit=limit, wide=True)
        body = how.write(make(walk))
    return _joined(how, tagged=walk.tagged or bool(buffers), body=body, buffers=buffers)


def _joined(
    how: Format,
    *,
    tagged: bool,
    body: bytes,
    buffers: list[memoryview] | None = None,
) -> bytes | OutOfBandPickle:
    data = bytes((how.number, tagged)) + body
    if buffers or len(data) > HEAVY:
        return OutOfBandPickle([data], buffers or [])
    return data


def _open(
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
    if stream[:1] != bytes((how.number,)) or stream[1:_HEAD] not in (b"\0", b"\1"):
        raise MalformedError(f"it is no message of {how.name}")
    untag = None
    if stream[1]:
        buffers = [] if received is None else received.buffers
        untag = Untag(buffers, copy=copy, pause=pause)
    return stream[_HEAD:], untag


def _read(how: Format, place: Place, data: Any, untag: Untag | None) -> Any:
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


def _split(how: Format, body: bytes) -> tuple[list[Any], list[str], list[Any]]:
    if isinstance(how, MsgspecFormat):
        args, names, values = how.split(body)
        return args, names, values
    size = _SIZE.unpack_from(body)[0]
    begin = _SIZE.size + size
    names, sizes = json.loads(body[_SIZE.size : begin])
    parts: list[Any] = []
    for part in sizes:
        parts.append(body[begin : begin + part])
        begin += part
    count = len(parts) - len(names)
    return parts[:count], names, parts[count:]


def _pack_parts(how: Format, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
    """Return the arguments as a codec of the user's writes them, one after the other."""
    parts = [how.write(value) for value in (*args, *kwargs.values())]
    head = json.dumps([[*kwargs], [*map(len, parts)]]).encode()
    return b"".join((_SIZE.pack(len(head)), head, *parts))


def _at(text: str, root: str) -> str:
    """Return the text of a mismatch with the path of the value from the call on."""
    before, mark, path = text.rpartition("`$")
    if not mark:
        return f"{text} - at `{root}`"
    return f"{before}`{root}{path}"


def _find_culprit(
    how: Format,
    plan: Plan,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    error: Exception,
) -> tuple[str, str, Exception]:
    """Return the name of the argument that cannot be sent, the path of its part, and why."""
    parts = [(f"args[{i}]", plan.argument(i), value) for i, value in enumerate(args)]
    parts += [(f"kwargs[{n!r}]", plan.named(n), value) for n, value in kwargs.items()]
    for name, place, value in parts:
        own = _try(how, place, value)
        if own is not None:
            return name, *_culprit(how, place, value, f"$.{name}", own)
    return "the call", "$", error


def _culprit(
    how: Format, place: Place, value: Any, path: str, error: Exception
) -> tuple[str, Exception]:
    """Return the path of the part of *value* that cannot be sent, and why."""
    if place.kind is not None or not how.walks:
        return path, error
    for _ in range(_DEEPEST):
        for where, part in _parts_of(value, path):
            own = _try(how, place, part)
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


def _try(how: Format, place: Place, value: Any) -> Exception | None:
    try:
        if how.walks:
            _pack(how, lambda walk: _part(walk, place, value))
        else:
            how.write(value)
    except Exception as error:
        return error
    return None


def _any() -> Any:
    from typing import Any as anything  # noqa: PLC0415, N813 - only pools with a codec need it

    return anything


ANY = _any()
