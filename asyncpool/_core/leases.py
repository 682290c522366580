"""Decide which lease gets the next renewal, and which leases are given up.

A lease that is held in an outside system lapses unless it is extended in time.  So each lease
has one turn in each *interval*.  The ledger's queues say which lease has the next turn, and its
ticks when that renewal may begin.

If it is known how long a lease lasts after an extension, its *ttl*, the ledger also says
which leases have to be given up (:meth:`LeaseLedger.lapsed`): early enough for their jobs
to end before somebody else can have them.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from asyncpool._core.deadlines import Deadlines, earliest
from asyncpool.errors import LeaseLostError, ThrottledError
from asyncpool.events import (
    LeaseLost,
    LeaseMissed,
    LeaseRelieved,
    LeaseSaturated,
    LeaseStats,
    LeaseThrottled,
)

# The ticks: when the next renewal may begin.
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

# How a renewal ends, as LeaseStats counts it.
_ANSWERS = ("renewed", "throttled", "failed", "lost")

# Earlier than any time.  A lease that is due then is at the front, before all others.
LONG_AGO = _AT_ONCE = float("-inf")


L = TypeVar("L", bound=Hashable)


@dataclass(eq=False, slots=True)
class LeaseRecord(Generic[L]):
    """What is known of one lease.

    Attributes:
        lease: Which one it is.
        due: When it should have had its next turn.
        extended: When the last renewal began that was answered with success, or when
            the lease came.
        begun: When its latest renewal began.
        failures: Renewals that failed, in a row, since its last turn was over.
        throttles: Renewals that were throttled, in a row.
        told: When the keeper was last told that renewals of it fail.
    """

    lease: L
    due: float
    extended: float
    begun: float
    failures: int = 0
    throttles: int = 0
    told: float = LONG_AGO

    def __lt__(self, _: LeaseRecord[L]) -> bool:
        return False  # of deadlines at one moment, either may be the first


Queue: TypeAlias = OrderedDict[L, LeaseRecord[L]]

# How often in a row one lease may be throttled and keep its place at the front.  If it
# is throttled more often, then most likely the outside system throttles that lease
# alone, and the lease must not hold up the others.
MAX_THROTTLES = 5

# How many intervals without an extension are too long.  A little more than one, since
# every turn waits for its tick, for the loop, and for the outside system's answer.
_TOO_LONG = 1.1

# Renewals in progress at a time.  As many as max_rate needs if the outside system takes a second
# for each, and more if it takes longer.  Four at the least, so that a renewal that hangs leaves
# room for others.  32 at the most: an outside system that needs more is in trouble.
MIN_OVERLAP, MAX_OVERLAP = 4, 32

# The share of its ttl after which a lease without an extension is given up.  In the
# rest of the time its job cleans up and ends.
GIVE_UP = 0.9


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
        overlap: How many renewals may be in progress at a time, however short they are; by
            default as many as *max_rate* needs if each takes a second, but at least
            :data:`MIN_OVERLAP`.
        max_overlap: How many at the most, if they take so long that *max_rate* needs more.
        ttl: Seconds that a lease lasts after an extension, if that is known.
    """

    def __init__(
        self,
        *,
        max_rate: float,
        interval: float,
        max_retries: int,
        overlap: int | None = None,
        max_overlap: int = MAX_OVERLAP,
        ttl: float | None = None,
    ) -> None:
        self._max_rate, self._interval = max_rate, interval
        self._max_retries, self._ttl = max_retries, ttl
        least = max(MIN_OVERLAP, min(max_overlap, math.ceil(max_rate)))
        self._overlap, self._max_overlap = overlap or least, max_overlap
        # The mean of how long renewals take, in which the latest one counts most.
        self._latency: float | None = None
        self._next_tick = 0.0
        # The next tick is a full one, for so many renewals: with 40 a second it is two, whatever
        # floats make of that.  All but the last of them may come before it.
        at_a_tick = max(1, int(max_rate * min(TICK, interval / 4) + 1e-9))
        self._early = (at_a_tick - 1) / max_rate + 1e-9
        self._not_before = 0.0  # because of a renewal that was throttled
        self._streak = 0  # pauses in a row, without a success between them
        self._slowed = LONG_AGO  # when the latest of them began
        # When leases lapse, and when to repeat renewals that failed.
        self._lapses: Deadlines[LeaseRecord[L]] = Deadlines()
        self._pauses: Deadlines[LeaseRecord[L]] = Deadlines()
        self._records: dict[L, LeaseRecord[L]] = {}
        # Dicts, since a lease leaves from the middle at the end of its job.
        self._main: Queue[L] = OrderedDict()
        self._backup: Queue[L] = OrderedDict()
        self._arrivals: Queue[L] = OrderedDict()
        self._repeats: Queue[L] = OrderedDict()
        self._repeated = False  # whether the latest renewal was a repeat
        self._in_progress: dict[L, LeaseRecord[L]] = {}
        self._ends = interval
        # The number of leases that was told last, or 0, and when.
        self._told, self._told_at = 0, LONG_AGO
        self._counts = dict.fromkeys((*_ANSWERS, "missed", "lapsed"), 0)

    def __len__(self) -> int:
        return len(self._records)

    @property
    def rate(self) -> float:
        """The most renewals a second: *max_rate*, or fewer if they take too long for that."""
        if not self._latency:
            return self._max_rate
        return min(self._max_rate, self._max_overlap / self._latency)

    @property
    def capacity(self) -> int:
        """How many renewals an interval has."""
        # With 0.1 a second and 30 s it is three, whatever floats make of that.
        return int(self.rate * self._interval + 1e-9)

    def stats(self, dropped_events: int, *, over: bool) -> LeaseStats:
        """Return the figures of the keeper, whose end has cancelled the renewals in progress."""
        in_progress = 0 if over else len(self._in_progress)
        answered = sum(self._counts[how] for how in _ANSWERS)
        return LeaseStats(
            leases=len(self._records),
            capacity=self.capacity,
            saturated=bool(self._excess),
            in_progress=in_progress,
            renewals=in_progress + answered,
            dropped_events=dropped_events,
            **self._counts,
        )

    def news(self, now: float) -> LeaseSaturated | LeaseRelieved | None:
        """Return the news about the number of leases, once.

        There is news as soon as there are too many leases.  After that there is news if the number
        has changed an interval later.
        """
        due = self.next_news()
        if due is None or now < due:
            return None
        self._told, self._told_at = self._excess, now
        leases, capacity, rate = len(self._records), self.capacity, self.rate
        if not self._told:
            return LeaseRelieved(leases=leases, capacity=capacity)
        return LeaseSaturated(
            leases=leases,
            capacity=capacity,
            interval=self._interval,
            rate=rate,
            worst_gap=leases / rate,
        )

    def add(self, lease: L, now: float) -> None:
        """Take a lease that is not here; its first renewal is within an interval from now."""
        record = self._records[lease] = LeaseRecord(lease, now, now, now)
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
        self._lapses.discard(record)
        self._pauses.discard(record)
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
        for record in self._lapses.pop(now):
            # Else the caller has discarded it meanwhile.
            if self._records.get(record.lease) is record:
                self.discard(record.lease)
                self._counts["lapsed"] += 1
                yield record.lease, now - record.extended

    def next_look(self) -> float | None:
        """Return when to ask for lapsed leases, news and renewals, if nothing happens before."""
        return earliest(self.next_due(), self._lapses.next(), self.next_news())

    def next_news(self) -> float | None:
        """Return when to ask for news again, if nothing else happens before."""
        return None if self._excess == self._told else self._told_at + self._interval

    def next_due(self) -> float | None:
        """Return when to ask for the next renewals, if nothing else happens before.

        ``None`` if there will be none: no lease waits, or too many renewals are in progress.
        """
        if self._is_full:
            return None
        if self._any_waits:
            return self._next_tick
        due = earliest(self._pauses.next(), self._ends if self._backup else None)
        return None if due is None else max(self._next_tick, due)

    def begin_renewal(self, now: float) -> L | None:
        """Begin a renewal if one is due, and return its lease.

        The caller reports the end of every such renewal to :meth:`end_renewal`, once, unless
        :meth:`withdraw` took it back.
        """
        for record in self._pauses.pop(now):
            self._rouse(record.due)
            self._repeats[record.lease] = record
        if now >= self._ends:
            self._end_interval(now)
        if self._is_full or now < max(self._next_tick - self._early, self._not_before):
            return None
        queue = self._next_queue()
        if not queue:
            return None
        self._repeated = queue is self._repeats
        lease, record = queue.popitem(last=False)
        record.begun = now
        self._in_progress[lease] = record
        self._next_tick = max(self._next_tick, now - SLACK) + 1 / self._max_rate
        return lease

    def withdraw(self, lease: L, now: float) -> bool:
        """Take a renewal back that was not sent yet, if its lease is not here any more.

        Returns:
            Whether it was taken back; then it has no result.
        """
        record = self._in_progress[lease]
        if self._records.get(lease) is record:
            return False
        self._land(record, now)
        return True

    def end_renewal(
        self, lease: L, problem: BaseException | None, now: float
    ) -> LeaseThrottled | LeaseLost | LeaseMissed | None:
        """Note how the renewal of *lease* ended, and return what there is to tell of it.

        Args:
            lease: The lease; the ledger forgets it if it is lost.
            problem: What the renewal has raised, ``None`` if it has succeeded.
            now: Current time.
        """
        record = self._in_progress[lease]
        # A timer may fire a tick early, and then it began at the time for which that was set.
        seconds = max(0.0, now - record.begun)
        mean = seconds if self._latency is None else self._latency
        self._latency = mean + (seconds - mean) * _WEIGHT
        # Of the renewals that were in progress together only the first one counts, for
        # slower or for faster: they all tell of the same moment.
        is_news = record.begun > self._slowed
        is_here = self._land(record, now)
        match problem:
            case ThrottledError():
                self._counts["throttled"] += 1
                if is_news:
                    self._streak += 1
                    self._slowed = now
                if is_here:
                    # It keeps its place in front of all others, but not for ever.
                    record.throttles = (record.throttles + 1) % (MAX_THROTTLES + 1)
                    if record.throttles:
                        self._join_front(record, now)
                    else:
                        self._join(self._arrivals, record, now)
                # That concerns all leases: a forgotten one slows the renewals down, too.
                return LeaseThrottled(lease, self._slow_down(problem.retry_after, now))
            case None:
                self._counts["renewed"] += 1
                if is_news:
                    self._streak = 0
                return self._extended(record, now) if is_here else None
            case LeaseLostError():
                self._counts["lost"] += 1
                if is_here:
                    self.discard(lease)
                return LeaseLost(lease) if is_here else None
            case _:
                self._counts["failed"] += 1
                return self._failed(record, problem, now) if is_here else None

    @property
    def _is_full(self) -> bool:
        """Whether as many renewals are in progress as may be."""
        # As many may be as begin while one is in progress.
        wanted = math.ceil(self._max_rate * (self._latency or 0.0))
        most = min(max(self._overlap, wanted), self._max_overlap)
        return len(self._in_progress) >= most

    @property
    def _excess(self) -> int:
        """How many leases there are, if an interval has fewer renewals; else 0."""
        return len(self._records) if len(self._records) > self.capacity else 0

    @property
    def _any_waits(self) -> bool:
        """Whether a lease waits for a renewal in this interval."""
        return bool(self._main or self._arrivals or self._repeats)

    def _next_queue(self) -> Queue[L]:
        """Return the queue whose head has the next renewal."""
        waiting = [queue for queue in (self._arrivals, self._main) if queue]
        if not waiting:
            return self._repeats
        dues = [next(iter(queue.values())).due for queue in waiting]
        # A throttled lease goes before all others, and between two repeats one other goes.
        if self._repeats and not self._repeated and min(dues) != _AT_ONCE:
            return self._repeats
        return waiting[dues.index(min(dues))]

    def _join(self, queue: Queue[L], record: LeaseRecord[L], now: float) -> None:
        self._rouse(now)
        record.due = now + self._interval
        queue[record.lease] = record

    def _join_front(self, record: LeaseRecord[L], now: float) -> None:
        self._join(self._main, record, now)
        record.due = _AT_ONCE
        self._main.move_to_end(record.lease, last=False)

    def _rouse(self, now: float) -> None:
        # A tick for which no lease waited is not late, and is not made good.
        if not self._any_waits:
            self._next_tick = max(self._next_tick, now)

    def _end_interval(self, now: float) -> None:
        self._rouse(self._ends)
        # What is left in main had no turn in this interval, and so is due before all that had.
        if self._main:
            self._main.update(self._backup)
            self._backup.clear()
        else:
            self._main, self._backup = self._backup, self._main
        # The ledger does not catch up on intervals that passed during a stall.
        self._ends += self._interval * (1 + (now - self._ends) // self._interval)

    def _land(self, record: LeaseRecord[L], now: float) -> bool:
        """Take note that a renewal is over, and return whether its lease is still here."""
        del self._in_progress[record.lease]
        current = self._records.get(record.lease)
        if current is not None and current is not record:
            # The lease came again meanwhile, and has waited for long enough.
            self._join_front(current, now)
        return current is record

    def _slow_down(self, retry_after: float, now: float) -> float:
        """Let no renewal begin for a while, and return for how many seconds."""
        # Each pause doubles the time, at most 2**30 times, which is more than any cap.
        doubled = 2.0 ** min(self._streak, 30) / self._max_rate
        pause = min(doubled, self._interval * _MAX_PAUSE)
        pause = max(pause, 1 / self._max_rate, min(retry_after, self._interval))
        self._not_before = max(self._not_before, now + pause)
        self._next_tick = max(self._next_tick, self._not_before)
        return pause

    def _failed(
        self, record: LeaseRecord[L], problem: BaseException, now: float
    ) -> LeaseMissed | None:
        record.failures += 1
        record.throttles = 0
        gap = now - record.extended
        is_last = record.failures > self._max_retries
        if is_last:
            record.failures = 0
            self._join(self._backup, record, now)
        else:
            pause = pause_before(record.failures, self._max_retries, self._interval)
            record.due = now + pause
            self._pauses.set(record, record.due)
        # It is told once in each interval, and first as soon as the gap is too long.
        too_long = is_last or gap > self._interval * _TOO_LONG
        if not too_long or now - record.told < self._interval:
            return None
        record.told = now
        self._counts["missed"] += 1
        return LeaseMissed(record.lease, gap, problem)

    def _extended(self, record: LeaseRecord[L], now: float) -> LeaseMissed | None:
        gap = record.begun - record.extended
        record.extended = record.begun
        record.failures = record.throttles = 0
        self._set_lapse(record)
        # A renewal that began before this interval was the lease's turn of the last one.  Then the
        # lease joins arrivals, and not main: at the end of the interval the rest of main goes
        # before backup, which may hold leases that are due before this one.
        had = record.begun >= self._ends - self._interval
        self._join(self._backup if had else self._arrivals, record, now)
        if gap <= self._interval * _TOO_LONG:
            return None
        self._counts["missed"] += 1
        return LeaseMissed(record.lease, gap, None)

    def _set_lapse(self, record: LeaseRecord[L]) -> None:
        if self._ttl is not None:
            self._lapses.set(record, record.extended + GIVE_UP * self._ttl)
