"""The calls and outcomes of data-only pools: functions by their names, values by their annotations.

A call is two lists: its arguments, and the names of the last of them.
"""

from __future__ import annotations

import inspect
import sys
from collections import abc
from functools import reduce
from typing import Any, get_args, get_origin, get_type_hints

from asyncpool._wire.buffers import OverLimitError
from asyncpool._wire.formats import JSON, Format, Kind, reason_of
from asyncpool._wire.pickling import (
    describe,
    raisable,
    text_of,
    traceback_of,
    type_name,
)
from asyncpool._wire.plain_data import HEAD, PIECE, in_one_piece, read, weigh, write
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
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from asyncpool._wire.plain_data import Packed, Payload

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

    def name_of(self, function: Callable[..., Any], what: str = "fn") -> str:
        """Return the name of *function*, ``"package.module:name"``; errors call it *what*.

        Raises:
            JobNotPicklableError: If it has none that workers find, or may call.
        """
        try:
            name = _name_of_function(function)
            self.check(name)
        except LookupError as why:
            raise self.unnamed(why, what) from why
        return name

    @staticmethod
    def unnamed(why: Exception, what: str = "fn") -> JobNotPicklableError:
        """Return the error for a function that has no name."""
        return JobNotPicklableError(
            f"{what} cannot be sent by its name, as this pool does: {why}",
            direction="arguments",
            name=what,
        )

    def find(self, name: str) -> Any:
        """Return the function of that *name*; the module is imported.

        Raises:
            Exception: If there is none, or workers may not call it.
        """
        self.check(name)
        return import_named(name)


def _name_of_function(function: Callable[..., Any]) -> str:
    """Return the name by which workers find *function*, ``"package.module:name"``.

    Raises:
        LookupError: If there is none.
    """
    path = getattr(function, "__qualname__", None)
    home = getattr(function, "__module__", None)
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
        spec = getattr(module, "__spec__", None)
        if spec is None:
            raise LookupError(
                "it is a function of __main__, which has no name: put it into a module of its own"
            )
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


_ITERATORS = (
    abc.Iterator,
    abc.Iterable,
    abc.Generator,
    abc.AsyncIterator,
    abc.AsyncIterable,
    abc.AsyncGenerator,
)


# What errors call what a stream yields.
_ITEM = "an item of the stream"


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
        self._call = Kind(how, trusted=True)
        self.result: Kind = how.kind_of(Any)
        self._others = self._other_names = self.result
        self.item: Kind = how.kind_of(Any, _ITEM)
        # Whether annotations say anything of its arguments, or the user's codec has to be asked.
        self._typed = self._others.typed
        self._positional: list[Kind] = []
        self._named: dict[str, Kind] = {}
        if function is not None and how.wide:
            self._take(function)

    def _take(self, function: Callable[..., Any]) -> None:
        try:
            hints = get_type_hints(function, include_extras=True)
            parameters = inspect.signature(function).parameters
        except Exception:  # it says nothing that this process understands
            return
        for name, parameter in parameters.items():
            kind = self._how.kind_of(hints.get(name, Any))
            self._typed |= kind.typed
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
        elif origin in _ITERATORS and args:
            self.item = self._how.kind_of(args[0], _ITEM)
        self.result = self._how.kind_of(result)

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
            OverLimitError: If *limit* is too low.
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
                    return how.head + text
            elif self._typed:
                if limit is not None:
                    _check_size(values, limit)
                for at, (_, kind) in enumerate(self._kinds(len(args), kwargs)):
                    values[at] = kind.plain(values[at])
            call = [values, [*kwargs]]
            return write(self._call, call, limit=limit, in_band=in_band)
        except OverLimitError:
            raise
        except Exception as error:
            name, where, why = "the call", "$", error
            values = [*args, *kwargs.values()]
            for at, (one, kind) in enumerate(self._kinds(len(args), kwargs)):
                if (own := kind.refusal(values[at])) is not None:
                    name, (where, why) = one, kind.culprit(values[at], f"$.{one}", own)
                    break
            raise JobNotPicklableError(
                f"{name} cannot be sent as {how.name}: {reason_of(why)} - at `{where}`",
                direction="arguments",
                name=name,
            ) from why

    def load(self, payload: Payload) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of a call, which must come from the pool.

        Raises:
            JobNotPicklableError: If one is not of the annotated type, or cannot be had here.
        """
        name = "the call"
        try:
            if type(payload) is bytes and payload[1] == 0 and not self._typed:
                values, names = self._how.parse(payload[HEAD:])
            else:
                values, names = read(self._call, payload)
            if not names and not self._typed:
                return values, {}
            count = len(values) - len(names)
            if self._typed:
                for at, (one, kind) in enumerate(self._kinds(count, names)):
                    name = one
                    values[at] = kind.made(values[at])
        except Exception as error:
            text = reason_of(error, f"$.{name}")
            raise JobNotPicklableError(
                f"{name} cannot be read: {text}", direction="arguments", name=name
            ) from error
        return values[:count], dict(zip(names, values[count:], strict=True))

    def _kinds(self, count: int, names: Iterable[str]) -> Iterator[tuple[str, Kind]]:
        """Yield what errors call so many positional arguments, and those of these names, and their kinds."""
        known = self._positional
        for at in range(count):
            yield f"args[{at}]", known[at] if at < len(known) else self._others
        for name in names:
            yield f"kwargs[{name!r}]", self._named.get(name, self._other_names)


def _check_size(values: list[Any], limit: int) -> None:
    """Check roughly that *values* of any type, with those in them, have at most *limit* bytes.

    Raises:
        OverLimitError: If they have more.
    """
    found, size = [*values], 0
    for value in found:  # the list grows during the loop
        cls = type(value)
        size += len(value) if cls in (str, bytes, bytearray) else 8
        parts: Collection[Any] = ()
        if cls is dict:
            parts = value.values()
        elif cls in (list, tuple, set, frozenset):
            parts = value
        elif (names := getattr(cls, "__struct_fields__", None)) is not None:
            parts = [getattr(value, name) for name in names]
        elif type(attributes := getattr(value, "__dict__", None)) is dict:
            parts = attributes.values()
        if size > limit or len(found) + len(parts) > limit:
            raise OverLimitError
        found += parts


# What a job raises is data too: always JSON, whatever the codec of the calls.  An exception comes home as
# a RemoteError with its name, its text and its traceback.  If its class was registered, the pool makes it
# anew by its constructor, from plain arguments.
_ERROR = Kind(JSON, what="an exception", direction="exception")
_TEXTS = ("type", "text", "traceback")
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
        return in_one_piece(_ERROR.pack(fields))
    except Exception:  # with its arguments it may exceed what one message holds
        return in_one_piece(_ERROR.pack(fields | {"args": None}))


def _text(value: str) -> str:
    """Return *value* as text that can be sent: not too long, and without halves of surrogate pairs."""
    return value[:_LONGEST].encode(errors="backslashreplace").decode()


def _fields(error: BaseException) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": type_name(error),
        "text": _text(text_of(error)),
        "traceback": _text(traceback_of(error)),
        "notes": _notes(error),
        "args": _plain_args(error),
    }
    if isinstance(error, HookError):
        fields["hook"] = [error.hook, error.stage, _fields(error.exception)]
    elif isinstance(error, JobNotPicklableError):
        fields["args"] = [error.direction, error.name, _text(error.text)]
    return fields


def _plain_args(error: BaseException) -> list[Any] | None:
    try:
        args = [*error.args]
    except Exception:  # its args may be anything
        return None
    return None if _ERROR.refusal(args) else args


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", None)
    if type(notes) is not list:
        return []
    return [_text(note) for note in notes if type(note) is str][:_MOST_NOTES]


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
    kind, text = (printable_text(fields[it], _LONGEST) for it in ("type", "text"))
    trace = printable_block(fields["traceback"], _LONGEST)
    # Python shows each note on a line of its own.
    notes = [indent(printable_block(it, _LONGEST)) for it in notes[:_MOST_NOTES]]
    fields = {**fields, "type": kind, "text": text, "traceback": trace, "notes": notes}
    error = _own(fields, errors) or _rebuilt(fields, errors)
    if error is None:
        sent = None if args is None else tuple(args)
        error = RemoteError(kind, text, traceback=trace, args=sent)
    for note in fields["notes"]:
        error.add_note(note)
    if not isinstance(error, HookError):
        error.__cause__ = RemoteTraceback(trace)
    return error


def _rebuilt(fields: dict[str, Any], errors: Errors) -> BaseException | None:
    cls, args = errors.get(fields["type"]), fields.get("args")
    if cls is None or args is None:
        return None
    try:
        error = cls(*args)
    except Exception as why:  # it is the user's constructor
        note = f"{cls.__qualname__} cannot be rebuilt: {describe(why)}"
        fields["notes"].append(printable_text(note))
        return None
    return error if type(error) is cls else None


def _own(fields: dict[str, Any], errors: Errors) -> BaseException | None:
    """Return one of the errors that workers raise themselves."""
    match fields:
        case {"type": "asyncpool.errors.JobCancelled"}:
            return JobCancelled(fields["text"])
        case {
            "type": "asyncpool.errors.JobNotPicklableError",
            "args": [
                "arguments" | "result" | "exception" | "details" as direction,
                str(name),
                str(text),
            ],
        }:
            return JobNotPicklableError(
                fields["text"],
                direction=direction,
                name=printable_text(name, _LONGEST),
                text=printable_text(text, _LONGEST),
            )
        case {"hook": [str(hook), "enter" | "exit" as stage, dict(inner)]}:
            cause = _error_of({**inner, "hook": None}, errors)
            shown = printable_text(hook, _LONGEST)
            return HookError(shown, stage=stage, exception=cause)
        case _:
            return None
