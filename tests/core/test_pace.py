"""Tests of asyncpool/_runtime/map/batch_runner.py."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base.job_traits import BUDGET
from asyncpool._core.map.chunks import CHUNK_SIZE
from asyncpool._runtime.map.batch_runner import TARGET, Pace


def pace(
    *, chunksize: int | None = None, buffersize: int | None = None, alone: bool = False
) -> Pace:
    return Pace(chunksize=chunksize, buffersize=buffersize, alone=alone)


def test_what_is_unknown_goes_alone_and_a_few_at_a_time() -> None:
    assert TARGET == BUDGET / 16 == 1000.0
    assert (pace().size(2), pace().window(2)) == (1, 8)


def test_short_items_go_together_as_far_as_a_millisecond_goes() -> None:
    some = pace()
    some.note(1, 62.5)
    assert (some.size(2), some.window(2)) == (16, 2 * 512)
    some.note(16, 16.0)
    some.note(1, 1.0)
    # One that is faster than expected is believed bit by bit, and no leap is too large.
    assert some.size(2) == 28
    for _ in range(60):
        some.note(16, 16.0)
    assert some.size(2) == 16 * 16
    for _ in range(60):
        some.note(256, 256.0)
    assert some.size(2) == pytest.approx(1000, rel=0.01)
    for _ in range(60):
        some.note(1000, 10.0)
    assert some.size(2) == pytest.approx(4000, rel=0.01)
    assert CHUNK_SIZE == 4096


def test_who_is_slower_than_expected_is_believed_at_once() -> None:
    some = pace()
    for _ in range(60):
        some.note(100, 100.0)
    assert some.size(1) == 1000
    some.note(100, 40_000.0)
    assert some.size(1) == 2
    some.note(1, 501.0)
    assert some.size(1) == 1, "a half would be a few microseconds' gain"


def test_if_nobody_knows_how_long_they_take_as_many_are_under_way_as_end_lately() -> (
    None
):
    some = pace(alone=True)
    for step in range(2000):
        some.ended(step / 1000)
    assert some.window(2) == pytest.approx(8 + 100, abs=1)
    some.ended(60.0)
    assert some.window(2) == 8 + 1
    assert some.size(2) == 1
    some.note(1, 5_000_000.0)
    assert some.window(2) == 8


def test_long_items_are_a_few_under_way_for_each_worker() -> None:
    some = pace()
    some.note(1, 5_000_000.0)
    assert (some.size(3), some.window(3)) == (1, 12)


def test_what_is_given_counts() -> None:
    assert pace(chunksize=7).size(2) == 2, "of 8 that may be under way"
    assert pace(chunksize=7, buffersize=100).size(2) == 7
    assert pace(chunksize=7, buffersize=100, alone=True).size(2) == 1
    assert pace(chunksize=5000, buffersize=100_000).size(2) == CHUNK_SIZE
    some = pace(buffersize=30)
    some.note(1, 1.0)
    assert (some.window(2), some.size(2)) == (30, 7)
    assert pace(buffersize=1).size(8) == 1


@given(
    st.lists(st.tuples(st.integers(1, CHUNK_SIZE), st.floats(0, 1e9)), max_size=30),
    st.none() | st.integers(1, 10_000),
    st.none() | st.integers(1, 100_000),
    st.integers(1, 64),
)
def test_its_answers_are_in_their_bounds(
    notes: list[tuple[int, float]], chunk: int | None, window: int | None, workers: int
) -> None:
    some = pace(chunksize=chunk, buffersize=window)
    for items, microseconds in notes:
        some.note(items, microseconds)
        assert 1 <= some.size(workers) <= min(CHUNK_SIZE, chunk or CHUNK_SIZE)
        assert some.size(workers) <= max(1, some.window(workers) // (2 * workers))
        assert some.window(workers) == window or some.window(workers) >= 4 * workers


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_each_worker_may_have_several_jobs_under_way(workers: int) -> None:
    some = pace()
    for _ in range(100):
        some.note(some.size(workers), 0.4 * some.size(workers))
    assert some.window(workers) // some.size(workers) >= 8 * workers
