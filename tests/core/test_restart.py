"""Tests of asyncpool/_core/restart.py: the policy; its ledger is next door."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.restart import RestartPolicy

rolls = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RestartPolicy,
    base=st.just(0.0) | st.floats(0.001, 2),
    cap=st.floats(2, 60),
    jitter=st.booleans(),
)


# The policy.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"base": -0.1}, r"base must be between 0 and cap \(30\), not -0.1"),
        ({"base": 31.0}, r"base must be between 0 and cap \(30\), not 31"),
        ({"base": float("nan")}, "base must be between"),
        ({"cap": 0.4}, "base must be between 0 and cap"),
        ({"period": 0.0}, "period must be > 0, not 0"),
        ({"period": float("nan")}, "period must be > 0, not nan"),
        ({"healthy_after": -1.0}, "healthy_after must be > 0, not -1"),
        ({"probe_after": 0.0}, "probe_after must be > 0, not 0"),
        ({"max_failed_starts": 0}, "max_failed_starts must be >= 1 or None, not 0"),
        ({"max_short_runs": 0}, "max_short_runs must be >= 1 or None, not 0"),
        ({"max_crashes": 0}, "max_crashes must be >= 1 or None, not 0"),
        ({"fruitless_limit": 0}, "fruitless_limit must be >= 1, not 0"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestartPolicy(**options)


@pytest.mark.parametrize(
    ("name", "wrong", "kind"),
    [
        ("base", "x", "a number of seconds"),
        ("cap", None, "a number of seconds"),
        ("jitter", 0.1, "True or False"),
        ("healthy_after", None, "a number of seconds"),
        ("max_failed_starts", "x", "an int or None"),
        ("max_short_runs", 2.5, "an int or None"),
        ("max_crashes", [3], "an int or None"),
        ("period", None, "a number of seconds"),
        ("fruitless_limit", None, "an int"),
        ("count_blamed", "no", "True or False"),
        ("probe_after", "x", "a number of seconds or None"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, wrong: Any, kind: str) -> None:
    with pytest.raises(TypeError) as caught:
        RestartPolicy(**{name: wrong})
    assert str(caught.value) == f"{name} must be {kind}, not {wrong!r}"


def test_values_at_the_edge_are_accepted() -> None:
    RestartPolicy(base=0.0, cap=0.0, max_failed_starts=1, max_short_runs=1)
    RestartPolicy(base=30.0, cap=30.0, fruitless_limit=1, probe_after=None)
    RestartPolicy(max_crashes=1, period=0.001)


def test_the_documented_defaults() -> None:
    assert RestartPolicy() == RestartPolicy(
        base=0.5,
        cap=30.0,
        jitter=True,
        healthy_after=30.0,
        max_failed_starts=5,
        max_short_runs=8,
        max_crashes=None,
        period=60.0,
        fruitless_limit=8,
        count_blamed=False,
        probe_after=30.0,
    )


@pytest.mark.parametrize(
    ("workers", "limit"), [(1, 5), (2, 5), (3, 7), (4, 9), (64, 129)]
)
def test_the_limit_of_the_window_grows_with_the_pool(workers: int, limit: int) -> None:
    assert RestartPolicy().crash_limit(workers) == limit
    assert RestartPolicy(max_crashes=3).crash_limit(workers) == 3


def test_a_limit_that_the_backoff_makes_unreachable_is_refused() -> None:
    with pytest.raises(ValueError, match="never") as caught:
        RestartPolicy(base=0.5, cap=30.0, max_crashes=10, period=60.0)
    assert str(caught.value) == (
        "max_crashes=10 in period=60 s can never be exceeded: with base=0.5 and "
        "cap=30 a slot is restarted after 0, 0.5, 1, 2, 4, 8, 16 s, which makes at "
        "most 8 crashes in 60 s; use a smaller max_crashes, a longer period, or a "
        "smaller base or cap"
    )


def test_the_largest_reachable_limit_is_accepted() -> None:
    # Crashes at 0, 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5 s: eight, one more than 7.
    assert RestartPolicy(max_crashes=7, period=31.5).max_crashes == 7
    with pytest.raises(ValueError, match=r"at most 7 crashes in 31\.4 s"):
        RestartPolicy(max_crashes=7, period=31.4)
    with pytest.raises(ValueError, match="at most 8 crashes in 60 s"):
        RestartPolicy(max_crashes=8, period=60.0)


# The delay.


@given(policies, st.integers(0, 3_000), rolls)
def test_the_delay_never_shrinks_and_never_exceeds_the_cap(
    policy: RestartPolicy, streak: int, roll: float
) -> None:
    delay = policy.delay(streak, roll=roll)
    assert 0 <= delay <= policy.delay(streak + 1, roll=roll) <= policy.cap


@given(policies, st.integers(2, 100), rolls)
def test_jitter_takes_away_up_to_a_half(
    policy: RestartPolicy, streak: int, roll: float
) -> None:
    full = min(policy.base * 2 ** (streak - 2), policy.cap)
    assert policy.delay(streak, roll=roll) <= full
    assert policy.delay(streak, roll=roll) >= (full / 2 if policy.jitter else full)


def test_the_delay_doubles_up_to_the_cap() -> None:
    policy = RestartPolicy(base=0.5, cap=3.0, jitter=False)
    assert [policy.delay(n, roll=0.9) for n in range(7)] == [0, 0, 0.5, 1, 2, 3, 3]


def test_jitter_is_half_fixed_and_half_random() -> None:
    policy = RestartPolicy(base=1.0, cap=8.0)
    assert [policy.delay(4, roll=roll) for roll in (0.0, 0.5, 0.75)] == [2, 3, 3.5]
