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
class Share(Generic[H]):
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
        turn: When it had its last turn, as a number that grows.
        last_at: When the last connection was sent to it.
        window: How many connections it may have that it has not taken.
        pending: The connections that it has not taken yet, oldest first, and when they were sent.
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
    turn: int = 0
    last_at: float = -math.inf
    window: int = 1
    pending: dict[int, tuple[H, float]] = field(default_factory=dict)
    passed_until: float = 0.0

    @property
    def connections(self) -> int:
        """How many connections it has."""
        return self.total - self.closed

    @property
    def rank(self) -> tuple[int, int, int]:
        """How busy it is: by connections with requests, by all, and by its last turn."""
        return self.connections - self.idle, self.connections, self.turn

    @property
    def still_open(self) -> int:
        """How many of its connections it is to cut off, when it last told its counts."""
        return self.opened - self.closed if self.cut else 0

    @property
    def finished(self) -> int:
        """How many of its connections came to an end of their own."""
        return self.opened - self.cut if self.cut else self.closed

    @property
    def total(self) -> int:
        """How many connections it has, and has had."""
        return max(self.handed, self.opened)

    @property
    def taken(self) -> int:
        """How many connections it has taken in all."""
        return max(self.handed - len(self.pending), self.opened)

    @property
    def waits_since(self) -> float:
        """When its oldest connection was sent that it has not taken."""
        for _, at in self.pending.values():
            return at
        return math.inf

    def is_late(self, now: float) -> bool:
        """Tell whether it leaves lying what it got."""
        return self.waits_since + LATE <= now

    @property
    def full_since(self) -> float | None:
        """When its oldest connection was sent, if its window is full."""
        return None if len(self.pending) < self.window else self.waits_since

    def load(self, opened: int, closed: int, cut: int) -> None:
        """Record the counts that the worker tells, each since its start.

        Args:
            opened: How many connections it has had.
            closed: How many of them are closed.
            cut: How many were cut off, or will be: all that it still had open when
                its time was over.

        Raises:
            ProtocolError: If these counts are impossible.
        """
        if not (self.opened <= opened and self.closed <= closed <= opened):
            raise ProtocolError(
                f"it said that {opened} connections were opened and {closed} closed, "
                f"after {self.opened} and {self.closed}"
            )
        finished = opened - cut if cut else closed
        if not (self.cut <= cut and self.finished <= finished <= closed):
            raise ProtocolError(
                f"it said that {cut} connections of {opened} are cut off, {closed} being "
                f"closed, after {self.cut} of {self.opened}"
            )
        self.opened, self.closed, self.cut = opened, closed, cut
        self.idle = min(self.idle, self.connections)


class ConnectionBalancing(Generic[H]):
    """The connections of one cluster, on their way to workers.

    A *handle* is whatever the caller keeps for a socket.  Workers are known by numbers.

    Attributes:
        shares: What each worker has.
        waiting: Connections that came back, for the next workers with room.
        refused: How many handles have ever come back because a worker had no
            descriptors left.
    """

    def __init__(self) -> None:
        self.waiting: deque[H] = deque()
        self.refused = 0
        self.shares: dict[int, Share[H]] = {}
        self._past = 0  # connections of workers that are gone
        self._turns = 0

    def gone(self, worker: int) -> None:
        """Forget a dead worker: the connections that it has not taken go to others."""
        share = self.shares.pop(worker)
        self._past += share.taken
        # They go before those that came later, whichever worker had those.
        self.waiting.extendleft([it for it, _ in reversed(share.pending.values())])

    # Connections.

    def choose(self, now: float, besides: Collection[int] = ()) -> int | None:
        """Return which worker gets the next connection; ``None`` if that has to wait.

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
            for worker, share in self.shares.items()
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
        able = [(it.rank, worker) for worker, it in self.shares.items() if it.open]
        return min(able)[1] if able else None

    def hand(self, worker: int, number: int, handle: H, now: float) -> None:
        """Record that *handle* is sent to a worker, under this number."""
        share = self.shares[worker]
        if not share.pending and share.last_at + QUIET <= now:
            share.window = 1
        share.last_at = now
        share.pending[number] = handle, now
        self._turns += 1
        share.turn = self._turns
        share.handed += 1

    def settle(self, worker: int, number: int, *, taken: bool) -> H:
        """Record whether a worker has taken a handle, or it waits for the next one; return it.

        Raises:
            ProtocolError: If no handle with this number is on its way.
        """
        share = self.shares[worker]
        handle, _ = share.pending.pop(number, (None, None))
        if handle is None:
            raise ProtocolError(f"it answered for handle {number}, and has none such")
        if taken:
            share.window = min(2 * share.window, WINDOW)
        else:
            share.handed -= 1
            self.waiting.append(handle)
        return handle

    def pass_over(self, worker: int, now: float) -> None:
        """Give nothing to a worker for a moment, since it could not take a handle."""
        self.refused += 1
        self.shares[worker].passed_until = now + PASSED_OVER

    def returned(self, worker: int, handle: H) -> None:
        """Take back a connection that a worker has had, to give it to another worker.

        Raises:
            ProtocolError: If the worker has had no connection.
        """
        share = self.shares[worker]
        if share.returned >= share.total:
            raise ProtocolError("it gave back a connection that it never had")
        share.returned += 1
        self.waiting.append(handle)

    def next_check(self, now: float) -> float | None:
        """When :meth:`choose` may return something else even though nothing happens."""
        times: list[float | None] = []
        for share in self.shares.values():
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
        return self._past + sum(share.total for share in self.shares.values())
