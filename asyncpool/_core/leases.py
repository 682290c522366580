"""Decide which lease gets the next renewal, and which leases are given up.

A lease that is held in an outside system lapses unless it is extended in time.  So each lease
has one turn in each *interval*.  The ledger's queues say which lease has the next turn, and
``RenewalPace`` when its renewal may begin.

If it is known how long a lease lasts after an extension, its *ttl*, the ledger also says
which leases have to be given up (:meth:`LeaseLedger.lapsed`): early enough for their jobs
to end before somebody else can have them.
"""

from __future__ import annotations

import enum
import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from asyncpool._core.deadlines import Deadlines, earliest
from asyncpool.events import LeaseRelieved, LeaseSaturated

# Decide when the next renewal of a lease may begin, and how many may be in progress.
#
# The outside system takes only so many renewals a second.  So there is one renewal per
# *tick*, and a tick every ``1 / rate`` seconds.  From 40 a second on, a tick is for all the
# renewals of :data:`TICK` seconds: to wake up for a renewal costs more than to send it, and at 100
# a second it costs 1 % of a core.
#
# Time that passes without a renewal is gone: no tokens are saved up, and so no burst follows a
# stall.  But a timer of an event loop is late by up to a millisecond or two, and at forty
# renewals a second that lateness would cost a twentieth of them.  So the next ticks make
# :data:`SLACK` seconds of lateness good.  Let *b* be the renewals at a tick, which is one up to a
# rate of 40.  Then any *n + b* renewals in a row take at least ``n / rate - SLACK`` seconds.  In
# other words, any *w* seconds have at most ``rate * (w + SLACK) + b`` of them.

# Seconds of lateness that the next ticks make good.
SLACK = 0.002

# Seconds between two ticks, if a tick is for several renewals; less if an interval is short.
TICK = 0.05

# The longest pause after a renewal that was throttled, as a share of the interval.
_MAX_PAUSE = 1 / 8

# The weight of the latest renewal in the mean of how long renewals take.
_WEIGHT = 1 / 8


def pause_before(retry: int, max_retries: int, interval: float) -> float:
    """Return the seconds between a failed renewal and its *retry*, counted from 1.

    Each pause is twice as long as the one before.  The last one is a quarter of the interval,
    so all of them take less than half of it.  The other half is for the attempts themselves.
    """
    return math.ldexp(interval, retry - max_retries - 2)


def longest_gap(interval: float, max_retries: int, timeout: float) -> float:
    """Return how long a lease can go without extension if only its last attempt succeeds.

    The gap is from the begin of a renewal to the end of that attempt.  Each attempt takes
    *timeout*, and there are no more leases than an interval has renewals.
    """
    pauses = interval / 2 - math.ldexp(interval, -1 - max_retries)
    return interval + pauses + (2 + max_retries) * timeout


class RenewalResult(enum.Enum):
    """How a renewal ended."""

    EXTENDED = enum.auto()
    THROTTLED = enum.auto()
    FAILED = enum.auto()
    LOST = enum.auto()


class RenewalPace:
    """The ticks of one keeper: when the next renewal may begin.

    Args:
        max_rate: The most renewals a second.
        interval: Seconds in which each lease has a turn.
        overlap: How many renewals may be in progress at a time.
        max_overlap: How many at the most, if they take so long that *max_rate* asks for more.
        now: Current time.

    Attributes:
        next_tick: When the next tick is.
    """

    def __init__(
        self,
        *,
        max_rate: float,
        interval: float,
        overlap: int,
        max_overlap: int,
        now: float,
    ) -> None:
        self._max_rate, self._interval = max_rate, interval
        self._overlap, self._max_overlap = overlap, max_overlap
        # The mean of how long renewals take; the latest one counts most.
        self._latency: float | None = None
        # The next tick is a full one, for so many renewals: with 40 a second it is two,
        # whatever floats make of that.  All but the last of them may come before it.
        self._at_a_tick = max(1, int(max_rate * min(TICK, interval / 4) + 1e-9))
        self.next_tick = now
        self._not_before = now  # because of a renewal that was throttled
        self._streak = 0  # pauses in a row, without a success between them
        self._slowed = float("-inf")  # when the latest of them began

    @property
    def rate(self) -> float:
        """The most renewals a second: *max_rate*, or fewer if they take too long for that."""
        in_progress = self._max_rate * (self._latency or 0.0)
        if not in_progress:
            return self._max_rate
        return self._max_rate * min(1.0, self._max_overlap / in_progress)

    @property
    def capacity(self) -> int:
        """How many renewals an interval has."""
        # With 0.1 a second and 30 s it is three, whatever floats make of that.
        return int(self.rate * self._interval + 1e-9)

    @property
    def max_in_progress(self) -> int:
        """How many renewals may be in progress at a time."""
        # As many as begin while one is in progress.
        wanted = math.ceil(self._max_rate * (self._latency or 0.0))
        return min(max(self._overlap, wanted), self._max_overlap)

    def may_begin(self, now: float) -> bool:
        """Tell whether a renewal may begin now."""
        early = (self._at_a_tick - 1) / self._max_rate + 1e-9
        return now >= max(self.next_tick - early, self._not_before)

    def begin(self, now: float) -> None:
        """Count a renewal that begins now."""
        self.next_tick = max(self.next_tick, now - SLACK) + 1 / self._max_rate

    def skip_to(self, now: float) -> None:
        """Drop the ticks before *now*: no lease waited, so none of them is late."""
        self.next_tick = max(self.next_tick, now)

    def end(
        self, begun: float, now: float, result: RenewalResult, retry_after: float
    ) -> float:
        """Learn from a renewal how fast the outside system is.

        Args:
            begun: When the renewal began.
            now: Current time.
            result: How it ended.
            retry_after: The pause that the outside system has asked for, in seconds.

        Returns:
            For how many seconds no renewal begins.
        """
        seconds = now - begun
        mean = seconds if self._latency is None else self._latency
        self._latency = mean + (seconds - mean) * _WEIGHT
        # Of the renewals that were in progress together only the first one counts, for
        # slower or for faster: they all tell of the same moment.
        is_news = begun > self._slowed
        if result is not RenewalResult.THROTTLED:
            if is_news and result is RenewalResult.EXTENDED:
                self._streak = 0
            return 0.0
        if is_news:
            self._streak += 1
            self._slowed = now
        return self._pause(now, retry_after)

    def _pause(self, now: float, retry_after: float) -> float:
        # Each pause doubles the time, at most 2**30 times, which is more than any cap.
        pause = min(
            2.0 ** min(self._streak, 30) / self._max_rate, self._interval * _MAX_PAUSE
        )
        pause = max(pause, 1 / self._max_rate, min(retry_after, self._interval))
        self._not_before = max(self._not_before, now + pause)
        self.next_tick = max(self.next_tick, self._not_before)
        return pause


# The queues of leases: which one has the next turn.
#
# * ``main`` holds the leases that wait for their turn of this interval, ``backup`` the ones that
#   had it.  At the end of the interval backup becomes main.
# * ``arrivals`` holds the leases that came in the middle of an interval.  It also holds those
#   whose renewal of the last interval was answered only in this one.
# * ``repeats`` holds the leases whose renewal failed, and whose pause before the next attempt is
#   over.  One of them goes before all others, but never two in a row while others wait.  So
#   leases that fail again and again cannot take more than half of the ticks, and one
#   that has failed once need not wait for a whole interval.  The pauses double from one
#   attempt to the next and make up less than half an interval (see ``pause_before``), so
#   that one short outage does not hit all attempts of a lease.
#
# Each lease is *due* one interval after it last came to a queue.  Every queue is sorted by
# that without any sorting: what joins a queue joins at its end, with the latest due of
# all.  So the earliest of all is at one of two heads, and a tick costs the same with ten
# leases as with a hundred thousand.  To take the earlier head is *earliest deadline
# first*, which is optimal.  As long as there are no more leases than ticks in an interval,
# every lease has its turn within an interval and a tick of its last turn (and of its arrival),
# however many leases come and go meanwhile.  Each repeat in between makes that one tick more.
# With *b* renewals at a tick it is an interval and ``2b - 1`` renewals: the leases that
# came just before the end of the interval can have had a whole tick, and the next tick has no room
# for a lease whose last turn was one too many for a tick.  With more leases than ticks the turns
# are further apart, the same for all.
# A plain deque without the dues would not do: with many short jobs, the leases that come
# would take the ticks that the old ones need.

# Earlier than any time.  A lease that is due then is at the front, before all others.
NEVER = _AT_ONCE = float("-inf")


L = TypeVar("L", bound=Hashable)


@dataclass(eq=False, slots=True)
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

    lease: L
    number: int
    due: float
    extended: float
    begun: float
    failures: int = 0
    throttles: int = 0
    told: float = NEVER


Queue: TypeAlias = OrderedDict[L, LeaseRecord[L]]

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
        # Dicts, since a lease leaves from the middle at the end of its job.
        self._main: Queue[L] = OrderedDict()
        self._backup: Queue[L] = OrderedDict()
        self._arrivals: Queue[L] = OrderedDict()
        self._repeats: Queue[L] = OrderedDict()
        self._repeated = False  # whether the latest renewal was a repeat
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
        record = self._records[lease] = LeaseRecord(lease, self._number, now, now, now)
        self._by_number[record.number] = record
        self._set_lapse(record)
        # A lease of that name may have been here before, with a renewal still in progress.  Then
        # this one joins when that has ended, so that the two never overlap.
        if lease not in self._in_progress:
            self._join(self._arrivals, record, now)

    def discard(self, lease: L) -> None:
        """Forget a lease, if it is here; the result of a renewal in progress is ignored."""
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
        if self._any_waits:
            return self._pace.next_tick
        due = earliest(self._pauses.next(), self._ends if self._backup else None)
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
        queue = self._next_queue()
        if not queue:
            return None
        self._repeated = queue is self._repeats
        _, record = queue.popitem(last=False)
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
            self._join_front(current, now)
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
                self._join_front(current, now)
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

    @property
    def _any_waits(self) -> bool:
        """Whether a lease waits for a renewal in this interval."""
        return bool(self._main or self._arrivals or self._repeats)

    def _next_queue(self) -> Queue[L]:
        """Return the queue whose head has the next renewal."""
        main, arrivals, repeats = self._main, self._arrivals, self._repeats
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

    def _join(self, queue: Queue[L], record: LeaseRecord[L], now: float) -> None:
        self._rouse(now)
        record.due = now + self.interval
        queue[record.lease] = record

    def _join_front(self, record: LeaseRecord[L], now: float) -> None:
        self._rouse(now)
        record.due = _AT_ONCE
        self._main[record.lease] = record
        self._main.move_to_end(record.lease, last=False)

    def _rouse(self, now: float) -> None:
        # A tick for which no lease waited is not late, and is not made good.
        if not self._any_waits:
            self._pace.skip_to(now)

    def _end_pauses(self, now: float) -> None:
        for number in self._pauses.pop(now):
            record = self._by_number[number]
            self._rouse(record.due)
            self._repeats[record.lease] = record

    def _end_interval(self, now: float) -> None:
        self._rouse(self._ends)
        # What is left in main had no turn in this interval, and so is due before all that had.
        if self._main:
            self._main.update(self._backup)
            self._backup.clear()
        else:
            self._main, self._backup = self._backup, self._main
        # The ledger does not catch up on intervals that passed during a stall.
        self._ends += self.interval * (1 + (now - self._ends) // self.interval)

    def _throttled(
        self, record: LeaseRecord[L], now: float, pause: float
    ) -> RenewalDecision:
        record.throttles += 1
        if record.throttles > MAX_THROTTLES:
            record.throttles = 0
            self._join(self._arrivals, record, now)
        else:
            self._join_front(record, now)
        return Slower(pause)

    def _failed(self, record: LeaseRecord[L], now: float) -> RenewalDecision:
        record.failures += 1
        record.throttles = 0
        gap = now - record.extended
        is_last = record.failures > self._max_retries
        if is_last:
            record.failures = 0
            self._join(self._backup, record, now)
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
        self._join(self._backup if had else self._arrivals, record, now)
        return Missed(gap) if gap > self.interval * _TOO_LONG else None

    def _set_lapse(self, record: LeaseRecord[L]) -> None:
        if self._ttl is not None:
            self._lapses.set(record.number, record.extended + GIVE_UP * self._ttl)
