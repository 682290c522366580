"""Calls and results as messages of a format.

A call is three lists: its arguments, and the names and values of its keyword arguments.
"""

from __future__ import annotations

import json
import struct
from functools import partial

from asyncpool._core.codec.formats import Format, MismatchError, MsgspecFormat
from asyncpool._core.codec.message_bodies import (
    HEAD,
    NUMBERS,
    culprit_in,
    joined,
    open_message,
    part_of,
    read_value,
    reason_of,
    refusal_of,
    write_native,
    write_walked,
)
from asyncpool._core.codec.tagged_values import MalformedError, MissingPackageError
from asyncpool._core.pickling.calls import is_flat
from asyncpool._core.pickling.out_of_band import OutOfBandPickle, StreamTooLongError
from asyncpool.errors import JobNotPicklableError, ProtocolError

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, Literal

    from asyncpool._core.codec.function_names import Place, Plan
    from asyncpool._core.codec.message_bodies import Payload

    Direction = Literal["arguments", "result", "exception", "details"]

_SIZE = struct.Struct("!I")


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
            body = write_native(how, places, values, message, limit, in_band=in_band)
            if body is not None:
                return joined(how, tagged=False, body=body)
            return write_walked(
                how,
                lambda walk: (
                    [
                        part_of(walk, plan.argument(index), value)
                        for index, value in enumerate(args)
                    ],
                    [*kwargs],
                    [
                        part_of(walk, plan.named(name), value)
                        for name, value in kwargs.items()
                    ],
                ),
                limit=limit,
                in_band=in_band,
            )
        return joined(how, tagged=False, body=_pack_parts(how, args, kwargs))
    except StreamTooLongError:
        raise
    except Exception as error:
        name, where, why = _find_culprit(how, plan, args, kwargs, error)
        raise JobNotPicklableError(
            f"{name} cannot be sent as {how.name}: {reason_of(why)} - at `{where}`",
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
        if type(payload) is bytes and payload[:HEAD] == untagged:
            try:
                return read(payload[HEAD:])
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
        if plain and type(payload) is bytes and payload[:HEAD] == how.untagged:
            args, names, values = how.read(payload[HEAD:], None)
            return args, dict(zip(names, values, strict=True)) if names else {}
        body, untag = open_message(how, payload, copy=False)
        if plain:
            args, names, values = how.read(body, untag)
            return args, dict(zip(names, values, strict=True)) if names else {}
        args, names, values = _split(how, body)
        for index, part in enumerate(args):
            where = f"args[{index}]"
            args[index] = read_value(how, plan.argument(index), part, untag)
        kwargs: dict[str, Any] = {}
        for name, part in zip(names, values, strict=True):
            where = f"kwargs[{name!r}]"
            kwargs[name] = read_value(how, plan.named(name), part, untag)
    except Exception as error:
        text = reason_of(error)
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
    if type(value) in NUMBERS and how.walks:
        try:
            return how.untagged + how.write(value)
        except Exception:  # noqa: S110 - a large int, or no number in JSON
            pass
    name = type(value).__qualname__
    try:
        if not how.walks:
            data = joined(how, tagged=False, body=how.write(value))
        elif (body := write_native(how, (place,), (value,), value)) is not None:
            data = joined(how, tagged=False, body=body)
        else:
            data = write_walked(how, lambda walk: part_of(walk, place, value))
    except Exception as error:
        where, why = culprit_in(how, place, value, "$", error)
        raise JobNotPicklableError(
            f"{what}, of type {name}, cannot be sent as {how.name}: {reason_of(why)} - at "
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
        body, untag = open_message(how, payload, copy=True, pause=pause)
        return read_value(how, place, body, untag)
    except MismatchError as error:
        raise JobNotPicklableError(
            f"{what} is not what the function's annotation says: {_at(str(error), '$')}",
            direction=direction,
            name="",
        ) from error
    except Exception as error:
        here = not how.walks or isinstance(error, MissingPackageError)
        if isinstance(error, MalformedError) or not here:
            text = f"it sent {what} that is no {how.name}: {reason_of(error)}"
            raise ProtocolError(text) from error
        raise JobNotPicklableError(
            f"{what} cannot be read here: {reason_of(error)}",
            direction=direction,
            name="",
        ) from error


def _places(
    plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Place]:
    if not plan.typed:
        return []
    places = [plan.argument(index) for index in range(len(args))]
    return [*places, *map(plan.named, kwargs)]


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
        own = refusal_of(how, place, value)
        if own is not None:
            return name, *culprit_in(how, place, value, f"$.{name}", own)
    return "the call", "$", error
