"""The lease ledger against a model that looks at all leases each time it chooses; then rule by rule.

The clock is virtual: it jumps to the next tick, or past it when the loop stalls.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Any

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asyncpool._core.leases import (
    GIVE_UP,
    MAX_THROTTLES,
    SLACK,
    LeaseLedger,
    longest_gap,
    pause_before,
)
from asyncpool.errors import LeaseLostError, ThrottledError
from asyncpool.events import (
    LeaseEvent,
    LeaseLost,
    LeaseMissed,
    LeaseRelieved,
    LeaseSaturated,
    LeaseThrottled,
)
from tests.helpers.inside import due_ever

EPSILON = 1e-9

# What a renewal raises.
Result = BaseException | None
EXTENDED = None
THROTTLED, FAILED, GONE = ThrottledError(), OSError("down"), LeaseLostError()
RESULTS: list[Result] = [EXTENDED, THROTTLED, FAILED, GONE]


@dataclass(frozen=True)
class Pace:
    """How fast a ledger is."""

    rate: float
    cycle: float
    capacity: int
    at_a_tick: int

    @property
    def names(self) -> range:
        """What leases are called: there may be too many for a cycle."""
        return range(self.capacity + 2)

    @property
    def lateness(self) -> float:
        """By how much more than a cycle two renewals of a lease may be apart."""
        return (2 * self.at_a_tick - 1) / self.rate


SLOW = Pace(rate=2.0, cycle=2.0, capacity=4, at_a_tick=1)
FAST = Pace(rate=64.0, cycle=0.125, capacity=8, at_a_tick=2)
paces = st.sampled_from([SLOW, FAST])


# Fractions that floats have, else the model's sums would not be the ledger's.
stalls = st.sampled_from([0.0, 0.0, 0.0, 1 / 1024, 1 / 128, 0.375, 2.0, 3.5, 20.0])


@dataclass
class Kept:
    """A lease, as the model sees it."""

    due: float
    extended: float
    # Or "front", "flying", "had", "pause", "repeat", "again" (behind a flight).
    place: str = "turn"
    place_since: int = 0
    failures: int = 0
    throttles: int = 0
    told: float = -math.inf


class LeaseMachine(RuleBasedStateMachine):
    """Leases come, have their renewals, fail, are throttled, and go."""

    @initialize(
        pace=paces,
        max_retries=st.integers(0, 2),
        overlap=st.integers(1, 3),
        leases=st.integers(1, 10),
        cycles=st.sampled_from([None, 2.5, 4.0]),
    )
    def start(
        self,
        pace: Pace,
        max_retries: int,
        overlap: int,
        leases: int,
        cycles: float | None,
    ) -> None:
        self.pace = pace
        self.max_retries, self.overlap = max_retries, overlap
        self.ttl = None if cycles is None else cycles * pace.cycle
        self.now, self.repeated = 0.0, False
        self.told, self.told_at = 0, -math.inf
        most: Any = {"max_rate": pace.rate, "overlap": overlap, "max_overlap": overlap}
        self.ledger: LeaseLedger[int] = ledger_of(
            interval=pace.cycle, max_retries=max_retries, ttl=self.ttl, **most
        )
        self.kept: dict[int, Kept] = {}
        self.flights: dict[int, tuple[float, Kept]] = {}
        self.ends = pace.cycle
        # How many renewals there were, and by how much one of them was behind a steady pace
        # at the most.
        self.beaten, self.behind = 0, -math.inf
        self.pause_until = 0.0
        self.steps = 0
        self.counts = dict.fromkeys(
            ("renewed", "throttled", "lost", "failed", "missed", "lapsed"), 0
        )
        for lease in pace.names[:leases]:
            self.take(lease)

    @precondition(lambda self: len(self.kept) < len(self.pace.names))
    @rule(data=st.data(), stall=stalls)
    def add(self, data: st.DataObject, stall: float) -> None:
        self.now += stall
        self.take(data.draw(st.sampled_from(sorted({*self.pace.names} - {*self.kept}))))

    def take(self, lease: int) -> None:
        self.ledger.add(lease, self.now)
        place = "again" if lease in self.flights else "turn"
        self.kept[lease] = Kept(self.now + self.pace.cycle, self.now, place)
        self.check_news()

    def check_news(self) -> None:
        leases, capacity = len(self.kept), self.ledger.capacity
        excess = leases if leases > capacity else 0
        due = None if excess == self.told else self.told_at + self.pace.cycle
        assert self.ledger.next_news() == due
        news = self.ledger.news(self.now)
        if due is None or due > self.now:
            assert news is None
            return
        self.told, self.told_at = excess, self.now
        if excess:
            assert isinstance(news, LeaseSaturated)
            assert (news.leases, news.capacity) == (leases, capacity)
            assert news.worst_gap == leases / news.rate >= leases / self.pace.rate
        else:
            assert news == LeaseRelieved(leases=leases, capacity=capacity)
        assert self.ledger.next_news() is None

    @precondition(lambda self: len(self.kept) > 1)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.kept)))
        self.ledger.discard(lease)
        del self.kept[lease]
        self.check_news()

    @precondition(lambda self: self.ttl is not None)
    @rule(stall=stalls)
    def judge(self, stall: float) -> None:
        assert self.ttl is not None
        self.now += stall
        ends = {
            lease: kept.extended + GIVE_UP * self.ttl
            for lease, kept in self.kept.items()
        }
        assert self.ledger._lapses.next() == min(ends.values(), default=None)
        lapsed = dict(self.ledger.lapsed(self.now))
        assert set(lapsed) == {name for name, end in ends.items() if end <= self.now}
        for lease, gap in lapsed.items():
            assert gap == self.now - self.kept.pop(lease).extended
        self.counts["lapsed"] += len(lapsed)

    @precondition(lambda self: self.kept)
    @rule(stall=stalls)
    def tick(self, stall: float) -> None:
        self.step(stall)

    @precondition(lambda self: self.kept)
    @rule(results=st.lists(st.sampled_from(RESULTS), min_size=1, max_size=9))
    def renewals(self, results: list[Result]) -> None:
        for result in results:
            lease = self.step(0.0)
            if lease is not None:
                self.end_flight(lease, result)

    @precondition(lambda self: self.flights)
    @rule(
        data=st.data(),
        result=st.sampled_from(
            [*RESULTS, *RESULTS, EXTENDED]
            + [ThrottledError(retry_after=seconds) for seconds in (1.75, 99.0)]
        ),
        wait=stalls,
    )
    def settle(self, data: st.DataObject, result: Result, wait: float) -> None:
        self.now += wait
        self.end_flight(data.draw(st.sampled_from(sorted(self.flights))), result)

    def step(self, stall: float) -> int | None:
        """Go to the next renewal, or past it, and begin it; return its lease."""
        due = self.ledger.next_due()
        if due is None:
            # Nothing to be done before something happens: all are under way, or there
            # is no room for another.
            full = len(self.flights) >= self.overlap
            assert full or all(
                kept.place in {"flying", "again"} for kept in self.kept.values()
            )
            assert self.ledger.begin_renewal(self.now) is None
            self.turn_over(self.now)  # for who asks for a renewal ends the cycle, too
            return None
        if due > self.now and self.pace.at_a_tick == 1:
            early = self.now + (due - self.now) / 2
            assert self.ledger.begin_renewal(early) is None, "before its time"
            self.turn_over(early)
        self.now = max(self.now, due) + stall
        self.turn_over(self.now)
        lease = self.ledger.begin_renewal(self.now)
        assert lease is not None, "a renewal that was due did not happen"
        self.check_beat(lease)
        return lease

    def turn_over(self, now: float) -> None:
        for kept in self.kept.values():
            if kept.place == "pause" and kept.due <= now:
                kept.place = "repeat"
        if now < self.ends:
            return
        while self.ends <= now:
            self.ends += self.pace.cycle
        for kept in self.kept.values():
            if kept.place == "had":
                kept.place = "turn"

    def check_beat(self, lease: int) -> None:
        kept = self.kept[lease]
        assert lease not in self.flights, "two renewals of one lease overlap"
        assert len(self.flights) < self.overlap
        assert self.now >= self.pause_until, "it hammers"
        front = [k for k in self.kept.values() if k.place == "front"]
        repeats = [k.due for k in self.kept.values() if k.place == "repeat"]
        waiting = [k.due for k in self.kept.values() if k.place == "turn"]
        is_repeat = not front and bool(repeats) and not (self.repeated and waiting)
        if is_repeat:
            assert kept.place == "repeat", "a repeat has to wait for others"
            assert kept.due == min(repeats), "another one was to be repeated before"
        elif front:
            assert kept.place == "front"
            assert kept.place_since == max(k.place_since for k in front)
        else:
            assert kept.place == "turn", "its turn is not now"
            assert kept.due == min(waiting), "another one was due before"
        self.repeated = is_repeat
        kept.place = "flying"
        self.flights[lease] = (self.now, kept)
        # Of any renewal and the n-th one after it: at least (n + 1 - at_a_tick) / rate apart.
        # This is that for all pairs at once, for the price of one.
        self.beaten += 1
        behind = self.now - self.beaten / self.pace.rate
        self.behind = max(self.behind, behind)
        slack = (self.pace.at_a_tick - 1) / self.pace.rate + SLACK
        assert behind >= self.behind - slack - EPSILON, "too fast"

    def end_flight(self, lease: int, result: Result) -> None:
        begun, flown = self.flights.pop(lease)
        verdict = self.ledger.end_renewal(lease, result, self.now)
        if isinstance(result, ThrottledError):
            assert isinstance(verdict, LeaseThrottled)
            assert 1 / self.pace.rate <= verdict.pause <= self.pace.cycle
            assert verdict.pause >= min(result.retry_after, self.pace.cycle)
            self.pause_until = max(self.pause_until, self.now + verdict.pause)
            expected: LeaseEvent | None = verdict
        else:
            expected = None
        kept = self.kept.get(lease)
        if kept is not None and kept is flown:
            expected = self.move(lease, kept, result, begun) or expected
        elif kept is not None:
            self.put(kept, "front")
        assert verdict == expected
        self.counts["missed"] += isinstance(verdict, LeaseMissed)
        match result:
            case LeaseLostError():
                self.counts["lost"] += 1
            case ThrottledError():
                self.counts["throttled"] += 1
            case _:
                self.counts["renewed" if result is None else "failed"] += 1

    def move(
        self, lease: int, kept: Kept, result: Result, begun: float
    ) -> LeaseEvent | None:
        """Put a lease where it goes after a renewal; return what is told."""
        too_long = self.pace.cycle * 1.1
        match result:
            case LeaseLostError():
                del self.kept[lease]
                return LeaseLost(lease)
            case ThrottledError():
                kept.throttles = (kept.throttles + 1) % (MAX_THROTTLES + 1)
                self.put(kept, "front" if kept.throttles else "turn")
                return None
            case None:
                gap, kept.extended = begun - kept.extended, begun
                kept.failures = kept.throttles = 0
                last_cycle = begun < self.ends - self.pace.cycle
                self.put(kept, "turn" if last_cycle else "had")
                return LeaseMissed(lease, gap, None) if gap > too_long else None
            case _:
                gap = self.now - kept.extended
                kept.throttles = 0
                kept.failures = (kept.failures + 1) % (self.max_retries + 1)
                self.put(kept, "pause" if kept.failures else "had")
                if kept.failures:
                    kept.due = self.now + pause_before(
                        kept.failures, self.max_retries, self.pace.cycle
                    )
                is_bad = not kept.failures or gap > too_long
                if not is_bad or self.now - kept.told < self.pace.cycle:
                    return None
                kept.told = self.now
                return LeaseMissed(lease, gap, result)

    def put(self, kept: Kept, place: str) -> None:
        self.steps += 1
        kept.place, kept.place_since = place, self.steps
        kept.due = self.now + self.pace.cycle

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "ledger"):
            return
        ledger = self.ledger
        stats = ledger.stats(7, over=False)
        assert {name: getattr(stats, name) for name in self.counts} == self.counts
        ends = sum(self.counts.values()) - stats.missed - stats.lapsed
        assert (
            stats.renewals,
            stats.in_progress,
            stats.leases,
            stats.dropped_events,
        ) == (
            ends + len(self.flights),
            len(self.flights),
            len(self.kept),
            7,
        )
        assert ledger.stats(7, over=True).in_progress == 0
        assert set(ledger._records) == set(self.kept)
        assert len(ledger) == len(self.kept)
        assert ledger.capacity <= self.pace.capacity
        assert set(ledger._in_progress) == set(self.flights)
        main, backup = ledger._main, ledger._backup
        queued = [*main, *backup, *ledger._arrivals, *ledger._repeats]
        places: dict[str, set[int]] = defaultdict(set)
        for name, kept in self.kept.items():
            places[kept.place].add(name)
        away = places["flying"] | places["again"] | places["pause"]
        assert sorted(queued) == sorted(set(self.kept) - away)
        assert set(ledger._repeats) == places["repeat"]
        pauses = {record.lease for record in due_ever(ledger._pauses)}
        assert pauses == places["pause"]
        # What makes the earliest of all one of two heads: main is sorted, also with backup
        # behind it, which is what it becomes if it is left over at the end of a cycle.
        for queue in (main | backup, ledger._arrivals, ledger._repeats):
            dues = [record.due for record in queue.values()]
            assert dues == sorted(dues)

    def teardown(self) -> None:
        """Let all be well from now on: then every lease has its renewals."""
        if not hasattr(self, "ledger"):
            return
        for lease in list(self.flights):
            self.end_flight(lease, EXTENDED)
        had: set[int] = set()
        # A lease that has had a renewal may have its next one before others, but no more
        # often than that.
        for _ in range(2 * len(self.kept)):
            served = self.step(0.0)
            assert served is not None
            had.add(served)
            self.end_flight(served, EXTENDED)
        assert had == set(self.kept), "these never had a renewal again"


TestLeases = LeaseMachine.TestCase


@dataclass
class Life:
    """When a lease comes, and when it goes."""

    name: int
    comes: float
    goes: float


@st.composite
def lifecycle(draw: st.DrawFn, pace: Pace) -> list[Life]:
    """Draw leases of which there are never more than a cycle has renewals."""
    chosen: list[Life] = []
    for seat in range(draw(st.integers(1, pace.capacity))):
        now = 0.0
        for number in range(draw(st.integers(1, 8))):
            now += pace.cycle * draw(st.sampled_from([0.0, 0.05, 0.25, 1.0, 3.5]))
            stay = draw(st.sampled_from([0.15, 0.5, 0.95, 1.0, 3.0, 15.0]))
            chosen.append(Life(100 * seat + number, now, now + pace.cycle * stay))
            now = chosen[-1].goes
    return sorted(chosen, key=lambda life: life.comes)


def play(
    pace: Pace, lifecycle: list[Life], answers: Sequence[float], end: float
) -> dict[int, list[tuple[float, float]]]:
    """Run a ledger in time; return the renewals of each lease.

    Each with its answer: *answers* says in turn how long one takes.
    """
    ledger = ledger_of(max_rate=pace.rate, interval=pace.cycle, overlap=99)
    renewals: dict[int, list[tuple[float, float]]] = {
        life.name: [] for life in lifecycle
    }
    seconds = itertools.cycle(answers)
    # What will happen, in order; at one moment some go before others come.
    agenda = [(life.goes, 0, life.name) for life in lifecycle]
    agenda += [(life.comes, 1, life.name) for life in lifecycle]
    agenda.sort(reverse=True)
    flights: list[tuple[float, int, int]] = []
    numbers = itertools.count()
    now = 0.0
    while now < end:
        while agenda and agenda[-1][0] <= now:
            _, comes, name = agenda.pop()
            if comes:
                ledger.add(name, now)
            else:
                ledger.discard(name)
        while flights and flights[0][0] <= now:
            _, _, name = heappop(flights)
            ledger.end_renewal(name, EXTENDED, now)
        while (lease := ledger.begin_renewal(now)) is not None:
            answered = now + next(seconds)
            renewals[lease].append((now, answered))
            # Those that are answered in one moment are in the order of their renewals.
            heappush(flights, (answered, next(numbers), lease))
        due = ledger.next_due()
        moments = [end, *(m[0] for m in agenda[-1:]), *(f[0] for f in flights[:1])]
        now = min([*moments, due] if due is not None and due > now else moments)
        # Not before now: what had happened by then is done.
    return renewals


@given(
    st.data(),
    paces,
    st.lists(st.sampled_from([0.0, 0.03, 0.15, 0.7, 1.3]), min_size=1, max_size=9),
)
def test_if_a_cycle_has_a_beat_for_each_every_lease_gets_it_in_time(
    data: st.DataObject, pace: Pace, answers: list[float]
) -> None:
    chosen = data.draw(lifecycle(pace))
    end = max(life.goes for life in chosen) + 1
    renewals = play(pace, chosen, [pace.cycle * answer for answer in answers], end)
    for life in chosen:
        # From its coming to its first renewal, from each answer to the next renewal, and to
        # its end: never more than a cycle, and so many renewals.
        starts = [life.comes, *(answered for _, answered in renewals[life.name])]
        stops = [*(begun for begun, _ in renewals[life.name]), life.goes]
        for start, stop in zip(starts, stops, strict=True):
            assert stop - start <= pace.cycle + pace.lateness + EPSILON


def test_a_beat_is_as_late_as_that_if_others_come_just_before_the_cycle_ends() -> None:
    renewal, moment = 1 / FAST.rate, 1 / 1024
    chosen = [
        Life(name, comes, 1.0) for name, comes in enumerate([0.0, renewal, renewal])
    ]
    # These two have a whole tick, and the three before them wait for the next one.
    chosen += [Life(name, FAST.cycle - moment, 1.0) for name in (3, 4)]
    (first, _), (second, _) = play(FAST, chosen, [0.0], 2 * FAST.cycle)[2][:2]
    assert second - first == FAST.cycle + FAST.lateness - moment


# Rule by rule.


def ledger_of(leases: str = "", **options: Any) -> LeaseLedger[Any]:
    """Return a ledger at time 0 with a lease for each letter."""
    usual = {"max_rate": 1.0, "interval": 10.0, "max_retries": 1, "overlap": 4}
    ledger = LeaseLedger[Any](**{"max_overlap": 99, **usual, **options})
    for lease in leases:
        ledger.add(lease, 0.0)
    return ledger


def sent(ledger: LeaseLedger[str], until: float, *ends: Result) -> list[str]:
    """Send the renewals that there are before *until*; write down who and when.

    They end at once, in turn as *ends* says, and with success from then on.
    """
    said, results = [], itertools.chain(ends, itertools.repeat(EXTENDED))
    while (due := ledger.next_due()) is not None and due < until:
        lease = ledger.begin_renewal(due)
        if lease is not None:
            ledger.end_renewal(lease, next(results), due)
            said.append(f"{lease}{due:g}")
    return said


@pytest.mark.parametrize("retries", [1, 2, 3, 10, 5000])
def test_the_pauses_double_and_take_less_than_half_a_cycle(retries: int) -> None:
    pauses = [pause_before(n, retries, 64.0) for n in range(1, retries + 1)]
    assert pauses[-1] == 16.0
    assert all(2 * one == two for one, two in itertools.pairwise(pauses[-10:]))
    assert sum(pauses) <= 32.0
    # The answer to the last success, a cycle, and what is for the next one.
    expected = 1 + 64 + sum(pauses) + (1 + retries)
    assert longest_gap(64.0, retries, 1.0) == pytest.approx(expected)


def test_the_first_failed_beat_that_is_too_late_is_told_and_one_in_each_cycle() -> None:
    ledger = ledger_of("a", interval=16.0, max_retries=3)
    told: list[tuple[float, LeaseEvent]] = []
    assert sent(ledger, 1) == ["a0"]
    while (due := ledger.next_due()) is not None and due < 64:
        ledger.begin_renewal(due)
        verdict = ledger.end_renewal("a", FAILED, due)
        if verdict is not None:
            told.append((due, verdict))
    # 16 and 17 seconds are no more than a cycle and a tenth, or as good as that.
    assert told == [(gap, LeaseMissed("a", gap, FAILED)) for gap in (19, 35, 51)]


def test_a_throttled_lease_stays_in_front_and_everybody_waits() -> None:
    ledger = ledger_of("abc", interval=80.0)
    # Pauses of two ticks, four, eight, and then an eighth of the cycle.
    assert sent(ledger, 40, *[THROTTLED] * 4) == [
        *("a0", "a2", "a6", "a14", "a24"),
        *("b25", "c26"),
    ]


def test_one_that_is_throttled_for_itself_does_not_hold_up_the_others() -> None:
    ledger = ledger_of("ab", interval=800.0)
    said = [name[0] for name in sent(ledger, 1000, *[THROTTLED] * (MAX_THROTTLES + 1))]
    assert said == [*"a" * (MAX_THROTTLES + 1), *"ba", *"ba"]


def test_only_a_success_ends_the_slowness() -> None:
    ledger = ledger_of("ab", interval=800.0, max_retries=9)
    said = sent(ledger, 90, THROTTLED, THROTTLED, FAILED, THROTTLED)
    assert said == ["a0", "a2", "a6", "a7", "a15", "b16"]


def test_the_pause_is_the_one_that_the_outside_system_asks_for() -> None:
    for asked, granted in ((0.5, 2.0), (3.5, 3.5), (999.0, 80.0), (float("nan"), 2.0)):
        ledger = ledger_of("a", interval=80.0)
        assert ledger.begin_renewal(0.0) == "a"
        verdict = ledger.end_renewal("a", ThrottledError(retry_after=asked), 0.0)
        assert verdict == LeaseThrottled("a", granted)
        assert ledger.next_due() == granted


def test_of_beats_that_are_throttled_together_only_one_counts() -> None:
    ledger = ledger_of("abc", interval=800.0)
    for now in range(3):
        ledger.begin_renewal(now)
    for lease in "abc":
        told = ledger.end_renewal(lease, THROTTLED, 3.0)
        assert told == LeaseThrottled(lease, 2)
    # Nor does a success of that time say anything about the time after it.
    assert ledger.next_due() == 5.0


def test_a_success_from_before_the_pause_does_not_end_it() -> None:
    ledger = ledger_of("ab", interval=800.0)
    ledger.begin_renewal(0.0), ledger.begin_renewal(1.0)
    assert ledger.end_renewal("a", THROTTLED, 2.0) == LeaseThrottled("a", 2)
    assert ledger.end_renewal("b", EXTENDED, 2.0) is None
    assert ledger.begin_renewal(4.0) == "a"
    assert ledger.end_renewal("a", THROTTLED, 4.0) == LeaseThrottled("a", 4)


def test_a_lease_that_comes_again_waits_for_the_beat_that_is_under_way() -> None:
    ledger = ledger_of("ab")
    assert ledger.begin_renewal(0.0) == "a"
    ledger.discard("a")
    ledger.add("a", 0.1)
    assert sent(ledger, 9) == ["b1"]
    # The news is not of this one.
    assert ledger.end_renewal("a", GONE, 9.0) is None
    assert sent(ledger, 20) == ["a9", "b10", "a11"]


def test_beats_that_are_answered_a_cycle_later_do_not_delay_who_had_its_turn() -> None:
    # As many leases as ticks.  Four renewals hang until just before the end of the next cycle,
    # which has room for one of them: three of the leases are left over.
    ledger = ledger_of("abcdefghij", overlap=5)
    assert sent(ledger, 6) == ["a0", "b1", "c2", "d3", "e4", "f5"]
    assert [ledger.begin_renewal(now) for now in (6.0, 7.0, 8.0, 9.0)] == [*"ghij"]
    assert sent(ledger, 19) == ["a10", "b11", "c12", "d13", "e14", "f15"]
    for lease in "ghij":
        ledger.end_renewal(lease, EXTENDED, 19.5)
    assert sent(ledger, 32) == [
        "g19.5",
        # These are due first, and were up to 13.5 s apart when they were behind the three.
        *("a20.5", "b21.5", "c22.5", "d23.5", "e24.5", "f25.5"),
        *("h26.5", "i27.5", "j28.5", "g29.5", "a30.5", "b31.5"),
    ]


def test_a_timer_that_is_late_costs_no_ticks() -> None:
    ledger = ledger_of("abcdefgh", max_rate=20.0)
    times = []
    for _ in range(8):
        due = ledger.next_due()
        assert due is not None
        lease = ledger.begin_renewal(due + SLACK)
        assert lease is not None
        ledger.end_renewal(lease, EXTENDED, due + SLACK)
        times.append(due + SLACK)
    assert times == pytest.approx([n / 20 + SLACK for n in range(8)])


@pytest.mark.parametrize(
    ("rate", "cycle", "renewals"),
    [
        *((0.5, 100.0, 1), (39.0, 100.0, 1), (40.0, 100.0, 2), (59.0, 100.0, 2)),
        *((100.0, 100.0, 5), (100.0, 0.2, 5), (100.0, 0.1, 2), (100.0, 0.02, 1)),
    ],
)
def test_at_high_rates_a_tick_is_for_several_beats(
    rate: float, cycle: float, renewals: int
) -> None:
    ledger = ledger_of("abcdefghijklmno", max_rate=rate, interval=cycle, overlap=99)
    moments = []
    for tick in range(3):
        due = ledger.next_due()
        assert due is not None
        assert due == pytest.approx(tick * renewals / rate)
        while ledger.begin_renewal(due) is not None:
            moments.append(due)
    assert len(moments) == 3 * renewals


def test_saturation_is_told_at_once_and_once_a_cycle_with_the_arithmetic() -> None:
    ledger = ledger_of("abc", max_rate=0.5, interval=6.0)
    assert (ledger.capacity, ledger.next_news()) == (3, None)
    told = LeaseSaturated(leases=4, capacity=3, interval=6.0, rate=0.5, worst_gap=8.0)
    ledger.add("d", 1.0)
    assert ledger.news(1.0) == told
    assert "4 leases, but 0.5 renewals/s * 6 s = 3: " in str(told)
    assert "every 4 / 0.5 = 8 s" in str(told)
    assert (ledger.next_news(), ledger.news(6.9)) == (None, None)
    ledger.add("e", 6.9)
    assert (ledger.next_news(), ledger.news(6.9)) == (7.0, None)
    ledger.add("f", 6.95)
    assert ledger.news(7.0) == replace(told, leases=6, worst_gap=12.0)
    assert ledger.news(99.0) is None, "nothing has changed"


def test_beats_that_take_long_overlap_as_far_as_the_rate_asks_for() -> None:
    ledger = ledger_of("abcdefghijklmnopqrst", max_rate=2.0, interval=10.0, overlap=4)
    times, flights = serve(ledger, seconds=4.0, until=200.0)
    assert max(flights) == 8
    assert (ledger.capacity, ledger.rate) == (20, 2.0)
    # After the first cycle, in which that was found out.
    gaps = {round(b - a, 2) for a, b in itertools.pairwise(times["a"][2:])}
    assert gaps == {10.0}


def test_a_cycle_has_fewer_beats_if_too_few_may_overlap() -> None:
    ledger = ledger_of("abcdefghijkl", max_rate=2.0, interval=10.0, max_overlap=4)
    assert (ledger.capacity, ledger.news(0.0)) == (20, None)
    times, _ = serve(ledger, seconds=4.0, until=400.0)
    assert ledger.rate == pytest.approx(1.0)
    assert ledger.capacity == 10
    gaps = {round(b - a, 2) for a, b in itertools.pairwise(times["a"])}
    assert gaps == {12.0}
    news = ledger.news(400.0)
    assert isinstance(news, LeaseSaturated)
    assert (news.leases, news.capacity) == (12, 10)
    assert news.rate == pytest.approx(1.0)
    assert news.worst_gap == pytest.approx(12.0)


def serve(
    ledger: LeaseLedger[str], *, seconds: float, until: float
) -> tuple[dict[str, list[float]], list[int]]:
    """Have renewals that take so long; return when each lease had one, and how many overlap."""
    times, flights, now = defaultdict[str, list[float]](list), list[int](), 0.0
    under_way: deque[tuple[float, str]] = deque()
    while now < until:
        while under_way and under_way[0][0] <= now:
            ledger.end_renewal(under_way.popleft()[1], EXTENDED, now)
        while (lease := ledger.begin_renewal(now)) is not None:
            times[lease].append(now)
            under_way.append((now + seconds, lease))
            flights.append(len(under_way))
        moments = [ledger.next_due(), *(ends for ends, _ in under_way)]
        now = min(moment for moment in moments if moment is not None and moment > now)
    return times, flights


def test_a_lease_lasts_from_the_begin_of_the_beat_that_has_extended_it() -> None:
    ledger = ledger_of("a", ttl=40.0)
    assert ledger.begin_renewal(3.0) == "a"
    assert ledger.lapses_at("a") == 40.0, "it came at 0"
    ledger.end_renewal("a", EXTENDED, 8.0)
    assert (ledger.lapses_at("a"), ledger._lapses.next()) == (43.0, 39.0)
    assert list(ledger.lapsed(39.0)) == [("a", 36.0)], "before it lapses"


def test_a_cycle_has_as_many_beats_as_it_should_in_spite_of_floats() -> None:
    for rate, cycle, renewals in ((0.1, 30.0, 3), (1.1, 10.0, 11), (0.7, 10.0, 7)):
        assert ledger_of(max_rate=rate, interval=cycle).capacity == renewals
