"""Decide which lease gets the next renewal, and which leases are given up.

A lease that is held in an outside system lapses unless it is extended in time.  So each lease
has one turn in each *interval*.  ``lease_queues.py`` says which lease has the next turn, and
``renewal_pace.py`` when its renewal may begin.

If it is known how long a lease lasts after an extension, its *ttl*, the ledger also says
which leases have to be given up (:meth:`LeaseLedger.lapsed`): early enough for their jobs
to end before somebody else can have them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from asyncpool._core.base.deadlines import Deadlines, earliest
from asyncpool._core.leases.lease_queues import NEVER, LeaseQueues, LeaseRecord
from asyncpool._core.leases.renewal_pace import RenewalPace, RenewalResult, pause_before
from asyncpool.events import LeaseRelieved, LeaseSaturated

L = TypeVar("L", bound=Hashable)

# How often in a row one lease may be throttled and keep its place at the front.  If it
# is throttled more often, then most likely the outside system throttles that lease
# alone, and the lease must not hold up the others.
MAX_THROTTLES = 5

# How many intervals without an extension are too long.  A little more than one, since
# every turn waits for its tick, for the loop, and for the outside system's answer.
_TOO_LONG = 1.1

# The share of its ttl after which a lease without an extension is given up.  In the
# rest of the time its job cleans up and ends.
GIVE_UP = 0.9


@dataclass(frozen=True, slots=True)
class Slower:
    """Decision: no renewal of any lease begins for *pause* seconds."""

    pause: float


@dataclass(frozen=True, slots=True)
class Missed:
    """Decision: the lease was not extended for *gap* seconds.

    That is too long, or the last attempt of its turn has failed.
    """

    gap: float


@dataclass(frozen=True, slots=True)
class Lost:
    """Decision: the outside system says that the lease is gone, and the ledger forgets it."""


RenewalDecision = Slower | Missed | Lost | None


class LeaseLedger(Generic[L]):
    """Every lease, in the order of the turns, and when the next renewal may be.

    Each call takes the time, on a clock that never goes backwards, and costs the same
    however many leases there are.  Only the end of an interval that was too short for all
    costs time for each renewal that was made in it.

    Args:
        max_rate: The most renewals a second.
        interval: Seconds in which each lease has a turn.
        max_retries: How often a renewal that failed is repeated before the lease waits
            for the next interval.
        overlap: How many renewals may be in progress at a time, however short they are.
        max_overlap: How many at the most, if they take so long that *max_rate* needs more.
        now: Current time.
        ttl: Seconds that a lease lasts after an extension, if that is known.
    """

    def __init__(
        self,
        *,
        max_rate: float,
        interval: float,
        max_retries: int,
        overlap: int,
        max_overlap: int,
        now: float,
        ttl: float | None = None,
    ) -> None:
        self.interval = interval
        self._max_retries = max_retries
        self._pace = RenewalPace(
            max_rate=max_rate,
            interval=interval,
            overlap=overlap,
            max_overlap=max_overlap,
            now=now,
        )
        self._ttl = ttl
        self._lapses = Deadlines()  # when leases lapse, by the numbers of their records
        self._pauses = Deadlines()  # when to repeat renewals that failed, likewise
        self._by_number: dict[int, LeaseRecord[L]] = {}
        self._number = 0
        self._records: dict[L, LeaseRecord[L]] = {}
        self._queues: LeaseQueues[L] = LeaseQueues(self._pace, interval)
        self._in_progress: dict[L, LeaseRecord[L]] = {}
        self._ends = now + interval
        # The number of leases that was told last, or 0, and when.
        self._told, self._told_at = 0, NEVER

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, lease: L) -> bool:
        return lease in self._records

    @property
    def in_progress(self) -> int:
        """How many renewals are in progress."""
        return len(self._in_progress)

    @property
    def capacity(self) -> int:
        """How many renewals an interval has."""
        return self._pace.capacity

    @property
    def saturated(self) -> bool:
        """Whether there are more leases than an interval has renewals."""
        return len(self._records) > self.capacity

    def news(self, now: float) -> LeaseSaturated | LeaseRelieved | None:
        """Return the news about the number of leases, once.

        There is news as soon as there are too many leases.  After that there is news if the number
        has changed an interval later.
        """
        leases, capacity = len(self._records), self.capacity
        excess = leases if leases > capacity else 0
        if excess == self._told or now < self._told_at + self.interval:
            return None
        self._told, self._told_at = excess, now
        if not excess:
            return LeaseRelieved(leases=leases, capacity=capacity)
        return LeaseSaturated(
            leases=leases,
            capacity=capacity,
            interval=self.interval,
            rate=self._pace.rate,
            worst_gap=leases / self._pace.rate,
        )

    def next_news(self) -> float | None:
        """Return when to ask for news again, if nothing else happens before."""
        excess = len(self._records) if self.saturated else 0
        return None if excess == self._told else self._told_at + self.interval

    def add(self, lease: L, now: float) -> None:
        """Take a lease that is not here; its first renewal is within an interval from now."""
        self._number += 1
        record = self._records[lease] = LeaseRecord(lease, self._number, now)
        self._by_number[record.number] = record
        self._set_lapse(record)
        # A lease of that name may have been here before, with a renewal still in progress.  Then
        # this one joins when that has ended, so that the two never overlap.
        if lease not in self._in_progress:
            self._queues.join_arrivals(record, now)

    def discard(self, lease: L) -> None:
        """Forget a lease, if it is here; the result of a renewal in progress is ignored."""
        record = self._records.pop(lease, None)
        if record is None:
            return
        del self._by_number[record.number]
        self._lapses.discard(record.number)
        self._pauses.discard(record.number)
        self._queues.discard(lease)

    def lapses_at(self, lease: L) -> float | None:
        """Return when a lease lapses unless it is extended, if its *ttl* is known."""
        if self._ttl is None:
            return None
        return self._records[lease].extended + self._ttl

    def lapsed(self, now: float) -> Iterator[tuple[L, float]]:
        """Forget the leases that have to be given up, since they will soon lapse.

        Yields:
            Each with the seconds since it was extended.
        """
        for number in self._lapses.pop(now):
            record = self._by_number.get(number)
            if record is not None:  # else the caller has discarded it meanwhile
                self.discard(record.lease)
                yield record.lease, now - record.extended

    def next_lapse(self) -> float | None:
        """Return when to ask for lapsed ones, if nothing else happens before."""
        return self._lapses.next()

    def next_due(self) -> float | None:
        """Return when to ask for the next renewals, if nothing else happens before.

        ``None`` if there will be none: no lease waits, or too many renewals are in progress.
        """
        if len(self._in_progress) >= self._pace.max_in_progress:
            return None
        if self._queues.any_waits:
            return self._pace.next_tick
        due = earliest(self._pauses.next(), self._ends if self._queues.backup else None)
        return None if due is None else max(self._pace.next_tick, due)

    def begin_renewal(self, now: float) -> L | None:
        """Begin a renewal if one is due, and return its lease.

        The caller reports the end of every such renewal to :meth:`end_renewal`, once, unless
        :meth:`withdraw` took it back.
        """
        self._end_pauses(now)
        if now >= self._ends:
            self._end_interval(now)
        is_full = len(self._in_progress) >= self._pace.max_in_progress
        if is_full or not self._pace.may_begin(now):
            return None
        record = self._queues.take()
        if record is None:
            return None
        record.begun = now
        self._in_progress[record.lease] = record
        self._pace.begin(now)
        return record.lease

    def withdraw(self, lease: L, now: float) -> bool:
        """Take a renewal back that was not sent yet, if its lease is not here any more.

        Returns:
            Whether it was taken back; then it has no result.
        """
        current = self._records.get(lease)
        if current is self._in_progress[lease]:
            return False
        del self._in_progress[lease]
        if current is not None:  # it came again meanwhile
            self._queues.join_front(current, now)
        return True

    def end_renewal(
        self, lease: L, result: RenewalResult, now: float, *, retry_after: float = 0.0
    ) -> RenewalDecision:
        """Note how the renewal of *lease* ended, and return what follows.

        Args:
            lease: The lease.
            result: How it ended.
            now: Current time.
            retry_after: The pause that the outside system has asked for, in seconds.  The ledger
                grants an interval at the most.
        """
        record = self._in_progress.pop(lease)
        # What slows the renewals down concerns all leases, forgotten ones too.
        pause = self._pace.end(record.begun, now, result, retry_after)
        current = self._records.get(lease)
        if current is not record:
            if current is not None:
                # The lease came again meanwhile, and has waited for long enough.
                self._queues.join_front(current, now)
            return Slower(pause) if pause else None
        match result:
            case RenewalResult.LOST:
                self.discard(lease)
                return Lost()
            case RenewalResult.THROTTLED:
                return self._throttled(record, now, pause)
            case RenewalResult.FAILED:
                return self._failed(record, now)
            case RenewalResult.EXTENDED:
                return self._extended(record, now)

    def _end_pauses(self, now: float) -> None:
        for number in self._pauses.pop(now):
            record = self._by_number[number]
            self._queues.join_repeats(record)

    def _end_interval(self, now: float) -> None:
        self._queues.end_interval(self._ends)
        # The ledger does not catch up on intervals that passed during a stall.
        self._ends += self.interval * (1 + (now - self._ends) // self.interval)

    def _throttled(
        self, record: LeaseRecord[L], now: float, pause: float
    ) -> RenewalDecision:
        record.throttles += 1
        if record.throttles > MAX_THROTTLES:
            record.throttles = 0
            self._queues.join_arrivals(record, now)
        else:
            self._queues.join_front(record, now)
        return Slower(pause)

    def _failed(self, record: LeaseRecord[L], now: float) -> RenewalDecision:
        record.failures += 1
        record.throttles = 0
        gap = now - record.extended
        is_last = record.failures > self._max_retries
        if is_last:
            record.failures = 0
            self._queues.join_backup(record, now)
        else:
            pause = pause_before(record.failures, self._max_retries, self.interval)
            record.due = now + pause
            self._pauses.set(record.number, record.due)
        # One decision in each interval, and the first as soon as the gap is too long.
        too_long = is_last or gap > self.interval * _TOO_LONG
        if not too_long or now - record.told < self.interval:
            return None
        record.told = now
        return Missed(gap)

    def _extended(self, record: LeaseRecord[L], now: float) -> RenewalDecision:
        gap = record.begun - record.extended
        record.extended = record.begun
        record.failures = record.throttles = 0
        self._set_lapse(record)
        # A renewal that began before this interval was the lease's turn of the last one.  Then the
        # lease joins arrivals, and not main: at the end of the interval the rest of main goes
        # before backup, which may hold leases that are due before this one.
        had = record.begun >= self._ends - self.interval
        if had:
            self._queues.join_backup(record, now)
        else:
            self._queues.join_arrivals(record, now)
        return Missed(gap) if gap > self.interval * _TOO_LONG else None

    def _set_lapse(self, record: LeaseRecord[L]) -> None:
        if self._ttl is not None:
            self._lapses.set(record.number, record.extended + GIVE_UP * self._ttl)
