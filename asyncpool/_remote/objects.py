"""Errors, figures and events of asyncpool's own, as agents send them: by value, as JSON.

Of a chunk that has failed an agent tells which items are done.  It reads none of it, since only the
client has the types that results are made of.

The classes that may travel are in one table, by name, and of each instance its public fields
travel.  So nothing depends on how a Python or a library pickles (Python 3.11.2 pickles the
member of an enum as a call of ``getattr``, and 3.11.4 does not), and a client cannot be made to
call anything.  An outcome of a user's function never comes this way: it travels as the pool's
codec says.

On the way the numbers of jobs become those of the client, and the numbers of slots those that the
agent's slots have there.

``head size (4), head, the bytes that the head names``

A text, a number, a truth value and ``None`` are themselves in the head.  All else is a list
that begins with the name of its type.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from io import BytesIO
from typing import Any

from asyncpool import enums, errors, events, profile, stats
from asyncpool._core import log_messages as say
from asyncpool._core.slots import JobText
from asyncpool._engine.job import ChunkJob, Failed, load_outcome
from asyncpool._engine.life_log import LOGGER
from asyncpool._remote.messages import load_parts, pack_parts
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.page import read_log
from asyncpool.errors import AsyncPoolError, ProtocolError
from asyncpool.events import Crash

# How it begins: with a log, or with a result that came too late.  Nothing at all stands for
# items each of which may have begun.
_LOG, _RESULT = b"L", b"R"


def pack_log(log: bytes) -> bytes:
    """Return what tells of the log of a chunk; an empty one cannot be read."""
    return _LOG + log


def pack_result(result: Any) -> bytes:
    """Return what tells of a packed result that came too late."""
    return _RESULT + pack_parts(result)


def find(job: ChunkJob[Any], told: bytes) -> None:
    """Find which items of *job* are done.

    A worker that died may have written anything, and the agent has only passed it on.
    """
    try:
        _find(job, told)
    except Exception as error:  # noqa: BLE001 - see above
        say.NOTES_UNREADABLE.log(LOGGER, {}, error=error)
        job.assume_lost()


def _find(job: ChunkJob[Any], told: bytes) -> None:
    kind, data = told[:1], told[1:]
    if kind == _LOG:
        job.found = read_log(data)
        return
    if kind == _RESULT:
        frame = Frame(FrameKind.VALUE, job.id, job.attempt, 0, load_parts(data))
        result = load_outcome(job.function.serializer, frame)
        if not isinstance(result, Failed):
            job.find_in_result(result)
            return
    job.assume_lost()


_SIZE = struct.Struct(">I")
_SCALARS = frozenset((str, int, float, bool, type(None)))


def _is_own(found: object) -> bool:
    return isinstance(found, type) and (
        is_dataclass(found) or issubclass(found, Enum | AsyncPoolError)
    )


_CLASSES: dict[str, Any] = {
    name: found
    for module in (enums, errors, events, profile, stats)
    for name in module.__all__
    if _is_own(found := getattr(module, name))
}
_FIELDS = {
    name: tuple(field.name for field in fields(cls))
    for name, cls in _CLASSES.items()
    if is_dataclass(cls)
}


def text_for_client(text: str, numbers: Mapping[int, int]) -> str:
    """Return *text* with the client's number of its job, by that of the agent."""
    if not isinstance(text, JobText):
        return text
    job = numbers.get(text.job)
    return text.unknown if job is None else JobText(text.known, job, text.unknown)


def _crash_for(crash: Crash, numbers: Mapping[int, int]) -> Crash:
    """Return a crash that names the client's jobs, and only counts others."""
    job = None if crash.job_id is None else numbers.get(crash.job_id)
    beside = tuple(numbers[job] for job in crash.concurrent_jobs if job in numbers)
    return replace(
        crash,
        job_id=job,
        attempt=0 if job is None else crash.attempt,
        concurrent_jobs=beside,
        other_jobs=crash.other_jobs + len(crash.concurrent_jobs) - len(beside),
        detail=text_for_client(crash.detail, numbers),
    )


def pack_own(value: object, numbers: Mapping[int, int] | None = None) -> bytes:
    """Return an error, figures, an event, or a dict or tuple of these as bytes.

    Args:
        value: The object.
        numbers: The client's numbers of its jobs, by those of the agent: a job that has none
            becomes 0, or is only counted.  ``None`` changes no number.
    """
    pieces: list[bytes] = []
    head = json.dumps(_plain(value, pieces, numbers), separators=(",", ":")).encode()
    return b"".join((_SIZE.pack(len(head)), head, *pieces))


def _plain(
    value: Any, pieces: list[bytes], numbers: Mapping[int, int] | None, field: str = ""
) -> Any:
    def each(values: Any, field: str = "") -> list[Any]:
        return [_plain(one, pieces, numbers, field) for one in values]

    cls = type(value)
    if numbers is not None:
        if cls is int and field in {"job_id", "job_ids"}:
            return numbers.get(value, 0)
        if isinstance(value, JobText):
            value = text_for_client(value, numbers)
        elif isinstance(value, Crash):
            return _plain(_crash_for(value, numbers), pieces, None)
    if cls in _SCALARS or type(value) is str:
        return value
    if isinstance(value, JobText):  # the client puts its own number in
        return ["JobText", value.known, value.job, value.unknown]
    name = cls.__name__
    # And not a class of the user's that has the same name.
    own = _CLASSES.get(name) is cls
    if own and isinstance(value, Enum):
        return [name, value.value]
    if isinstance(value, bytes):
        pieces.append(value)
        return ["bytes", len(value)]
    if isinstance(value, Mapping):
        return ["dict", *map(each, value.items())]
    if isinstance(value, tuple | list):
        return ["list" if isinstance(value, list) else "tuple", *each(value, field)]
    if own and name in _FIELDS:
        told = [
            _plain(getattr(value, field), pieces, numbers, field)
            for field in _FIELDS[name]
        ]
        return [name, *told]
    if own and isinstance(value, AsyncPoolError):
        return [name, each(value.args), _plain(value.__dict__, pieces, numbers)]
    # Somebody has put an object of his own into an error: the error is to arrive all the same.
    return kind_of(value)


def kind_of(value: object) -> str:
    """Return what errors call something that should not have come."""
    return f"an object of type {type(value).__name__}"


def load_own(data: bytes, first_slot: int = 0) -> Any:
    """Read what :func:`pack_own` has returned; *first_slot* is added to the numbers of slots.

    Raises:
        ProtocolError: If it is something else.
    """
    pieces = BytesIO(data)
    try:
        (size,) = _SIZE.unpack(pieces.read(_SIZE.size))
        return _load(json.loads(pieces.read(size)), pieces, first_slot)
    except ProtocolError:
        raise
    except Exception as error:
        raise ProtocolError(f"what an agent sent cannot be read: {error}") from error


def _load(found: Any, pieces: BytesIO, first: int) -> Any:
    if type(found) in _SCALARS:
        return found
    if not isinstance(found, list):
        raise ProtocolError("an agent sent a JSON object")
    name, *values = found
    if name == "JobText":
        if [*map(type, values)] != [str, int, str]:
            raise ProtocolError("an agent sent a text about a job that is none")
        return JobText(*values)
    if name == "bytes":
        return pieces.read(*values)
    if name == "dict":
        return {
            _load(key, pieces, first): _load(value, pieces, first)
            for key, value in values
        }
    if name in {"tuple", "list"}:
        each = [_load(value, pieces, first) for value in values]
        return each if name == "list" else tuple(each)
    if name not in _CLASSES:
        raise ProtocolError(f"an agent sent {name}, which is none of asyncpool's")
    cls = _CLASSES[name]
    if name in _FIELDS:
        told = [_load(value, pieces, first) for value in values]
        return cls(**_moved(dict(zip(_FIELDS[name], told, strict=True)), first))
    if issubclass(cls, Enum):
        return cls(*values)
    args, details = values
    error = cls.__new__(cls)
    error.args = tuple(_load(one, pieces, first) for one in args)
    error.__dict__.update(_moved(_load(details, pieces, first), first))
    return error


def _moved(told: dict[str, Any], first_slot: int) -> dict[str, Any]:
    if first_slot and isinstance(slot := told.get("slot"), int):
        told["slot"] = first_slot + slot
    return told
