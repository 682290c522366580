"""Who gets the next connection: rules by example, and a model that loses nothing."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._cluster.balancing import (
    LATE,
    PASSED_OVER,
    QUIET,
    SLOW,
    WINDOW,
    ConnectionBalancing,
    Share,
)
from asyncpool.errors import ProtocolError
from tests.core.models import run_until_seen


def spreading_of(*workers: int) -> ConnectionBalancing[str]:
    spreading: ConnectionBalancing[str] = ConnectionBalancing()
    for worker in workers:
        spreading.shares[worker] = Share(open=True)
    return spreading


def hand(spreading: ConnectionBalancing[str], worker: int, handle: str) -> int:
    """Send a worker one more; return its number."""
    number = spreading.shares[worker].handed + 1
    spreading.hand(worker, number, handle, 5.0)
    return number


def test_the_least_busy_is_worth_waiting_for_but_not_for_long() -> None:
    spreading = spreading_of(0, 1)
    for worker in (0, 1):  # both take connections until they have the largest window
        for n in range(WINDOW):
            spreading.settle(worker, hand(spreading, worker, str(n)), taken=True)
    for n in range(WINDOW):
        hand(spreading, 1, f"left lying {n}")
    hand(spreading, 0, "on its way")
    spreading.shares[1].load(WINDOW, WINDOW, 0)
    assert spreading.choose(5.0) is None
    assert spreading.next_check(5.0) == 5.0 + SLOW
    assert spreading.choose(5.0 + SLOW) == 0
    assert spreading.next_check(5.0 + SLOW) is None
    # It has taken the oldest, and only the next is as late.
    spreading.settle(1, WINDOW + 1, taken=True)
    assert spreading.choose(5.0 + SLOW) == 1


# What a worker cannot say.


@pytest.mark.parametrize("number", [0, 2, 1 << 40])
def test_an_answer_for_a_handle_that_was_not_sent(number: int) -> None:
    spreading = spreading_of(0)
    hand(spreading, 0, "a")
    with pytest.raises(ProtocolError, match=f"answered for handle {number}"):
        spreading.settle(0, number, taken=True)


@pytest.mark.parametrize("load", [(4, 3), (5, 2), (5, 6)])
def test_a_load_that_cannot_be(load: tuple[int, int]) -> None:
    share = Share[str]()
    share.load(5, 3, 0)
    said = f"{load[0]} connections were opened and {load[1]} closed, after 5 and 3"
    with pytest.raises(ProtocolError, match=said):
        share.load(*load, 0)
    assert (share.connections, share.total) == (2, 5)


def test_what_is_cut_off_is_not_finished() -> None:
    share = Share[str]()
    share.load(5, 3, 0)
    assert (share.cut, share.still_open) == (0, 0)
    share.load(5, 4, 1)  # one more has finished
    assert (share.cut, share.still_open) == (1, 1)
    share.load(7, 5, 3)  # two have come too late
    assert (share.cut, share.still_open) == (3, 2)
    share.load(7, 7, 3)
    assert (share.cut, share.still_open) == (3, 0)


@pytest.mark.parametrize("load", [(5, 4, 3), (5, 4, 0), (5, 5, 2), (3, 3, 4)])
def test_a_cut_that_cannot_be(load: tuple[int, int, int]) -> None:
    """None that was over is cut off, and none that is cut off finishes."""
    share = Share[str]()
    if load[0] == 5:
        share.load(5, 4, 1)
    with pytest.raises(
        ProtocolError, match=f"{load[2]} connections of {load[0]} are cut"
    ):
        share.load(*load)
    assert share.cut == (load[0] == 5)


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
        self.workers = self.sends = 0

    @rule()
    def a_worker_comes(self) -> None:
        if len(self.ready) < 4:
            self.workers += 1
            worker = self.workers
            self.spreading.shares[worker] = Share()
            self.ready[worker] = False
            self.sent[worker], self.taken[worker] = {}, set()
            self.closed[worker] = self.had[worker] = 0
            self.passed[worker] = 0.0
            self.windows[worker], self.last[worker] = 1, 0.0

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def it_is_ready(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        self.spreading.shares[worker].open = True
        self.ready[worker] = True

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def it_leaves(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        self.spreading.shares[worker].open = False
        self.ready[worker] = False

    @precondition(lambda self: self.ready)
    @rule(data=st.data())
    def it_dies(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from(sorted(self.ready)))
        lost = [handle for handle, _ in self.sent.pop(worker).values()]
        before = [*self.spreading.waiting]
        self.spreading.gone(worker)
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
        self.sends += 1
        number = self.sends
        self.spreading.hand(worker, number, handle, self.now)
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
        self.spreading.shares[worker].busy = worker in self.full

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
            assert self.spreading.settle(worker, number, taken=True) == handle
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
        before = self.spreading.refused
        self.spreading.settle(worker, number, taken=False)
        self.spreading.pass_over(worker, self.now)
        assert self.spreading.refused == before + 1
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
        self.spreading.shares[worker].load(opened, self.closed[worker], 0)

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
            assert self.spreading.shares[worker].connections == self.busy(worker)

    @invariant()
    def a_change_of_mind_is_announced(self) -> None:
        when = self.spreading.next_check(self.now)
        if self.spreading.choose(self.now) is None:
            later = self.spreading.choose(self.now + 10.0)
            assert (later is None) or when is not None
        if when is not None:
            assert self.now < when <= self.now + max(SLOW, PASSED_OVER)


def test_the_model_does_what_it_is_for() -> None:
    run_until_seen(SpreadingMachine, {"lost", "passed over", "waited"})
