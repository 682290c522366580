"""Rules that both ends of a cluster's link check: the pool, and a worker that serves.

They send each other messages.  Each message waits in the receiving process until the
user's code takes it.  So the sender counts: at most :data:`MOST_MESSAGES` of its
messages may be untaken, and the next one waits.  The receiver says now and then how
many its user has taken in all.  Neither end trusts the other's count.

Sockets and files need no such count, since the receiving process answers each of them.
"""

from __future__ import annotations

from enum import IntEnum

from asyncpool.errors import ProtocolError


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
