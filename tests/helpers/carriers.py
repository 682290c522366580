"""A carrier in memory, which loses, doubles, delays and holds back what it carries.

It is all that an engine has to have for agents and clients: two ends that send bytes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from asyncpool._remote.borrowed_memory import BorrowedMemory
from asyncpool._remote.lent_memory import LentMemory
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.reliable_link import Batch

__all__ = ["End", "Network"]

_ENDS = (Kind.VALUE, Kind.ERROR, Kind.FAILED)


class End:
    """One end of a way; see :class:`asyncpool._remote.carrier.Carrier`."""

    loses = True
    process: int | None = None
    lent: LentMemory | None = None
    borrowed: BorrowedMemory | None = None

    def __init__(self, network: Network) -> None:
        self._network = network
        self.other: End
        self.on_bytes: Callable[[bytes], None] = _drop
        self.on_gone: Callable[[Exception | None], object] = _nothing

    def allow(self, limit: int) -> None:
        del limit

    def send(self, data: bytes) -> None:
        self._network.carry(self, data)

    def close(self) -> None:
        self.on_bytes = _drop

    def abort(self) -> None:
        self.close()


class Network:
    """Carries what ends send.

    Args:
        seed: Of the random faults.
        faults: How likely each piece is lost; as likely it is doubled, or late.

    Attributes:
        faults: As above; it may be changed.
        parted: Whether nothing comes through.
        ways: The two ends of each way.
        mute: The end of which nothing comes through, if there is one.
        counts: How many pieces were sent, and how many were lost.
        ahead: Seconds that the clocks of agents, whose ends are the second ones, are ahead.
    """

    def __init__(self, seed: int, faults: float) -> None:
        self._random = random.Random(seed)
        self.faults = faults
        self.parted = False
        self.ways: list[tuple[End, End]] = []
        self.mute: End | None = None
        self.counts = [0, 0]
        self.ahead = 0

    def way(self) -> tuple[End, End]:
        """Return the two ends of a way."""
        one, two = End(self), End(self)
        one.other, two.other = two, one
        self.ways.append((one, two))
        return one, two

    def carry(self, end: End, data: bytes) -> None:
        self.counts[0] += 1
        if self.ahead and not data.startswith(b"{"):
            is_agent = any(end is agent for _, agent in self.ways)
            data = _shifted(data, self.ahead if is_agent else -self.ahead)
        if self.parted or end is self.mute or self._random.random() < self.faults:
            self.counts[1] += 1
            return
        times = 1 + (self._random.random() < self.faults)
        for _ in range(times):
            late = self._random.random() < self.faults
            delay = self._random.uniform(0, 0.02) if late else 0.0
            asyncio.get_running_loop().call_later(
                delay, lambda: end.other.on_bytes(data)
            )


def _drop(data: bytes) -> None:
    del data


def _nothing(_: Exception | None) -> None:
    pass


def _shifted(data: bytes, ahead: int) -> bytes:
    """Return a batch with other times of the agent's clock in it."""
    batch, micro = Batch.unpack(data), ahead * 1_000_000
    messages = []
    for packed in batch.messages:
        message = Message.unpack(packed)
        if message.kind in _ENDS and message.place:
            message = message._replace(deadline=message.deadline + ahead)
        messages.append(message.pack())
    stamp, taken_at, echo = (
        at and at + micro for at in (batch.stamp, batch.taken_at, batch.echo)
    )
    return batch._replace(
        stamp=stamp, taken_at=taken_at, echo=echo, messages=messages
    ).pack()
