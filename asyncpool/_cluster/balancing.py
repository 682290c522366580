"""Which worker of a cluster gets the next connection.

The least busy worker gets it, of those that have taken all they got: a worker whose event
loop is blocked takes nothing.  Among equals it is the worker whose last turn is longest
ago: round robin.  The master knows by itself how busy a worker is, except that the
worker must tell it which connections are closed.

The master *hands* a connection to a worker, and it belongs to the worker once the
worker has *taken* it.  Until then the master has it too.  If the worker dies, or cannot
open another descriptor, the master gives the connection to another worker, before all
newer ones.  Each worker may have at most a *window* of connections that it has not
taken.  Further connections wait in the master, where any worker may still get them.  As in
the slow start of TCP, the window is one connection at first and twice as large with each that
is taken: of a burst, a worker that takes nothing gets no more than one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from asyncpool._core.deadlines import earliest
from asyncpool.errors import ProtocolError

# The largest window.
WINDOW = 16

# A worker that has got nothing for this many seconds begins with the smallest one.
QUIET = 0.005

# A worker counts as slow if its window is full and it has taken nothing for this many
# seconds.
SLOW = 0.1

# A worker is late if it has not taken a connection after this many seconds: its event loop is
# blocked, or it is stopped.
LATE = 1.0

# For this many seconds a worker gets nothing after it ran out of descriptors.
PASSED_OVER = 0.1

H = TypeVar("H")


@dataclass(slots=True)
class _Handed(Generic[H]):
    """One handle that the worker has not taken yet."""

    handle: H
    at: float
    connection: bool


@dataclass(slots=True)
class _Share(Generic[H]):
    """What one worker has.

    Attributes:
        open: Whether it may get more.
        busy: Whether it says that it can take no request.
        handed: How many connections it got, without those that it gave back.
        opened: How many it has had, as it says itself.
        closed: How many of them are closed.
        idle: How many of the rest had no request, when it last told of its requests.
        cut: How many of those that it had were cut off, since its time was over.
        returned: How many it has given back after it had taken them.
        refused: How many handles it could not take, since it had no descriptors
            left.
        turn: When it had its last turn, as a number that grows.
        last: The number of the last handle that was sent to it.
        last_at: When that was.
        window: How many handles it may have that it has not taken.
        pending: The handles that it has not taken yet, oldest first.
        passed_until: Until when it gets nothing.
    """

    open: bool = False
    busy: bool = False
    handed: int = 0
    opened: int = 0
    closed: int = 0
    idle: int = 0
    cut: int = 0
    returned: int = 0
    refused: int = 0
    turn: int = 0
    last: int = 0
    last_at: float = -math.inf
    window: int = 1
    pending: dict[int, _Handed[H]] = field(default_factory=dict)
    passed_until: float = 0.0

    @property
    def connections(self) -> int:
        """How many connections it has."""
        return max(self.handed, self.opened) - self.closed

    @property
    def rank(self) -> tuple[int, int, int]:
        """How busy it is: by connections with requests, by all, and by its last turn."""
        return self.connections - self.idle, self.connections, self.turn

    @property
    def finished(self) -> int:
        """How many of its connections came to an end of their own."""
        return self.opened - self.cut if self.cut else self.closed

    @property
    def on_their_way(self) -> int:
        """How many of its connections it has not taken yet."""
        return sum(it.connection for it in self.pending.values())

    def is_late(self, now: float) -> bool:
        """Tell whether it leaves lying what it got."""
        first = next(iter(self.pending.values()), None)
        return first is not None and first.at + LATE <= now

    @property
    def full_since(self) -> float | None:
        """When its oldest handle was sent, if its window is full."""
        if len(self.pending) < self.window:
            return None
        return next(iter(self.pending.values())).at


class ConnectionBalancing(Generic[H]):
    """The connections of one cluster, on their way to workers.

    A *handle* is whatever the caller keeps for a socket.  Workers are known by numbers.

    Attributes:
        waiting: Connections that came back, for the next workers with room.
        refused: How many handles have ever come back because a worker had no
            descriptors left.
    """

    def __init__(self) -> None:
        self.waiting: deque[H] = deque()
        self.refused = 0
        self._past = 0  # connections of workers that are gone
        self._shares: dict[int, _Share[H]] = {}
        self._turns = 0

    # Workers come and go.

    def add(self, worker: int) -> None:
        """Add a worker, which is not ready yet."""
        assert worker not in self._shares
        self._shares[worker] = _Share()

    def join(self, worker: int) -> None:
        """Give connections to a worker from now on."""
        self._shares[worker].open = True

    def leave(self, worker: int) -> None:
        """Give nothing more to a worker; it may still take what was handed to it."""
        self._shares[worker].open = False

    def set_requests(self, worker: int, requests: int, *, busy: bool) -> None:
        """Note how many requests a worker has, and whether it can take no more."""
        share = self._shares[worker]
        share.busy, share.idle = busy, max(0, share.connections - requests)

    def late(self, now: float) -> set[int]:
        """Return the workers that leave lying what they got."""
        return {worker for worker, share in self._shares.items() if share.is_late(now)}

    def gone(self, worker: int) -> list[H]:
        """Forget a dead worker: the connections that it has not taken go to others.

        Returns:
            The handles that are no connections, oldest first.
        """
        share = self._shares.pop(worker)
        pending = share.pending.values()
        self._past += max(share.handed - share.on_their_way, share.opened)
        # They go before those that came later, whichever worker had those.
        self.waiting.extendleft(
            [it.handle for it in reversed(pending) if it.connection]
        )
        return [it.handle for it in pending if not it.connection]

    # Handles.

    def choose(self, now: float, besides: Collection[int] = ()) -> int | None:
        """Return which worker gets the next connection; ``None`` if the connection has to wait.

        One that is busy or late gets it only if no other worker can, and one that has not taken
        what it got only if all others have something to take, too.

        Args:
            now: The time.
            besides: Workers that do not get it.
        """
        able = [
            (
                share.busy or share.is_late(now),
                bool(share.pending),
                share.rank,
                worker,
                share.full_since,
            )
            for worker, share in self._shares.items()
            if share.open and share.passed_until <= now and worker not in besides
        ]
        for *_, worker, full_since in sorted(able):
            if full_since is None:
                return worker
            if full_since + SLOW > now:
                return None  # a worker will take its connections soon
        return None

    def least_busy(self) -> int | None:
        """Return which worker is the least busy, even if it is slow; ``None`` if none is open."""
        able = [(it.rank, worker) for worker, it in self._shares.items() if it.open]
        return min(able)[1] if able else None

    def hand(
        self, worker: int, handle: H, now: float, *, connection: bool = True
    ) -> int:
        """Record that *handle* is sent to a worker; return its number there."""
        share = self._shares[worker]
        if not share.pending and share.last_at + QUIET <= now:
            share.window = 1
        share.last_at = now
        share.last += 1
        share.pending[share.last] = _Handed(handle, now, connection)
        if connection:
            self._turns += 1
            share.turn = self._turns
            share.handed += 1
        return share.last

    def taken(self, worker: int, number: int) -> H:
        """Record that a worker has taken a handle; return the handle.

        Raises:
            ProtocolError: If no handle with this number is on its way.
        """
        handle = self._settle(worker, number).handle
        share = self._shares[worker]
        share.window = min(2 * share.window, WINDOW)
        return handle

    def refused_by(self, worker: int, number: int, now: float) -> H | None:
        """Record that a worker could not take a handle.

        Returns:
            The handle, unless it is a connection: that waits for the next worker.

        Raises:
            ProtocolError: If no handle with this number is on its way.
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
        """Take back a connection that a worker has had, to give it to another worker.

        Raises:
            ProtocolError: If the worker has had no connection.
        """
        share = self._shares[worker]
        if share.returned >= max(share.handed, share.opened):
            raise ProtocolError("it gave back a connection that it never had")
        share.returned += 1
        self.waiting.append(handle)

    def load(self, worker: int, opened: int, closed: int, cut: int) -> None:
        """Record the counts that a worker tells, each since its start.

        Args:
            worker: The worker.
            opened: How many connections it has had.
            closed: How many of them are closed.
            cut: How many were cut off, or will be: all that it still had open when
                its time was over.

        Raises:
            ProtocolError: If these counts are impossible.
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
        share.idle = min(share.idle, share.connections)

    def next_check(self, now: float) -> float | None:
        """When :meth:`choose` may return something else even though nothing happens."""
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
        """How many connections the workers have, and have had."""
        return self._past + sum(map(self.totals, self._shares))

    def is_open(self, worker: int) -> bool:
        """Tell whether a worker may get more."""
        return worker in self._shares and self._shares[worker].open

    def connections(self, worker: int) -> int:
        """How many connections a worker has."""
        return self._shares[worker].connections

    def taken_by(self, worker: int) -> tuple[int, int]:
        """How many connections a worker has taken in all, and how many it has now."""
        share = self._shares[worker]
        had = max(share.handed - share.on_their_way, share.opened)
        return had, max(had - share.closed, 0)

    def count_cut_off(self, worker: int) -> int:
        """How many connections a worker has cut off, or will cut off, as it has said."""
        return self._shares[worker].cut

    def still_open(self, worker: int) -> int:
        """How many of its connections were still open when it last told its counts."""
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
