"""What clients and agents say to each other: greetings, and then the messages of batches.

A message is a header and a payload.  What a call or an outcome is made of is in the payload,
which the agent does not read.  The trace
context of jobs travels as headers, in JSON, since agents unpickle nothing.

A carrier moves batches, each once and in their order::

    stamp (8), number of messages (4), then for each message: its length (4), the message

The agent says in *stamp* when it made the batch, on its own clock, in microseconds.
"""

from __future__ import annotations

import functools
import json
import math
import pickle
import struct
import sys
from collections.abc import Iterable, Set as AbstractSet
from enum import IntEnum
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from asyncpool._core.functions import SessionTraits
from asyncpool._core.options import CHECKS, JobOptions, Keeper, changed
from asyncpool._wire.buffers import LARGE, OutOfBandPickle, ReceivedPickle
from asyncpool._wire.messages import MAX_TRACE
from asyncpool.errors import ProtocolError

# The most bytes of a greeting.
MAX_GREETING = 1 << 16

# The most bytes that a call or a result may have, and with it a batch.
MAX_PAYLOAD = 1 << 30
MAX_PIECE = MAX_PAYLOAD + (1 << 20)


def greeting(version: str, codec: str) -> dict[str, Any]:
    """Return what both ends must have in common."""
    python = f"{sys.version_info[0]}.{sys.version_info[1]}"
    return {"asyncpool": version, "python": python, "codec": codec}


def pack_greeting(what: dict[str, Any]) -> bytes:
    """Return the first bytes that an end sends."""
    return json.dumps(what).encode()


def unpack_greeting(data: bytes) -> dict[str, Any]:
    """Read them; an empty greeting stands for bytes that are none."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def difference(here: dict[str, Any], there: dict[str, Any]) -> str:
    """Return in what the other end differs so that the two cannot work together, or nothing."""
    names = {"asyncpool": "asyncpool", "python": "Python", "codec": "the codec"}
    for name, what in names.items():
        if here[name] != there.get(name):
            return (
                f"the agent has {what} {here[name]}, and the client {there.get(name)}: "
                "both need the same"
            )
    return ""


# What an agent tells about itself, and the least that a number is.
_TOLD: dict[str, tuple[type, Any]] = {
    "node": (str, ""),
    "credits": (int, 1),
    "lanes": (int, 0),
    "stamp": (int, 0),
    "fresh": (bool, False),
    "counts_jobs": (bool, False),
}


def flaw(about: dict[str, Any]) -> str:
    """Return what is wrong with the greeting of an agent, or nothing."""
    if "refused" in about:
        return str(about["refused"])[:1000]
    for name, (kind, least) in _TOLD.items():
        value: Any = about.get(name)
        if type(value) is not kind or value < least or value == math.inf:
            return "it does not answer as an agent does"
    return "" if about["stamp"] < 1 << 63 else "it does not answer as an agent does"


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

# How a call or a value begins that has no large buffers, see pack_parts(); whose large buffers are
# in memory that its sender has lent; and all of a call that the engine has brought by itself.
PLAIN = bytes(4)
LENT = b"\xff\xff\xff\xff"
STORED = b"\xff\xff\xff\xfe"

_COUNT = struct.Struct(">I")
_PART = struct.Struct(">Q")


class Kind(IntEnum):
    """What a message says.

    From the client: ``FUNCTION`` and ``OPTIONS`` come once, ahead of the jobs that name them.
    ``DETAILS``, the last heartbeat of an earlier attempt, comes ahead of its ``JOB``.
    ``CANCEL``; ``CREDIT`` for a stream, with the number of items in all; ``FENCE``, which says
    until when a job with a lease may run.  ``ASK`` is a question about the pool; ``FORGET`` takes
    it back, and ``LEAVE`` gives a worker back that an answer has lent.

    ``FOLLOWED`` is a ``JOB`` whose end says where and when it ran.  ``TRACE`` is the trace context of
    all jobs that come after it, up to the next one.

    From the agent: ``WAITS``, with jobs that wait there for their turn, and ``BEGAN``, with jobs that
    its pool is about to get.  A job of which neither came may have begun.  ``ITEM``, ``HEARTBEAT``.  Then for each job one of
    ``VALUE``, ``ERROR``, which the function has raised, ``FAILED``, with an error of the pool, and
    ``DROPPED``, which answers ``CANCEL``.  ``FREE``: no worker has that job any more, which has a
    lease.  ``ANSWER``, ``EVENT``, and ``CLOSING``.
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
    WAITS = 20
    EVENT = 21
    CLOSING = 22
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
            that is followed, how many seconds ago its attempt ended.
        wait: Seconds until the job must have begun; infinity for none.  Of such an end, seconds
            that the attempt ran.
        place: Of such an end, the slot of the worker, from 1; else 0.
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


# The most bytes of messages in a batch, unless a single message has more: whoever gets it reads it
# in one turn of its loop.
MAX_BATCH = 1 << 18

_BATCH = struct.Struct(">qI")


def pack_batches(messages: Iterable[bytes], stamp: int = 0) -> list[bytes]:
    """Return batches with these messages, in their order."""
    batches, parts, size = list[bytes](), list[bytes](), 0
    for message in messages:
        if parts and size + len(message) > MAX_BATCH:
            batches.append(_BATCH.pack(stamp, len(parts) // 2) + b"".join(parts))
            parts, size = [], 0
        parts += (_COUNT.pack(len(message)), message)
        size += len(message) + _COUNT.size
    batches.append(_BATCH.pack(stamp, len(parts) // 2) + b"".join(parts))
    return batches


def unpack_batch(data: bytes) -> tuple[int, list[Message]]:
    """Return the stamp of a batch, and its messages.

    Raises:
        ProtocolError: If it is none.
    """
    try:
        stamp, count = _BATCH.unpack_from(data)
        if count > 1 and len(data) > 2 * MAX_BATCH:
            raise ProtocolError(f"a batch of {count} messages has {len(data)} bytes")
        at, messages = _BATCH.size, list[Message]()
        for _ in range(count):
            begin = at + _COUNT.size
            at = begin + _COUNT.unpack_from(data, at)[0]
            messages.append(Message.unpack(data[begin:at]))
    except struct.error as error:
        raise ProtocolError(f"a batch is cut off: {error}") from None
    if at != len(data):
        raise ProtocolError(f"a batch has {len(data)} bytes, and says {at}")
    return stamp, messages


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


# Of a call or a value whose large parts are lent: the beginning, the segment, number of areas.
_LENT_HEAD = struct.Struct(">4sII")

# As in _engine/worker.py: so many areas may be small.
_SMALL_ONES = 16


def pack_lent(segment: int, sizes: list[int], payload: bytes) -> bytes:
    """Return what names the parts of a call or a value.

    Args:
        segment: The number of the segment that they are in.
        sizes: The size of each, in the order of :func:`lay_out`.
        payload: What travels besides: the stream, unless that is long.
    """
    head = _LENT_HEAD.pack(LENT, segment, len(sizes))
    return head + struct.pack(f">{len(sizes)}Q", *sizes) + payload


def unpack_lent(data: bytes) -> tuple[int, list[int], bytes]:
    """Read what :func:`pack_lent` has returned.

    Raises:
        ProtocolError: If it is something else, or has too many bytes or parts.
    """
    try:
        _, segment, count = _LENT_HEAD.unpack_from(data)
        if count > MAX_PAYLOAD // LARGE + _SMALL_ONES:
            raise ProtocolError(f"a call or a value has {count} parts")
        sizes = struct.unpack_from(f">{count}Q", data, _LENT_HEAD.size)
    except struct.error as error:
        raise ProtocolError(f"what is lent cannot be read: {error}") from None
    size = sum(sizes)
    if size > MAX_PAYLOAD or count > size // LARGE + _SMALL_ONES:
        raise ProtocolError(f"{count} parts of {size} bytes are too many")
    return segment, [*sizes], data[_LENT_HEAD.size + 8 * count :]


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
        found: Any = json.loads(data[_COUNT.size : end])
    except (struct.error, ValueError, RecursionError) as error:
        raise ProtocolError(f"a question cannot be read: {error}") from None
    match found:
        case {"what": str()}:
            return found, data[end:]
        case _:
            raise ProtocolError("a question does not say what it asks")


# The options of a job, as a client writes them for an agent, and as the agent reads them.
#
# The client decides by most of them itself, about its queue and about attempts.  What the agent's
# pool has to know, it writes here, in one form for both that an agent's pool runs for a client:
#
# - *Jobs.*  Many have the same options, so those are sent once, and name no time: what is left until
#   the deadline, and for how long the job may wait, comes with each job.
# - *Calls that the client does not watch*: those of a broadcast.  Their options go with the question
#   that asks for them, with all limits.
#
# An agent does not believe its clients, so the reading functions check everything.

# Those that the client enforces for jobs: it sends what is left of them.
_WAITS = frozenset({"queue_timeout", "deadline"})
# Those that it decides by alone, or tells in another way.  Agents are told all others.
_OWN = {"max_attempts", "retry_on", "priority", "key", "lease", "prefetch", "codec"}
_LIMITS = tuple(name for name in CHECKS if name not in _OWN)

# A call that the client does not watch has nothing but limits.
_NAMES = frozenset({"limits", "via", "key", "prefetch", "session", "leased"})

# Hashes are smaller.
_MOST_KEY = 1 << 64


def write_options(options: JobOptions, now: float | None = None) -> dict[str, Any]:
    """Return what an agent has to know of *options*; the client decides about the rest.

    Args:
        options: The options.
        now: The time, for a call that the client does not watch; ``None`` for jobs.
    """
    limits = {name: getattr(options, name) for name in _LIMITS}
    if now is None:
        for name in _WAITS:
            del limits[name]
    elif limits["deadline"] is not None:
        limits["deadline"] -= now  # the agent's clock may be another one
    told: dict[str, Any] = {"limits": limits}
    if options.via != "submit":
        told["via"] = options.via
    if options.key is not None:
        told["key"] = options.key
    if options.via == "stream":
        told["prefetch"] = options.prefetch
    if options.session is not None:
        told["session"] = options.session.session
    if options.lease is not None:
        told["leased"] = True
    return told


def read_options(told: Any, keeper: Keeper, codec: Any = None) -> JobOptions:
    """Return the options of jobs, of which :func:`write_options` has told.

    Args:
        told: What it has returned.
        keeper: The agent's own, for jobs with a lease.
        codec: What serializes them there.

    Raises:
        ProtocolError: If it has returned no such thing.
        ValueError: If a value is out of range; changed() checks those.
        TypeError: If a value has the wrong type.
    """
    about = _checked(told, _NAMES)
    session = _whole("session", about.get("session"))
    options = JobOptions(
        key=_whole("key", about.get("key")),
        via=about.get("via", "submit"),
        session=None if session is None else SessionTraits(session),
        lease=(keeper, 0) if about.get("leased") else None,
        codec=codec,
    )
    prefetch = about.get("prefetch", 1)
    return changed(options, {"prefetch": prefetch, **_limits(about, None)})


def read_call(told: Any, now: float) -> JobOptions:
    """Return the options of a call that its client does not watch.

    Args:
        told: What :func:`write_options` has returned.
        now: The agent's time.

    Raises:
        ProtocolError: If :func:`write_options` has returned no such thing for such a call.
        ValueError: If a value is out of range.
        TypeError: If a value has the wrong type.
    """
    return changed(JobOptions(), _limits(_checked(told, {"limits"}), now))


def _checked(told: Any, names: AbstractSet[str]) -> dict[str, Any]:
    about: dict[str, Any] = told if isinstance(told, dict) else {}
    limits = about.get("limits")
    if not isinstance(limits, dict):
        raise ProtocolError("a client sent options without limits")
    wrong = sorted((about.keys() - names) | (limits.keys() - _LIMITS))
    if wrong:
        raise ProtocolError(f"a client sent options with {wrong[0]!r:.40}")
    return about


def _limits(told: dict[str, Any], now: float | None) -> dict[str, Any]:
    limits = {name: _number(value) for name, value in told["limits"].items()}
    if now is None:
        if not _WAITS.isdisjoint(limits):
            raise ProtocolError("a client sent the time of one job for many")
    elif isinstance(limits.get("deadline"), float):
        limits["deadline"] += now
    return limits


def _number(value: Any) -> Any:
    """Return *value*, as a float if it is an int: JSON has ints that are too large for a clock."""
    try:
        return float(value) if type(value) is int else value
    except OverflowError:
        raise ProtocolError("a client sent a limit that is no time") from None


def _whole(name: str, value: Any) -> int | None:
    if value is not None and type(value) is not int:
        raise ProtocolError(f"the client sent a {name} of type {type(value).__name__}")
    if value is not None and abs(value) >= _MOST_KEY:
        raise ProtocolError(f"the client sent a {name} that is too large")
    return value
