"""What goes ahead of jobs, and holds for all that follow until the next of its kind.

A ``CONTEXT`` frame carries the limits of time that a job can ask about, the last
details of its attempt before, and the context variables of its submitter.  It is a state
of the channel, not a part of the job: jobs with equal contexts, as most have, pay for it
with one comparison.  An empty payload is the plain context, with which a worker begins::

    +----------------+-----------------+-----------------+---------+-----------+
    | timeout (9)    | deadline (9)    | size of ... (4) | details | variables |
    +----------------+-----------------+-----------------+---------+-----------+

Each time is a byte that tells whether there is one, and a double.
"""

from __future__ import annotations

import struct

from asyncpool._core.base.records import Record
from asyncpool._core.wire.heartbeat_records import MAX_DETAILS
from asyncpool.errors import ProtocolError

# The most bytes of the variables, and of the whole.
MAX_VARIABLES = 1 << 16

_HEAD = struct.Struct("!?d?dI")

MAX_CONTEXT = _HEAD.size + MAX_DETAILS + MAX_VARIABLES


def end_of(began: float, seconds: float | None, deadline: float | None) -> float | None:
    """Return when that many seconds are over, or the deadline has come."""
    if seconds is None:
        return deadline
    end = began + seconds
    return end if deadline is None else min(end, deadline)


class JobContext(Record):
    """What a job finds around it.

    Attributes:
        timeout: Seconds that an attempt may take.
        deadline: When the job must be done, on the clock of the pool's loop; that is
            ``time.monotonic()``, which all processes of a machine share.
        details: The pickled last details, or nothing.
        variables: The packed context variables, or nothing.
    """

    timeout: float | None = None
    deadline: float | None = None
    details: bytes = b""
    variables: bytes = b""

    def pack(self) -> bytes:
        """Return the payload of a ``CONTEXT`` frame.

        Raises:
            ValueError: If a part is too large.
        """
        if self == PLAIN:
            return b""
        for name, limit in (("details", MAX_DETAILS), ("variables", MAX_VARIABLES)):
            size = len(getattr(self, name))
            if size > limit:
                raise ValueError(f"{name} have {size} bytes, and {limit} is the most")
        head = _HEAD.pack(
            self.timeout is not None,
            self.timeout or 0.0,
            self.deadline is not None,
            self.deadline or 0.0,
            len(self.details),
        )
        return head + self.details + self.variables

    @classmethod
    def unpack(cls, payload: bytes) -> JobContext:
        """Read the payload of a ``CONTEXT`` frame.

        Raises:
            ProtocolError: If it is none.
        """
        if not payload:
            return PLAIN
        try:
            bounded, timeout, ends, deadline, size = _HEAD.unpack_from(payload)
        except struct.error as error:
            raise ProtocolError("a context cannot be read") from error
        middle = _HEAD.size + size
        if middle > len(payload):
            raise ProtocolError("a context is cut short")
        return cls(
            timeout=timeout if bounded else None,
            deadline=deadline if ends else None,
            details=payload[_HEAD.size : middle],
            variables=payload[middle:],
        )

    def end(self, began: float) -> float | None:
        """Return until when an attempt that began then may run."""
        return end_of(began, self.timeout, self.deadline)


PLAIN = JobContext()


def with_details(context: bytes, details: bytes) -> bytes:
    """Return a packed context with other last details, which are pickled.

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
