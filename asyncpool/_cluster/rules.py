"""What both ends of a cluster's link know: counts of messages, and which drain timeout holds.

The pool and a worker that serves send each other messages.  Each message waits in the receiving
process until the user's code takes it.  So the sender counts: at most :data:`MOST_MESSAGES` of its
messages may be untaken, and the next one waits.  The receiver says now and then how many its user
has taken in all.  Neither end trusts the other's count.

Sockets and files need no such count, since the receiving process answers each of them.
"""

from __future__ import annotations

import errno
from enum import IntEnum

from asyncpool._wire.records import Record
from asyncpool.errors import ProtocolError

# Errors which say that this process, or this machine, has no descriptor or memory left.  They end
# when some process closes a descriptor.
EXHAUSTED = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class DrainLimit(Record):
    """The end of a drain.

    Attributes:
        over_at: When the time is over.
        name: The option of the cluster that sets it.
        seconds: The value of that option.
    """

    over_at: float
    name: str
    seconds: float


def drain_limit(
    began: float,
    end_began: float | None,
    *,
    others_serve: bool,
    at_end: float,
    replaced: float,
) -> DrainLimit:
    """Return the limit for the drain of a worker, if there is one so far.

    Args:
        began: When the worker began to drain.
        end_began: When the whole cluster began to end, if it did.
        others_serve: Whether other workers went on serving when the drain began.
        at_end: Seconds that workers have if the cluster ends.
        replaced: Seconds that a worker has if others go on serving.
    """
    if not others_serve:
        return DrainLimit(began + at_end, "drain_timeout", at_end)
    name = "reload_drain_timeout" if replaced != at_end else "drain_timeout"
    limit = DrainLimit(began + replaced, name, replaced)
    if end_began is not None and end_began + at_end < limit.over_at:
        return DrainLimit(end_began + at_end, "drain_timeout", at_end)
    return limit


class HandleTag(IntEnum):
    """For whom the descriptor of a ``HANDLE`` frame is."""

    CONNECTION = 0
    USER = 1


# The most messages, in each direction, that were sent and not taken.
MOST_MESSAGES = 64


class MessageCredit:
    """The counts of one end.

    Args:
        peer: The name of the other end in errors.
        tell_every: After how many taken messages this end tells the other end.
    """

    def __init__(self, peer: str, tell_every: int = 1) -> None:
        self._peer = peer
        self._tell_every = tell_every
        self._sent = self._taken_there = 0
        self._received = self._taken_here = self._told = 0

    @property
    def has_room(self) -> bool:
        """Whether the other end has room for one more message."""
        return self._sent - self._taken_there < MOST_MESSAGES

    def send(self) -> None:
        """Count a message that is sent."""
        self._sent += 1

    def make_room(self, taken: int) -> None:
        """Record how many messages the other end's user has taken in all.

        Raises:
            ProtocolError: If fewer were sent, or if more were taken before.
        """
        if not self._taken_there <= taken <= self._sent:
            raise ProtocolError(
                f"{self._peer} took {taken} messages, after {self._taken_there} of "
                f"{self._sent}"
            )
        self._taken_there = taken

    def receive(self) -> None:
        """Count a message that has arrived.

        Raises:
            ProtocolError: If the other end has not waited for room.
        """
        self._received += 1
        if self._received - self._told > MOST_MESSAGES:
            raise ProtocolError(
                f"{self._peer} sent a message beyond the {MOST_MESSAGES} for which there "
                "is room"
            )

    def take(self) -> int | None:
        """Count a message that the user has taken.

        Returns:
            How many were taken in all, if it is time to tell the other end; else ``None``.
        """
        self._taken_here += 1
        if self._taken_here - self._told < self._tell_every:
            return None
        self._told = self._taken_here
        return self._told
