"""What clients and agents say to each other: the messages of a batch.

A message is a header and a payload.  What a call or an outcome is made of is in the payload,
which the agent does not read.  The trace
context of jobs travels as headers, in JSON, since agents unpickle nothing.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
import struct
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from asyncpool._wire.buffers import OutOfBandPickle, ReceivedPickle
from asyncpool._wire.messages import MAX_TRACE
from asyncpool.errors import ProtocolError


def pack_headers(trace: bytes) -> bytes:
    """Return what the agent gets for the trace of a context, which is of this process's making."""
    if not trace:
        return b""
    return json.dumps(pickle.loads(trace)).encode()  # noqa: S301 - as just said


def unpack_headers(data: bytes) -> bytes:
    """Return the trace of a context that :func:`pack_headers` was given.

    Raises:
        ProtocolError: If it has no headers, or too many.
    """
    if not data:
        return b""
    try:
        headers: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"a trace context cannot be read: {error}") from error
    if not isinstance(headers, dict) or not all(
        type(value) is str for value in headers.values()
    ):
        raise ProtocolError("a trace context has other things than headers")
    trace = pickle.dumps(headers, 5)
    if len(trace) > MAX_TRACE:
        raise ProtocolError(f"a trace context has {len(trace)} bytes")
    return trace


# kind, job, function, options, attempts that have begun, priority, seconds to the deadline,
# seconds that it may wait, place
_HEAD = struct.Struct(">BQIIIqddI")

_HEAD_SIZE = _HEAD.size

# Takes the fields of a message except for the payload, in their order.
pack_head = _HEAD.pack

# How a call or a value begins that has no large buffers; see pack_parts().
PLAIN = bytes(4)

_COUNT = struct.Struct(">I")
_PART = struct.Struct(">Q")


class Kind(IntEnum):
    """What a message says.

    From the client: ``FUNCTION`` and ``OPTIONS`` come once, ahead of the jobs that name them.
    ``DETAILS``, the last heartbeat of an earlier attempt, comes ahead of its ``JOB``.
    ``CANCEL``; ``CREDIT`` for a stream, with the number of items in all; ``FENCE``, which says
    until when a job with a lease may run.  ``ASK`` is a question about the pool; ``FORGET`` takes
    it back, and ``LEAVE`` gives a worker back that an answer has lent.

    ``PAGE``: the client looks at the memory in which the agent notes which jobs begin.
    ``FOLLOWED`` is a ``JOB`` whose end says where and when it ran.  ``TRACE`` is the trace context of
    all jobs that come after it, up to the next one.

    From the agent: ``BEGAN``, with many jobs.  ``ITEM``, ``HEARTBEAT``.  Then for each job one of
    ``VALUE``, ``ERROR``, which the function has raised, ``FAILED``, with an error of the pool, and
    ``DROPPED``, which answers ``CANCEL``.  ``FREE``: no worker has that job any more, which has a
    lease.  ``ANSWER``, ``WORKER``, which tells of the worker of a session, ``EVENT``, and ``CLOSING``.
    ``LANES``, with the number of jobs that the agent can run at once from now on.  ``FOUND`` comes
    ahead of the ``FAILED`` of a chunk of a map, and tells which of its items are done.
    """

    FUNCTION = 1
    OPTIONS = 2
    JOB = 3
    CANCEL = 4
    BEGAN = 5
    VALUE = 6
    ERROR = 7
    FAILED = 8
    DROPPED = 9
    ASK = 10
    ANSWER = 11
    DETAILS = 12
    CREDIT = 13
    FENCE = 14
    FORGET = 15
    LEAVE = 16
    ITEM = 17
    HEARTBEAT = 18
    FREE = 19
    WORKER = 20
    EVENT = 21
    CLOSING = 22
    PAGE = 23
    FOLLOWED = 24
    TRACE = 25
    LANES = 26
    FOUND = 27


# A look into a dict takes half as long as the call of an enum.
_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}


class Message(NamedTuple):
    """A message.

    Attributes:
        kind: What it says.
        job: The job, or the number of a question or session.
        function: The function; 0 if it is part of the call.
        options: The options, by number.
        begun: How many attempts have begun before.
        priority: How urgent the job is; of a ``CREDIT`` the number of items, of ``LANES`` that of
            the lanes, and of a ``FENCE`` the agent's time, in microseconds, after which
            *deadline* counts.
        deadline: Seconds until the job must be done; infinity for none.  Of the end of a job
            that is followed, the agent's time when its attempt began.
        wait: Seconds until the job must have begun; infinity for none.  Of an end, seconds that
            the attempt ran.
        place: Where the agent notes that it begins, from 1; 0 for nowhere.  Of an end, the slot of
            the worker, from 1; 0 if that is not told.
        payload: What it says besides; see :func:`pack_parts` for calls and values.  Whoever has
            read a message may put what it names in its place.
    """

    kind: Kind
    job: int = 0
    function: int = 0
    options: int = 0
    begun: int = 0
    priority: int = 0
    deadline: float = math.inf
    wait: float = math.inf
    place: int = 0
    payload: Any = b""

    def pack(self) -> bytes:
        """Return it as bytes."""
        packed: bytes = _HEAD.pack(*self[:9]) + self.payload
        return packed

    @classmethod
    def unpack(cls, data: bytes) -> Message:
        """Read what :meth:`pack` has returned.

        Raises:
            ProtocolError: If it is something else.
        """
        try:
            head = _HEAD.unpack_from(data)
            return _message((_KINDS[head[0]], *head[1:], data[_HEAD_SIZE:]))
        except (struct.error, LookupError) as error:
            raise ProtocolError(f"a message cannot be read: {error!r}") from None


# What Message(...) does, in half of the time.
_message = functools.partial(tuple.__new__, Message)  # pyright: ignore[reportUnknownMemberType] - of a bare tuple

# Behind the kind and the job of a message: its other numbers, if they say nothing.
_SHORT_HEAD = struct.Struct(">BQ")
_NOTHING = Message(Kind.VALUE).pack()[_SHORT_HEAD.size :]


def pack_end(kind: Kind, job: int, payload: bytes = b"") -> bytes:
    """Return the message that tells of the end of *job*, in a third of the time of :meth:`Message.pack`."""
    return _SHORT_HEAD.pack(kind, job) + _NOTHING + payload


def pack_followed_end(
    kind: Kind, job: int, payload: bytes, *, slot: int, began: float, run: float
) -> bytes:
    """Return the message that tells of the end of *job*, and of the attempt that was its last.

    Args:
        kind: How it ended.
        job: The job.
        payload: What comes of it.
        slot: The slot of its worker.
        began: When it began, on the agent's clock.
        run: For how many seconds it ran.
    """
    return pack_head(kind, job, 0, 0, 0, 0, began, run, slot + 1) + payload


def pack_parts(packed: bytes | memoryview | OutOfBandPickle | ReceivedPickle) -> bytes:
    """Return a call or a value as one piece, its large buffers included."""
    if isinstance(packed, OutOfBandPickle):
        stream, buffers = b"".join(packed.pieces), packed.buffers
    elif isinstance(packed, ReceivedPickle):
        stream, buffers = bytes(packed.stream), packed.buffers
    else:
        return PLAIN + packed
    sizes = b"".join(_PART.pack(len(part)) for part in (stream, *buffers))
    return b"".join((_COUNT.pack(1 + len(buffers)), sizes, stream, *buffers))


def split_parts(data: bytes) -> tuple[bytes, list[memoryview]]:
    """Return the stream that :func:`pack_parts` was given, and its buffers.

    Raises:
        ProtocolError: If it is something else.
    """
    try:
        (count,) = _COUNT.unpack_from(data)
        if not count:
            return data[_COUNT.size :], []
        at = _COUNT.size
        sizes = [_PART.unpack_from(data, at + i * _PART.size)[0] for i in range(count)]
    except struct.error as error:
        raise ProtocolError(f"a call or a value cannot be read: {error}") from None
    at += count * _PART.size
    if at + sum(sizes) != len(data):
        raise ProtocolError("the parts of a call or a value do not fit together")
    # Writable, as the buffers of a local pool are.
    view = memoryview(bytearray(data))
    ends = accumulate(sizes, initial=at)
    parts = [view[begin:end] for begin, end in pairwise(ends)]
    return bytes(parts[0]), parts[1:]


def load_parts(data: bytes) -> bytes | ReceivedPickle:
    """Return what :func:`pack_parts` was given, as a worker would have sent it.

    Raises:
        ProtocolError: If it is something else.
    """
    stream, buffers = split_parts(data)
    return ReceivedPickle(stream, buffers) if buffers else stream


def pack_numbers(numbers: list[int]) -> bytes:
    """Return the payload of ``BEGAN``."""
    return struct.pack(f">{len(numbers)}Q", *numbers)


def unpack_numbers(payload: bytes) -> tuple[int, ...]:
    """Read what :func:`pack_numbers` has returned.

    Raises:
        ProtocolError: If it is something else.
    """
    try:
        return struct.unpack(f">{len(payload) // _PART.size}Q", payload)
    except struct.error as error:
        raise ProtocolError(f"a list of jobs cannot be read: {error}") from None


def pack_question(what: str, payload: bytes, details: dict[str, Any]) -> bytes:
    """Return the payload of ``ASK``: *what* is asked, its *details*, and bytes beside them."""
    head = json.dumps({"what": what, **details}).encode()
    return _COUNT.pack(len(head)) + head + payload


def unpack_question(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Read what :func:`pack_question` has returned.

    Raises:
        ProtocolError: If it is something else.
    """
    try:
        end = _COUNT.size + _COUNT.unpack_from(data)[0]
        found = json.loads(data[_COUNT.size : end])
    except (struct.error, ValueError, RecursionError) as error:
        raise ProtocolError(f"a question cannot be read: {error}") from None
    match found:
        case {"what": str()}:
            about: dict[str, Any] = found
            return about, data[end:]
        case _:
            raise ProtocolError("a question does not say what it asks")
