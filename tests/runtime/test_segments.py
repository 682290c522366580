"""The ledger of shared memory, against a model made of lists."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._engine.segments import SegmentLedger, size_class

KIB = 1024
BOUND = 1_000
SIZES = st.integers(1, 60) | st.integers(1, 500) | st.integers(990, 1_010)
anything = st.data()


class Owner:
    """Equal to all others, as a user's object may be, and yet not the same."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Owner)

    def __hash__(self) -> int:
        return 1


class LedgerMachine(RuleBasedStateMachine):
    """Take, add, free and forget segments, in any order, keeping books of our own."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SegmentLedger(BOUND)
        self.owners = [Owner() for _ in range(3)]
        self.sizes: dict[int, int] = {}
        self.owner_of: dict[int, Owner] = {}
        self.out: set[int] = set()
        self.free: list[tuple[int, float]] = []  # the first has been free the longest
        self.gone: set[int] = set()
        self.now = 100.0

    def idle(self) -> int:
        return sum(self.sizes[number] for number, _ in self.free)

    def leaves(self, number: int) -> None:
        self.gone.add(number)
        self.out.discard(number)
        self.free = [entry for entry in self.free if entry[0] != number]
        del self.sizes[number], self.owner_of[number]

    @rule(who=st.integers(0, 2), size=SIZES)
    def take(self, who: int, size: int) -> None:
        owner = self.owners[who]
        fits = [
            number
            for number, _ in self.free
            if self.owner_of[number] is owner and size <= self.sizes[number] <= 4 * size
        ]
        number = self.ledger.take(owner, size)
        if number is None:
            assert not fits, "there would have been one"
            return
        assert number in fits
        assert self.sizes[number] == min(self.sizes[other] for other in fits)
        self.free = [entry for entry in self.free if entry[0] != number]
        self.out.add(number)

    @rule(who=st.integers(0, 2), size=SIZES)
    def add(self, who: int, size: int) -> None:
        held = sum(self.sizes[number] for number in self.out)
        number, dropped = self.ledger.add(self.owners[who], size)
        if held + size > BOUND:
            assert (number, dropped) == (None, []), "nobody is dropped in vain"
            return
        assert number is not None
        assert number > max([0, *self.sizes, *self.gone]), "no number comes twice"
        assert dropped == [other for other, _ in self.free[: len(dropped)]]
        needed = sum(self.sizes.values()) + size - BOUND
        sizes = [self.sizes[other] for other in dropped]
        assert sum(sizes) >= needed
        assert sum(sizes[:-1]) < max(needed, 1), "one more than were needed"
        for other in dropped:
            self.leaves(other)
        self.sizes[number], self.owner_of[number] = size, self.owners[who]
        self.out.add(number)

    @precondition(lambda self: self.out)
    @rule(data=anything, later=st.sampled_from([0.0, 0.0, 1.0, 2.5]))
    def an_end_of_use(self, data: st.DataObject, later: float) -> None:
        number = data.draw(st.sampled_from(sorted(self.out)))
        self.now += later
        self.ledger.free(number, self.now)
        self.out.remove(number)
        self.free.append((number, self.now))

    @precondition(lambda self: self.sizes)
    @rule(data=anything)
    def forget(self, data: st.DataObject) -> None:
        """Its worker is dead, or has lost it; or it has been free for long enough."""
        number = data.draw(st.sampled_from(sorted(self.sizes)))
        self.ledger.forget(number)
        self.leaves(number)

    @precondition(lambda self: self.free)
    @rule(data=anything)
    def forget_the_oldest(self, data: st.DataObject) -> None:
        since = data.draw(st.sampled_from([since for _, since in self.free]))
        for number in self.ledger.free_since(since):
            self.ledger.forget(number)
            self.leaves(number)
        assert all(other > since for _, other in self.free)

    @precondition(lambda self: self.gone | {0})
    @rule(data=anything)
    def what_is_gone_is_gone(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.gone | {0})))
        with pytest.raises(KeyError):
            self.ledger.free(number, self.now)
        with pytest.raises(KeyError):
            self.ledger.forget(number)

    @invariant()
    def the_figures_agree(self) -> None:
        assert self.ledger.total == sum(self.sizes.values())
        assert self.ledger.total <= BOUND
        assert self.ledger.idle == self.idle()

    @invariant()
    def what_is_free_is_known_in_its_order(self) -> None:
        ledger = self.ledger
        assert ledger.free_since(self.now) == [number for number, _ in self.free]
        for moment in {since for _, since in self.free}:
            old = [number for number, since in self.free if since <= moment]
            older = [number for number, since in self.free if since < moment]
            assert ledger.free_since(moment) == old
            assert ledger.free_since(moment - 0.1) == older
        assert ledger.next_free_since() == (self.free[0][1] if self.free else None)

    def teardown(self) -> None:
        """All of it can be had again in the end."""
        for number in self.out:
            self.ledger.free(number, self.now)
        last, dropped = self.ledger.add(self.owners[0], BOUND)
        assert last is not None
        assert sorted(dropped) == sorted(self.sizes)
        assert (self.ledger.total, self.ledger.idle) == (BOUND, 0)
        assert self.ledger.take(self.owners[0], 1) is None


TestSegmentLedger = LedgerMachine.TestCase


# Sizes.

lengths = st.integers(1, 1 << 21) | st.integers(1, 1 << 45)


@given(lengths)
def test_a_segment_is_large_enough_and_wastes_less_than_a_fifth_of_itself(
    size: int,
) -> None:
    found = size_class(size)
    assert found >= size
    if size > 64 * KIB:
        assert 4 * found < 5 * size, "not a quarter more than was asked for"
    else:
        assert found == 64 * KIB
    assert found % (4 * KIB) == 0, "whole pages"
    assert size_class(found) == found


@given(lengths, lengths)
def test_what_is_larger_never_has_a_smaller_segment(first: int, second: int) -> None:
    small, large = sorted((first, second))
    assert size_class(small) <= size_class(large)


def test_between_a_size_and_its_double_there_are_four() -> None:
    for power in (17, 24, 36):
        low, step = 1 << power, 1 << (power - 3)
        found = {size_class(low + extra) for extra in range(1, low + 1, step // 8)}
        assert len(found) == 4
