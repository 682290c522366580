"""Who gets the next connection: rules by example, and a model that loses nothing."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncpool._core.cluster.balancing import (
    LATE,
    PASSED_OVER,
    QUIET,
    SLOW,
    WINDOW,
    ConnectionBalancing,
)
from asyncpool.errors import ProtocolError


def spreading_of(*workers: int) -> ConnectionBalancing[str]:
    spreading: ConnectionBalancing[str] = ConnectionBalancing()
    for worker in workers:
        spreading.add(worker)
        spreading.join(worker)
    return spreading


def hand(
    spreading: ConnectionBalancing[str], handle: str, now: float = 0.0
) -> tuple[int, int]:
    """Hand over a connection to whoever is to get it; return who, and its number."""
    worker = spreading.choose(now)
    assert worker is not None
    return worker, spreading.hand(worker, handle, now)


def give(spreading: ConnectionBalancing[str]) -> int:
    """Hand over a connection that is taken at once; return who has it."""
    worker, number = hand(spreading, "c")
    spreading.taken(worker, number)
    return worker


def warm_up(spreading: ConnectionBalancing[str], worker: int, now: float = 0.0) -> None:
    """Have a worker take connections until it has the largest window."""
    for n in range(WINDOW):
        spreading.taken(worker, spreading.hand(worker, str(n), now))


def fill(spreading: ConnectionBalancing[str], worker: int, now: float = 0.0) -> None:
    warm_up(spreading, worker, now)
    for n in range(WINDOW):
        spreading.hand(worker, f"{worker}-{n}", now)


# Whose turn it is.


def test_equals_take_turns() -> None:
    spreading = spreading_of(0, 1, 2)
    assert [give(spreading) for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_who_closes_connections_is_less_busy() -> None:
    spreading = spreading_of(0, 1, 2)
    for _ in range(9):
        give(spreading)
    spreading.load(1, 3, 2, 0)
    assert [give(spreading) for _ in range(4)] == [1, 1, 0, 2]


@given(workers=st.integers(1, 9), connections=st.integers(0, 200))
def test_connections_that_last_are_divided_evenly(
    workers: int, connections: int
) -> None:
    spreading = spreading_of(*range(workers))
    for n in range(connections):
        worker, number = hand(spreading, str(n))
        spreading.taken(worker, number)
    counts = [spreading.connections(worker) for worker in range(workers)]
    assert sum(counts) == connections == spreading.served
    assert max(counts) - min(counts) <= 1


def test_nothing_goes_to_who_is_not_ready_or_leaves() -> None:
    spreading = spreading_of(0, 1)
    spreading.add(2)
    spreading.leave(1)
    assert {give(spreading) for _ in range(WINDOW)} == {0}
    assert not spreading.is_open(1) and not spreading.is_open(2)
    assert not spreading.is_open(3), "it is nobody"
    spreading.leave(0)
    assert spreading.choose(9.9) is None
    assert spreading.next_check(9.9) is None, "somebody has to come"
    spreading.join(2)
    assert spreading.choose(9.9) == 2


def test_nobody_is_nobody() -> None:
    spreading = spreading_of()
    assert spreading.choose(0.0) is None
    assert spreading.least_busy() is None
    assert spreading.next_check(0.0) is None


def test_besides_some() -> None:
    spreading = spreading_of(0, 1)
    assert spreading.choose(0.0, besides={0}) == 1
    assert spreading.choose(0.0, besides={0, 1}) is None


# The window.


def test_no_worker_has_more_than_a_window_that_it_has_not_taken() -> None:
    spreading = spreading_of(0, 1)
    warm_up(spreading, 0)
    warm_up(spreading, 1)
    for _ in range(2 * WINDOW):
        hand(spreading, "c")
    assert spreading.choose(0.0) is None
    spreading.taken(1, WINDOW + 1)
    assert spreading.choose(0.0) is None, "the other is less busy, or was first"
    spreading.taken(0, WINDOW + 1)
    assert spreading.choose(0.0) == 0


def test_the_window_grows_as_connections_are_taken_and_is_small_after_a_pause() -> None:
    spreading = spreading_of(0)
    for start in (0.0, QUIET):
        for window in (1, 2, 8, WINDOW):
            numbers = [hand(spreading, "c", start)[1] for _ in range(window)]
            assert spreading.choose(start) is None
            for number in numbers:
                spreading.taken(0, number)


def test_who_has_taken_all_comes_before_who_has_fewer_connections() -> None:
    spreading = spreading_of(0, 1)
    warm_up(spreading, 1, now=5.0)
    spreading.load(1, WINDOW, WINDOW, 0)
    warm_up(spreading, 0, now=5.0)
    spreading.hand(1, "left lying", 5.0)
    assert spreading.choose(5.0) == 0
    spreading.hand(0, "on its way", 5.0)
    assert spreading.choose(5.0) == 1, "both have something to take"


def test_the_least_busy_is_worth_waiting_for_but_not_for_long() -> None:
    spreading = spreading_of(0, 1)
    fill(spreading, 1, now=5.0)
    warm_up(spreading, 0, now=5.0)
    spreading.hand(0, "on its way", 5.0)
    spreading.load(1, WINDOW, WINDOW, 0)
    assert spreading.choose(5.0) is None
    assert spreading.next_check(5.0) == 5.0 + SLOW
    assert spreading.choose(5.0 + SLOW) == 0
    assert spreading.next_check(5.0 + SLOW) is None
    # It has taken the oldest, and only the next is as late.
    spreading.taken(1, WINDOW + 1)
    assert spreading.choose(5.0 + SLOW) == 1


def test_a_slow_one_has_all_it_can_have() -> None:
    spreading = spreading_of(0)
    fill(spreading, 0)
    assert spreading.choose(100.0) is None
    assert spreading.next_check(100.0) is None
    assert spreading.least_busy() == 0, "if there is no other time"


def test_the_slow_ones_window_counts_from_its_oldest() -> None:
    spreading = spreading_of(0, 1)
    warm_up(spreading, 0, now=1.0)
    spreading.load(0, WINDOW, WINDOW, 0)
    spreading.hand(0, "old", 1.0)
    for n in range(WINDOW - 1):
        spreading.hand(0, str(n), 1.05)
    warm_up(spreading, 1, now=1.0)
    spreading.hand(1, "on its way", 1.0)
    assert spreading.choose(1.0) is None
    assert spreading.choose(1.0 + SLOW) == 1
    spreading.taken(0, WINDOW + 1)
    spreading.hand(0, "new", 1.0 + SLOW)
    assert spreading.next_check(1.0 + SLOW) == 1.05 + SLOW


# What comes back.


def test_what_a_dead_worker_has_not_taken_goes_to_others_first() -> None:
    spreading = spreading_of(0, 1)
    warm_up(spreading, 0)
    warm_up(spreading, 1)
    for name in "abcdef":
        hand(spreading, name)
    spreading.taken(0, WINDOW + 2)  # c
    assert spreading.gone(0) == []
    assert [*spreading.waiting] == ["a", "e"]
    assert spreading.served == 2 * WINDOW + 4
    spreading.gone(1)
    # All of these came before what the first one's death has brought.
    assert [*spreading.waiting] == ["b", "d", "f", "a", "e"]


def test_what_is_not_a_connection_is_returned() -> None:
    spreading = spreading_of(0)
    spreading.hand(0, "socket", 0.0, connection=False)
    spreading.hand(0, "connection", 0.0)
    spreading.hand(0, "other", 0.0, connection=False)
    assert spreading.connections(0) == 1
    assert spreading.gone(0) == ["socket", "other"]
    assert [*spreading.waiting] == ["connection"]


def test_who_has_no_descriptors_is_passed_over_for_a_while() -> None:
    spreading = spreading_of(0, 1)
    _, number = hand(spreading, "a", now=3.0)
    assert spreading.refused_by(0, number, 3.0) is None
    assert [*spreading.waiting] == ["a"]
    assert spreading.refused == 1
    assert spreading.connections(0) == 0
    assert [spreading.choose(3.0), spreading.choose(3.09)] == [1, 1]
    assert spreading.next_check(3.0) == 3.0 + PASSED_OVER
    spreading.leave(1)
    assert spreading.choose(3.09) is None
    assert spreading.choose(3.0 + PASSED_OVER) == 0
    assert spreading.next_check(3.0 + PASSED_OVER) is None


def test_a_refused_socket_is_returned() -> None:
    spreading = spreading_of(0)
    number = spreading.hand(0, "socket", 0.0, connection=False)
    assert spreading.refused_by(0, number, 0.0) == "socket"
    assert not spreading.waiting


def test_what_is_given_back_later_is_first_in_the_line_too() -> None:
    spreading = spreading_of(0, 1)
    worker, number = hand(spreading, "a")
    spreading.taken(worker, number)
    spreading.leave(worker)
    spreading.returned(worker, "a again")
    assert [*spreading.waiting] == ["a again"]
    with pytest.raises(ProtocolError, match="gave back a connection that it never had"):
        spreading.returned(worker, "from nowhere")


def test_what_is_on_its_way_is_not_yet_in_its_hands() -> None:
    spreading = spreading_of(0)
    for name in "abc":
        spreading.hand(0, name, 0.0)
    spreading.hand(0, "socket", 0.0, connection=False)
    assert spreading.taken_by(0) == (0, 0)
    spreading.taken(0, 2)
    spreading.taken(0, 4)
    assert spreading.taken_by(0) == (1, 1)
    spreading.load(0, 1, 1, 0)
    assert spreading.taken_by(0) == (1, 0)
    assert (spreading.connections(0), spreading.totals(0)) == (2, 3)


# What a worker cannot say.


@pytest.mark.parametrize("number", [0, 2, 1 << 40])
def test_an_answer_for_a_handle_that_was_not_sent(number: int) -> None:
    spreading = spreading_of(0)
    hand(spreading, "a")
    with pytest.raises(ProtocolError, match=f"answered for handle {number}"):
        spreading.taken(0, number)
    with pytest.raises(ProtocolError, match=f"answered for handle {number}"):
        spreading.refused_by(0, number, 0.0)


def test_a_handle_is_answered_once() -> None:
    spreading = spreading_of(0)
    hand(spreading, "a")
    assert spreading.taken(0, 1) == "a"
    with pytest.raises(ProtocolError, match="answered for handle 1"):
        spreading.refused_by(0, 1, 0.0)


@pytest.mark.parametrize("load", [(4, 3), (5, 2), (5, 6)])
def test_a_load_that_cannot_be(load: tuple[int, int]) -> None:
    spreading = spreading_of(0)
    spreading.load(0, 5, 3, 0)
    said = f"{load[0]} connections were opened and {load[1]} closed, after 5 and 3"
    with pytest.raises(ProtocolError, match=said):
        spreading.load(0, *load, 0)
    assert (spreading.connections(0), spreading.totals(0)) == (2, 5)


def test_what_is_cut_off_is_not_finished() -> None:
    spreading = spreading_of(0)
    spreading.load(0, 5, 3, 0)
    assert (spreading.count_cut_off(0), spreading.still_open(0)) == (0, 0)
    spreading.load(0, 5, 4, 1)  # one more has finished
    assert (spreading.count_cut_off(0), spreading.still_open(0)) == (1, 1)
    spreading.load(0, 7, 5, 3)  # two have come too late
    assert (spreading.count_cut_off(0), spreading.still_open(0)) == (3, 2)
    spreading.load(0, 7, 7, 3)
    assert (spreading.count_cut_off(0), spreading.still_open(0)) == (3, 0)


@pytest.mark.parametrize("load", [(5, 4, 3), (5, 4, 0), (5, 5, 2), (3, 3, 4)])
def test_a_cut_that_cannot_be(load: tuple[int, int, int]) -> None:
    """None that was over is cut off, and none that is cut off finishes."""
    spreading = spreading_of(0)
    if load[0] == 5:
        spreading.load(0, 5, 4, 1)
    with pytest.raises(
        ProtocolError, match=f"{load[2]} connections of {load[0]} are cut"
    ):
        spreading.load(0, *load)
    assert spreading.count_cut_off(0) == (load[0] == 5)


class SpreadingMachine(RuleBasedStateMachine):
    """Let workers and connections come and go in any order, and lose none."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.spreading: ConnectionBalancing[int] = ConnectionBalancing()
        self.ready: dict[int, bool] = {}
        self.sent: dict[int, dict[int, tuple[int, float]]] = {}  # per worker
        self.taken: dict[int, set[int]] = {}
        self.closed: dict[int, int] = {}
        self.had: dict[int, int] = {}
        self.passed: dict[int, float] = {}
        self.windows: dict[int, int] = {}
        self.last: dict[int, float] = {}
        self.full: set[int] = set()  # who can take no request
        self.accepted = 0
        self.over = 0  # taken by somebody, ever
        self.workers = 0

    @rule()
    def a_worker_comes(self) -> None:
        if len(self.ready) < 4:
            self.workers += 1
            worker = self.workers
            self.spreading.add(worker)
            self.ready[worker] = False
            self.sent[worker], self.taken[worker] = {}, set()
            self.closed[worker] = self.had[worker] = 0
            self.passed[worker] = 0.0
            self.windows[worker], self.last[worker] = 1, 0.0

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def it_is_ready(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        self.spreading.join(worker)
        self.ready[worker] = True

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def it_leaves(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        self.spreading.leave(worker)
        self.ready[worker] = False

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def it_dies(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        lost = [handle for handle, _ in self.sent.pop(worker).values()]
        before = [*self.spreading.waiting]
        assert self.spreading.gone(worker) == []
        assert [*self.spreading.waiting] == [*lost, *before]
        self.seen.update(["lost"] * bool(lost))
        del self.ready[worker], self.taken[worker], self.passed[worker]
        del self.closed[worker], self.had[worker]
        self.full.discard(worker)

    @rule(count=st.sampled_from([1, 3, 20, 70]))
    def connections_come(self, count: int) -> None:
        for _ in range(count):
            if not self.one_comes():
                return

    def one_comes(self) -> bool:
        worker = self.spreading.choose(self.now)
        if worker is None:
            self.check_that_nobody_could()
            return False
        self.check_choice(worker)
        waiting = self.spreading.waiting
        handle = waiting.popleft() if waiting else self.accepted
        self.accepted += handle == self.accepted
        if not self.sent[worker] and self.last[worker] + QUIET <= self.now:
            self.windows[worker] = 1
        self.last[worker] = self.now
        number = self.spreading.hand(worker, handle, self.now)
        assert number not in self.sent[worker]
        self.sent[worker][number] = handle, self.now
        self.had[worker] += 1
        assert len(self.sent[worker]) <= self.windows[worker] <= WINDOW
        return True

    def check_choice(self, worker: int) -> None:
        assert self.ready[worker]
        assert self.passed[worker] <= self.now
        for other in self.able():
            if self.rank(other) < self.rank(worker):
                assert self.is_slow(other)
                self.seen["passed over"] += 1

    def check_that_nobody_could(self) -> None:
        able = self.able()
        if able:
            least = min(self.rank(worker) for worker in able)
            assert any(
                len(self.sent[worker]) >= self.windows[worker]
                for worker in able
                if self.rank(worker) == least
            )
            self.seen["waited"] += 1

    def able(self) -> list[int]:
        return [
            worker
            for worker, ready in self.ready.items()
            if ready and self.passed[worker] <= self.now
        ]

    def busy(self, worker: int) -> int:
        return self.had[worker] - self.closed[worker]

    def rank(self, worker: int) -> tuple[bool, bool, int]:
        times = [at for _, at in self.sent[worker].values()]
        late = bool(times) and min(times) + LATE <= self.now
        return late or worker in self.full, bool(times), self.busy(worker)

    @precondition(lambda self: any(self.ready.values()))
    @rule(data=st.data())
    def one_can_take_no_request_or_can_again(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        self.full ^= {worker}
        self.spreading.set_busy(worker, busy=worker in self.full)

    def is_slow(self, worker: int) -> bool:
        sent = self.sent[worker]
        return (
            len(sent) >= self.windows[worker]
            and min(at for _, at in sent.values()) + SLOW <= self.now
        )

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data(), count=st.sampled_from([1, 5, 16]))
    def handles_are_taken(self, data: st.DataObject, count: int) -> None:
        worker = data.draw(st.sampled_from([w for w in self.sent if self.sent[w]]))
        self.take(worker, count)

    def take(self, worker: int, count: int) -> None:
        for number in sorted(self.sent[worker])[:count]:
            handle, _ = self.sent[worker].pop(number)
            assert self.spreading.taken(worker, number) == handle
            self.taken[worker].add(handle)
            self.windows[worker] = min(2 * self.windows[worker], WINDOW)
            self.over += 1

    @precondition(lambda self: sum(self.ready.values()) > 1)
    @rule(data=st.data(), count=st.sampled_from([20, 70]))
    def one_stands_still(self, data: st.DataObject, count: int) -> None:
        still = data.draw(st.sampled_from([w for w in self.ready if self.ready[w]]))
        for then in (0.0, SLOW):
            self.now += then
            for _ in range(count):
                self.one_comes()
                for worker in self.ready.keys() - {still}:
                    self.take(worker, 1)

    @precondition(lambda self: any(self.sent.values()))
    @rule(data=st.data())
    def one_is_refused(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in self.sent if self.sent[w]]))
        number = data.draw(st.sampled_from(sorted(self.sent[worker])))
        handle, _ = self.sent[worker].pop(number)
        assert self.spreading.refused_by(worker, number, self.now) is None
        assert self.spreading.waiting[-1] == handle
        self.passed[worker] = self.now + PASSED_OVER
        self.had[worker] -= 1

    @precondition(lambda self: any(self.taken.values()))
    @rule(data=st.data())
    def connections_end(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w in self.taken if self.taken[w]]))
        open_now = len(self.taken[worker])
        count = data.draw(st.integers(1, open_now))
        for handle in sorted(self.taken[worker])[:count]:
            self.taken[worker].discard(handle)
        self.closed[worker] += count
        opened = self.closed[worker] + len(self.taken[worker])
        self.spreading.load(worker, opened, self.closed[worker], 0)

    @rule(seconds=st.sampled_from([0.01, SLOW, 1.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @invariant()
    def every_connection_is_in_one_place(self) -> None:
        on_their_way = [
            handle for sent in self.sent.values() for handle, _ in sent.values()
        ]
        everywhere = [*self.spreading.waiting, *on_their_way]
        assert len(everywhere) == len(set(everywhere))
        assert len(everywhere) + self.over == self.accepted

    @invariant()
    def the_figures_agree(self) -> None:
        for worker in self.ready:
            assert self.spreading.connections(worker) == self.busy(worker)
            assert self.spreading.is_open(worker) is self.ready[worker]

    @invariant()
    def a_change_of_mind_is_announced(self) -> None:
        when = self.spreading.next_check(self.now)
        if self.spreading.choose(self.now) is None:
            later = self.spreading.choose(self.now + 10.0)
            assert (later is None) or when is not None
        if when is not None:
            assert self.now < when <= self.now + max(SLOW, PASSED_OVER)


def test_the_model() -> None:
    run_state_machine_as_test(
        SpreadingMachine, settings=settings(max_examples=100, stateful_step_count=40)
    )


def test_the_model_does_what_it_is_for() -> None:
    SpreadingMachine.seen.clear()
    run_state_machine_as_test(
        SpreadingMachine,
        settings=settings(
            max_examples=200, stateful_step_count=40, derandomize=True, database=None
        ),
    )
    assert SpreadingMachine.seen.keys() >= {"lost", "passed over", "waited"}
