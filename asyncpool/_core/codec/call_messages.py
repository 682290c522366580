"""Calls and results as messages, and which part of one cannot be sent.

A message begins with the number of its format, which is only compared, and with whether its value
is written in parts (``plain_data.py``).  A call is two lists: its arguments, and the names of the
last of them.
"""

from __future__ import annotations

from functools import partial

from asyncpool._core.base.text import printable_lines
from asyncpool._core.codec.formats import (
    PLAIN,
    Cost,
    Format,
    MismatchError,
    path_from,
)
from asyncpool._core.codec.plain_data import (
    MOST_BYTES,
    PIECE,
    Assembly,
    MalformedError,
    MissingPackageError,
    NotDataError,
    Parts,
    go_on,
    private,
    weigh,
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

    Direction = Literal["arguments", "result", "exception", "details"]
    Payload = bytes | memoryview | ReceivedPickle

# The bytes of a message before its body.
_HEAD = 2

# Types whose values are short, and the same as plain data.
_NUMBERS: frozenset[type] = frozenset((int, float, bool, type(None)))

# How deep the part of a value is looked for that cannot be sent.
_DEEPEST = 30


def _any() -> Any:
    from typing import Any as anything  # noqa: PLC0415, N813 - only pools with a codec need it

    return anything


_ANY = _any()


def _write(
    how: Format,
    value: Any,
    *,
    limit: int | None = None,
    in_band: bool = False,
    cost: Cost | None = PLAIN,
) -> bytes | OutOfBandPickle:
    """Return the message for plain data.  There is no *cost* if a worker reads it.

    Raises:
        StreamTooLongError: If *limit* is too low.
        Exception: If it is no plain data.
    """
    piece = PIECE if cost is None else PIECE // cost.effort
    most = piece if limit is None else min(piece, limit)
    if _are_simple((value,)) or weigh([value], most) is not None:
        text = how.text(value)
        if len(text) <= piece:
            return _joined(how, [text])
    buffers: list[memoryview] | None = None if in_band else []
    pieces = Parts(how, buffers, limit, cost=cost).message(value)
    return _joined(how, pieces, buffers, parts=True)


def _joined(
    how: Format,
    pieces: list[bytes],
    buffers: list[memoryview] | None = None,
    *,
    parts: bool = False,
) -> bytes | OutOfBandPickle:
    pieces = [bytes((how.number, parts)), *pieces]
    if buffers or sum(map(len, pieces)) > HEAVY:
        return OutOfBandPickle(pieces, buffers or [])
    return b"".join(pieces)


def _open(
    how: Format,
    payload: Payload,
    *,
    cost: Cost | None,
    pause: Callable[[], None] | None = None,
) -> bytes | Assembly:
    """Return the body of a message, or what makes its value of parts."""
    copy = cost is not None
    received = payload if isinstance(payload, ReceivedPickle) else None
    stream: Any = payload if received is None else received.stream
    if copy and len(stream) > MOST_BYTES + PIECE and how.codec is None:
        raise MalformedError("it is too long")
    if type(stream) is not bytes:
        # The worker may write to it while it is read.
        stream = private(memoryview(stream).cast("B"), pause or go_on)
    if stream[:1] != bytes((how.number,)) or stream[1:_HEAD] not in (b"\0", b"\1"):
        raise MalformedError(f"it is no message of {how.name}")
    if stream[1]:
        buffers = [] if received is None else received.buffers
        body = memoryview(stream)[_HEAD:]
        return Assembly(how, body, buffers, cost=cost, pause=pause)
    piece = PIECE if cost is None else PIECE // cost.effort
    if len(stream) > piece + _HEAD and how.codec is None:
        raise MalformedError("it is too long for one part")
    return bytes(stream[_HEAD:])


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
    values: list[Any] = [*args, *kwargs.values()]
    try:
        if plan.typed or how.codec is not None:
            places = [*map(plan.argument, range(len(args))), *map(plan.named, kwargs)]
            room = limit
            for at, (place, value) in enumerate(zip(places, values, strict=True)):
                if room is not None:
                    room = _probe(value, room)
                values[at] = _plain(how, place, value)
        return _write(how, [values, [*kwargs]], limit=limit, in_band=in_band, cost=None)
    except StreamTooLongError:
        raise
    except Exception as error:
        name, where, why = _find_culprit(how, plan, args, kwargs, error)
        raise JobNotPicklableError(
            f"{name} cannot be sent as {how.name}: {_reason_of(why)} - at `{where}`",
            direction="arguments",
            name=name,
        ) from why


def _plain(how: Format, place: Place, value: Any) -> Any:
    """Return the plain data of an argument or a result."""
    if how.codec is None and (place.kind is None or type(value) in _NUMBERS):
        return value
    return how.plain(value, place.cost)


def _probe(value: Any, room: int) -> int:
    """Return what is left of *room* for other values of any type.

    Raises:
        StreamTooLongError: If it is too little.
    """
    cls = type(value)
    room -= len(value) if cls in (str, bytes, bytearray) else 8
    if room < 0:
        raise StreamTooLongError
    if cls is dict:
        parts: Any = value.values()
    elif cls in (list, tuple, set, frozenset):
        parts = value
    elif (names := getattr(cls, "__struct_fields__", None)) is not None:
        parts = [getattr(value, name) for name in names]
    else:
        attributes = getattr(value, "__dict__", None)
        parts = attributes.values() if type(attributes) is dict else ()
    for part in parts:
        room = _probe(part, room)
    return room


def packer(how: Format, plan: Plan) -> Callable[..., bytes | OutOfBandPickle]:
    """Return :func:`pack_call` for one function, which is faster for small calls."""
    head = bytes((how.number, 0))

    def pack(
        args: tuple[Any, ...], kwargs: Mapping[str, Any], limit: int | None
    ) -> bytes | OutOfBandPickle:
        values = [*args, *kwargs.values()] if kwargs else args
        if plain and _are_simple(values):
            try:
                text = how.text((values, (*kwargs,)))
            except Exception:
                text = b""  # what comes next says what is wrong
            if 0 < len(text) <= PIECE:
                return head + text
        return pack_call(how, plan, args, kwargs, limit=limit)

    plain = how.codec is None  # what is simple is the same if a type is made of it
    return pack


# What a simple value may have; floats may be none that JSON knows.
_QUICK: frozenset[type] = frozenset((int, str, bool, type(None)))
_FEW = 8


def _are_simple(values: Sequence[Any]) -> bool:
    """Tell whether JSON knows *values*, and they are small and flat, quicker than :func:`weigh`."""
    if len(values) > _FEW:
        return False
    for value in values:
        cls = type(value)
        if cls is dict:
            parts: Any = value.values()
            if not ({str}.issuperset(map(type, value)) and is_flat(value)):
                return False
        else:
            parts = value if cls is list else (value,)
        if not (_QUICK.issuperset(map(type, parts)) and is_flat(parts)):
            return False
    return True


def loader(how: Format, place: Place, what: str) -> Callable[..., Any]:
    """Return :func:`load_value` for one function, which is faster for small results."""
    head = bytes((how.number, 0))
    plain = how.codec is None and place.expected is None
    read = how.reader(place.kind) if plain else None
    most = _HEAD + PIECE // place.cost.effort

    def load(payload: Payload, pause: Callable[[], None] | None = None) -> Any:
        if type(payload) is bytes and payload[:_HEAD] == head and len(payload) <= most:
            try:
                if read is not None:
                    return read(payload[_HEAD:])
            except Exception:  # noqa: S110 - what comes next says what is wrong
                pass
        return load_value(how, place, payload, what=what, pause=pause)

    return load


def load_call(
    how: Format, plan: Plan, payload: Payload
) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments of a call, which must come from the pool.

    Raises:
        JobNotPicklableError: If one is not of the annotated type, or cannot be had here.
    """
    where = "the call"
    try:
        if type(payload) is bytes and payload[1] == 0 and not plan.typed:
            values, names = how.parse(payload[_HEAD:])
            if not names:
                return values, {}
        body = _open(how, payload, cost=None)
        found = body.value() if isinstance(body, Assembly) else how.parse(body)
        values, names = found
        count = len(values) - len(names)
        if plan.typed or how.codec is not None:
            for at in range(len(values)):
                named = at >= count
                where = f"kwargs[{names[at - count]!r}]" if named else f"args[{at}]"
                place = plan.named(names[at - count]) if named else plan.argument(at)
                values[at] = _typed(how, place, values[at], how.typed_of)
    except Exception as error:
        text = _reason_of(error)
        if isinstance(error, MismatchError):
            text = path_from(str(error), f"$.{where}")
        raise JobNotPicklableError(
            f"{where} cannot be read: {text}", direction="arguments", name=where
        ) from error
    return values[:count], dict(zip(names, values[count:], strict=True))


def _typed(
    how: Format, place: Place, value: Any, convert: Callable[[Any, Any], Any]
) -> Any:
    """Return what a value stands for that has come as plain data.

    Raises:
        MismatchError: If it is not of the annotated type.
    """
    if how.codec is not None or place.kind is not None:
        return convert(value, _ANY if place.kind is None else place.kind)
    if place.expected is not None and type(value) is not place.expected:
        found = type(value).__qualname__
        raise MismatchError(f"Expected `{place.expected.__qualname__}`, got `{found}`")
    return value


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
    name = type(value).__qualname__
    try:
        data = _pack_value(how, place, value)
    except Exception as error:
        where, why = _culprit_in(how, place, value, "$", error)
        raise JobNotPicklableError(
            f"{what}, of type {name}, cannot be sent as {how.name}: {_reason_of(why)} - at "
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


def _pack_value(how: Format, place: Place, value: Any) -> bytes | OutOfBandPickle:
    if how.codec is not None:
        return _joined(how, [how.plain(value, place.cost)])
    if place.kind is not None:
        if not place.cost.times:
            text = how.text(value)
            # It writes NaN as null.
            if len(text) <= PIECE // place.cost.effort and b"null" not in text:
                return _joined(how, [text])
        value = how.plain(value, place.cost)
        how.in_steps(value, place.kind, place.cost, make=False)
    return _write(how, value, cost=place.cost)


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
    foreign = False
    try:
        cost = place.cost
        body = _open(how, payload, cost=cost, pause=pause)
        if isinstance(body, Assembly):
            value = body.value()
        else:
            value = how.parse(body) if how.codec is None else body
        foreign = how.codec is not None
        convert = how.typed_of if foreign else partial(how.in_steps, cost=cost)
        return _typed(how, place, value, convert)
    except MismatchError as error:
        text = printable_lines(path_from(str(error), "$"))
        raise JobNotPicklableError(
            f"{what} is not what the function's annotation says: {text}",
            direction=direction,
            name="",
        ) from error
    except Exception as error:
        if not (foreign or isinstance(error, MissingPackageError)):
            text = f"it sent {what} that is no {how.name}: {_reason_of(error)}"
            raise ProtocolError(text) from error
        raise JobNotPicklableError(
            f"{what} cannot be read here: {_reason_of(error)}",
            direction=direction,
            name="",
        ) from error


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
        own = _refusal_of(how, place, value)
        if own is not None:
            return name, *_culprit_in(how, place, value, f"$.{name}", own)
    return "the call", "$", error


def _culprit_in(
    how: Format, place: Place, value: Any, path: str, error: Exception
) -> tuple[str, Exception]:
    """Return the path of the part of *value* that cannot be sent, and why."""
    if place.kind is not None or how.codec is not None:
        return path, error
    for _ in range(_DEEPEST):
        for where, part in _parts_of(value, path, wide=how.wide):
            own = _refusal_of(how, place, part)
            if own is not None:
                value, path, error = part, where, own
                break
        else:
            return path, error
    return path, NotDataError("it is nested too deeply, or holds itself")


def _parts_of(value: Any, path: str, *, wide: bool) -> Iterator[tuple[str, Any]]:
    if type(value) is dict:
        for key, one in value.items():
            name = str(key) if type(key) is str and key.isidentifier() else None
            yield (f"{path}[{key!r}]" if name is None else f"{path}.{name}"), one
            yield f"{path}[{key!r}]", key
    elif type(value) is list or (type(value) is tuple and wide):
        for index, one in enumerate(value):
            yield f"{path}[{index}]", one
    elif type(value) in (set, frozenset) and wide:
        for one in value:
            yield f"{path}[...]", one


def _refusal_of(how: Format, place: Place, value: Any) -> Exception | None:
    """Return why *value* cannot be sent; ``None`` if it can."""
    try:
        _pack_value(how, place, value)
    except Exception as error:
        return error
    return None


def _reason_of(why: Exception) -> str:
    """Return the text of an error that says why a value cannot be sent or read."""
    if isinstance(why, RecursionError):
        return "it is nested too deeply, or holds itself"
    own = isinstance(why, NotDataError | MalformedError | MissingPackageError)
    return printable_lines(str(why) if own else describe(why))
