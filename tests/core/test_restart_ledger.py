"""Tests of asyncpool/_core/restart.py: the ledger, limit by limit."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import assume, example, given, strategies as st

from asyncpool._core.restart import (
    Break,
    Park,
    Restart,
    RestartLedger,
    RestartPolicy,
    Verdict,
)


class OneSlot:
    """A ledger, and the questions that are put to it about one slot."""

    def __init__(self, policy: RestartPolicy, *, workers: int = 1) -> None:
        self.ledger = RestartLedger(policy, workers)
        self.now = 1_000.0

    def own(self, run: float | None = 0.0, *, after: float = 0.0) -> Verdict:
        """Crash with no job to blame, *after* seconds."""
        return self.record(run, blamed=False, after=after)

    def elsewhere(self, *, blamed: bool, outcomes: int) -> None:
        """Crash in another slot."""
        self.ledger.record(
            1, now=self.now, run=0.0, blamed=blamed, outcomes=outcomes, roll=0.0
        )

    def served(self) -> Verdict:
        """Crash with no job to blame, having delivered outcomes before."""
        return self.record(0.0, blamed=False, outcomes=5)

    def blamed(self, *, outcomes: int = 0, run: float = 0.0) -> Verdict:
        """Crash in the middle of a job."""
        return self.record(run, blamed=True, outcomes=outcomes)

    def record(
        self,
        run: float | None,
        *,
        blamed: bool,
        outcomes: int = 0,
        after: float = 0.0,
        roll: float = 0.0,
    ) -> Verdict:
        self.now += after
        return self.ledger.record(
            0, now=self.now, run=run, blamed=blamed, outcomes=outcomes, roll=roll
        )


def lenient(**limits: Any) -> RestartPolicy:
    """A policy without delays, limits and jitter, but for what is given."""
    none: dict[str, Any] = {
        "base": 0.0,
        "jitter": False,
        "max_failed_starts": None,
        "max_short_runs": None,
        "max_crashes": 1_000,
    }
    return RestartPolicy(**{**none, **limits})


def delays(verdicts: list[Verdict]) -> list[float]:
    found = []
    for verdict in verdicts:
        assert isinstance(verdict, Restart), verdict
        found.append(verdict.delay)
    return found


@given(
    base=st.floats(0.01, 5),
    cap=st.floats(5, 20),
    limit=st.integers(1, 12),
    period=st.floats(1, 100),
)
@example(base=0.5, cap=30.0, limit=10, period=60.0)
def test_a_limit_is_refused_if_and_only_if_no_slot_ever_exceeds_it(
    base: float, cap: float, limit: int, period: float
) -> None:
    crashes, delay = [0.0], 0.0
    for number in range(3 * limit):
        delay = 0.0 if number == 0 else min(base * 2.0 ** (number - 1), cap)
        crashes.append(crashes[-1] + delay)
    assume(all(abs(time - period) > 1e-6 for time in crashes))  # no ties
    most = max(sum(t - period <= early <= t for early in crashes) for t in crashes)
    if most > limit:
        policy = lenient(base=base, cap=cap, max_crashes=limit, period=period)
        slot = OneSlot(policy)
        verdicts = [slot.own(after=after) for after in steps(crashes)]
        assert any(isinstance(verdict, Break) for verdict in verdicts)
    else:
        with pytest.raises(ValueError, match="can never be exceeded"):
            RestartPolicy(base=base, cap=cap, max_crashes=limit, period=period)


def steps(times: list[float]) -> list[float]:
    return [0.0, *(b - a for a, b in itertools.pairwise(times))]


# The delay of a verdict.


def test_the_first_restart_has_no_delay_and_the_next_ones_back_off() -> None:
    slot = OneSlot(lenient(base=1.0, cap=8.0, max_crashes=5, period=60.0))
    assert delays([slot.own(after=20.0) for _ in range(6)]) == [0, 1, 2, 4, 8, 8]


def test_the_delay_of_a_verdict_is_randomised() -> None:
    slot = OneSlot(RestartPolicy(base=1.0, cap=8.0))
    slot.own()
    verdict = slot.record(0.0, blamed=False, roll=0.5)
    assert verdict == Restart(0.75)


# The three counters.


def test_failed_starts_park_the_slot_exactly_at_the_limit() -> None:
    slot = OneSlot(lenient(max_failed_starts=3))
    assert delays([slot.own(None), slot.own(None)]) == [0, 0]
    assert slot.own(None) == Park("3 starts failed in a row")
    assert slot.own(None) == Park("4 starts failed in a row")


def test_a_start_that_succeeds_ends_the_row_of_failed_ones() -> None:
    slot = OneSlot(lenient(max_failed_starts=3))
    verdicts = [slot.own(run) for run in (None, None, 0.1, None, None)]
    assert delays(verdicts) == [0] * 5
    assert isinstance(slot.own(None), Park)


def test_a_crash_in_a_job_ends_the_row_of_failed_starts() -> None:
    slot = OneSlot(lenient(max_failed_starts=2))
    assert delays([slot.own(None), slot.blamed(), slot.own(None)]) == [0, 0, 0]
    assert isinstance(slot.own(None), Park)


def test_short_runs_park_the_slot_exactly_at_the_limit() -> None:
    slot = OneSlot(lenient(max_short_runs=3, healthy_after=10.0))
    assert delays([slot.own(9.9), slot.own(None)]) == [0, 0]
    assert slot.own(0.0) == Park("3 runs in a row were short")


def test_the_window_breaks_the_pool_exactly_above_the_limit() -> None:
    slot = OneSlot(lenient(max_crashes=3, period=60.0))
    assert delays([slot.own(after=10.0) for _ in range(3)]) == [0, 0, 0]
    assert slot.own(after=10.0) == Break("4 workers crashed within 60 s")


def test_the_window_counts_all_slots() -> None:
    ledger = RestartLedger(lenient(max_crashes=3), workers=4)
    verdicts = [
        ledger.record(slot, now=5.0, run=0.0, blamed=False, outcomes=0, roll=0.0)
        for slot in range(4)
    ]
    assert delays(verdicts[:3]) == [0, 0, 0]
    assert isinstance(verdicts[3], Break)


def test_a_crash_leaves_the_window_just_after_the_period() -> None:
    for gap, verdict in ((60.0, Break), (60.0001, Restart)):
        slot = OneSlot(lenient(max_crashes=1, period=60.0))
        slot.own()
        assert isinstance(slot.own(after=gap), verdict)


def test_breaking_the_pool_goes_before_parking_a_slot() -> None:
    slot = OneSlot(lenient(max_crashes=1, max_failed_starts=2, max_short_runs=2))
    slot.own(None)
    assert isinstance(slot.own(None), Break)


def test_a_worker_that_has_served_returns_at_once_but_its_end_counts() -> None:
    policy = lenient(base=1.0, max_crashes=6, max_short_runs=4, period=1e6)
    slot = OneSlot(policy)
    verdicts = [slot.served(), slot.own(), slot.served()]
    assert delays(verdicts) == [0, 0, 0]
    assert slot.served() == Park("4 runs in a row were short")
    other = OneSlot(lenient(base=1.0, max_crashes=3))
    assert delays([other.own(), other.own(), other.served()]) == [0, 1, 0]
    assert isinstance(other.served(), Break)


# What forgives.


@pytest.mark.parametrize("run", [None, 0.0, 9.99])
def test_nothing_but_a_healthy_run_forgives(run: float | None) -> None:
    slot = OneSlot(lenient(base=1.0, cap=4.0, healthy_after=10.0, max_crashes=4))
    slot.own()
    assert delays([slot.own(after=90.0), slot.own(run, after=90.0)]) == [1, 2]


def test_a_healthy_run_forgives_delay_and_short_runs() -> None:
    slot = OneSlot(
        lenient(base=1.0, healthy_after=10.0, max_short_runs=3, max_crashes=3)
    )
    first = [slot.own(after=90.0), slot.own(after=90.0)]
    after_it = [slot.own(10.0, after=90.0), slot.own(after=90.0)]
    assert delays(first) == delays(after_it) == [0, 1]
    assert isinstance(slot.own(after=90.0), Park)


def test_a_healthy_run_lasts_twice_as_long_as_the_delay_before_it() -> None:
    # A worker that lives for 11 s after each delay of 16 s is not a healthy one.
    policy = lenient(base=8.0, cap=16.0, healthy_after=10.0, max_crashes=3)
    for run, delay in ((31.9, 16.0), (32.0, 0.0)):
        slot = OneSlot(policy)
        verdicts = [slot.own(after=90.0) for _ in range(3)]
        assert delays([*verdicts, slot.own(run, after=90.0)]) == [0, 8, 16, delay]


def test_a_healthy_run_of_one_slot_does_not_forgive_another() -> None:
    ledger = RestartLedger(lenient(base=1.0, max_crashes=5, healthy_after=5.0), 2)
    verdicts = [
        ledger.record(slot, now=now, run=run, blamed=False, outcomes=0, roll=0.0)
        for slot, now, run in [(0, 0.0, 0), (1, 0.0, 0), (1, 90.0, 9), (0, 90.0, 0)]
    ]
    assert delays(verdicts) == [0, 0, 0, 1]


# Crashes that are blamed on jobs.


def test_blamed_crashes_never_count_whatever_their_number() -> None:
    slot = OneSlot(RestartPolicy(max_crashes=1, max_short_runs=1, period=1e9))
    assert delays([slot.blamed(outcomes=1) for _ in range(10_000)]) == [0] * 10_000
    assert slot.ledger._window == type(slot.ledger._window)()


def test_blamed_crashes_between_own_ones_change_nothing_about_those() -> None:
    slot = OneSlot(lenient(base=1.0, max_crashes=3, max_short_runs=9))
    assert delays([slot.own(), slot.blamed(), slot.own()]) == [0, 0, 1]
    assert delays([slot.blamed(), slot.own()]) == [0, 2]
    assert slot.own() == Break("4 workers crashed within 60 s")


def test_the_fruitless_backoff_begins_exactly_at_its_limit() -> None:
    slot = OneSlot(lenient(base=1.0, cap=8.0, fruitless_limit=3, max_crashes=1))
    assert delays([slot.blamed() for _ in range(8)]) == [0, 0, 1, 2, 4, 8, 8, 8]


def test_an_outcome_ends_the_fruitless_backoff() -> None:
    slot = OneSlot(lenient(base=1.0, fruitless_limit=2, max_crashes=1))
    assert delays([slot.blamed() for _ in range(3)]) == [0, 1, 2]
    assert delays([slot.blamed(outcomes=1)]) == [0]
    assert delays([slot.blamed() for _ in range(2)]) == [0, 1]


def test_an_outcome_ends_it_also_in_a_worker_that_no_job_has_killed() -> None:
    slot = OneSlot(lenient(base=1.0, fruitless_limit=2, max_crashes=9, period=1e9))
    assert delays([slot.blamed()]) == [0]
    slot.served()
    assert delays([slot.blamed(), slot.blamed()]) == [0, 1]


@pytest.mark.parametrize(
    ("blamed", "outcomes", "then"),
    [(True, 1, [0, 1]), (True, 0, [4, 8]), (False, 1, [4, 8]), (False, 0, [4, 8])],
)
def test_it_ends_if_jobs_kill_workers_elsewhere_that_have_served(
    *, blamed: bool, outcomes: int, then: list[float]
) -> None:
    slot = OneSlot(lenient(base=1.0, cap=8.0, fruitless_limit=2, max_crashes=9))
    assert delays([slot.blamed() for _ in range(3)]) == [0, 1, 2]
    slot.elsewhere(blamed=blamed, outcomes=outcomes)
    assert delays([slot.blamed(), slot.blamed()]) == then


def test_a_healthy_run_ends_the_fruitless_backoff() -> None:
    slot = OneSlot(
        lenient(base=1.0, fruitless_limit=2, healthy_after=50.0, max_crashes=1)
    )
    assert delays([slot.blamed() for _ in range(3)]) == [0, 1, 2]
    assert delays([slot.blamed(run=50.0), slot.blamed()]) == [0, 1]


def test_blamed_crashes_count_like_the_others_if_the_policy_says_so() -> None:
    slot = OneSlot(lenient(count_blamed=True, base=1.0, max_crashes=3))
    assert delays([slot.blamed() for _ in range(3)]) == [0, 1, 2]
    assert isinstance(slot.blamed(), Break)


def test_the_limited_restart_of_node_and_otp() -> None:
    policy = RestartPolicy.limited(3, 10.0)
    slot = OneSlot(policy, workers=50)
    verdicts = [slot.own(None), slot.blamed(outcomes=1), slot.own(99.0)]
    assert delays(verdicts) == [0, 0, 0]
    assert slot.blamed() == Break("4 workers crashed within 10 s")
    patient = OneSlot(policy)
    assert delays([patient.own(None, after=4.0) for _ in range(100)]) == [0] * 100
