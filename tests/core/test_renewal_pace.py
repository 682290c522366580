"""When a renewal may begin; test_lease_ledger_model.py has the pace under load."""

from __future__ import annotations

import pytest

from asyncpool._core.leases.lease_ledger import (
    SLACK,
    RenewalPace,
    RenewalResult,
    longest_gap,
    pause_before,
)

EXTENDED, THROTTLED = RenewalResult.EXTENDED, RenewalResult.THROTTLED


def pace_of(max_rate: float = 1.0, *, overlap: int = 4) -> RenewalPace:
    return RenewalPace(
        max_rate=max_rate, interval=80.0, overlap=overlap, max_overlap=8, now=0.0
    )


def test_one_renewal_a_tick() -> None:
    pace = pace_of(2.0)
    assert pace.may_begin(0.0)
    pace.begin(0.0)
    assert not pace.may_begin(0.49)
    assert pace.may_begin(0.5)


def test_a_tick_of_a_fast_keeper_is_for_several() -> None:
    pace = pace_of(100.0)
    pace.skip_to(1.0)
    begun = 0
    while pace.may_begin(1.0):
        pace.begin(1.0)
        begun += 1
    assert begun == 5  # 50 ms of them


def test_a_little_lateness_is_made_good_and_a_stall_is_not() -> None:
    pace = pace_of()
    pace.begin(SLACK / 2)
    assert pace.next_tick == 1.0
    pace.begin(5.0)
    assert pace.next_tick == 6.0 - SLACK


def test_each_throttling_doubles_the_pause_up_to_an_eighth_of_the_interval() -> None:
    pace, now, pauses = pace_of(), 0.0, list[float]()
    for _ in range(5):
        pauses.append(pace.end(now, now + 1.0, THROTTLED, 0.0))
        now += 2.0
    assert pauses == [2.0, 4.0, 8.0, 10.0, 10.0]
    assert not pace.may_begin(18.9)
    assert pace.may_begin(19.0)


def test_a_success_ends_the_row_of_pauses() -> None:
    pace = pace_of()
    assert pace.end(0.0, 1.0, THROTTLED, 0.0) == 2.0
    assert pace.end(2.0, 3.0, EXTENDED, 0.0) == 0.0
    assert pace.end(4.0, 5.0, THROTTLED, 0.0) == 2.0


def test_renewals_that_were_in_progress_together_tell_the_same() -> None:
    pace = pace_of()
    assert pace.end(0.0, 1.0, THROTTLED, 0.0) == 2.0
    assert pace.end(0.5, 1.5, EXTENDED, 0.0) == 0.0
    assert pace.end(1.0, 2.0, THROTTLED, 0.0) == 2.0


@pytest.mark.parametrize(("asked", "granted"), [(0.5, 2.0), (7.0, 7.0), (999.0, 80.0)])
def test_the_outside_system_is_granted_an_interval_at_the_most(
    asked: float, granted: float
) -> None:
    assert pace_of().end(0.0, 1.0, THROTTLED, asked) == granted


def test_slow_renewals_overlap_and_then_lower_the_rate() -> None:
    pace = pace_of()
    assert (pace.rate, pace.capacity, pace.max_in_progress) == (1.0, 80, 4)
    pace.end(0.0, 6.0, EXTENDED, 0.0)
    assert (pace.rate, pace.capacity, pace.max_in_progress) == (1.0, 80, 6)
    pace = pace_of()
    pace.end(0.0, 16.0, EXTENDED, 0.0)
    assert (pace.rate, pace.capacity, pace.max_in_progress) == (0.5, 40, 8)


def test_the_pauses_between_attempts_take_less_than_half_an_interval() -> None:
    pauses = [pause_before(retry, 3, 80.0) for retry in (1, 2, 3)]
    assert pauses == [5.0, 10.0, 20.0]
    assert longest_gap(80.0, 3, 2.0) == 80.0 + sum(pauses) + 5 * 2.0
