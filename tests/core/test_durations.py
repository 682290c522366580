"""Histograms of durations: what is counted is there, in the right bucket, once."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.figures.durations import Durations
from asyncpool.stats import NO_DURATIONS, Histogram

seconds = st.floats(0, 1e9)


def filled(*values: float) -> Durations:
    durations = Durations()
    for value in values:
        durations.note(value)
    return durations


def test_without_durations_there_are_no_buckets() -> None:
    histogram = Durations().histogram()
    assert histogram == NO_DURATIONS
    assert (histogram.count, histogram.mean, histogram.quantile(0.5)) == (0, 0.0, 0.0)


def test_buckets_are_powers_of_two_of_a_microsecond() -> None:
    histogram = filled(3e-6, 3.9e-6, 4e-6, 17e-6).histogram()
    assert histogram.bounds == (4e-6, 8e-6, 16e-6, 32e-6)
    assert histogram.counts == (2, 1, 0, 1)
    assert histogram.total == pytest.approx(27.9e-6)


@pytest.mark.parametrize("value", [0.0, -1.0, 9e-7])
def test_what_takes_no_time_is_counted(value: float) -> None:
    histogram = filled(value).histogram()
    assert (histogram.bounds, histogram.counts) == ((1e-6,), (1,))
    assert histogram.total >= 0


@given(st.lists(seconds, min_size=1))
def test_each_duration_is_in_the_bucket_below_whose_bound_it_is(
    values: list[float],
) -> None:
    histogram = filled(*values).histogram()
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        least = bound / 2 if bound > 1e-6 else 0.0
        assert count == sum(least <= int(value * 1e6) / 1e6 < bound for value in values)
    assert histogram.counts[0]
    assert histogram.counts[-1]


@given(st.lists(seconds, min_size=1), st.floats(0, 1))
def test_a_quantile_is_right_within_a_factor_of_two(
    values: list[float], share: float
) -> None:
    found = filled(*values).histogram().quantile(share)
    below = sum(value <= found * 2 + 1e-6 for value in values)
    above = sum(value >= found / 2 - 1e-6 for value in values)
    assert below >= share * len(values) - 1e-6
    assert above >= (1 - share) * len(values) - 1e-6


def test_a_quantile_of_known_durations() -> None:
    histogram = Histogram(bounds=(0.5, 1.0, 2.0), counts=(50, 40, 10), total=60.0)
    assert histogram.quantile(0.25) == pytest.approx(0.375)
    assert histogram.quantile(0.5) == pytest.approx(0.5)
    assert histogram.quantile(0.95) == pytest.approx(1.5)
    assert histogram.quantile(1) == pytest.approx(2.0)
    assert histogram.mean == pytest.approx(0.6)


@pytest.mark.parametrize("share", [-0.1, 1.1, 50])
def test_a_share_is_between_nothing_and_all(share: float) -> None:
    with pytest.raises(ValueError, match="share must be between 0 and 1"):
        NO_DURATIONS.quantile(share)
