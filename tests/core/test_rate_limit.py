"""A bucket of tokens: what passes, and what is counted."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.base.deadlines import RateLimit

rates = st.floats(1, 1e5)
pauses = st.lists(st.floats(0, 5), max_size=200)


def test_as_many_as_a_second_has_pass_at_once() -> None:
    limit = RateLimit(1000)
    assert sum(limit.take(5.0) for _ in range(3000)) == 1000
    assert limit.refused == 2000


def test_a_steady_stream_within_the_rate_passes_whole() -> None:
    limit = RateLimit(100)
    assert all(limit.take(number / 99) for number in range(1000))
    assert limit.refused == 0


def test_of_a_stream_above_the_rate_the_rate_passes() -> None:
    limit = RateLimit(100)
    passed = sum(limit.take(number / 10_000) for number in range(100_000))
    assert passed == pytest.approx(100 + 10 * 100, abs=2)
    assert passed + limit.refused == 100_000


def test_a_rest_of_a_second_fills_it() -> None:
    limit = RateLimit(10)
    assert [sum(limit.take(at) for _ in range(50)) for at in (0.0, 0.55, 9.0)] == [
        10,
        5,
        10,
    ]


def test_without_a_rate_all_pass() -> None:
    limit = RateLimit(None)
    assert all(limit.take(1.0) for _ in range(10_000))
    assert limit.refused == 0


def test_what_passes_is_known_before() -> None:
    limit = RateLimit(2)
    assert limit.take(1.0)
    assert limit.take(1.0)
    assert limit.next_at == pytest.approx(1.5)
    assert not limit.take(1.49)
    assert limit.take(1.5)


def test_what_is_spent_is_missing_later() -> None:
    limit = RateLimit(10)
    limit.spend(0.0, 25.0)
    assert [limit.take(at / 10) for at in (0, 10, 15, 17, 30)] == [
        False,
        False,
        False,
        True,
        True,
    ]


def test_parts_of_tokens_add_up() -> None:
    limit, asked = RateLimit(10), 0
    while limit.next_at <= 0.0:
        limit.spend(0.0, 0.1)
        asked += 1
    assert asked == pytest.approx(91, abs=1)  # the last token is not divided


@given(rates, pauses, st.integers(1, 5))
def test_never_more_than_a_bucket_and_what_came_into_it(
    rate: float, pauses: list[float], each: int
) -> None:
    limit, now, times = RateLimit(rate), 0.0, list[float]()
    for pause in pauses:
        now += pause
        times += [now] * sum(limit.take(now) for _ in range(each))
    for first, begin in enumerate(times):
        for last in range(first, len(times), 7):
            most = rate + (times[last] - begin) * rate
            assert last - first + 1 <= most + 1 + 1e-6


@given(rates, pauses)
def test_who_waits_long_enough_passes(rate: float, pauses: list[float]) -> None:
    limit, now = RateLimit(rate), 0.0
    for pause in pauses:
        now += max(pause, 1 / rate)
        assert limit.take(now + 1e-9)
