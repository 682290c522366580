"""Tests of asyncpool/_core/policies/restart.py: the ledger, rule by rule."""

from __future__ import annotations

import functools
import itertools

import pytest
from hypothesis import assume, example, given, strategies as st

from asyncpool._core.policies.restart import (
    BURST,
    MAX_FAILED_STARTS,
    GiveUpRestarting,
    RestartDecision,
    RestartLedger,
    RestartPolicy,
    RestartWorker,
    RetryStart,
)


class OnePool:
    """A ledger, and what happens in its pool."""

    def __init__(
        self, policy: RestartPolicy | None = None, *, workers: int = 1
    ) -> None:
        self.ledger = RestartLedger(policy or RestartPolicy(), workers)
        self.now = 1_000.0

    def fail(self, *, after: float = 1.0, jitter: float = 0.0) -> RestartDecision:
        """Let a start fail that began now, *after* seconds."""
        began, self.now = self.now, self.now + after
        return self.ledger.start_failed(began, self.now, jitter=jitter)

    def die(self, *, after: float = 0.0) -> RestartDecision:
        """Let a worker die that has no job, *after* seconds."""
        self.now += after
        return self.ledger.died(self.now, blamed=False)

    def crash(self, *, after: float = 0.0) -> RestartDecision:
        """Let one die in the middle of a job."""
        self.now += after
        return self.ledger.died(self.now, blamed=True)


def delays(verdicts: list[RestartDecision]) -> list[float]:
    found = []
    for verdict in verdicts:
        assert isinstance(verdict, RestartWorker), verdict
        found.append(verdict.delay)
    return found


# Starts that fail.


@pytest.mark.parametrize(("limit", "many"), [(3, 3), (None, MAX_FAILED_STARTS)])
def test_after_how_many_failed_starts_the_next_ones_will_fail_too(
    limit: int | None, many: int
) -> None:
    pool = OnePool(RestartPolicy(max_failed_starts=limit))
    for failures in range(1, many + 2):
        pool.fail()
        assert pool.ledger.starts_fail is (failures >= many)
    pool.ledger.ready(0.01, pool.now)
    assert not pool.ledger.starts_fail


def test_failed_starts_back_off_and_leave_no_hope_at_the_limit() -> None:
    pool = OnePool(RestartPolicy(initial_delay=1.0, max_delay=4.0, max_failed_starts=3))
    assert [pool.fail() for _ in range(5)] == [
        RetryStart(1.0, "the start failed", breaks_pool=False),
        RetryStart(2.0, "2 starts failed in a row", breaks_pool=False),
        RetryStart(4.0, "3 starts failed in a row", breaks_pool=True),
        RetryStart(4.0, "4 starts failed in a row", breaks_pool=True),
        RetryStart(4.0, "5 starts failed in a row", breaks_pool=True),
    ]


def test_chance_spreads_them() -> None:
    pool = OnePool(RestartPolicy(initial_delay=1.0))
    verdicts = [pool.fail(jitter=0.5), pool.fail(jitter=0.5)]
    assert [v.delay for v in verdicts if isinstance(v, RetryStart)] == [0.75, 1.5]


def test_without_a_limit_there_is_always_hope() -> None:
    pool = OnePool(RestartPolicy(max_failed_starts=None))
    verdicts = [pool.fail() for _ in range(2_000)]
    assert not any(isinstance(it, RetryStart) and it.breaks_pool for it in verdicts)


def test_the_first_worker_that_is_ready_ends_the_row() -> None:
    pool = OnePool(RestartPolicy(initial_delay=1.0, max_failed_starts=3))
    first = [pool.fail(), pool.fail()]
    pool.ledger.ready(0.1, pool.now)
    assert [pool.fail(), pool.fail()] == first


@pytest.mark.parametrize("blamed", [False, True])
def test_deaths_after_readiness_say_nothing_about_starts(*, blamed: bool) -> None:
    pool = OnePool(RestartPolicy(initial_delay=1.0, max_failed_starts=3))
    pool.fail()
    pool.crash() if blamed else pool.die()
    assert pool.fail() == RetryStart(2.0, "2 starts failed in a row", breaks_pool=False)


def test_starts_that_overlap_count_once() -> None:
    ledger = RestartLedger(RestartPolicy(initial_delay=1.0), workers=8)
    verdicts = [ledger.start_failed(10.0, 10.5 + n / 10, jitter=0.0) for n in range(8)]
    assert verdicts == [RetryStart(1.0, "the start failed", breaks_pool=False)] * 8
    assert ledger.start_failed(10.49, 12.0, jitter=0.0) == verdicts[0]
    again = ledger.start_failed(10.5, 12.0, jitter=0.0)
    assert again == RetryStart(2.0, "2 starts failed in a row", breaks_pool=False)


# Deaths after readiness.


@given(st.lists(st.sampled_from([0.0, 0.001, 5.0]), max_size=200))
def test_a_death_in_a_job_is_followed_at_once_always(waits: list[float]) -> None:
    pool = OnePool()
    assert delays([pool.crash(after=wait) for wait in waits]) == [0.0] * len(waits)
    assert delays([pool.die() for _ in range(BURST)]) == [0.0] * BURST


@pytest.mark.parametrize("workers", [1, 4])
def test_some_idle_deaths_for_each_worker_are_free_and_others_wait(
    workers: int,
) -> None:
    pool = OnePool(workers=workers)
    pool.ledger.ready(0.01, pool.now)  # a tenth of the time: ten a second
    free = BURST * workers
    assert delays([pool.die() for _ in range(free)]) == [0.0] * free
    assert delays([pool.die() for _ in range(3)]) == pytest.approx([0.1, 0.2, 0.3])


def test_what_was_free_comes_back_with_time() -> None:
    pool = OnePool()
    pool.ledger.ready(0.01, pool.now)
    for _ in range(BURST):
        pool.die()
    assert delays([pool.die(after=0.1)]) == pytest.approx([0.0])
    assert delays([pool.die(after=0.05)]) == pytest.approx([0.05])
    after_a_rest = [pool.die(after=1_000.0), *(pool.die() for _ in range(BURST - 1))]
    assert delays(after_a_rest) == [0.0] * BURST
    assert delays([pool.die()]) == pytest.approx([0.1])


@pytest.mark.parametrize(
    ("took", "interval"), [(0.0, 0.1), (0.03, 0.3), (0.05, 0.5), (60.0, 0.5)]
)
def test_they_wait_as_long_as_starts_take_but_never_long(
    took: float, interval: float
) -> None:
    pool = OnePool()
    pool.ledger.ready(took, pool.now)
    for _ in range(BURST):
        pool.die()
    assert delays([pool.die()]) == pytest.approx([interval])


def test_none_waits_for_longer_when_starts_have_become_slow() -> None:
    pool = OnePool(workers=2)
    pool.ledger.ready(0.01, pool.now)
    for _ in range(2 * BURST):
        pool.die()
    assert delays([pool.die(), pool.die()]) == pytest.approx([0.1, 0.2])
    # The first of them is forked then, and takes half of that again to be ready.
    pool.now += 0.15
    pool.ledger.ready(0.05, pool.now)
    assert delays([pool.die()]) == pytest.approx([0.05 + 0.5]), "behind the second"
    pool.now += 0.55 + 0.05
    pool.ledger.ready(0.05, pool.now)
    assert delays([pool.die()]) == pytest.approx([0.5 - 0.05])


def test_the_time_before_a_slow_start_counts_as_it_was() -> None:
    pool = OnePool()
    assert delays([pool.die() for _ in range(BURST)]) == [0.0] * BURST
    pool.now += 0.05  # half a restart has come, at one each 0.1 s
    pool.ledger.ready(0.05, pool.now)
    assert delays([pool.die()]) == [pytest.approx(0.25)]  # the other half, at 0.5 s


@given(
    took=st.floats(0, 0.05),
    workers=st.integers(1, 8),
    every=st.floats(0.001, 1.0),
)
def test_a_storm_takes_at_most_a_tenth_of_the_time(
    took: float, workers: int, every: float
) -> None:
    """Of one core, if a start computes for as long as it takes."""
    pool = OnePool(workers=workers)
    pool.ledger.ready(took, pool.now)
    begun = []  # when the next worker is forked
    start, due = pool.now, pool.now
    while pool.now < start + 20.0:
        pool.now = max(pool.now + every, due)
        verdict = pool.die()
        assert isinstance(verdict, RestartWorker)
        due = pool.now + verdict.delay
        begun.append(due)
    seconds = begun[-1] - start
    spent = took * (len(begun) - BURST * workers)
    assert spent <= 0.1 * seconds + 1e-6
    if every <= 0.01:
        assert len(begun) >= seconds, "and yet they are followed"


# Giving up.


def test_a_limit_counts_deaths_of_every_kind() -> None:
    pool = OnePool(RestartPolicy.limited(3, 10.0), workers=50)
    verdicts = [pool.fail(after=0.0), pool.crash(), pool.die()]
    assert verdicts == [
        RetryStart(0.0, "the start failed", breaks_pool=False),
        RestartWorker(0.0),
        RestartWorker(0.0),
    ]
    text = "4 workers died within 10 s, and the policy allows 3"
    assert pool.crash() == GiveUpRestarting(text)
    assert pool.fail(after=0.0) == GiveUpRestarting(text), "and not five"


def test_a_death_leaves_the_window_just_after_the_period() -> None:
    for gap, verdict in ((60.0, GiveUpRestarting), (60.0001, RestartWorker)):
        pool = OnePool(RestartPolicy(max_restarts=1, period=60.0))
        pool.crash()
        assert isinstance(pool.crash(after=gap), verdict)


def test_slow_deaths_never_reach_a_limit() -> None:
    pool = OnePool(RestartPolicy.limited(3, 10.0))
    assert delays([pool.die(after=4.0) for _ in range(1_000)]) == [0.0] * 1_000
    assert len(pool.ledger._deaths) <= 4


@given(
    initial=st.floats(0.01, 5),
    most=st.floats(5, 20),
    limit=st.integers(1, 12),
    period=st.floats(1, 100),
)
@example(initial=0.5, most=30.0, limit=10, period=60.0)
def test_a_limit_is_refused_if_and_only_if_no_failing_start_exceeds_it(
    initial: float, most: float, limit: int, period: float
) -> None:
    deaths = [0.0]
    for number in range(3 * limit):
        deaths.append(deaths[-1] + min(initial * 2.0**number, most))
    assume(all(abs(time - period) > 1e-6 for time in deaths))  # no ties
    reached = max(sum(t - period <= early <= t for early in deaths) for t in deaths)
    policy_of = functools.partial(
        RestartPolicy,
        initial_delay=initial,
        max_delay=most,
        max_restarts=limit,
        period=period,
    )
    if reached > limit:
        pool = OnePool(policy_of())
        waits = [0.0, *(b - a for a, b in itertools.pairwise(deaths))]
        verdicts = [pool.fail(after=wait) for wait in waits]
        assert any(isinstance(verdict, GiveUpRestarting) for verdict in verdicts)
    else:
        with pytest.raises(ValueError, match="never exceed"):
            policy_of()
