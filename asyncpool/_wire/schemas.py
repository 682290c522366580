"""The calls and outcomes of data-only pools: functions by their names, values by their annotations.

A call is two lists: its arguments, and the names of the last of them.  ``_core/data_only.py`` writes
calls, and the worker's half is here.
"""

from __future__ import annotations

import inspect
import json
import pickle
import sys
from binascii import a2b_base64
from collections import abc
from contextlib import suppress
from contextvars import ContextVar
from functools import cache, reduce
from typing import Any, get_args, get_origin, get_type_hints

from asyncpool._wire.formats import JSON, NAMES, Format, Kind, format_of, reason_of
from asyncpool._wire.frames import MAX_NUMBER
from asyncpool._wire.pickling import (
    WorkerSerializer,
    describe,
    raisable,
    text_of,
    traceback_of,
    type_name,
)
from asyncpool._wire.plain_data import in_one_piece, read
from asyncpool._wire.records import import_named
from asyncpool._wire.text import function_name, indent, printable_block, printable_text
from asyncpool.errors import (
    HookError,
    JobCancelled,
    JobNotPicklableError,
    ProtocolError,
    RemoteError,
    RemoteTraceback,
)

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from asyncpool._wire.buffers import Packed, Payload

    AnyFunction = Callable[..., Any]
    Errors = Mapping[str, type[BaseException]]


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
        self.allowed: tuple[str, ...] | None = (
            None if allowed is None else tuple(map(_pattern, allowed))
        )

    def check(self, name: str) -> None:
        """Raise a :exc:`LookupError` unless workers may call the function of that *name*."""
        names = {name, f"{name.partition(':')[0]}:*"}
        if self.allowed is not None and names.isdisjoint(self.allowed):
            raise LookupError(f"{name} is not among the functions of this pool")

    def name_of(
        self, function: AnyFunction, what: str = "fn", *, numbered: bool = True
    ) -> str:
        """Return the name of *function*, ``"package.module:name"``.

        Args:
            function: The function.
            what: What errors call it.
            numbered: Whether there still was a number for it.

        Raises:
            JobNotPicklableError: If it has no name that workers find, or may call, or no number.
        """
        try:
            name = _name_of_function(function)
            self.check(name)
            if not numbered:
                raise LookupError(  # noqa: TRY301 - it is a reason like the others
                    f"this pool has called {MAX_NUMBER} functions"
                )
        except LookupError as why:
            text = f"{what} cannot be sent by its name, as this pool does: {why}"
            raise JobNotPicklableError(text, direction="arguments", name=what) from why
        return name


def _name_of_function(function: AnyFunction) -> str:
    """Return the name by which workers find *function*, ``"package.module:name"``.

    Raises:
        LookupError: If there is none.
    """
    path = getattr(function, "__qualname__", None)
    home = getattr(function, "__module__", None)
    if not isinstance(path, str) or not isinstance(home, str):
        what = (
            f"{function_name(function)} is an object of a {type(function).__qualname__}"
        )
        raise LookupError(f"{what}: name a function of a module")  # noqa: TRY004 - it has no name
    if "<" in path:
        kind = "a lambda" if path.endswith("<lambda>") else "local to a function"
        raise LookupError(f"{home}.{path} is {kind}: use a function of a module")
    module: Any = sys.modules.get(home)
    found: Any = None
    with suppress(AttributeError):
        found = reduce(getattr, path.split("."), module)
    if found is not function:
        raise LookupError(f"{home}:{path} is not this function but {found!r}")
    if home == "__main__":
        spec = getattr(module, "__spec__", None)
        if spec is None:
            what = "it is a function of __main__, which has no name"
            raise LookupError(f"{what}: put it into a module of its own")
        home = spec.name  # by which workers import it
    return f"{home}:{path}"


def _pattern(one: object) -> str:
    if callable(one):
        try:
            return _name_of_function(one)
        except LookupError as why:
            raise TypeError(f"functions takes functions with a name: {why}") from why
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
    if callable(function):
        FunctionNames(None).name_of(function, option)


_ITERATORS = abc.Iterator, abc.Iterable, abc.Generator
_ASYNC_ITERATORS = abc.AsyncIterator, abc.AsyncIterable, abc.AsyncGenerator

# What errors call what a stream yields.
_ITEM = "an item of the stream"


class Signature:
    """What a function takes and returns, as its annotations say.

    Args:
        function: The function.
        how: The format of its calls and results.

    Attributes:
        how: The format.
        call: What is known of a call, as whoever reads it.
        result: What it returns.
        item: What it yields.
        typed: Whether annotations say anything of its arguments, or the user's codec has to be asked.
    """

    def __init__(self, function: AnyFunction, how: Format) -> None:
        self.how: Format = how
        self.call: Kind = Kind(how, direction="arguments")
        self.result: Kind = how.kind_of(Any)
        self.item: Kind = how.kind_of(Any, _ITEM)
        # Of arguments that no parameter is for by itself.
        self._others = self._other_names = how.kind_of(Any, direction="arguments")
        self.typed: bool = self._others.typed
        self._positional: list[Kind] = []
        self._named: dict[str, Kind] = {}
        if how.wide:
            self._take(function)

    def _take(self, function: AnyFunction) -> None:
        try:
            hints = get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters
        except Exception:  # it says nothing that this process understands
            return
        for name, parameter in parameters.items():
            kind = self.how.kind_of(hints.get(name, Any), direction="arguments")
            self.typed |= kind.typed
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._others = kind
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._other_names = kind
            else:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self._positional.append(kind)
                if parameter.kind is not parameter.POSITIONAL_ONLY:
                    self._named[name] = kind
        result = hints.get("return", Any)
        origin, args = get_origin(result), get_args(result)
        if origin in (abc.Awaitable, abc.Coroutine) and args:
            result = args[-1]
        elif origin in _ITERATORS + _ASYNC_ITERATORS and args:
            self.item = self.how.kind_of(args[0], _ITEM)
        self.result = self.how.kind_of(result)

    def kinds(self, count: int, names: Iterable[str]) -> Iterator[tuple[str, Kind]]:
        """Yield what errors call so many positional arguments, and those of these names, and their kinds."""
        known = self._positional
        for at in range(count):
            yield f"args[{at}]", known[at] if at < len(known) else self._others
        for name in names:
            yield f"kwargs[{name!r}]", self._named.get(name, self._other_names)


# What a job raises is data too: always JSON, whatever the codec of the calls.  An exception comes home as
# a RemoteError with its name, its text and its traceback.  If its class was registered, the pool makes it
# anew by its constructor, from plain arguments.
_ERROR = Kind(JSON, what="an exception", direction="exception")
_TEXTS = ("type", "text", "traceback")
_DIRECTIONS = ("arguments", "result", "exception", "details")
_MOST_NOTES = 100

# Of a text so many characters are sent, and believed.
_LONGEST = 1 << 20


def registered(errors: Iterable[object]) -> dict[str, type[BaseException]]:
    """Return classes of exceptions by their names.

    Raises:
        TypeError: If one is no such class.
    """
    found: dict[str, type[BaseException]] = {}
    for cls in errors:
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(f"errors takes classes of exceptions, not {cls!r}")
        found[f"{cls.__module__}.{cls.__qualname__}"] = cls
    return found


def pack_failure(error: BaseException) -> bytes:
    """Return the payload of an ``ERROR`` frame, whatever *error* is that the job raised."""
    fields = _fields(error)
    try:
        return in_one_piece(_ERROR.message(fields))
    except Exception:  # with its arguments it may exceed what one message holds
        return in_one_piece(_ERROR.message(fields | {"args": None}))


def _text(value: str) -> str:
    """Return *value* as text that can be sent: not too long, and without halves of surrogate pairs."""
    return value[:_LONGEST].encode(errors="backslashreplace").decode()


def _fields(error: BaseException) -> dict[str, Any]:
    notes, args = getattr(error, "__notes__", None), None
    try:
        _ERROR.message(args := [*error.args])
    except Exception:  # its args may be anything
        args = None
    notes = notes if type(notes) is list else []
    fields: dict[str, Any] = {
        "type": type_name(error),
        "text": _text(text_of(error)),
        "traceback": _text(traceback_of(error)),
        "notes": [_text(it) for it in notes if type(it) is str][:_MOST_NOTES],
        "args": args,
    }
    if isinstance(error, HookError):
        fields["hook"] = [error.hook, error.stage, _fields(error.exception)]
    elif isinstance(error, JobNotPicklableError):
        fields["args"] = [error.direction, error.name, _text(error.text)]
    return fields


def load_failure(
    errors: Errors, payload: Payload, pause: Callable[[], None] | None = None
) -> BaseException:
    """Return the exception in the payload of an ``ERROR`` frame, which may be anything.

    Args:
        errors: The classes that are rebuilt, by name.
        payload: The payload.
        pause: Called now and then while a large one is loaded.

    Raises:
        ProtocolError: If it is no such payload.
    """
    return raisable(_error_of(_ERROR.load(payload, pause), errors))


def _error_of(found: Any, errors: Errors) -> BaseException:
    """Return the exception that *found* describes."""
    fields: dict[str, Any] = found if type(found) is dict else {}
    if any(type(fields.get(name)) is not str for name in _TEXTS):
        raise ProtocolError("it sent an exception without a name, text or traceback")
    notes, args = fields.get("notes"), fields.get("args")
    if type(notes) is not list or any(type(note) is not str for note in notes):
        raise ProtocolError("it sent an exception whose notes are no texts")
    if args is not None and type(args) is not list:
        raise ProtocolError("it sent an exception whose arguments are no list")
    kind, text = _shown(fields["type"]), _shown(fields["text"])
    trace = printable_block(fields["traceback"], _LONGEST)
    # Python shows each note on a line of its own.
    notes = [indent(printable_block(it, _LONGEST)) for it in notes[:_MOST_NOTES]]
    error: BaseException | None = None
    match fields["type"], args, fields.get("hook"):
        case "asyncpool.errors.JobCancelled", _, _:
            error = JobCancelled(text)
        case "asyncpool.errors.JobNotPicklableError", [way, str(name), str(own)], _ if (
            way in _DIRECTIONS
        ):
            name, own = _shown(name), _shown(own)
            error = JobNotPicklableError(text, direction=way, name=name, text=own)
        case _, _, [str(hook), "enter" | "exit" as stage, dict(inner)]:
            cause = _error_of({**inner, "hook": None}, errors)
            error = HookError(_shown(hook), stage=stage, exception=cause)
        case name, list(), _ if (cls := errors.get(name)) is not None:
            try:
                error = made if type(made := cls(*args)) is cls else None
            except Exception as why:  # it is the user's constructor
                note = f"{cls.__qualname__} cannot be rebuilt: {describe(why)}"
                notes.append(printable_text(note))
        case _:
            pass
    if error is None:
        sent = None if args is None else tuple(args)
        error = RemoteError(kind, text, traceback=trace, args=sent)
    for note in notes:
        error.add_note(note)
    if not isinstance(error, HookError):
        error.__cause__ = RemoteTraceback(trace)
    return error


def _shown(text: str) -> str:
    return printable_text(text, _LONGEST)


# How many bytes say how long the description of a function is, if a call comes with one.
_SIZE = 4

# As JSON, whatever the codec: threads of a job may have no context that tells it.
_DETAILS = Kind(JSON, what="the details", direction="details")


class DataFunction(Signature):
    """A function that the pool has named.

    Attributes:
        function: The function.
    """

    def __init__(self, name: str, function: AnyFunction, how: Format) -> None:
        super().__init__(function, how)
        self.function = function
        # By which current_job() names it.
        self.__module__, _, self.__qualname__ = name.partition(":")

    def load(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, which must come from the pool.

        Raises:
            JobNotPicklableError: If one is not of the annotated type, or cannot be had here.
        """
        name = "the call"
        try:
            values, names = read(self.call, payload)
            if not names and not self.typed:
                return values, {}
            count = len(values) - len(names)
            if self.typed:
                for at, (name, kind) in enumerate(self.kinds(count, names)):  # noqa: B007 - for the error
                    values[at] = kind.made(values[at])
        except Exception as error:
            text = f"{name} cannot be read: {reason_of(error, f'$.{name}')}"
            raise JobNotPicklableError(
                text, direction="arguments", name=name
            ) from error
        return values[:count], dict(zip(names, values[count:], strict=True))


# The function of the running job: its context goes with all that belongs to it.
_current: ContextVar[DataFunction] = ContextVar("asyncpool_data_function")


class DataWorkerSerializer(WorkerSerializer):
    """How the calls and outcomes of this worker travel.

    Args:
        config: What the pool has said of its functions.
    """

    pack_error = staticmethod(pack_failure)
    load_details: Callable[[bytes], Any] = staticmethod(_DETAILS.load)

    def __init__(self, config: bytes) -> None:
        self._names = FunctionNames(json.loads(config)["functions"])

    def load_function(self, description: bytes) -> DataFunction:
        """Return the function that the pool describes; its module is imported.

        Raises:
            Exception: If there is none, or it may not be called.
        """
        fields = json.loads(description)
        name: str = fields["function"]
        self._names.check(name)
        return DataFunction(name, import_named(name), _format(fields["codec"]))

    def load_job(
        self, payload: Payload, known: DataFunction | None = None
    ) -> tuple[AnyFunction, list[Any], dict[str, Any]]:
        """Load a call; with the function if that is not *known*."""
        if known is None:
            assert isinstance(payload, bytes | memoryview)  # it comes in one piece
            data = bytes(payload)
            end = _SIZE + int.from_bytes(data[:_SIZE])
            known, payload = self.load_function(data[_SIZE:end]), data[end:]
        _current.set(known)
        return known.function, *known.load(payload)

    @staticmethod
    def pack_value(value: Any, limit: int | None = None) -> Packed:
        """Pack what the running job returns."""
        return _current.get().result.pack(value, limit)

    @staticmethod
    def pack_item(item: Any, limit: int | None = None) -> Packed:
        """Pack what the running stream yields."""
        return _current.get().item.pack(item, limit)

    @staticmethod
    def pack_details(details: object) -> bytes:
        """Pack the details of a heartbeat."""
        return in_one_piece(_DETAILS.pack(details))


@cache
def _format(spec: str) -> Format:
    # It comes from the pool, which this process trusts.
    return format_of(spec if spec in NAMES else pickle.loads(a2b_base64(spec)))  # noqa: S301
