"""When a sampler looks at the stacks."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.profile.sampling_times import SamplingTimes

RATES = st.floats(1, 1000)
STARTS = st.floats(0, 1e6)


@given(RATES, st.floats(0.01, 3), STARTS)
def test_one_that_is_always_in_time_misses_nothing(
    rate: float, seconds: float, now: float
) -> None:
    times, end, looks = SamplingTimes(rate, seconds, now), now + seconds, 0
    while (wait := times.wait(now)) is not None:
        assert 0 <= wait <= 1.5 / rate + 1e-6
        now += wait + 1e-9
        due = times.take(now)
        assert due <= 1
        looks += due
    assert now < end + 1e-6
    assert seconds * rate / 1.5 - 2 <= looks <= seconds * rate * 2 + 2


@given(RATES, st.floats(0.01, 3), STARTS, st.data())
def test_each_look_is_due_once_however_late_it_is_taken(
    rate: float, seconds: float, now: float, data: st.DataObject
) -> None:
    late, in_time = (SamplingTimes(rate, seconds, now) for _ in range(2))
    wanted = in_time.take(now + seconds)
    taken = 0
    while late.wait(now) is not None:
        now += data.draw(st.floats(0.5 / rate, seconds))
        taken += late.take(now)
    assert taken == wanted


def test_the_mean_distance_is_that_of_the_rate() -> None:
    assert SamplingTimes(100, 100, 5.0).take(105) == pytest.approx(10_000, rel=0.02)


def test_the_distances_differ() -> None:
    times, now, waits = SamplingTimes(100, 1, 0.0), 0.0, set[int]()
    while (wait := times.wait(now)) is not None:
        waits.add(int(wait * 1000))
        now += wait + 1e-9
        times.take(now)
    assert waits == set(range(5, 15))
