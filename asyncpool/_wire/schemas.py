"""What annotations say of values and functions, and the messages that such values travel in.

A message begins with the number of its format, which is only compared, and with whether its value
is written in parts (``plain_data.py``).  A call is two lists: its arguments, and the names of the
last of them.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections import abc
from functools import cache, reduce

from asyncpool._wire.buffers import (
    HEAVY,
    OutOfBandPickle,
    ReceivedPickle,
    StreamTooLongError,
)
from asyncpool._wire.formats import (
    PLAIN,
    Cost,
    Format,
    MismatchError,
    json_format,
    path_from,
)
from asyncpool._wire.pickling import describe
from asyncpool._wire.plain_data import (
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
from asyncpool._wire.records import import_named
from asyncpool._wire.text import function_name, printable_lines
from asyncpool.errors import JobNotPicklableError, ProtocolError

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Literal

    Direction = Literal["arguments", "result", "exception", "details"]
    Packed = bytes | OutOfBandPickle
    Payload = bytes | memoryview | ReceivedPickle


class FunctionNames:
    """The functions that workers may call.

    Args:
        allowed: Names such as ``"shop.jobs:resize"`` and ``"shop.jobs:*"``, or functions;
            ``None`` for all functions that have a name.

    Attributes:
        allowed: The names.

    Raises:
        ValueError: If one is no such name.
        TypeError: If a function has none.
    """

    def __init__(self, allowed: Iterable[object] | None) -> None:
        self.allowed: tuple[str, ...] | None = None
        if allowed is not None:
            self.allowed = tuple(_pattern(one) for one in allowed)

    def check(self, name: str) -> None:
        """Raise a :exc:`LookupError` unless workers may call the function of that *name*."""
        if self.allowed is None:
            return
        module = name.partition(":")[0]
        if name not in self.allowed and f"{module}:*" not in self.allowed:
            raise LookupError(f"{name} is not among the functions of this pool")

    def name_of(self, function: Callable[..., Any]) -> str:
        """Return the name of *function*, ``"package.module:name"``.

        Raises:
            LookupError: If it has none that workers find, or may call.
        """
        name = name_of(function)
        self.check(name)
        return name

    def find(self, name: str) -> Any:
        """Return the function of that *name*; the module is imported.

        Raises:
            Exception: If there is none, or workers may not call it.
        """
        self.check(name)
        return import_named(name)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name by which workers find *function*, ``"package.module:name"``.

    Raises:
        LookupError: If there is none.
    """
    path, home = (
        getattr(function, "__qualname__", None),
        getattr(function, "__module__", None),
    )
    if not isinstance(path, str) or not isinstance(home, str):
        raise LookupError(  # noqa: TRY004 - it has no name
            f"{function_name(function)} is an object of a "
            f"{type(function).__qualname__}: name a function of a module"
        )
    if "<" in path:
        kind = "a lambda" if path.endswith("<lambda>") else "local to a function"
        raise LookupError(f"{home}.{path} is {kind}: use a function of a module")
    module: Any = sys.modules.get(home)
    try:
        found = reduce(getattr, path.split("."), module)
    except AttributeError:
        found = None
    if found is not function:
        raise LookupError(f"{home}:{path} is not this function but {found!r}")
    if home == "__main__":
        home = _real_name(module)
    return f"{home}:{path}"


def _real_name(main: Any) -> str:
    """Return the name by which workers import the main module."""
    spec = getattr(main, "__spec__", None)
    if spec is None:
        raise LookupError(
            "it is a function of __main__, which has no name: put it into a module of its own"
        )
    return str(spec.name)


def _pattern(one: object) -> str:
    if callable(one):
        try:
            return name_of(one)
        except LookupError as error:
            raise TypeError(
                f"functions takes functions with a name: {error}"
            ) from error
    if not isinstance(one, str) or not all(one.partition(":")[::2]):
        raise ValueError(
            "functions takes functions and names such as 'package.module:name' and "
            f"'package.module:*', not {one!r}"
        )
    return one


def check_name(option: str, function: object) -> None:
    """Check that workers find what a data-only pool has as this *option* by its name.

    Raises:
        JobNotPicklableError: If they do not.
    """
    if not callable(function):
        return
    try:
        name_of(function)
    except LookupError as why:
        raise unnamed(why, option) from why


def unnamed(why: Exception, what: str = "fn") -> JobNotPicklableError:
    """Return the error for a function that has no name."""
    return JobNotPicklableError(
        f"{what} cannot be sent by its name, as this pool does: {why}",
        direction="arguments",
        name=what,
    )


# The bytes of a message before its body.
_HEAD = 2

# Types whose values are short, and the same as plain data.
_NUMBERS: frozenset[type] = frozenset((int, float, bool, type(None)))

# What stands for an annotation that is not there.
_NOTHING = inspect.Parameter.empty

# How deep the part of a value is looked for that cannot be sent.
_DEEPEST = 30

_ITERATORS = (
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


def _piece(cost: Cost | None) -> int:
    """Return how long a text may be that is read in one step."""
    return PIECE if cost is None else PIECE // cost.effort


def _write(
    how: Format,
    value: Any,
    *,
    cost: Cost | None,
    limit: int | None = None,
    in_band: bool = False,
) -> Packed:
    """Return the message for plain data.  There is no *cost* if a worker reads it.

    Raises:
        StreamTooLongError: If *limit* is too low.
        Exception: If it is no plain data.
    """
    piece = _piece(cost)
    if weigh([value], piece if limit is None else min(piece, limit)) is not None:
        text = how.text(value)
        if len(text) <= piece:
            return _joined(how, [text])
    buffers: list[memoryview] = []
    parts = Parts(how, None if in_band else buffers, limit, cost=cost)
    return _joined(how, parts.message(value), buffers, parts=True)


def _joined(
    how: Format,
    pieces: list[bytes],
    buffers: Sequence[memoryview] = (),
    *,
    parts: bool = False,
) -> Packed:
    pieces = [bytes((how.number, parts)), *pieces]
    if buffers or sum(map(len, pieces)) > HEAVY:
        return OutOfBandPickle(pieces, [*buffers])
    return b"".join(pieces)


def in_one_piece(packed: Packed) -> bytes:
    """Return a message whose buffers are part of it."""
    return packed if isinstance(packed, bytes) else b"".join(packed.pieces)


def _read(
    how: Format,
    payload: Payload,
    cost: Cost | None,
    pause: Callable[[], None] = go_on,
    *,
    raw: bool = False,
) -> Any:
    """Return the plain data of a message; a *raw* body that is not in parts as it is."""
    received = payload if isinstance(payload, ReceivedPickle) else None
    stream: Any = payload if received is None else received.stream
    if cost is not None and len(stream) > MOST_BYTES + PIECE and how.codec is None:
        raise MalformedError("it is too long")
    if type(stream) is not bytes:
        # The worker may write to it while it is read.
        stream = private(memoryview(stream).cast("B"), pause)
    if stream[:1] != bytes((how.number,)) or stream[1:_HEAD] not in (b"\0", b"\1"):
        raise MalformedError(f"it is no message of {how.name}")
    if stream[1]:
        buffers = [] if received is None else received.buffers
        body = memoryview(stream)[_HEAD:]
        return Assembly(how, body, buffers, cost=cost, pause=pause).value()
    if len(stream) > _piece(cost) + _HEAD and how.codec is None:
        raise MalformedError("it is too long for one part")
    text = bytes(stream[_HEAD:])
    return text if raw else how.parse(text)


class Schema:
    """What is known of one argument or result, which is sent and read by it.

    Args:
        how: The format of its messages.
        kind: The type by which the format reads it; ``None`` if it reads plain data.
        expected: The class that plain data must have, if the annotation says that much.
        cost: What values of the type cost whoever makes them.
        what: What errors call it.
        direction: What errors say of its way.
    """

    def __init__(
        self,
        how: Format,
        kind: Any = None,
        expected: type | None = None,
        cost: Cost = PLAIN,
        *,
        what: str = "the job's result",
        direction: Direction = "result",
    ) -> None:
        self._how = how
        self._kind = kind
        self._expected = expected
        self._cost = cost
        self._what = what
        self._direction: Direction = direction
        # Whether it is known at all, or the user's codec has to be asked.
        self.typed: bool = kind is not None or expected is not None
        self._own = how.codec is not None
        quick = not self._own and expected is None
        self._quick = how.reader(kind) if quick else None
        self._head = bytes((how.number, False))
        self._most = _HEAD + _piece(cost)

    def plain(self, value: Any) -> Any:
        """Return the plain data of an argument.

        Raises:
            Exception: If there is none.
        """
        if not self._own and (self._kind is None or type(value) in _NUMBERS):
            return value
        return self._how.plain(value, self._cost)

    def argument(self, value: Any) -> Any:
        """Return the argument that has come from the pool as this plain data.

        Raises:
            MismatchError: If it is not of the annotated type.
            Exception: If there is none.
        """
        return self._made(value, self._how.typed_of)

    def pack(self, value: Any, limit: int | None = None) -> Packed:
        """Return *value* as a message.

        Raises:
            JobNotPicklableError: If it is no plain data, and not of the annotated type, or has more than
                *limit* bytes.
        """
        name, codec = type(value).__qualname__, self._how.name
        try:
            data = self._pack(value)
        except Exception as error:
            where, why = self.culprit(value, "$", error)
            raise JobNotPicklableError(
                f"{self._what}, of type {name}, cannot be sent as {codec}: {_reason_of(why)} - at "
                f"`{where}`",
                direction="result",
                name=name,
            ) from why
        if limit is not None and len(data) > limit:
            raise JobNotPicklableError(
                f"{self._what} has {len(data)} bytes as {codec}, and max_message_size is {limit}",
                direction="result",
                name="",
            )
        return data

    def load(self, payload: Payload, pause: Callable[[], None] | None = None) -> Any:
        """Return what a worker has sent, which may be anything.

        Raises:
            JobNotPicklableError: If it is not of the annotated type, or cannot be had here.
            ProtocolError: If it is no message of this format.
        """
        if (
            type(payload) is bytes
            and self._quick is not None
            and payload[:_HEAD] == self._head
            and len(payload) <= self._most
        ):
            try:
                return self._quick(payload[_HEAD:])
            except Exception:  # noqa: S110 - what comes next says what is wrong
                pass
        foreign = False
        try:
            pause = pause or go_on
            value = _read(self._how, payload, self._cost, pause, raw=self._own)
            foreign = self._own
            return self._made(value, self._how.typed_of if foreign else self._in_steps)
        except MismatchError as error:
            text = printable_lines(path_from(str(error), "$"))
            raise JobNotPicklableError(
                f"{self._what} is not what the function's annotation says: {text}",
                direction=self._direction,
                name="",
            ) from error
        except Exception as error:
            why = _reason_of(error)
            if not (foreign or isinstance(error, MissingPackageError)):
                raise ProtocolError(
                    f"it sent {self._what} that is no {self._how.name}: {why}"
                ) from error
            raise JobNotPicklableError(
                f"{self._what} cannot be read here: {why}",
                direction=self._direction,
                name="",
            ) from error

    def culprit(self, value: Any, path: str, error: Exception) -> tuple[str, Exception]:
        """Return the path of the part of *value* that cannot be sent, and why."""
        if self._kind is not None or self._own:
            return path, error
        for _ in range(_DEEPEST):
            for where, part in _parts_of(value, path, wide=self._how.wide):
                if (own := self.refusal(part)) is not None:
                    value, path, error = part, where, own
                    break
            else:
                return path, error
        return path, NotDataError("it is nested too deeply, or holds itself")

    def refusal(self, value: Any) -> Exception | None:
        """Return why *value* cannot be sent; ``None`` if it can."""
        try:
            self._pack(value)
        except Exception as error:
            return error
        return None

    def _pack(self, value: Any) -> Packed:
        how, kind, cost = self._how, self._kind, self._cost
        if self._own:
            return _joined(how, [how.plain(value, cost)])
        if kind is not None:
            if not cost.times:
                text = how.text(value)
                # It writes NaN as null.
                if len(text) <= _piece(cost) and b"null" not in text:
                    return _joined(how, [text])
            value = how.plain(value, cost)
            how.in_steps(value, kind, cost, make=False)
        return _write(how, value, cost=cost)

    def _in_steps(self, value: Any, kind: Any) -> Any:
        return self._how.in_steps(value, kind, self._cost)

    def _made(self, value: Any, convert: Callable[[Any, Any], Any]) -> Any:
        if self._own or self._kind is not None:
            return convert(value, typing.Any if self._kind is None else self._kind)
        if self._expected is not None and type(value) is not self._expected:
            wanted, found = self._expected.__qualname__, type(value).__qualname__
            raise MismatchError(f"Expected `{wanted}`, got `{found}`")
        return value


@cache
def json_schema(what: str, direction: Direction) -> Schema:
    """Return the schema of any value that is sent as JSON."""
    return Schema(json_format(), what=what, direction=direction)


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


class Signature:
    """What a function takes and returns, as its annotations say; its calls are sent and read by it.

    Args:
        function: The function; ``None`` if nothing is known of it.
        how: The format of its calls and results.

    Attributes:
        result: What it returns.
        item: What it yields.
    """

    def __init__(self, function: Callable[..., Any] | None, how: Format) -> None:
        self._how = how
        self._head = bytes((how.number, False))
        self._others = self._other_names = Schema(how)
        self.result: Schema = self._others
        self.item: Schema = Schema(how, what="an item of the stream")
        # Whether annotations say anything of its arguments, or the user's codec has to be asked.
        self._typed = how.codec is not None
        self._positional: list[Schema] = []
        self._named: dict[str, Schema] = {}
        if function is not None and how.typed:
            self._take(function)

    def _take(self, function: Callable[..., Any]) -> None:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters.values()
        except Exception:  # it says nothing that this process understands
            return
        for parameter in parameters:
            schema = self._schema(hints.get(parameter.name, _NOTHING))
            self._typed |= schema.typed
            match parameter.kind:
                case inspect.Parameter.VAR_POSITIONAL:
                    self._others = schema
                case inspect.Parameter.VAR_KEYWORD:
                    self._other_names = schema
                case inspect.Parameter.KEYWORD_ONLY:
                    self._named[parameter.name] = schema
                case inspect.Parameter.POSITIONAL_ONLY:
                    self._positional.append(schema)
                case _:
                    self._positional.append(schema)
                    self._named[parameter.name] = schema
        result = hints.get("return", _NOTHING)
        origin, args = typing.get_origin(result), typing.get_args(result)
        if origin in (abc.Awaitable, abc.Coroutine) and args:
            result = args[-1]
        elif origin in _ITERATORS and args:
            self.item = self._schema(args[0], "an item of the stream")
        self.result = self._schema(result)

    def _schema(self, hint: Any, what: str = "the job's result") -> Schema:
        how, kind, expected, cost = self._how, None, None, PLAIN
        if hint is _NOTHING:
            pass
        elif how.codec is not None:
            kind = hint
        elif hint is bytes or hint is bytearray:
            expected = hint  # it may be large, and travel beside the message
        elif (known := how.cost(hint)) is not None:
            kind, cost = hint, known
        return Schema(how, kind, expected, cost, what=what)

    def pack(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        limit: int | None = None,
        in_band: bool = False,
    ) -> Packed:
        """Return a call as a message.

        Args:
            args: The arguments.
            kwargs: The keyword arguments.
            limit: How large it may become, roughly.
            in_band: Whether large buffers are part of the message.

        Raises:
            StreamTooLongError: If *limit* is too low.
            JobNotPicklableError: If an argument is no plain data, and not of the annotated type.
        """
        how = self._how
        values: list[Any] = [*args, *kwargs.values()]
        try:
            most = PIECE if limit is None else min(PIECE, limit)
            if how.codec is None and weigh(values, most) is not None:
                # It is the same if a type is made of it.
                text = how.text((values, [*kwargs]))
                if len(text) <= PIECE:
                    return self._head + text
            elif self._typed:
                room = limit
                for at, schema in enumerate(self._schemas(len(args), kwargs)):
                    if room is not None:
                        room = _probe(values[at], room)
                    values[at] = schema.plain(values[at])
            call = [values, [*kwargs]]
            return _write(how, call, cost=None, limit=limit, in_band=in_band)
        except StreamTooLongError:
            raise
        except Exception as error:
            name, where, why = self._culprit(args, kwargs, error)
            raise JobNotPicklableError(
                f"{name} cannot be sent as {how.name}: {_reason_of(why)} - at `{where}`",
                direction="arguments",
                name=name,
            ) from why

    def load(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, which must come from the pool.

        Raises:
            JobNotPicklableError: If one is not of the annotated type, or cannot be had here.
        """
        where = "the call"
        try:
            if type(payload) is bytes and payload[1] == 0 and not self._typed:
                values, names = self._how.parse(payload[_HEAD:])
            else:
                values, names = _read(self._how, payload, None)
            if not names and not self._typed:
                return values, {}
            count = len(values) - len(names)
            if self._typed:
                for at, schema in enumerate(self._schemas(count, names)):
                    where = _name_of(at, count, names)
                    values[at] = schema.argument(values[at])
        except Exception as error:
            text = _reason_of(error)
            if isinstance(error, MismatchError):
                text = path_from(str(error), f"$.{where}")
            raise JobNotPicklableError(
                f"{where} cannot be read: {text}", direction="arguments", name=where
            ) from error
        return values[:count], dict(zip(names, values[count:], strict=True))

    def _schemas(self, count: int, names: Iterable[str]) -> Iterator[Schema]:
        """Yield the schemas of so many positional arguments, and of those of these names."""
        known = self._positional
        for at in range(count):
            yield known[at] if at < len(known) else self._others
        for name in names:
            yield self._named.get(name, self._other_names)

    def _culprit(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], error: Exception
    ) -> tuple[str, str, Exception]:
        """Return the name of the argument that cannot be sent, the path of its part, and why."""
        count, values = len(args), [*args, *kwargs.values()]
        for at, schema in enumerate(self._schemas(count, kwargs)):
            if (own := schema.refusal(values[at])) is not None:
                name = _name_of(at, count, [*kwargs])
                return name, *schema.culprit(values[at], f"$.{name}", own)
        return "the call", "$", error


def _name_of(at: int, count: int, names: Sequence[str]) -> str:
    """Return what errors call an argument of a call with *count* positional ones."""
    return f"args[{at}]" if at < count else f"kwargs[{names[at - count]!r}]"


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


def _reason_of(why: Exception) -> str:
    """Return the text of an error that says why a value cannot be sent or read."""
    if isinstance(why, RecursionError):
        return "it is nested too deeply, or holds itself"
    own = isinstance(why, NotDataError | MalformedError | MissingPackageError)
    return printable_lines(str(why) if own else describe(why))
