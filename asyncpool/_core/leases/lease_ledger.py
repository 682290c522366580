"""Decide which lease gets the next renewal, and when.

A lease that is held in an outside system lapses unless it is extended in time, and
the outside system takes only so many extensions a second.  So there is one renewal per
*tick*, a tick every ``1 / rate`` seconds, and one turn per lease in each *interval*.
(From 40 a second on, a tick is for as many renewals as there are in :data:`TICK`: it costs
more to wake up for a renewal than to send it, and at 100 a second 1 % of a core.)

* ``main`` holds those that wait for their turn of this interval, ``backup`` those that
  had it.  At the end of the interval backup becomes main.
* ``arrivals`` holds those that came in the middle of an interval, and those whose renewal of
  the last interval was answered only in this one.
* ``repeats`` holds those whose renewal failed, and whose pause before the next attempt is
  over.  One of them goes before all others, but never two in a row while others wait:
  leases that fail again and again cannot take more than half of the ticks, and one
  that has failed once need not wait for a whole interval.  The pauses double from one
  attempt to the next and make up less than half an interval (see :func:`pause_before`), so
  that one short outage does not hit all attempts of a lease.

Each lease is *due* one interval after it last came to a queue.  Every queue is sorted by
that without any sorting, since what joins one joins at its end, with the latest due of
all; so the earliest of all is at one of two heads, and a tick costs the same with ten
leases as with a hundred thousand.  Taking the earlier head is *earliest deadline
first*, which is optimal: as long as there are no more leases than ticks in an interval,
every one has its turn within an interval and a tick of the last (and of coming), however
many come and go meanwhile; each repeat in between makes that one tick more.  (With *b* renewals at a tick it is an interval and ``2b - 1`` renewals:
those that came just before the end of the interval can have had a whole tick, and the next
one has no place for whoever had its last turn as one too many for a tick.)  With more
of them the turns are just further apart, the same for all.
A plain deque without the dues would not do: with many short jobs, those that come
would take the ticks that the old ones need.

Time that has passed without a renewal is gone: there are no tokens to be saved up, and so
there is no burst after a stall.  But a timer of an event loop is late by up to a
millisecond or two, and at forty renewals a second that would cost a twentieth of them:
so much lateness, :data:`SLACK`, is made good.  With *b* renewals at a tick, one up to a
rate of 40, any *n + b* renewals in a row take at least ``n / rate - SLACK`` seconds; in
other words there are at most ``rate * (w + SLACK) + b`` of them in any *w* seconds.

If it is known how long a lease lasts after an extension, its *ttl*, the ledger also says
which ones have to be given up (:meth:`LeaseLedger.lapsed`): early enough for their jobs
to end before somebody else can have them.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

from asyncpool._core.base.deadlines import Deadlines, earliest
from asyncpool.events import LeaseRelieved, LeaseSaturated

L = TypeVar("L", bound=Hashable)

# Seconds of lateness that the next ticks make good.
SLACK = 0.002

# Seconds between two ticks, if a tick is for several renewals; less if an interval is short.
TICK = 0.05

# How often in a row one lease may be throttled and keep its place at the front.  More
# often, and it is most likely throttled for itself, and must not hold up the others.
MAX_THROTTLES = 5

# The longest pause after a renewal that was throttled, as a share of the interval.
_MAX_PAUSE = 1 / 8

# Before all time; who is due then, is due before all others: at the front.
_NEVER = _AT_ONCE = float("-inf")

# How many intervals without an extension are too long.  A little more than one, since
# every turn waits for its tick, for the loop, and for the outside system's answer.
_TOO_LONG = 1.1

# The share of its ttl after which a lease that was not extended is given up.  The rest is
# for its job, to clean up and end.
GIVE_UP = 0.9

# The weight of the latest renewal in the mean of how long renewals take.
_WEIGHT = 1 / 8


def pause_before(retry: int, max_retries: int, interval: float) -> float:
    """Return the seconds between a failed renewal and its *retry*, counted from 1.

    Each is twice as long as the one before.  The last one is a quarter of the interval, so
    all of them are less than a half; the other half is for the attempts themselves.
    """
    return math.ldexp(interval, retry - max_retries - 2)


def longest_gap(interval: float, max_retries: int, timeout: float) -> float:
    """Return how long a lease can go without extension if only its last attempt succeeds.

    That is from the begin of a renewal to the end of that attempt, if each takes *timeout*,
    and there are no more leases than an interval has renewals.
    """
    pauses = interval / 2 - math.ldexp(interval, -1 - max_retries)
    return interval + pauses + (2 + max_retries) * timeout


class RenewalOutcome(enum.Enum):
    """How a renewal ended."""

    EXTENDED = enum.auto()
    THROTTLED = enum.auto()
    FAILED = enum.auto()
    GONE = enum.auto()


@dataclass(frozen=True, slots=True)
class Slower:
    """Verdict: no renewal at all for *pause* seconds."""

    pause: float


@dataclass(frozen=True, slots=True)
class Missed:
    """Verdict: the lease has not been extended for *gap* seconds.

    That is too long, or the last attempt of its turn has failed.
    """

    gap: float


@dataclass(frozen=True, slots=True)
class Gone:
    """Verdict: the lease is lost, and forgotten here."""


Verdict = Slower | Missed | Gone | None


class _Record(Generic[L]):
    """What is known of one lease.

    Attributes:
        lease: Which one it is.
        number: As many came before it, so that no other record has it.
        due: When it should have had its next turn.
        extended: When the last renewal began that was answered with success, or when
            the lease came.
        begun: When its latest renewal began.
        failures: Renewals that failed, in a row, since its last turn was over.
        throttles: Renewals that were throttled, in a row.
        told: When it was last told that renewals of it fail.
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
        self.told = _NEVER


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
        overlap: How many renewals may be under way at a time, however short they are.
        max_overlap: The most that may, if they take so long that *max_rate* asks for it.
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
        self.rate = max_rate
        self.interval = interval
        self._max_retries = max_retries
        self._overlap, self._max_overlap = overlap, max_overlap
        self._latency: float | None = (
            None  # how long renewals take, most of all the latest
        )
        self._ttl = ttl
        self._lapses = Deadlines()  # of records, by their numbers
        self._pauses = Deadlines()  # of those whose renewal failed
        self._by_number: dict[int, _Record[L]] = {}
        self._number = 0
        self._records: dict[L, _Record[L]] = {}
        # Dicts, since a lease leaves from the middle at the end of its job.
        self._main: OrderedDict[L, _Record[L]] = OrderedDict()
        self._backup: OrderedDict[L, _Record[L]] = OrderedDict()
        self._arrivals: OrderedDict[L, _Record[L]] = OrderedDict()
        self._repeats: OrderedDict[L, _Record[L]] = OrderedDict()
        self._repeated = False  # whether the latest renewal was one of these
        self._flying: dict[L, _Record[L]] = {}
        # The next tick is a full one, for so many renewals: with 40 a second it is two,
        # whatever floats make of that.  Those but the last may come before it.
        self._at_a_tick = max(1, int(max_rate * min(TICK, interval / 4) + 1e-9))
        self._next_tick = now
        self._not_before = now  # because of a renewal that was throttled
        self._ends = now + interval
        self._streak = 0  # pauses in a row, without a success between them
        self._slowed = _NEVER  # when the latest of them began
        self._told, self._told_at = 0, _NEVER  # of how many leases, or 0, and when

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, lease: L) -> bool:
        return lease in self._records

    @property
    def in_progress(self) -> int:
        """How many renewals are under way."""
        return len(self._flying)

    @property
    def pace(self) -> float:
        """The most renewals a second: *rate*, or fewer if they take too long for that."""
        under_way = self.rate * (self._latency or 0.0)
        return (
            self.rate * min(1.0, self._max_overlap / under_way)
            if under_way
            else self.rate
        )

    @property
    def capacity(self) -> int:
        """How many renewals an interval has."""
        # With 0.1 a second and 30 s it is three, whatever floats make of that.
        return int(self.pace * self.interval + 1e-9)

    @property
    def saturated(self) -> bool:
        """Whether there are more leases than an interval has renewals."""
        return len(self._records) > self.capacity

    def news(self, now: float) -> LeaseSaturated | LeaseRelieved | None:
        """Return what is to be told of the number of leases, once.

        That is at once if there are too many of them, and then whenever that has changed
        an interval after it was told.
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
            rate=self.pace,
            worst_gap=leases / self.pace,
        )

    def next_news(self) -> float | None:
        """Return when to ask for news again, if nothing else happens before."""
        excess = len(self._records) if self.saturated else 0
        return None if excess == self._told else self._told_at + self.interval

    def add(self, lease: L, now: float) -> None:
        """Take a lease that is not here; its first renewal is within an interval from now."""
        self._number += 1
        record = self._records[lease] = _Record(lease, self._number, now)
        self._by_number[record.number] = record
        self._set_lapse(record)
        # Its name may have a renewal under way for the lease that it was before: then it
        # joins when that is over, so that the two never overlap.
        if lease not in self._flying:
            self._to_end(self._arrivals, lease, record, now)

    def discard(self, lease: L) -> None:
        """Forget a lease, if it is here; the outcome of a renewal under way is ignored."""
        record = self._records.pop(lease, None)
        if record is None:
            return
        del self._by_number[record.number]
        self._lapses.discard(record.number)
        self._pauses.discard(record.number)
        for queue in (self._main, self._backup, self._arrivals, self._repeats):
            queue.pop(lease, None)

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
            if record is not None:  # or who heard of another one has discarded it
                self.discard(record.lease)
                yield record.lease, now - record.extended

    def next_lapse(self) -> float | None:
        """Return when to ask for lapsed ones, if nothing else happens before."""
        return self._lapses.next()

    def next_due(self) -> float | None:
        """Return when to ask for the next renewals, if nothing else happens before.

        ``None`` if there will be none: nobody waits for one, or too many are under way.
        """
        if len(self._flying) >= self._most_flying:
            return None
        if self._main or self._arrivals or self._repeats:
            return self._next_tick
        due = earliest(self._pauses.next(), self._ends if self._backup else None)
        return None if due is None else max(self._next_tick, due)

    def begin_renewal(self, now: float) -> L | None:
        """Begin a renewal, if there is one to begin: return its lease.

        The caller reports every such renewal to :meth:`end_renewal`, once, unless it was taken
        back by :meth:`withdraw`.
        """
        self._end_pauses(now)
        if now >= self._ends:
            self._end_interval(now)
        early = (self._at_a_tick - 1) / self.rate + 1e-9
        if now < max(self._next_tick - early, self._not_before):
            return None
        queue = self._next_queue()
        if not queue or len(self._flying) >= self._most_flying:
            return None
        self._repeated = queue is self._repeats
        lease, record = queue.popitem(last=False)
        record.begun = now
        self._flying[lease] = record
        self._next_tick = max(self._next_tick, now - SLACK) + 1 / self.rate
        return lease

    def withdraw(self, lease: L, now: float) -> bool:
        """Take a renewal back that was not sent yet, if nobody wants it any more.

        Returns:
            Whether that is so; then there is no outcome.
        """
        current = self._records.get(lease)
        if current is self._flying[lease]:
            return False
        del self._flying[lease]
        if current is not None:  # it came again meanwhile
            self._to_front(lease, current, now)
        return True

    def end_renewal(
        self, lease: L, outcome: RenewalOutcome, now: float, *, retry_after: float = 0.0
    ) -> Verdict:
        """Enter how the renewal of *lease* ended.

        Args:
            lease: The lease.
            outcome: The end.
            now: Current time.
            retry_after: The pause that the outside system has asked for, in seconds;
                an interval at the most is granted.
        """
        record = self._flying.pop(lease)
        self._measure(now - record.begun)
        # What slows the renewals down has to do with all leases, also with forgotten ones.
        pause = self._slow_down(record, now, retry_after, outcome)
        current = self._records.get(lease)
        if current is not record:
            if current is not None:
                # It came again meanwhile, and has waited for long enough.
                self._to_front(lease, current, now)
            return Slower(pause) if pause else None
        match outcome:
            case RenewalOutcome.GONE:
                self.discard(lease)
                return Gone()
            case RenewalOutcome.THROTTLED:
                return self._throttled(lease, record, now, pause)
            case RenewalOutcome.FAILED:
                return self._failed(lease, record, now)
            case RenewalOutcome.EXTENDED:
                return self._extended(lease, record, now)

    @property
    def _most_flying(self) -> int:
        # As many as are begun while one is under way.
        wanted = math.ceil(self.rate * (self._latency or 0.0))
        return min(max(self._overlap, wanted), self._max_overlap)

    def _next_queue(self) -> OrderedDict[L, _Record[L]]:
        """Return the queue whose head has the next renewal."""
        main, arrivals, repeats = self._main, self._arrivals, self._repeats
        first = next(iter(main.values()), None)
        second = next(iter(arrivals.values()), None)
        if first is None and second is None:
            return repeats
        # Who was throttled is before all others, and one of them is between two repeats.
        at_once = first is not None and first.due == _AT_ONCE
        if repeats and not self._repeated and not at_once:
            return repeats
        if first is None or second is None:
            return main or arrivals
        return main if first.due < second.due else arrivals

    def _end_pauses(self, now: float) -> None:
        for number in self._pauses.pop(now):
            record = self._by_number[number]
            self._rouse(record.due)
            self._repeats[record.lease] = record

    def _end_interval(self, now: float) -> None:
        # Whoever is left in main had no turn in this interval, and so is due before all
        # those who had.
        self._rouse(self._ends)
        if self._main:
            self._main.update(self._backup)
            self._backup.clear()
        else:
            self._main, self._backup = self._backup, self._main
        # Intervals that a stall has swallowed are not made good either.
        self._ends += self.interval * (1 + (now - self._ends) // self.interval)

    def _slow_down(
        self,
        record: _Record[L],
        now: float,
        retry_after: float,
        outcome: RenewalOutcome,
    ) -> float:
        """Return for how long there is no renewal, after this outcome of *record*'s."""
        # Of the renewals that were under way together only the first one counts, in the
        # one way or the other: they all tell of the same moment.
        news = record.begun > self._slowed
        if outcome is not RenewalOutcome.THROTTLED:
            if news and outcome is RenewalOutcome.EXTENDED:
                self._streak = 0
            return 0.0
        if news:
            self._streak += 1
            self._slowed = now
        # Twice as slow with each; no more than 2**30 times, which is beyond any cap.
        pause = min(
            2.0 ** min(self._streak, 30) / self.rate, self.interval * _MAX_PAUSE
        )
        pause = max(pause, 1 / self.rate, min(retry_after, self.interval))
        self._not_before = max(self._not_before, now + pause)
        self._next_tick = max(self._next_tick, self._not_before)
        return pause

    def _measure(self, seconds: float) -> None:
        mean = seconds if self._latency is None else self._latency
        self._latency = mean + (seconds - mean) * _WEIGHT

    def _throttled(
        self, lease: L, record: _Record[L], now: float, pause: float
    ) -> Verdict:
        record.throttles += 1
        if record.throttles > MAX_THROTTLES:
            record.throttles = 0
            self._to_end(self._arrivals, lease, record, now)
        else:
            self._to_front(lease, record, now)
        return Slower(pause)

    def _failed(self, lease: L, record: _Record[L], now: float) -> Verdict:
        record.failures += 1
        record.throttles = 0
        gap = now - record.extended
        is_last = record.failures > self._max_retries
        if is_last:
            record.failures = 0
            self._to_end(self._backup, lease, record, now)
        else:
            pause = pause_before(record.failures, self._max_retries, self.interval)
            record.due = now + pause
            self._pauses.set(record.number, record.due)
        # Each interval tells of it once, and the first one as soon as it is too long.
        too_long = is_last or gap > self.interval * _TOO_LONG
        if not too_long or now - record.told < self.interval:
            return None
        record.told = now
        return Missed(gap)

    def _extended(self, lease: L, record: _Record[L], now: float) -> Verdict:
        gap = record.begun - record.extended
        record.extended = record.begun
        record.failures = record.throttles = 0
        self._set_lapse(record)
        # What began before this interval was its turn of the last one.  Then the lease joins
        # those that come now, and not main: what is left of main at the end of the interval
        # goes before backup, which may hold leases that are due before this one.
        had = record.begun >= self._ends - self.interval
        self._to_end(self._backup if had else self._arrivals, lease, record, now)
        return Missed(gap) if gap > self.interval * _TOO_LONG else None

    def _set_lapse(self, record: _Record[L]) -> None:
        if self._ttl is not None:
            self._lapses.set(record.number, record.extended + GIVE_UP * self._ttl)

    def _to_front(self, lease: L, record: _Record[L], now: float) -> None:
        self._rouse(now)
        record.due = _AT_ONCE
        self._main[lease] = record
        self._main.move_to_end(lease, last=False)

    def _to_end(
        self,
        queue: OrderedDict[L, _Record[L]],
        lease: L,
        record: _Record[L],
        now: float,
    ) -> None:
        self._rouse(now)
        record.due = now + self.interval
        queue[lease] = record

    def _rouse(self, now: float) -> None:
        # A tick that nobody has waited for is not late, and not made good.
        if not self._main and not self._arrivals and not self._repeats:
            self._next_tick = max(self._next_tick, now)
