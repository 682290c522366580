"""Which worker of a cluster gets the next connection.

The least busy one does, and among equals the one whose turn is longest ago: round robin.
How busy a worker is, the master knows by itself but for the connections that are closed,
of which the worker tells.

A connection is *handed* over, and is the worker's when that has *taken* it; until then the
master has it too, and gives it to another worker if this one dies, or cannot open another
descriptor.  Such connections are the first in the line.  No worker has more than a *window*
of them that it has not taken: the others wait where they can still go to anybody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from asyncpool._core.base.deadlines import earliest
from asyncpool.errors import ProtocolError

# How many connections a worker may have that it has not taken.
WINDOW = 16

# Seconds after which a worker is slow that takes nothing, and could be given no more.
SLOW = 0.1

# Seconds for which nothing is given to a worker that was out of descriptors.
PASSED_OVER = 0.1

H = TypeVar("H")


@dataclass(slots=True)
class _Handed(Generic[H]):
    """One handle on its way."""

    handle: H
    at: float
    connection: bool


@dataclass(slots=True)
class _Share(Generic[H]):
    """What one worker has.

    Attributes:
        open: It may get more.
        handed: How many connections it got, but for those that it gave back.
        opened: How many it has had, as it says.
        closed: How many of them are over.
        count_cut_off: How many of those that it had do not finish, since its time is over.
        returned: How many it has given back later on.
        refused: How many handles it had no descriptors for.
        turn: When it had its last, as a number that grows.
        last: The number of the last handle that was sent to it.
        pending: The handles that it has not taken yet, the oldest first.
        passed_until: Until when it gets nothing.
    """

    open: bool = False
    handed: int = 0
    opened: int = 0
    closed: int = 0
    cut: int = 0
    returned: int = 0
    refused: int = 0
    turn: int = 0
    last: int = 0
    pending: dict[int, _Handed[H]] = field(default_factory=dict)
    passed_until: float = 0.0

    @property
    def connections(self) -> int:
        """How many connections it has."""
        return max(self.handed, self.opened) - self.closed

    @property
    def finished(self) -> int:
        """How many of them came to an end of their own."""
        return self.opened - self.cut if self.cut else self.closed

    @property
    def on_their_way(self) -> int:
        """How many of them it has not taken yet."""
        return sum(it.connection for it in self.pending.values())

    @property
    def full_since(self) -> float | None:
        """When its oldest handle was sent, if it may get no more before it takes some."""
        if len(self.pending) < WINDOW:
            return None
        return next(iter(self.pending.values())).at


class ConnectionBalancing(Generic[H]):
    """The connections of one cluster, on their way to workers.

    A *handle* is whatever the shell keeps for a socket.  Workers are known by numbers.

    Attributes:
        waiting: Connections that came back, for those who come next.
        refused: How many handles came back for want of descriptors, ever.
    """

    def __init__(self) -> None:
        self.waiting: deque[H] = deque()
        self.refused = 0
        self._past = 0  # connections of workers that are gone
        self._shares: dict[int, _Share[H]] = {}
        self._turns = 0

    # Workers come and go.

    def add(self, worker: int) -> None:
        """Take note of a worker, which is not ready yet."""
        assert worker not in self._shares
        self._shares[worker] = _Share()

    def join(self, worker: int) -> None:
        """Give connections to a worker from now on."""
        self._shares[worker].open = True

    def leave(self, worker: int) -> None:
        """Give nothing more to a worker; what it has not taken is still its own."""
        self._shares[worker].open = False

    def gone(self, worker: int) -> list[H]:
        """Forget a worker, which is dead: what it has not taken goes to others.

        Returns:
            Those handles that are no connections, the oldest first.
        """
        share = self._shares.pop(worker)
        pending = share.pending.values()
        self._past += max(share.handed - share.on_their_way, share.opened)
        # Before those that came later, whoever had them.
        self.waiting.extendleft(
            [it.handle for it in reversed(pending) if it.connection]
        )
        return [it.handle for it in pending if not it.connection]

    # Handles.

    def choose(self, now: float, besides: Collection[int] = ()) -> int | None:
        """Return who gets the next connection; ``None`` if it has to wait.

        Args:
            now: The time.
            besides: Who does not get it.
        """
        able = [
            (share.connections, share.turn, worker, share.full_since)
            for worker, share in self._shares.items()
            if share.open and share.passed_until <= now and worker not in besides
        ]
        for _, _, worker, full_since in sorted(able):
            if full_since is None:
                return worker
            if full_since + SLOW > now:
                return None  # it is worth waiting for
        return None

    def least_busy(self) -> int | None:
        """Return who has the fewest connections, however slow; ``None`` if nobody is."""
        able = [
            (share.connections, share.turn, worker)
            for worker, share in self._shares.items()
            if share.open
        ]
        return min(able)[2] if able else None

    def hand(
        self, worker: int, handle: H, now: float, *, connection: bool = True
    ) -> int:
        """Take note that *handle* is sent to a worker; return its number there."""
        share = self._shares[worker]
        share.last += 1
        share.pending[share.last] = _Handed(handle, now, connection)
        if connection:
            self._turns += 1
            share.turn = self._turns
            share.handed += 1
        return share.last

    def taken(self, worker: int, number: int) -> H:
        """Take note that a worker has a handle; return it.

        Raises:
            ProtocolError: If none is on its way under this number.
        """
        return self._settle(worker, number).handle

    def refused_by(self, worker: int, number: int, now: float) -> H | None:
        """Take note that a handle did not get to a worker.

        Returns:
            The handle, unless it is a connection: those wait for the next.

        Raises:
            ProtocolError: If none is on its way under this number.
        """
        it = self._settle(worker, number)
        share = self._shares[worker]
        share.refused += 1
        self.refused += 1
        share.passed_until = now + PASSED_OVER
        if not it.connection:
            return it.handle
        share.handed -= 1
        self.waiting.append(it.handle)
        return None

    def returned(self, worker: int, handle: H) -> None:
        """Take a connection back that a worker has had, and that goes to another one.

        Raises:
            ProtocolError: If it has had none.
        """
        share = self._shares[worker]
        if share.returned >= max(share.handed, share.opened):
            raise ProtocolError("it gave back a connection that it never had")
        share.returned += 1
        self.waiting.append(handle)

    def load(self, worker: int, opened: int, closed: int, cut: int) -> None:
        """Take note of what a worker says: so many connections, in all.

        Args:
            worker: The worker.
            opened: How many it has had.
            closed: How many of them are over.
            cut: How many did not finish before that, or will not: all that it had open
                when its time was over.

        Raises:
            ProtocolError: If that cannot be.
        """
        share = self._shares[worker]
        if not (share.opened <= opened and share.closed <= closed <= opened):
            raise ProtocolError(
                f"it said that {opened} connections were opened and {closed} closed, "
                f"after {share.opened} and {share.closed}"
            )
        finished = opened - cut if cut else closed
        if not (share.cut <= cut and share.finished <= finished <= closed):
            raise ProtocolError(
                f"it said that {cut} connections of {opened} are cut off, {closed} being "
                f"closed, after {share.cut} of {share.opened}"
            )
        share.opened, share.closed, share.cut = opened, closed, cut

    def next_look(self, now: float) -> float | None:
        """When :meth:`choose` may have another answer, though nothing happens."""
        times: list[float | None] = []
        for share in self._shares.values():
            if not share.open:
                continue
            if share.passed_until > now:
                times.append(share.passed_until)
            full_since = share.full_since
            if full_since is not None and full_since + SLOW > now:
                times.append(full_since + SLOW)
        return earliest(*times)

    # Figures.

    @property
    def served(self) -> int:
        """How many connections workers have, and have had."""
        return self._past + sum(map(self.totals, self._shares))

    def is_open(self, worker: int) -> bool:
        """Tell whether a worker may get more."""
        return worker in self._shares and self._shares[worker].open

    def connections(self, worker: int) -> int:
        """How many connections a worker has."""
        return self._shares[worker].connections

    def taken_by(self, worker: int) -> tuple[int, int]:
        """How many connections a worker has had in its hands, and how many it has."""
        share = self._shares[worker]
        had = max(share.handed - share.on_their_way, share.opened)
        return had, max(had - share.closed, 0)

    def count_cut_off(self, worker: int) -> int:
        """How many connections a worker has cut off, or has said that it does."""
        return self._shares[worker].cut

    def still_open(self, worker: int) -> int:
        """How many of them were open still when it has last told of its load."""
        share = self._shares[worker]
        return share.opened - share.closed if share.cut else 0

    def totals(self, worker: int) -> int:
        """How many connections a worker has, and has had."""
        share = self._shares[worker]
        return max(share.handed, share.opened)

    def _settle(self, worker: int, number: int) -> _Handed[H]:
        handed = self._shares[worker].pending.pop(number, None)
        if handed is None:
            raise ProtocolError(f"it answered for handle {number}, and has none such")
        return handed
