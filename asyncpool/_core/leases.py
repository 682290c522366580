"""Decide which lease gets the next beat, and when.

A lease that is held in an outside system lapses unless it is extended in time, and
the outside system takes only so many extensions a second.  So there is one beat per
*tick*, a tick every ``1 / rate`` seconds, and one turn per lease in each *cycle*.
(From 40 a second on, a tick is for as many beats as there are in :data:`TICK`: it costs
more to wake up for a beat than to send it, and at 100 a second 1 % of a core.)

* ``main`` holds those that wait for their turn of this cycle, ``backup`` those that
  had it.  At the end of the cycle backup becomes main.
* ``arrivals`` holds those that came in the middle of a cycle, and those whose beat
  failed: the end of the line.

Each lease is *due* one cycle after it last came to a queue.  Every queue is sorted by
that without any sorting, since what joins one joins at its end, with the latest due of
all; so the earliest of all is at one of two heads, and a tick costs the same with ten
leases as with a hundred thousand.  Taking the earlier head is *earliest deadline
first*, which is optimal: as long as there are no more leases than ticks in a cycle,
every one has its turn within a cycle and a tick of the last (and of coming), however
many come and go meanwhile.  (With *b* beats at a tick it is a cycle and ``2b - 1`` beats:
those that came just before the end of the cycle can have had a whole tick, and the next
one has no place for whoever had its last turn as one too many for a tick.)  With more
of them the turns are just further apart, the same for all.
A plain deque without the dues would not do: with many short jobs, those that come
would take the ticks that the old ones need.

Time that has passed without a beat is gone: there are no tokens to be saved up, and so
there is no burst after a stall.  But a timer of an event loop is late by up to a
millisecond or two, and at forty beats a second that would cost a twentieth of them:
so much lateness, :data:`SLACK`, is made good.  With *b* beats at a tick, one up to a
rate of 40, any *n + b* beats in a row take at least ``n / rate - SLACK`` seconds; in
other words there are at most ``rate * (w + SLACK) + b`` of them in any *w* seconds.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from asyncpool.events import LeaseSaturated

__all__ = [
    "MAX_THROTTLES",
    "SLACK",
    "TICK",
    "Gone",
    "LeaseLedger",
    "Missed",
    "Outcome",
    "Slower",
    "Verdict",
]

L = TypeVar("L", bound=Hashable)

# Seconds of lateness that the next ticks make good.
SLACK = 0.002

# Seconds between two ticks, if a tick is for several beats; less if a cycle is short.
TICK = 0.05

# How often in a row one lease may be throttled and keep its place at the front.  More
# often, and it is most likely throttled for itself, and must not hold up the others.
MAX_THROTTLES = 5

# The longest pause after a beat that was throttled, as a share of the cycle.
_MAX_PAUSE = 1 / 8

# Before all time; who is due then, is due before all others: at the front.
_NEVER = _AT_ONCE = float("-inf")

# How many cycles without an extension are too long.  A little more than one, since
# every turn waits for its tick, for the loop, and for the outside system's answer.
_TOO_LONG = 1.1


class Outcome(enum.Enum):
    """How a beat ended."""

    EXTENDED = enum.auto()
    THROTTLED = enum.auto()
    FAILED = enum.auto()
    GONE = enum.auto()


@dataclass(frozen=True, slots=True)
class Slower:
    """Verdict: no beat at all for *pause* seconds."""

    pause: float


@dataclass(frozen=True, slots=True)
class Missed:
    """Verdict: the lease has not been extended for *gap* seconds, which is too long."""

    gap: float


@dataclass(frozen=True, slots=True)
class Gone:
    """Verdict: the lease is lost, and forgotten here."""


Verdict = Slower | Missed | Gone | None


class _Record:
    """What is known of one lease.

    Attributes:
        due: When it should have had its next turn.
        extended: When the last beat began that was answered with success, or when
            the lease came.
        begun: When its latest beat began.
        failures: Beats that failed, in a row, since its last turn was over.
        throttles: Beats that were throttled, in a row.
    """

    __slots__ = ("begun", "due", "extended", "failures", "throttles")

    def __init__(self, now: float) -> None:
        self.due = self.extended = self.begun = now
        self.failures = self.throttles = 0


class LeaseLedger(Generic[L]):
    """Every lease, in the order of the turns, and when the next beat may be.

    Each call takes the time, on a clock that never goes backwards, and costs the same
    however many leases there are.  Only the end of a cycle that was too short for all
    costs time for each beat that was made in it.

    Args:
        rate: The most beats a second.
        cycle: Seconds in which each lease has a turn.
        max_retries: How often a beat that failed is repeated before the lease waits
            for the next cycle.
        overlap: The most beats under way at a time.
        now: Current time.
    """

    def __init__(
        self, *, rate: float, cycle: float, max_retries: int, overlap: int, now: float
    ) -> None:
        self.rate = rate
        self.cycle = cycle
        # With 0.1 a second and 30 s it is three, whatever floats make of that.
        self.capacity = int(rate * cycle + 1e-9)
        self._max_retries = max_retries
        self._overlap = overlap
        self._records: dict[L, _Record] = {}
        # Dicts, since a lease leaves from the middle at the end of its job.
        self._main: OrderedDict[L, _Record] = OrderedDict()
        self._backup: OrderedDict[L, _Record] = OrderedDict()
        self._arrivals: OrderedDict[L, _Record] = OrderedDict()
        self._flying: dict[L, _Record] = {}
        # The next tick is a full one, for so many beats: with 40 a second it is two,
        # whatever floats make of that.  Those but the last may come before it.
        self._at_a_tick = max(1, int(rate * min(TICK, cycle / 4) + 1e-9))
        self._next_tick = now
        self._not_before = now  # because of a beat that was throttled
        self._ends = now + cycle
        self._streak = 0  # pauses in a row, without a success between them
        self._slowed = _NEVER  # when the latest of them began
        self._told: float | None = None  # when saturation was last told

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, lease: L) -> bool:
        return lease in self._records

    @property
    def flying(self) -> int:
        """How many beats are under way."""
        return len(self._flying)

    @property
    def saturated(self) -> bool:
        """Whether there are more leases than a cycle has beats."""
        return len(self._records) > self.capacity

    def add(self, lease: L, now: float) -> LeaseSaturated | None:
        """Take a lease that is not here; its first beat is within a cycle from now.

        Returns:
            What to tell if there are more leases than a cycle has beats, unless that
            was told less than a cycle ago.
        """
        record = self._records[lease] = _Record(now)
        # Its name may have a beat under way for the lease that it was before: then it
        # joins when that is over, so that the two never overlap.
        if lease not in self._flying:
            self._to_end(self._arrivals, lease, record, now)
        if not self.saturated:
            return None
        if self._told is not None and now - self._told < self.cycle:
            return None
        self._told = now
        return LeaseSaturated(
            leases=len(self._records),
            capacity=self.capacity,
            cycle=self.cycle,
            rate=self.rate,
            worst_gap=len(self._records) / self.rate,
        )

    def discard(self, lease: L) -> None:
        """Forget a lease, if it is here; the outcome of a beat under way is ignored."""
        if self._records.pop(lease, None) is not None:
            for queue in (self._main, self._backup, self._arrivals):
                queue.pop(lease, None)

    def next_due(self) -> float | None:
        """Return when to ask for the next beats, if nothing else happens before.

        ``None`` if there will be none: nobody waits for one, or too many are under way.
        """
        if len(self._flying) >= self._overlap:
            return None
        if self._main or self._arrivals:
            return self._next_tick
        if self._backup:
            return max(self._next_tick, self._ends)
        return None

    def beat(self, now: float) -> L | None:
        """Begin a beat, if there is one to begin: return its lease.

        The caller reports every such beat to :meth:`outcome`, once, unless it was taken
        back by :meth:`recall`.
        """
        if now >= self._ends:
            self._end_cycle(now)
        early = (self._at_a_tick - 1) / self.rate + 1e-9
        if now < max(self._next_tick - early, self._not_before):
            return None
        queue = self._earliest()
        if not queue or len(self._flying) >= self._overlap:
            return None
        lease, record = queue.popitem(last=False)
        record.begun = now
        self._flying[lease] = record
        self._next_tick = max(self._next_tick, now - SLACK) + 1 / self.rate
        return lease

    def recall(self, lease: L, now: float) -> bool:
        """Take a beat back that was not sent yet, if nobody wants it any more.

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

    def outcome(
        self, lease: L, outcome: Outcome, now: float, *, retry_after: float = 0.0
    ) -> Verdict:
        """Enter how the beat of *lease* ended.

        Args:
            lease: The lease.
            outcome: The end.
            now: Current time.
            retry_after: The pause that the outside system has asked for, in seconds;
                a cycle at the most is granted.
        """
        record = self._flying.pop(lease)
        # What slows the beats down has to do with all leases, also with forgotten ones.
        pause = self._slow_down(record, now, retry_after, outcome)
        current = self._records.get(lease)
        if current is not record:
            if current is not None:
                # It came again meanwhile, and has waited for long enough.
                self._to_front(lease, current, now)
            return Slower(pause) if pause else None
        match outcome:
            case Outcome.GONE:
                del self._records[lease]
                return Gone()
            case Outcome.THROTTLED:
                return self._throttled(lease, record, now, pause)
            case Outcome.FAILED:
                return self._failed(lease, record, now)
            case Outcome.EXTENDED:
                return self._extended(lease, record, now)

    def _earliest(self) -> OrderedDict[L, _Record]:
        """Return the queue at whose head is the lease that is due first."""
        main, arrivals = self._main, self._arrivals
        if not main or not arrivals:
            return main or arrivals
        first, second = next(iter(main.values())), next(iter(arrivals.values()))
        return main if first.due < second.due else arrivals

    def _end_cycle(self, now: float) -> None:
        # Whoever is left in main had no turn in this cycle, and so is due before all
        # those who had.
        self._rouse(self._ends)
        if self._main:
            self._main.update(self._backup)
            self._backup.clear()
        else:
            self._main, self._backup = self._backup, self._main
        # Cycles that a stall has swallowed are not made good either.
        self._ends += self.cycle * (1 + (now - self._ends) // self.cycle)

    def _slow_down(
        self, record: _Record, now: float, retry_after: float, outcome: Outcome
    ) -> float:
        """Return for how long there is no beat, after this outcome of *record*'s."""
        # Of the beats that were under way together only the first one counts, in the
        # one way or the other: they all tell of the same moment.
        news = record.begun > self._slowed
        if outcome is not Outcome.THROTTLED:
            if news and outcome is Outcome.EXTENDED:
                self._streak = 0
            return 0.0
        if news:
            self._streak += 1
            self._slowed = now
        # Twice as slow with each; no more than 2**30 times, which is beyond any cap.
        pause = min(2.0 ** min(self._streak, 30) / self.rate, self.cycle * _MAX_PAUSE)
        pause = max(pause, 1 / self.rate, min(retry_after, self.cycle))
        self._not_before = max(self._not_before, now + pause)
        self._next_tick = max(self._next_tick, self._not_before)
        return pause

    def _throttled(
        self, lease: L, record: _Record, now: float, pause: float
    ) -> Verdict:
        record.throttles += 1
        if record.throttles > MAX_THROTTLES:
            record.throttles = 0
            self._to_end(self._arrivals, lease, record, now)
        else:
            self._to_front(lease, record, now)
        return Slower(pause)

    def _failed(self, lease: L, record: _Record, now: float) -> Verdict:
        record.failures += 1
        record.throttles = 0
        if record.failures <= self._max_retries:
            self._to_end(self._arrivals, lease, record, now)
            return None
        record.failures = 0
        self._to_end(self._backup, lease, record, now)
        return Missed(now - record.extended)

    def _extended(self, lease: L, record: _Record, now: float) -> Verdict:
        gap = record.begun - record.extended
        record.extended = record.begun
        record.failures = record.throttles = 0
        self._to_end(self._backup, lease, record, now)
        return Missed(gap) if gap > self.cycle * _TOO_LONG else None

    def _to_front(self, lease: L, record: _Record, now: float) -> None:
        self._rouse(now)
        record.due = _AT_ONCE
        self._main[lease] = record
        self._main.move_to_end(lease, last=False)

    def _to_end(
        self, queue: OrderedDict[L, _Record], lease: L, record: _Record, now: float
    ) -> None:
        self._rouse(now)
        record.due = now + self.cycle
        queue[lease] = record

    def _rouse(self, now: float) -> None:
        # A tick that nobody has waited for is not late, and not made good.
        if not self._main and not self._arrivals:
            self._next_tick = max(self._next_tick, now)
