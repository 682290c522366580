"""What the pool sends ahead of jobs, and what holds for all jobs until the next such frame.

A ``CONTEXT`` frame carries the time limits that a job can ask for, the last heartbeat
details of its attempt before, the context variables of its submitter, and its trace
context.  It is a state of the channel, not a part of the job.  Most jobs have equal
contexts, and then cost only one comparison.  An empty payload is the plain context,
with which a worker begins::

    +-------------+--------------+----------------------+---------+-----------+-------+
    | timeout (9) | deadline (9) | size of each but the | details | variables | trace |
    |             |              | last (4 each)        |         |           |       |
    +-------------+--------------+----------------------+---------+-----------+-------+

Each time is a byte that tells whether there is one, and a double.
"""

from __future__ import annotations

import struct
from operator import attrgetter

from asyncpool._core.base.records import Record
from asyncpool._core.wire.heartbeat_records import MAX_DETAILS
from asyncpool.errors import ProtocolError

# The most bytes of the variables.
MAX_VARIABLES = 1 << 16

# The most bytes of the trace context.  W3C allows 8192 bytes of baggage, and some 600 besides.
MAX_TRACE = 1 << 14

# The most bytes of each part, in their order.  The head has the sizes of all parts but
# the last.
PARTS = {"details": MAX_DETAILS, "variables": MAX_VARIABLES, "trace": MAX_TRACE}
*_SIZED, _LAST = PARTS
_parts = attrgetter(*PARTS)

_HEAD = struct.Struct("!?d?d" + "I" * len(_SIZED))

MAX_CONTEXT = _HEAD.size + sum(PARTS.values())


def end_of(began: float, seconds: float | None, deadline: float | None) -> float | None:
    """Return when *seconds* from *began* are over, or the *deadline* if that is earlier."""
    if seconds is None:
        return deadline
    end = began + seconds
    return end if deadline is None else min(end, deadline)


class JobContext(Record):
    """What a job can ask for about itself.

    Attributes:
        timeout: Seconds that an attempt may take.
        deadline: When the job must be done, on the clock of the pool's loop.  That
            is ``time.monotonic()``, which all processes of a machine share.
        details: The pickled details of the last heartbeat of the attempt before, or
            nothing.
        variables: The packed context variables, or nothing.
        trace: The pickled headers of the span that stands for the attempt, or nothing.
    """

    timeout: float | None = None
    deadline: float | None = None
    details: bytes = b""
    variables: bytes = b""
    trace: bytes = b""

    def pack(self) -> bytes:
        """Return the payload of a ``CONTEXT`` frame.

        Raises:
            ValueError: If a part is too large.
        """
        if self == PLAIN:
            return b""
        parts: tuple[bytes, ...] = _parts(self)
        if any(parts):
            _check_sizes(parts)
        head = _HEAD.pack(
            self.timeout is not None,
            self.timeout or 0.0,
            self.deadline is not None,
            self.deadline or 0.0,
            *map(len, parts[:-1]),
        )
        return head + b"".join(parts)

    @classmethod
    def unpack(cls, payload: bytes) -> JobContext:
        """Read the payload of a ``CONTEXT`` frame.

        Raises:
            ProtocolError: If it is no such payload.
        """
        if not payload:
            return PLAIN
        try:
            bounded, timeout, ends, deadline, *sizes = _HEAD.unpack_from(payload)
        except struct.error as error:
            raise ProtocolError("a context cannot be read") from error
        parts: dict[str, bytes] = {}
        begin = _HEAD.size
        for name, size in zip(_SIZED, sizes, strict=True):
            parts[name] = payload[begin : begin + size]
            begin += size
        if begin > len(payload):
            raise ProtocolError("a context is cut short")
        parts[_LAST] = payload[begin:]
        return cls(
            timeout=timeout if bounded else None,
            deadline=deadline if ends else None,
            **parts,
        )

    def end(self, began: float) -> float | None:
        """Return until when an attempt may run that began at *began*."""
        return end_of(began, self.timeout, self.deadline)


PLAIN = JobContext()


def _check_sizes(parts: tuple[bytes, ...]) -> None:
    for (name, most), part in zip(PARTS.items(), parts, strict=True):
        if len(part) > most:
            raise ValueError(f"{name} have {len(part)} bytes, and {most} is the most")


def with_details(context: bytes, details: bytes) -> bytes:
    """Return a packed context with other heartbeat details, which are pickled.

    Raises:
        ValueError: If they are too large.
    """
    return JobContext.unpack(context)._replace(details=details).pack()


def with_variables(context: bytes, variables: bytes) -> bytes:
    """Return a packed context with other context variables, which are packed too.

    Raises:
        ValueError: If they are too large.
    """
    return JobContext.unpack(context)._replace(variables=variables).pack()


def with_trace(context: bytes, trace: bytes) -> bytes:
    """Return a packed context with another trace context, which is packed too.

    Raises:
        ValueError: If it is too large.
    """
    return JobContext.unpack(context)._replace(trace=trace).pack()
