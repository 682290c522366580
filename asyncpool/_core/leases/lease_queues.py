"""The queues of leases: which one has the next turn.

* ``main`` holds the leases that wait for their turn of this interval, ``backup`` the ones that
  had it.  At the end of the interval backup becomes main.
* ``arrivals`` holds the leases that came in the middle of an interval.  It also holds those
  whose renewal of the last interval was answered only in this one.
* ``repeats`` holds the leases whose renewal failed, and whose pause before the next attempt is
  over.  One of them goes before all others, but never two in a row while others wait.  So
  leases that fail again and again cannot take more than half of the ticks, and one
  that has failed once need not wait for a whole interval.  The pauses double from one
  attempt to the next and make up less than half an interval (see ``pause_before``), so
  that one short outage does not hit all attempts of a lease.

Each lease is *due* one interval after it last came to a queue.  Every queue is sorted by
that without any sorting: what joins a queue joins at its end, with the latest due of
all.  So the earliest of all is at one of two heads, and a tick costs the same with ten
leases as with a hundred thousand.  To take the earlier head is *earliest deadline
first*, which is optimal.  As long as there are no more leases than ticks in an interval,
every lease has its turn within an interval and a tick of its last turn (and of its arrival),
however many leases come and go meanwhile.  Each repeat in between makes that one tick more.
With *b* renewals at a tick it is an interval and ``2b - 1`` renewals: the leases that
came just before the end of the interval can have had a whole tick, and the next tick has no room
for a lease whose last turn was one too many for a tick.  With more leases than ticks the turns
are further apart, the same for all.
A plain deque without the dues would not do: with many short jobs, the leases that come
would take the ticks that the old ones need.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from asyncpool._core.leases.renewal_pace import RenewalPace

L = TypeVar("L", bound=Hashable)

# Earlier than any time.  A lease that is due then is at the front, before all others.
NEVER = _AT_ONCE = float("-inf")


class LeaseRecord(Generic[L]):
    """What is known of one lease.

    Attributes:
        lease: Which one it is.
        number: How many leases came before it, so that no other record has it.
        due: When it should have had its next turn.
        extended: When the last renewal began that was answered with success, or when
            the lease came.
        begun: When its latest renewal began.
        failures: Renewals that failed, in a row, since its last turn was over.
        throttles: Renewals that were throttled, in a row.
        told: When the keeper was last told that renewals of it fail.
    """

    __slots__ = (
        "begun",
        "due",
        "extended",
        "failures",
        "lease",
        "number",
        "throttles",
        "told",
    )

    def __init__(self, lease: L, number: int, now: float) -> None:
        self.lease = lease
        self.number = number
        self.due = self.extended = self.begun = now
        self.failures = self.throttles = 0
        self.told = NEVER


class LeaseQueues(Generic[L]):
    """Every lease that waits for a renewal, in the order of the turns.

    Args:
        pace: What says when a renewal may begin.
        interval: Seconds in which each lease has a turn.

    Attributes:
        main: The leases that wait for their turn of this interval.
        backup: The leases that had their turn.
        arrivals: The leases that came in this interval.
        repeats: The leases whose failed renewal is to be repeated now.
    """

    def __init__(self, pace: RenewalPace, interval: float) -> None:
        self._pace, self._interval = pace, interval
        # Dicts, since a lease leaves from the middle at the end of its job.
        self.main: OrderedDict[L, LeaseRecord[L]] = OrderedDict()
        self.backup: OrderedDict[L, LeaseRecord[L]] = OrderedDict()
        self.arrivals: OrderedDict[L, LeaseRecord[L]] = OrderedDict()
        self.repeats: OrderedDict[L, LeaseRecord[L]] = OrderedDict()
        self._repeated = False  # whether the latest renewal was a repeat

    @property
    def any_waits(self) -> bool:
        """Whether a lease waits for a renewal in this interval."""
        return bool(self.main or self.arrivals or self.repeats)

    def take(self) -> LeaseRecord[L] | None:
        """Take the lease with the next renewal out of its queue, if one waits."""
        queue = self._next_queue()
        if not queue:
            return None
        self._repeated = queue is self.repeats
        _, record = queue.popitem(last=False)
        return record

    def discard(self, lease: L) -> None:
        """Take a lease out of its queue, if it is in one."""
        for queue in (self.main, self.backup, self.arrivals, self.repeats):
            queue.pop(lease, None)

    def join_front(self, record: LeaseRecord[L], now: float) -> None:
        """Put a lease before all others."""
        self._rouse(now)
        record.due = _AT_ONCE
        self.main[record.lease] = record
        self.main.move_to_end(record.lease, last=False)

    def join_arrivals(self, record: LeaseRecord[L], now: float) -> None:
        """Put a lease behind the ones that came in this interval."""
        self._join(self.arrivals, record, now)

    def join_backup(self, record: LeaseRecord[L], now: float) -> None:
        """Put a lease behind the ones that had their turn."""
        self._join(self.backup, record, now)

    def join_repeats(self, record: LeaseRecord[L]) -> None:
        """Put a lease whose pause is over behind the others of its kind."""
        self._rouse(record.due)
        self.repeats[record.lease] = record

    def end_interval(self, ends: float) -> None:
        """Have the leases of backup wait again: an interval has ended at *ends*."""
        self._rouse(ends)
        # What is left in main had no turn in this interval, and so is due before all that had.
        if self.main:
            self.main.update(self.backup)
            self.backup.clear()
        else:
            self.main, self.backup = self.backup, self.main

    def _next_queue(self) -> OrderedDict[L, LeaseRecord[L]]:
        """Return the queue whose head has the next renewal."""
        main, arrivals, repeats = self.main, self.arrivals, self.repeats
        first = next(iter(main.values()), None)
        second = next(iter(arrivals.values()), None)
        if first is None and second is None:
            return repeats
        # A throttled lease goes before all others, and between two repeats one other goes.
        at_once = first is not None and first.due == _AT_ONCE
        if repeats and not self._repeated and not at_once:
            return repeats
        if first is None or second is None:
            return main or arrivals
        return main if first.due < second.due else arrivals

    def _join(
        self,
        queue: OrderedDict[L, LeaseRecord[L]],
        record: LeaseRecord[L],
        now: float,
    ) -> None:
        self._rouse(now)
        record.due = now + self._interval
        queue[record.lease] = record

    def _rouse(self, now: float) -> None:
        # A tick for which no lease waited is not late, and is not made good.
        if not self.any_waits:
            self._pace.skip_to(now)
