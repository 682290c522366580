"""Which job begins where, and when, against a model made of lists."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import example, given, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from asyncpool._core.dispatcher import AffinityQueues, Dispatcher, InFlight, JobQueue
from asyncpool._core.functions import (
    BUDGET,
    DEEPEST,
    REFILL_BELOW,
    STREAM_TRAITS,
    UNKNOWN_COST,
    JobTraits,
    KeyedTraits,
)
from tests.core.list_queue import PRIORITIES, ListQueue
from tests.core.pool_core import OLDEST_EVERY, choose


def known(cost: float) -> JobTraits:
    """Return what is known of a function that takes *cost* thousandths of a budget."""
    traits = JobTraits()
    if cost != UNKNOWN_COST:
        traits.cost = cost * BUDGET / 1000
    return traits


def idle_pool(workers: int) -> tuple[Dispatcher, list[InFlight]]:
    dispatcher, flights = Dispatcher(), [InFlight() for _ in range(workers)]
    for slot, in_flight in enumerate(flights):
        assert dispatcher.jobs_for(slot, in_flight) == []
    return dispatcher, flights


def one_worker_with_a_place() -> tuple[Dispatcher, InFlight]:
    dispatcher, [in_flight] = idle_pool(1)
    dispatcher.assign_buckets({0: 0})
    assert dispatcher.submit(0, JobTraits()) == 0
    return dispatcher, in_flight


# Their sums are exact, in any order.
COSTS = (7.8125, 62.5, 250.0, 437.5, 500.0, 562.5, 1000.0, 1007.8125, UNKNOWN_COST)
KINDS = st.integers(0, 5)
RANKS = st.sampled_from(PRIORITIES)


class DispatchMachine(RuleBasedStateMachine):
    """Drive a dispatcher the way a supervisor would, keeping its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.traits = [known(cost) for cost in (7.8125, 250.0, 500.0, 1007.8125)]
        self.traits += [JobTraits(), STREAM_TRAITS]
        self.kinds: dict[int, JobTraits] = {}
        self.announced: list[int] = []
        self.idle: list[int] = []  # the last one is the next
        self.roomy: list[int] = []  # the first one is the next
        self.flights: dict[int, InFlight] = {}
        self.hands: dict[int, dict[int, float]] = {}  # slot -> job -> its cost
        self.jobs = 0
        self.slots = 0
        self.keys: dict[int, int] = {}  # of every job that has one
        self.lines: dict[int | None, ListQueue] = {}  # by place
        self.seats: dict[int, int] = {}
        self.patience = 0

    @initialize(patience=st.sampled_from([2, 4, 64]))
    def start(self, patience: int) -> None:
        JobQueue.oldest_every = patience
        self.dispatcher = Dispatcher()
        self.queue = ListQueue(patience)
        self.patience = patience

    def teardown(self) -> None:
        JobQueue.oldest_every = OLDEST_EVERY

    # The model.

    def place_of(self, job: int) -> int | None:
        return choose(self.keys[job], self.seats)

    def slot_of(self, job: int) -> int | None:
        place = self.place_of(job)
        return None if place is None else self.seats[place]

    def line_of(self, slot: int) -> ListQueue | None:
        """Return the line of those who wait for *slot*, unless it is empty."""
        for place, seated in self.seats.items():
            if seated == slot:
                return self.lines.get(place)
        return None

    def join(self, job: int) -> ListQueue:
        return self.lines.setdefault(self.place_of(job), ListQueue(self.patience))

    def close_lines(self) -> None:
        self.lines = {place: line for place, line in self.lines.items() if line}

    @property
    def in_lines(self) -> list[int]:
        return [job for line in self.lines.values() for job in line]

    def load(self, slot: int) -> float:
        return sum(self.hands[slot].values())

    def takes(self, slot: int, job: int) -> None:
        cost = self.kinds[job].cost
        assert not self.hands[slot] or self.load(slot) + cost <= BUDGET
        self.hands[slot][job] = cost

    def sort_in(self, slot: int) -> None:
        hand, load = self.hands[slot], self.load(slot)
        if slot in self.roomy and load >= BUDGET:
            self.roomy.remove(slot)
        elif slot not in self.roomy and hand and load < BUDGET:
            self.roomy.append(slot)
        if not hand:
            self.idle.append(slot)

    def expect_a_place_for(self, job: int) -> int | None:
        """Return the idle worker's slot, or that of the next with enough room."""
        cost = self.kinds[job].cost
        fits = [slot for slot in self.roomy if self.load(slot) + cost <= BUDGET]
        if self.idle:
            slot = self.idle.pop()
        elif fits:
            slot = fits[0]
            self.roomy.remove(slot)
        else:
            return None
        self.takes(slot, job)
        self.sort_in(slot)
        return slot

    def expect(self, slot: int) -> list[int]:
        """Return the jobs that *slot* gets now, and take them."""
        expected: list[int] = []
        while (line := self.line_of(slot)) is not None:
            heads = [queue for queue in (line, self.queue) if queue]
            first = min(heads, key=lambda queue: queue.precedence)
            second = self.queue if first is line else line
            job, came = first.head, not first.returned
            if self.hands[slot] and self.load(slot) + self.kinds[job].cost > BUDGET:
                if slot in self.roomy:
                    self.roomy.remove(slot)
                return expected
            first.pop()
            if came:
                second.note_turn_elsewhere(job)
            self.close_lines()
            expected.append(job)
            self.takes(slot, job)
        while self.queue and (
            not self.hands[slot]
            or self.load(slot) + self.kinds[self.queue.head].cost <= BUDGET
        ):
            expected.append(self.queue.pop())
            self.takes(slot, expected[-1])
        if slot in self.roomy and not self.hands[slot]:
            self.roomy.remove(slot)
        self.sort_in(slot)
        return expected

    def refill(self, slot: int) -> None:
        expected = self.expect(slot)
        jobs = self.dispatcher.jobs_for(slot, self.flights[slot])
        assert jobs == expected, "jobs leave the queue in their order"

    def expect_to_serve(self, slots: Iterable[int]) -> dict[int, list[int]]:
        """Return what these slots get that have room, and whom somebody waits for."""
        served = {}
        for slot in slots:
            room = slot in self.idle or slot in self.roomy
            if room and self.line_of(slot) is not None:
                if slot in self.idle:
                    self.idle.remove(slot)
                served[slot] = self.expect(slot)
        return served

    def seat(self, count: dict[int, int]) -> None:
        """Let these slots have these places."""
        if self.seats.keys() != count.keys():
            before = {job: line for line in self.lines.values() for job in line}
            self.lines = {}
            self.seats = count
            for job in sorted(before):
                if job in before[job].returned:
                    self.join(job).returned.append(job)
                else:
                    self.join(job).add(job, before[job].priorities[job])
            for line in self.lines.values():
                if line.came:
                    line.history = before[line.oldest].passes(line.oldest)
        self.seats = count
        expected = self.expect_to_serve(count.values())
        placed = self.dispatcher.assign_buckets(count)
        assert placed == [
            (slot, job) for slot, jobs in expected.items() for job in jobs
        ]

    def give_back(self, jobs: list[int]) -> None:
        self.queue.give_back([job for job in jobs if job not in self.keys])
        keyed = [job for job in jobs if job in self.keys]
        for job in reversed(keyed):
            self.join(job).give_back([job])
        slots = {self.slot_of(job) for job in keyed}
        expected = [
            (slot, job)
            for slot, some in self.expect_to_serve(
                slot for slot in slots if slot is not None
            ).items()
            for job in some
        ]
        while self.queue:
            slot = self.expect_a_place_for(self.queue.head)
            if slot is None:
                break
            expected.append((slot, self.queue.pop()))
        placed = self.dispatcher.requeue({job: self.known_of(job) for job in jobs})
        assert placed == expected

    def known_of(self, job: int) -> JobTraits:
        traits = self.kinds[job]
        return KeyedTraits(traits, self.keys[job]) if job in self.keys else traits

    def leaves(self, slot: int) -> None:
        self.dispatcher.exclude(slot)
        for slots in (self.idle, self.roomy):
            if slot in slots:
                slots.remove(slot)

    # What happens.

    @rule(kind=KINDS, priority=RANKS)
    def submit(self, kind: int, priority: int) -> None:
        self.jobs += 1
        self.submit_job(self.jobs, kind, priority)

    @rule(kind=KINDS, priority=RANKS, key=st.integers(0, 5), count=st.integers(1, 8))
    def submit_with_a_key(self, kind: int, priority: int, key: int, count: int) -> None:
        for _ in range(count):
            self.jobs += 1
            self.submit_keyed(self.jobs, kind, priority, key)

    def submit_keyed(self, job: int, kind: int, priority: int, key: int) -> None:
        traits = self.kinds[job] = self.traits[kind]
        self.keys[job] = key
        slot, expected = self.slot_of(job), None
        if slot in self.idle:
            self.idle.remove(slot)
            expected = slot
        elif slot in self.roomy:
            self.roomy.remove(slot)
            if self.load(slot) + traits.cost <= BUDGET and self.queue.would_be_first(
                priority
            ):
                self.queue.pass_by(job)
                expected = slot
        if expected is None:
            self.join(job).add(job, priority)
        else:
            self.takes(expected, job)
            self.sort_in(expected)
        known = self.known_of(job)
        assert self.dispatcher.submit_keyed(job, known, priority) == expected

    @rule(data=st.data())
    def places_change_hands(self, data: st.DataObject) -> None:
        """Somebody has a place in whose slot nobody is yet, and others have none."""
        slots = data.draw(st.permutations([*self.hands, self.slots + 1]))
        slots = slots[: data.draw(st.integers(0, len(slots)))]
        places = data.draw(st.permutations(range(5)))
        self.seat(dict(zip(places, slots, strict=False)))

    @precondition(lambda self: self.in_lines)
    @rule(data=st.data())
    def who_waits_for_one_worker_is_cancelled(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from(self.in_lines))
        self.lines[self.place_of(job)].remove(job)
        self.close_lines()
        assert self.dispatcher.remove(job) is True
        assert self.dispatcher.remove(job) is False

    def submit_job(self, job: int, kind: int, priority: int) -> None:
        traits = self.kinds[job] = self.traits[kind]
        leads = self.queue.would_be_first(priority)
        slot = self.expect_a_place_for(job) if leads else None
        if slot is None:
            self.queue.add(job, priority)
        else:
            self.queue.pass_by(job)
        assert self.dispatcher.submit(job, traits, priority) == slot

    @rule(kind=KINDS, count=st.integers(2, 40))
    def submit_many(self, kind: int, count: int) -> None:
        for _ in range(count):
            self.submit(kind, 0)

    @rule(kind=KINDS, priorities=st.lists(RANKS, min_size=2, max_size=12))
    def submit_some_that_are_more_urgent(
        self, kind: int, priorities: list[int]
    ) -> None:
        for priority in priorities:
            self.submit(kind, priority)

    @rule(count=st.integers(1, 3))
    def announce(self, count: int) -> None:
        for _ in range(count):
            self.jobs += 1
            self.announced.append(self.jobs)
            self.dispatcher.preparing[self.jobs] = None

    @precondition(lambda self: self.announced)
    @rule(data=st.data(), kind=KINDS, priority=RANKS)
    def an_announced_job_can_be_sent(
        self, data: st.DataObject, kind: int, priority: int
    ) -> None:
        job = data.draw(st.sampled_from(self.announced))
        self.announced.remove(job)
        assert self.dispatcher.remove(job) is True
        self.submit_job(job, kind, priority)

    @rule(kind=st.integers(0, 4), cost=st.sampled_from(COSTS))
    def more_is_learned(self, kind: int, cost: float) -> None:
        self.traits[kind].cost = known(cost).cost

    @precondition(lambda self: len(self.hands) < 4)
    @rule()
    def a_worker_is_ready(self) -> None:
        self.slots += 1
        self.flights[self.slots] = InFlight()
        self.hands[self.slots] = {}
        self.refill(self.slots)

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def jobs_end(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from([s for s in self.hands if self.hands[s]]))
        hand, in_flight = self.hands[slot], self.flights[slot]
        for job in list(hand)[: data.draw(st.integers(1, len(hand)))]:
            del hand[job]
            in_flight.complete(job)
        if self.load(slot) <= REFILL_BELOW:
            self.refill(slot)

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def the_last_job_is_not_sent_after_all(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from([s for s in self.hands if self.hands[s]]))
        job, _ = self.hands[slot].popitem()
        self.flights[slot].withdraw(job)
        if self.load(slot) <= REFILL_BELOW:
            self.refill(slot)

    @precondition(lambda self: any(len(hand) > 1 for hand in self.hands.values()))
    @rule(data=st.data(), kind=KINDS)
    def a_job_takes_long(self, data: st.DataObject, kind: int) -> None:
        """What waits behind it is revoked; until then, its worker gets no more."""
        busy = [slot for slot, hand in self.hands.items() if len(hand) > 1]
        slot = data.draw(st.sampled_from(busy))
        hand, in_flight = self.hands[slot], self.flights[slot]
        head, *behind = hand
        in_flight.expect_no_end([head])
        self.leaves(slot)
        self.submit(kind, 0)
        hand[head] = UNKNOWN_COST
        in_flight.end_revoke(in_flight.begin_revoke(behind))
        for job in behind:
            del hand[job]
        self.give_back(behind)

    @precondition(lambda self: self.hands)
    @rule(data=st.data())
    def a_worker_dies(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(sorted(self.hands)))
        self.leaves(slot)
        jobs = list(self.hands.pop(slot))
        del self.flights[slot]
        self.give_back(jobs)

    @precondition(lambda self: self.queue or self.announced)
    @rule(data=st.data())
    def a_waiting_job_is_cancelled(self, data: st.DataObject) -> None:
        job = data.draw(st.sampled_from([*self.queue, *self.announced]))
        (self.announced if job in self.announced else self.queue).remove(job)
        assert self.dispatcher.remove(job) is True
        assert self.dispatcher.remove(job) is False

    @precondition(lambda self: any(self.hands.values()))
    @rule(data=st.data())
    def a_job_in_hand_is_not_in_the_queue(self, data: st.DataObject) -> None:
        jobs = [job for hand in self.hands.values() for job in hand]
        assert self.dispatcher.remove(data.draw(st.sampled_from(jobs))) is False

    @precondition(lambda self: len(self.queue) + len(self.announced) > 2)
    @rule()
    def the_queue_is_emptied(self) -> None:
        jobs, common = self.dispatcher.take_all(), len(self.queue)
        rest = common + len(self.in_lines)
        assert jobs[:common] == [*self.queue]
        assert sorted(jobs[common:rest]) == sorted(self.in_lines)
        assert jobs[rest:] == self.announced
        self.queue.clear()
        self.lines.clear()
        self.announced.clear()
        assert self.dispatcher.take_all() == []

    # What is true at any time.

    @invariant()
    def the_figures_agree(self) -> None:
        common = len(self.queue) + len(self.announced)
        assert self.dispatcher.unassigned == common + len(self.in_lines)
        assert self.dispatcher.unserved == common + (not self.idle) * len(self.in_lines)
        assert len(self.dispatcher.preparing) == len(self.announced)
        assert [*self.dispatcher.idle] == self.idle

    @invariant()
    def what_is_in_hand_agrees(self) -> None:
        for slot, in_flight in self.flights.items():
            assert list(in_flight.jobs) == list(self.hands[slot])
            assert in_flight.backlog == self.load(slot)

    @invariant()
    def nobody_waits_while_somebody_is_idle(self) -> None:
        unemployed = sum(not in_flight.jobs for in_flight in self.flights.values())
        assert len(self.dispatcher.idle) == unemployed
        assert not (self.queue and unemployed)
        for slot, hand in self.hands.items():
            assert hand or self.line_of(slot) is None
        takes = len(self.idle) > len(self.announced)
        assert self.dispatcher.can_begin_now(None) is takes
        for key in range(6):
            place = choose(key, self.seats)
            slot_ = None if place is None else self.seats[place]
            assert self.dispatcher.can_begin_now(key) is (slot_ in self.idle)

    @invariant()
    def nobody_has_more_in_hand_than_a_budget_or_one_job(self) -> None:
        for in_flight in self.flights.values():
            assert len(in_flight.jobs) <= 1 or in_flight.backlog <= BUDGET
            assert len(in_flight.jobs) <= DEEPEST

    @invariant()
    def what_is_unknown_is_alone(self) -> None:
        for in_flight in self.flights.values():
            costs = [cost for _, cost, _ in in_flight.jobs.values()]
            assert UNKNOWN_COST not in costs or len(costs) == 1


TestDispatcher = DispatchMachine.TestCase


# One by one.


def test_of_the_shortest_jobs_a_worker_holds_as_many_as_the_limit() -> None:
    dispatcher, flights = idle_pool(2)
    traits = JobTraits()
    traits.note(0)
    slots = [dispatcher.submit(job, traits) for job in range(2 * DEEPEST + 1)]
    assert slots[-1] is None
    assert None not in slots[:-1]
    assert [len(in_flight.jobs) for in_flight in flights] == [DEEPEST, DEEPEST]


@pytest.mark.parametrize("old_has_a_key", [True, False])
def test_neither_starves_while_more_urgent_ones_come_to_the_other_line(
    *, old_has_a_key: bool
) -> None:
    dispatcher, in_flight = one_worker_with_a_place()

    def submit(job: int, priority: int, *, keyed: bool) -> None:
        if keyed:
            assert (
                dispatcher.submit_keyed(job, KeyedTraits(JobTraits(), 7), priority)
                is None
            )
        else:
            assert dispatcher.submit(job, JobTraits(), priority) is None

    submit(1, 0, keyed=old_has_a_key)
    begun = [0]
    while begun[-1] != 1 and len(begun) < 2 * OLDEST_EVERY:
        submit(begun[-1] + 2, -1, keyed=not old_has_a_key)
        in_flight.complete(begun[-1])
        begun += dispatcher.jobs_for(0, in_flight)
    assert len(begun) - 1 == OLDEST_EVERY


# Jobs with a key.


def test_a_job_with_a_key_is_passed_no_more_often_if_its_key_moves_at_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JobQueue, "oldest_every", 4)
    dispatcher, key = Dispatcher(), 7
    assert dispatcher.submit_keyed(0, KeyedTraits(JobTraits(), key), 1) is None
    begun: list[int] = []
    for turn in range(8):
        # As where each worker runs one job.
        assert dispatcher.submit(turn + 1, JobTraits()) is None
        dispatcher.assign_buckets({turn: turn})
        begun += dispatcher.jobs_for(turn, InFlight())
        dispatcher.exclude(turn)
        dispatcher.assign_buckets({})
    assert begun == [1, 2, 3, 0, 4, 5, 6, 7]


def test_who_waits_for_its_own_worker_is_not_served_by_another() -> None:
    dispatcher, _ = idle_pool(2)
    assert dispatcher.unserved == 0
    dispatcher.assign_buckets({0: 0})
    for job in (1, 2):
        dispatcher.submit_keyed(job, KeyedTraits(JobTraits(), 7), 0)
    dispatcher.session_waiters = 5
    assert (dispatcher.unassigned, dispatcher.unserved) == (1, 5), "worker 1 is idle"
    assert dispatcher.submit(3, JobTraits()) == 1
    assert dispatcher.unserved == 6, "a new worker might be theirs"


SEATS = {0: 10, 1: 11, 2: 12}


def lines_of(*keys: int) -> AffinityQueues:
    """Return lines in which the job of each number has the key of that index."""
    lines = AffinityQueues()
    lines.assign(SEATS)
    for job, key in enumerate(keys):
        lines.add(job, KeyedTraits(JobTraits(), key), job % 3 - 1)
    return lines


def test_nothing_is_kept_of_jobs_that_have_left() -> None:
    lines = lines_of(*range(9), *range(9))
    for job in range(9):
        assert lines.remove(job)
        assert not lines.remove(job)
    assert sorted(lines.take_all()) == list(range(9, 18))
    lines.add(1, KeyedTraits(JobTraits(), 1), 0)
    assert lines.remove(1)
    assert (lines.open, lines._bucket_of) == ({}, {})


def test_who_joins_a_line_keeps_its_age() -> None:
    lines = lines_of(*range(30))
    returned: dict[int, JobTraits] = {
        job: KeyedTraits(JobTraits(), job % 7) for job in (43, 41, 47, 42)
    }
    lines.requeue(returned)
    lines.assign({0: 10})
    [line] = lines.open.values()
    begun = []
    while line:
        begun.append(line.head()[2])
        line.pop(begun[-1])
    assert begun == [41, 42, 43, 47, *sorted(range(30), key=lambda job: (job % 3, job))]


# Whose turn it is in one queue.

PROFILE = JobTraits()


def leave(queue: JobQueue) -> int:
    job = queue.head()[2]
    queue.pop(job)
    return job


@given(
    patience=st.integers(2, 6),
    story=st.lists(st.one_of(st.integers(-3, 3), st.none()), max_size=200),
)
@example(patience=2, story=[0, *[-1, None] * 6])
def test_nothing_starves(patience: int, story: list[int | None]) -> None:
    """An integer is a job of that priority, which comes; else one leaves."""
    queue, left = JobQueue(), 0
    queue.oldest_every = patience
    at_the_latest: dict[int, int] = {}
    for job, priority in enumerate(story):
        if priority is not None:
            queue.add(job, PROFILE, priority)
            at_the_latest[job] = left + patience * len(queue)
        elif queue:
            gone = leave(queue)
            left += 1
            assert left <= at_the_latest.pop(gone)
        assert all(left < turn for turn in at_the_latest.values())


def test_nobody_comes_before_a_job_that_came_back() -> None:
    queue = JobQueue()
    queue.add(1, PROFILE)
    queue.requeue({2: PROFILE})
    assert not queue.would_be_first(-1)


def test_the_promise_of_the_docs() -> None:
    assert OLDEST_EVERY == 64


@pytest.mark.parametrize("spread", [1, 5, 10**9])
def test_priorities_that_nobody_has_any_more_are_forgotten(spread: int) -> None:
    # Those that do wait are in no order that a heap might have by chance.
    kept = [10**12 + job * 7 % 20 for job in range(20)]
    queue, most = JobQueue(), 0
    for job, priority in enumerate(kept):
        queue.add(job, PROFILE, priority)
    for job in range(100, 2_000):
        queue.add(job, PROFILE, 1 + job % spread)
        assert queue.remove(job)
        most = max(most, len(queue._priorities))
    assert most < 2 * 22 + 20
    begun = [leave(queue) for _ in kept]
    assert begun == sorted(range(20), key=kept.__getitem__)
    assert [*queue._lines] == [0]
