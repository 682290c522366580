"""What a job raises, as data: always as JSON, whatever the codec of the calls.

An exception comes home as a :exc:`RemoteError` with its name, its text and its traceback.  If
its class was registered, the pool makes it anew by its constructor, from plain arguments.
"""

from __future__ import annotations

from asyncpool._wire.pickling import (
    describe,
    raisable,
    text_of,
    traceback_of,
    type_name,
)
from asyncpool._wire.plain_data import in_one_piece
from asyncpool._wire.schemas import json_schema
from asyncpool._wire.text import printable_lines
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
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from asyncpool._wire.plain_data import Payload

    Errors = Mapping[str, type[BaseException]]

_SCHEMA = json_schema("an exception", "exception")
_TEXTS = ("type", "text", "traceback")
_MOST_NOTES = 100

# Of a text so many characters are sent, and believed.
_LONGEST = 1 << 20


def registered(errors: Iterable[type[BaseException]]) -> dict[str, type[BaseException]]:
    """Return classes of exceptions by their names.

    Raises:
        TypeError: If one is no such class.
    """
    found: dict[str, type[BaseException]] = {}
    for one in errors:
        cls: object = one
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TypeError(f"errors takes classes of exceptions, not {one!r}")
        found[f"{one.__module__}.{one.__qualname__}"] = one
    return found


def pack_failure(error: BaseException, *, skip: int) -> bytes:
    """Return the payload of an ``ERROR`` frame, whatever *error* is.

    Args:
        error: What the job raised.
        skip: How many of the outermost frames of its traceback belong to the worker.
    """
    fields = _fields(error, skip)
    try:
        data = _SCHEMA.pack(fields)
    except Exception:  # noqa: BLE001 - with its arguments it may exceed what one message holds
        data = _SCHEMA.pack(fields | {"args": None})
    return in_one_piece(data)


def _text(value: str) -> str:
    """Return *value* as text that can be sent: not too long, and without halves of surrogate pairs."""
    return value[:_LONGEST].encode(errors="backslashreplace").decode()


def _fields(error: BaseException, skip: int) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "type": type_name(error),
        "text": _text(text_of(error)),
        "traceback": _text(traceback_of(error, skip)),
        "notes": _notes(error),
        "args": _plain_args(error),
    }
    if isinstance(error, HookError):
        fields["hook"] = [error.hook, error.stage, _fields(error.exception, 0)]
    elif isinstance(error, JobNotPicklableError):
        fields["args"] = [error.direction, error.name, _text(error.text)]
    return fields


def _plain_args(error: BaseException) -> list[Any] | None:
    try:
        args = [*error.args]
    except Exception:  # noqa: BLE001 - its args may be anything
        return None
    return None if _SCHEMA.refusal(args) else args


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
    return raisable(_error_of(_SCHEMA.load(payload, pause), errors))


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
    shown = {name: _shown(fields[name]) for name in _TEXTS}
    fields = {**fields, **shown, "notes": [*map(_shown, notes[:_MOST_NOTES])]}
    error = _own(fields, errors) or _rebuilt(fields, errors)
    if error is None:
        error = RemoteError(
            fields["type"],
            fields["text"],
            traceback=fields["traceback"],
            args=None if args is None else tuple(args),
        )
    for note in fields["notes"]:
        error.add_note(note)
    if not isinstance(error, HookError):
        error.__cause__ = RemoteTraceback(fields["traceback"])
    return error


def _shown(text: str) -> str:
    return printable_lines(text[:_LONGEST])


def _rebuilt(fields: dict[str, Any], errors: Errors) -> BaseException | None:
    cls, args = errors.get(fields["type"]), fields.get("args")
    if cls is None or args is None:
        return None
    try:
        error = cls(*args)
    except Exception as why:  # noqa: BLE001 - it is the user's constructor
        note = f"{cls.__qualname__} cannot be rebuilt: {describe(why)}"
        fields["notes"].append(_shown(note))
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
                name=_shown(name),
                text=_shown(text),
            )
        case {"hook": [str(hook), "enter" | "exit" as stage, dict(inner)]}:
            cause = _error_of({**inner, "hook": None}, errors)
            return HookError(_shown(hook), stage=stage, exception=cause)
        case _:
            return None
