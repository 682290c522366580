"""Tests of asyncpool/_core/remote_wire/clock_bounds.py: what is said of a clock holds."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from asyncpool._core.remote_wire.clock_bounds import DRIFT, TICK, ClockBounds

seconds = st.floats(0.0, 30.0)
way = st.floats(0.0, 3.0)


@given(
    ahead=st.floats(-1e6, 1e6),
    drift=st.floats(-DRIFT, DRIFT),
    rounds=st.lists(st.tuples(seconds, way, way, way), min_size=1, max_size=20),
)
def test_the_clock_is_where_the_bounds_say(
    ahead: float, drift: float, rounds: list[tuple[float, float, float, float]]
) -> None:
    """Whatever the messages and batches take on their way, and however long they wait there."""
    bounds, now, first = ClockBounds(), 0.0, 0.0

    def theirs(at: float) -> float:
        return at + ahead + drift * (at - first)

    for number, (pause, there, waits, back) in enumerate(rounds, 1):
        now += pause
        bounds.sent(number, now)
        taken = now + there
        made = taken + waits
        now = made + back
        bounds.heard(theirs(made), theirs(taken), number, now)
        offset = bounds.offset(now)
        wrong = abs(offset.ahead - (theirs(now) - now))
        assert wrong <= offset.error + 1e-6
        assert offset.error <= (there + back) / 2 + TICK + DRIFT * 3 * 20


def test_a_quick_answer_makes_it_narrow_and_time_makes_it_wide() -> None:
    bounds = ClockBounds()
    assert bounds.offset(0.0) == (0.0, math.inf)
    bounds.heard(98.0, 0.0, 0, 1.0)  # nothing of ours was in it
    assert bounds.offset(1.0).error == math.inf
    bounds.sent(1, 2.0)
    bounds.heard(101.5, 101.5, 1, 3.0)
    slow = bounds.offset(3.0)
    assert math.isclose(slow.ahead, 99.0, abs_tol=1e-3)
    assert math.isclose(slow.error, 0.5 + TICK, abs_tol=1e-3)
    bounds.sent(2, 4.0)
    bounds.heard(103.005, 103.005, 2, 4.01)
    quick = bounds.offset(4.01)
    assert math.isclose(quick.ahead, 99.0, abs_tol=1e-3)
    assert math.isclose(quick.error, 0.005 + TICK, abs_tol=1e-9)
    later = bounds.offset(104.01)
    assert math.isclose(later.error, quick.error + 100 * DRIFT)


def test_an_acknowledgement_may_wait_for_something_to_go_with() -> None:
    bounds = ClockBounds()
    bounds.sent(1, 2.0)
    bounds.heard(601.5, 101.5, 1, 503.0)
    offset = bounds.offset(503.0)
    assert math.isclose(offset.ahead, 99.0, abs_tol=1e-3)
    assert math.isclose(offset.error, 0.5 + TICK, abs_tol=1e-3)


def test_what_no_clock_shows_says_nothing() -> None:
    bounds = ClockBounds()
    bounds.sent(1, 0.0)
    bounds.heard(50.0, 50.0, 1, 0.01)
    known = bounds.offset(1.01)
    bounds.sent(2, 1.0)
    # It would have had the message before that was sent.
    bounds.heard(51.01, 1.0, 2, 1.01)
    assert bounds.offset(1.01) == known


def test_a_clock_that_jumps_is_followed() -> None:
    bounds = ClockBounds()
    bounds.sent(1, 0.0)
    bounds.heard(50.0, 50.0, 1, 0.01)
    bounds.sent(2, 1.0)
    bounds.heard(-500.0, -500.0, 2, 1.01)
    assert math.isclose(bounds.offset(1.01).ahead, -501.005, abs_tol=1e-3)


def test_what_is_not_acknowledged_says_nothing() -> None:
    bounds = ClockBounds()
    bounds.sent(5, 0.0)
    bounds.heard(50.0, 50.0, 4, 9.0)
    assert bounds.offset(9.0).error == math.inf
    bounds.heard(50.5, 50.5, 5, 9.5)
    assert bounds.offset(9.5).error < 5.0


def test_the_times_of_few_messages_are_kept() -> None:
    bounds = ClockBounds()
    for number in range(1, 1000):
        bounds.sent(number, float(number))
    bounds.heard(0.0, 0.0, 999, 1000.0)
    assert 400.0 < bounds.offset(1000.0).error < 500.0  # by the 64th, not by the last
