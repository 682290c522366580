"""The lanes of a slot: never two attempts at once in one, and no more lanes than needed."""

from __future__ import annotations

import itertools
from collections import defaultdict

from hypothesis import given, strategies as st

from asyncpool._core.trace.trace_book import SlotLanes

SPANS = st.lists(
    st.tuples(st.integers(0, 200), st.integers(1, 60), st.booleans()), max_size=60
)


@given(spans=SPANS, usual=st.integers(1, 4))
def test_no_two_attempts_of_a_lane_overlap(
    spans: list[tuple[int, int, bool]], usual: int
) -> None:
    lanes, drawn = SlotLanes(usual), defaultdict[int, list[tuple[int, int]]](list)
    running: list[tuple[int, int, int]] = []
    for begin, run, long in spans:
        if long:
            lane, at = lanes.take(begin)
            running.append((lane, at, at + run))
        else:
            lane, at = lanes.put(begin, run)
            drawn[lane].append((at, at + run))
        assert at >= begin
        if len(running) > 2:
            lane, at, end = running.pop(0)
            lanes.give_back(lane, end)
            drawn[lane].append((at, end))
    for lane, at, end in running:
        drawn[lane].append((at, end))
    for spans_of_one in drawn.values():
        ordered = sorted(spans_of_one)
        for (_, end), (begin, _) in itertools.pairwise(ordered):
            assert end <= begin


@given(
    spans=st.lists(st.tuples(st.integers(0, 300), st.integers(1, 80)), max_size=60),
    usual=st.integers(1, 4),
)
def test_what_a_worker_can_have_run_stays_where_it_was(
    spans: list[tuple[int, int]], usual: int
) -> None:
    """If no more ran at once than there are lanes, each attempt keeps its time."""
    kept: list[tuple[int, int]] = []
    for begin, run in spans:
        inside = [(b, e) for b, e in kept if b < begin + run and begin < e]
        moments = {begin, *(b for b, _ in inside)}
        busiest = max(sum(b <= at < e for b, e in inside) for at in moments)
        if busiest < usual:
            kept.append((begin, begin + run))
    lanes = SlotLanes(usual)
    for begin, end in sorted(kept, key=lambda span: span[1]):
        _, at = lanes.put(begin, end - begin)
        assert at == begin
    assert lanes.count <= usual


def test_one_lane_has_one_after_the_other() -> None:
    lanes = SlotLanes(1)
    assert lanes.put(10, 5) == (0, 10)
    assert lanes.put(12, 5) == (0, 15), "it moves behind the one before"
    assert lanes.put(30, 5) == (0, 30)
    assert lanes.count == 1


def test_a_lane_in_use_is_given_to_nobody() -> None:
    lanes = SlotLanes(1)
    assert lanes.take(10) == (0, 10)
    assert lanes.put(11, 1) == (1, 11)
    lanes.give_back(0, 50)
    assert lanes.take(60) == (0, 60), "the one that was free for the shortest time"
