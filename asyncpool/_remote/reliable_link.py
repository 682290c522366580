"""Messages between a client and an agent, in order and once, over a carrier that promises neither.

How far the two clocks are apart is known within bounds: the agent says in each batch when it made
it, on its own clock, and when it took the newest message that it acknowledges.  It cannot have made
the batch after it came, nor taken the message before that was sent.  So each batch bounds the
difference of the clocks on both sides, and the narrowest bounds are kept.  This is the intersection
of intervals of Marzullo's algorithm, which NTP uses, for one server.

Both clocks are monotonic ones, so wall clocks that differ by hours make no difference.

A carrier moves *batches*.  It may lose them, double them, delay them and change their order.
Each end numbers its messages from 1, and keeps each of them until the other end has
acknowledged it.  A batch has messages that follow one another::

    session, first, acknowledged, stamp, taken_at, echo   (8 bytes each), number of messages (4)
    then for each message: its length (4), the message

*first* is the number of the first message.  *acknowledged* is how many messages of the
other end this end has taken.  A batch that begins beyond the next message is dropped, and
comes again.

The agent says in *stamp* when it made the batch, on its own clock, and the client returns
the newest stamp in *echo*.  So the agent knows how old the client's last sign of life is at
least, although batches may wait anywhere on their way for any time.  In *taken_at* the agent
says when it took the newest message that it acknowledges: so the client can tell for how long an
acknowledgement has waited for something to go with.
"""

from __future__ import annotations

import math
import struct
from collections import deque
from typing import NamedTuple

from asyncpool.errors import ProtocolError

# Seconds that two clocks may drift apart in a second: bounds widen as they grow old.
DRIFT = 1e-4

# uvloop's clock ticks once a millisecond, and says less than it is in between.
TICK = 1e-3

# So many messages are on their way whose times are kept.
_KEPT = 64


class ClockOffset(NamedTuple):
    """What is known of an agent's clock.

    Attributes:
        ahead: Seconds that it is ahead of the client's.
        error: By how many seconds that may be wrong, either way; infinity if nothing is known.
    """

    ahead: float
    error: float


class ClockBounds:
    """The bounds of the difference of two clocks."""

    def __init__(self) -> None:
        self._least = -math.inf
        self._most = math.inf
        self._at = 0.0  # when the bounds were this wide
        self._sent: deque[tuple[int, float]] = deque()

    def sent(self, last: int, now: float) -> None:
        """Take note that all messages up to number *last* have been sent by *now*."""
        if len(self._sent) < _KEPT:
            self._sent.append((last, now))

    def heard(
        self, stamp: float, taken_at: float, acknowledged: int, now: float
    ) -> None:
        """Take note of a batch that has come *now*.

        Args:
            stamp: The agent's time when it made the batch, in seconds.
            taken_at: The agent's time when it took the newest message that it acknowledges.
            acknowledged: The number of that message.
            now: The client's time.
        """
        least, most = stamp - now - TICK, math.inf
        while self._sent and self._sent[0][0] <= acknowledged:
            _, at = self._sent.popleft()
            most = taken_at - at + TICK
        self._widen(now)
        if least > most:
            return  # no clock shows that: the agent says something wrong
        if least > self._most or most < self._least:
            # A clock has jumped, as when a machine was suspended.
            self._least, self._most = least, most
        else:
            self._least, self._most = max(self._least, least), min(self._most, most)

    def offset(self, now: float) -> ClockOffset:
        """Return what is known *now*."""
        self._widen(now)
        if math.isinf(self._least) or math.isinf(self._most):
            ahead = 0.0 if math.isinf(self._least) else self._least
            return ClockOffset(ahead, math.inf)
        middle = (self._least + self._most) / 2
        return ClockOffset(middle, (self._most - self._least) / 2)

    def _widen(self, now: float) -> None:
        wider = DRIFT * max(0.0, now - self._at)
        self._least -= wider
        self._most += wider
        self._at = now


_HEAD = struct.Struct(">QQQQQQI")
_SIZE = struct.Struct(">I")

# The most bytes of messages in a batch, unless a single message has more.
MAX_BATCH = 1 << 18

# The most that a batch of several messages takes, with what is before each of them.  Whoever gets
# it reads them in one turn of its loop.
_MOST_OF_SEVERAL = MAX_BATCH << 1

# The most bytes that a call or a result may have, and with it a batch.
MAX_PAYLOAD = 1 << 30
MAX_PIECE = MAX_PAYLOAD + (1 << 20)

# How many messages an end takes before it acknowledges them although it has none to send.
ACKNOWLEDGE_EVERY = 64


class Batch(NamedTuple):
    """What travels at once.

    Attributes:
        session: The session that it belongs to, by the number that the agent gave it.
        first: The number of its first message.
        acknowledged: How many messages of the other end its sender has taken.
        stamp: The agent's time, in microseconds; 0 from a client.
        taken_at: The agent's time when it took the newest of the messages that it acknowledges,
            likewise.
        echo: The newest stamp that the client has seen; 0 from an agent.
        messages: The messages.
    """

    session: int
    first: int
    acknowledged: int
    stamp: int
    taken_at: int
    echo: int
    messages: list[bytes]

    def pack(self) -> bytes:
        """Return it as bytes."""
        parts = [_HEAD.pack(*self[:6], len(self.messages))]
        for message in self.messages:
            parts += (_SIZE.pack(len(message)), message)
        return b"".join(parts)

    @classmethod
    def unpack(cls, data: bytes) -> Batch:
        """Read what :meth:`pack` has returned.

        Raises:
            ProtocolError: If it is something else.
        """
        try:
            *head, count = _HEAD.unpack_from(data)
            if count > 1 and len(data) > _MOST_OF_SEVERAL:
                raise ProtocolError(
                    f"a batch of {count} messages has {len(data)} bytes"
                )
            at, messages = _HEAD.size, list[bytes]()
            for _ in range(count):
                begin = at + _SIZE.size
                at = begin + _SIZE.unpack_from(data, at)[0]
                messages.append(data[begin:at])
        except struct.error as error:
            raise ProtocolError(f"a batch is cut off: {error}") from None
        if at != len(data):
            raise ProtocolError(f"a batch has {len(data)} bytes, and says {at}")
        return cls(head[0], head[1], head[2], head[3], head[4], head[5], messages)


class ReliableLink:
    """One end of a session.

    Args:
        session: The number of the session.
        gapless: Whether the carrier loses nothing, so that no message can be missing.

    Attributes:
        session: As above.
        echo: The newest stamp of the agent, if this is the client's end.
    """

    def __init__(self, session: int, *, gapless: bool = False) -> None:
        self.session = session
        self._gapless = gapless
        self.echo = 0
        self._kept: deque[bytes] = deque()  # sent and not acknowledged, or not sent yet
        self._acknowledged = (
            0  # how many of this end's messages the other end has taken
        )
        self._sent = 0  # how many of them have been in a batch
        self._taken = 0  # how many of the other end's messages this end has taken
        self._taken_at = 0  # when it took the last of them
        self._told = 0  # the last of these that a batch has acknowledged
        # Whether the other end sends what it has sent before, or waits for an acknowledgement.
        self._owes = False

    @property
    def acknowledged(self) -> int:
        """How many of this end's messages the other end is known to have taken."""
        return self._acknowledged

    @property
    def last(self) -> int:
        """The number of this end's newest message."""
        return self._acknowledged + len(self._kept)

    @property
    def unacknowledged(self) -> int:
        """How many messages the other end has not acknowledged."""
        return len(self._kept)

    @property
    def unsent(self) -> bool:
        """Whether there are messages that have been in no batch."""
        return self.last > self._sent

    @property
    def owes(self) -> bool:
        """Whether the other end should have an acknowledgement, even in an empty batch."""
        return self._owes or self._taken - self._told >= ACKNOWLEDGE_EVERY

    def put(self, message: bytes) -> int:
        """Have *message* sent with the next batches, and return its number."""
        self._kept.append(message)
        return self.last

    def owe(self) -> None:
        """Have the next batch acknowledge what came, although there may be nothing to send."""
        self._owes = True

    def next_batch(self, stamp: int = 0) -> Batch:
        """Return the messages that were not sent yet, or as many as a batch takes.

        Args:
            stamp: The agent's time; 0 from a client.
        """
        batch = self._from(self._sent, stamp)
        self._sent += len(batch.messages)
        return batch

    def repeat(self, stamp: int = 0) -> Batch:
        """Return the oldest messages that are not acknowledged: they may be lost."""
        batch = self._from(self._acknowledged, stamp)
        self._sent = max(self._sent, self._acknowledged + len(batch.messages))
        return batch

    def receive(self, batch: Batch, now: int = 0) -> list[bytes]:
        """Return the messages that are new, in order.

        Args:
            batch: What has come.
            now: The agent's time, in microseconds; 0 from a client.

        Raises:
            ProtocolError: If it acknowledges what was never sent, or if messages are missing
                that cannot be lost.
        """
        if batch.acknowledged > self._sent:
            raise ProtocolError(
                f"it acknowledges {batch.acknowledged} messages of {self._sent}"
            )
        while self._acknowledged < batch.acknowledged:
            self._kept.popleft()
            self._acknowledged += 1
        self.echo = max(self.echo, batch.stamp)
        known = self._taken + 1 - batch.first
        if known < 0 and self._gapless:
            raise ProtocolError(f"{-known} messages are missing before {batch.first}")
        new = batch.messages[known:] if known >= 0 else []
        if new:
            self._taken += len(new)
            self._taken_at = now
        if len(new) < len(batch.messages):
            self._owes = True
        return new

    def _from(self, begin: int, stamp: int) -> Batch:
        at, size, messages = begin - self._acknowledged, 0, list[bytes]()
        # An index into a deque takes time only far from both ends.
        while at < len(self._kept):
            message = self._kept[at]
            size += len(message)
            if messages and size > MAX_BATCH:
                break
            messages.append(message)
            at += 1
        self._told, self._owes = self._taken, False
        return Batch(
            self.session,
            begin + 1,
            self._taken,
            stamp,
            self._taken_at,
            self.echo,
            messages,
        )
