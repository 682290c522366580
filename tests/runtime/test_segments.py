"""Segments of shared memory, against a model made of lists."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from hypothesis import given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._engine.segments import Segment, SegmentOwner, Segments, Use, size_class

KIB = 1024
BOUND = 2_000 * KIB
SIZES = st.sampled_from([10, 60, 64, 130, 300, 500, 1_700, 2_010])
anything = st.data()


class Owner(SegmentOwner):
    """A worker that only takes note."""

    def __init__(self) -> None:
        self.known: set[int] = set()

    def announce(self, segment: Segment, fd: int) -> None:
        self.known.add(segment.number)
        os.close(fd)

    def drop(self, number: int) -> None:
        self.known.remove(number)


class Hands:
    """Threads that do each call at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def copy(self, function: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        call = self._loop.create_future()
        call.set_result(function(*args))
        return call


class SegmentsMachine(RuleBasedStateMachine):
    """Take, make, free and forget segments, in any order, keeping books of our own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 100.0
        self.loop = asyncio.new_event_loop()
        self.loop.time = lambda: self.now  # type: ignore[method-assign] # ours
        hands: Any = Hands(self.loop)
        self.segments = Segments(self.loop, BOUND, hands)
        self.owners = [Owner() for _ in range(2)]
        self.out: list[Segment] = []
        self.free: list[tuple[Segment, float]] = []  # the one freed first is first
        self.sizes: dict[Segment, int] = {}
        self.last = 0

    def leaves(self, segment: Segment) -> None:
        self.out = [one for one in self.out if one is not segment]
        self.free = [entry for entry in self.free if entry[0] is not segment]
        del self.sizes[segment]

    @rule(who=st.integers(0, 1), kib=SIZES)
    def take(self, who: int, kib: int) -> None:
        owner, size = self.owners[who], kib * KIB
        fits = [
            segment
            for segment, _ in self.free
            if segment.owner is owner and size <= self.sizes[segment] <= 4 * size
        ]
        segment = self.segments.take(owner, size)
        if segment is None:
            assert not fits, "there would have been one"
            return
        least = min(self.sizes[other] for other in fits)
        assert segment is [one for one in fits if self.sizes[one] == least][-1]
        assert segment.use is Use.POOL
        self.free = [entry for entry in self.free if entry[0] is not segment]
        self.out.append(segment)

    @rule(who=st.integers(0, 1), kib=SIZES)
    def make(self, who: int, kib: int) -> None:
        owner, size = self.owners[who], size_class(kib * KIB)
        held = sum(self.sizes[segment] for segment in self.out)
        segment = self.loop.run_until_complete(self.segments.make(owner, kib * KIB))
        self.time_is_over()
        if held + size > BOUND:
            assert segment is None
            return
        assert segment is not None
        assert segment.number > self.last, "no number comes twice"
        assert segment.memory.size == size
        self.last = segment.number
        while sum(self.sizes.values()) + size > BOUND:
            self.leaves(self.free[0][0])
        self.sizes[segment] = size
        self.out.append(segment)

    @precondition(lambda self: self.out)
    @rule(data=anything)
    def an_end_of_use(self, data: st.DataObject) -> None:
        segment = self.out.pop(data.draw(st.integers(0, len(self.out) - 1)))
        self.segments.free(segment)
        self.free.append((segment, self.now))

    @precondition(lambda self: self.sizes)
    @rule(data=anything)
    def forget(self, data: st.DataObject) -> None:
        """Its worker has lost it."""
        segments = sorted(self.sizes, key=lambda one: one.number)
        segment = data.draw(st.sampled_from(segments))
        segment.owner.drop(segment.number)
        self.segments.forget(segment)
        self.leaves(segment)

    @rule(seconds=st.sampled_from([0.5, 2.5, 10.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.loop.run_until_complete(asyncio.sleep(0))
        self.time_is_over()

    def time_is_over(self) -> None:
        for segment, since in self.free[:]:
            if since <= self.now - 10.0:
                self.leaves(segment)

    @invariant()
    def the_figures_agree(self) -> None:
        assert self.segments.total == sum(self.sizes.values()) <= BOUND
        for owner in self.owners:
            mine = {one.number for one in self.sizes if one.owner is owner}
            assert owner.known == mine

    def teardown(self) -> None:
        """All of it can be had again in the end."""
        for segment in self.out:
            self.segments.free(segment)
        coroutine = self.segments.make(self.owners[0], 1_792 * KIB)
        assert self.loop.run_until_complete(coroutine) is not None
        self.segments.close()
        assert self.segments.total == 0
        self.loop.close()


TestSegments = SegmentsMachine.TestCase


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
