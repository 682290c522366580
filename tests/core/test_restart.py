"""Tests of asyncpool/_core/policies/restart.py: the policy; its ledger is next door."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.policies.restart import RestartPolicy

rolls = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RestartPolicy, initial_delay=st.floats(0.001, 2), max_delay=st.floats(2, 60)
)


# The policy.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"initial_delay": -0.1},
            r"initial_delay must be between 0 and max_delay \(30\), not -0.1",
        ),
        (
            {"initial_delay": 31.0},
            r"initial_delay must be between 0 and max_delay \(30\), not 31",
        ),
        ({"initial_delay": float("nan")}, "initial_delay must be between"),
        ({"max_delay": 0.04}, r"between 0 and max_delay \(0.04\), not 0.05"),
        (
            {"initial_delay": 0.0},
            "would start workers that never become ready without any pause",
        ),
        ({"period": 0.0}, "period must be > 0, not 0"),
        ({"period": float("nan")}, "period must be > 0, not nan"),
        ({"max_failed_starts": 0}, "max_failed_starts must be >= 1 or None, not 0"),
        ({"max_restarts": 0}, "max_restarts must be >= 1 or None, not 0"),
    ],
    ids=str,
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RestartPolicy(**options)


@pytest.mark.parametrize(
    ("name", "wrong", "kind"),
    [
        ("initial_delay", "x", "a number of seconds"),
        ("max_delay", None, "a number of seconds"),
        ("max_failed_starts", "x", "an int or None"),
        ("max_restarts", [3], "an int or None"),
        ("period", None, "a number of seconds"),
    ],
)
def test_values_of_another_kind_are_refused(name: str, wrong: Any, kind: str) -> None:
    with pytest.raises(TypeError) as caught:
        RestartPolicy(**{name: wrong})
    assert str(caught.value) == f"{name} must be {kind}, not {wrong!r}"


def test_values_at_the_edge_are_accepted() -> None:
    # None of them must raise.
    RestartPolicy(initial_delay=0.0, max_delay=0.0, max_restarts=1)
    RestartPolicy(initial_delay=30.0, max_delay=30.0, max_failed_starts=1)
    RestartPolicy(max_failed_starts=None, period=0.001)


def test_the_documented_defaults() -> None:
    assert RestartPolicy() == RestartPolicy(
        initial_delay=0.05,
        max_delay=30.0,
        max_failed_starts=5,
        max_restarts=None,
        period=60.0,
    )


def test_the_limited_restart_of_node_and_otp() -> None:
    assert RestartPolicy.limited(3, 10.0) == RestartPolicy(
        initial_delay=0.0, max_failed_starts=None, max_restarts=3, period=10.0
    )


def test_a_limit_that_the_delays_make_unreachable_is_refused() -> None:
    with pytest.raises(ValueError, match="never exceed") as caught:
        RestartPolicy(initial_delay=0.5, max_restarts=10, period=60.0)
    assert str(caught.value) == (
        "starts that fail never exceed max_restarts=10 in period=60 s: with "
        "initial_delay=0.5 and max_delay=30 they are tried again after 0.5, 1, 2, 4, 8, "
        "16 s, which makes at most 7 deaths in 60 s; use a smaller max_restarts, a "
        "longer period, or smaller delays"
    )
    with pytest.raises(ValueError, match="never exceed") as caught:
        RestartPolicy(initial_delay=5.0, max_restarts=1, period=2.0)
    assert "tried again after 5 s, which makes at most 1 death in 2 s;" in str(
        caught.value
    )


def test_the_largest_reachable_limit_is_accepted() -> None:
    # Deaths at 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5 s: seven, one more than 6.
    policy = RestartPolicy(initial_delay=0.5, max_restarts=6, period=31.5)
    assert policy.max_restarts == 6
    with pytest.raises(ValueError, match=r"at most 6 deaths in 31\.4 s"):
        RestartPolicy(initial_delay=0.5, max_restarts=6, period=31.4)
    with pytest.raises(ValueError, match="at most 7 deaths in 60 s"):
        RestartPolicy(initial_delay=0.5, max_restarts=7, period=60.0)
    with pytest.raises(
        ValueError, match=r"after 1, 2, 4 s, .* at most 4 deaths in 7 s"
    ):
        RestartPolicy(initial_delay=1, max_restarts=4, period=7.0)


# The delay.


@given(policies, st.integers(1, 3_000), rolls)
def test_the_delay_never_shrinks_and_never_exceeds_the_maximum(
    policy: RestartPolicy, failures: int, roll: float
) -> None:
    delay = policy.delay(failures, jitter=roll)
    assert 0 < delay <= policy.delay(failures + 1, jitter=roll) <= policy.max_delay


@given(policies, st.integers(1, 100), rolls)
def test_chance_takes_away_up_to_a_half(
    policy: RestartPolicy, failures: int, roll: float
) -> None:
    full = min(policy.initial_delay * 2 ** (failures - 1), policy.max_delay)
    assert full / 2 <= policy.delay(failures, jitter=roll) <= full


def test_the_delay_doubles_up_to_the_maximum() -> None:
    policy = RestartPolicy(initial_delay=0.5, max_delay=3.0)
    assert [policy.delay(n, jitter=0.0) for n in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert [policy.delay(4, jitter=roll) for roll in (0.5, 0.75)] == [2.25, 1.875]
