"""The parts of the page do not touch each other."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.wire.heartbeat_records import BEATS_SIZE
from asyncpool._core.wire.page import (
    BEATS_START,
    BEGUN,
    LANE_OUTCOME_SIZE,
    LANE_STACK_SIZE,
    LOG_SIZE,
    LOG_START,
    MAX_LANES,
    PAGE_SIZE,
    STACKS_SIZE,
    STACKS_START,
    PageLayout,
)


def assert_apart(parts: list[tuple[int, int]], size: int) -> None:
    ends = [(start, start + length) for start, length in sorted(parts)]
    for (_, end), (start, _) in itertools.pairwise(ends):
        assert end <= start
    assert ends[-1][1] == size, "faulthandler writes as much as there is room for"


def test_each_part_has_its_room() -> None:
    parts = [
        (0, BEGUN.size),
        (BEATS_START, BEATS_SIZE),
        (LOG_START, LOG_SIZE),
        (STACKS_START, STACKS_SIZE),
    ]
    assert_apart(parts, PAGE_SIZE)


def test_one_lane_is_no_lane() -> None:
    layout = PageLayout(1)
    assert (layout.begun(0), layout.beats(0)) == (0, BEATS_START)
    assert layout.log(0) == LOG_START
    assert (layout.stacks, layout.size) == (STACKS_START, PAGE_SIZE)


@given(width=st.integers(2, MAX_LANES))
def test_each_lane_has_its_room(width: int) -> None:
    layout = PageLayout(width)
    parts = [(0, STACKS_START), (layout.stacks, STACKS_SIZE)]
    for lane in range(width):
        parts += [
            (layout.begun(lane), BEGUN.size),
            (layout.beats(lane), BEATS_SIZE),
            (layout.log(lane), LOG_SIZE),
            (layout.stack(lane), LANE_STACK_SIZE),
            (layout.outcome(lane), LANE_OUTCOME_SIZE),
        ]
    assert_apart(parts, layout.size)


@pytest.mark.parametrize("width", [2, 255, 256, 257, MAX_LANES])
def test_rows_of_the_table_follow_each_other(width: int) -> None:
    """So that they can be searched in one go."""
    layout = PageLayout(width)
    rows = [layout.begun(lane) for lane in range(width + 1)]
    assert rows == list(range(rows[0], rows[0] + BEGUN.size * (width + 1), BEGUN.size))
    assert layout.beats(0) % 4096 == layout.size % 4096 == 0
