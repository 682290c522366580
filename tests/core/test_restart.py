"""When a dead worker is replaced, and when its pool gives up: the policy and its ledger."""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass

import pytest
from hypothesis import assume, example, given, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from asyncpool._core.options import (
    BURST,
    MAX_FAILED_STARTS,
    RestartLedger,
    RestartPolicy,
)

# The policy.


rolls = st.floats(0, 1, exclude_max=True)
policies = st.builds(
    RestartPolicy, initial_delay=st.floats(0.001, 2), max_delay=st.floats(2, 60)
)


def test_the_documented_defaults() -> None:
    assert RestartPolicy() == RestartPolicy(
        initial_delay=0.05,
        max_delay=30.0,
        max_failed_starts=5,
        max_restarts=None,
        period=60.0,
    )
    assert RestartPolicy.limited(3, 10.0) == RestartPolicy(
        initial_delay=0.0, max_failed_starts=None, max_restarts=3, period=10.0
    )


def test_a_limit_that_the_delays_make_unreachable_is_refused() -> None:
    with pytest.raises(ValueError, match="never exceed") as caught:
        RestartPolicy(initial_delay=0.5, max_restarts=10, period=60.0)
    assert str(caught.value) == (
        "starts that fail never exceed max_restarts=10 in period=60 s: with "
        "initial_delay=0.5 and max_delay=30 death number 8 may come after 61.5 s; "
        "use a smaller max_restarts, a longer period, or smaller delays"
    )


def test_the_largest_reachable_limit_is_accepted() -> None:
    # Deaths at 0, 0.5, 1.5, 3.5, 7.5, 15.5 and 31.5 s: seven, one more than 6.
    policy = RestartPolicy(initial_delay=0.5, max_restarts=6, period=31.5)
    assert policy.max_restarts == 6
    with pytest.raises(ValueError, match=r"death number 7 may come after 31\.5 s"):
        RestartPolicy(initial_delay=0.5, max_restarts=6, period=31.4)


@given(policies, st.integers(1, 3_000), rolls)
def test_the_delay_never_shrinks_and_never_exceeds_the_maximum(
    policy: RestartPolicy, failures: int, roll: float
) -> None:
    delay = policy.delay(failures, jitter=roll)
    assert 0 < delay <= policy.delay(failures + 1, jitter=roll) <= policy.max_delay


def test_the_delay_doubles_up_to_the_maximum() -> None:
    policy = RestartPolicy(initial_delay=0.5, max_delay=3.0)
    assert [policy.delay(n, jitter=0.0) for n in range(1, 6)] == [0.5, 1, 2, 3, 3]
    assert [policy.delay(4, jitter=roll) for roll in (0.5, 0.75)] == [2.25, 1.875]


# The ledger, against a model that remembers every death for ever.


WORKERS = 3
limits = st.one_of(
    st.builds(
        RestartPolicy,
        initial_delay=st.sampled_from([0.05, 0.5]),
        max_delay=st.sampled_from([0.5, 2.0]),
        max_failed_starts=st.none() | st.integers(1, 4),
        max_restarts=st.none() | st.integers(1, 8),
    ),
    st.builds(RestartPolicy.limited, st.integers(1, 8), st.just(60.0)),
)


@dataclass(frozen=True)
class Start:
    """A start that has failed."""

    began: float
    ended: float


class LedgerMachine(RuleBasedStateMachine):
    """Ask for verdicts, and derive each from the whole history."""

    @initialize(policy=limits)
    def start(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.ledger = RestartLedger(policy, WORKERS)
        self.now = 100.0
        self.deaths: list[float] = []
        self.row: list[Start] = []  # the failed starts since the last readiness

    @rule(seconds=st.sampled_from([0.01, 0.3, 12.0, 60.0]))
    def time_goes_by(self, seconds: float) -> None:
        self.now += seconds

    @rule(took=st.sampled_from([0.0, 0.004, 0.04, 3.0]))
    def one_is_ready(self, took: float) -> None:
        self.ledger.ready(took, self.now)
        self.row.clear()

    @rule()
    def one_dies_idle(self) -> None:
        self.deaths.append(self.now)
        verdict = self.ledger.died(self.now, blamed=False)
        # How long it waits is the matter of a test of its own.
        assert (verdict is None) is self.given_up()

    @rule(
        ago=st.sampled_from([0.0, 0.005, 0.2, 13.0]),
        jitter=st.floats(0, 1, exclude_max=True),
    )
    def a_start_fails(self, ago: float, jitter: float) -> None:
        self.row.append(Start(self.now - ago, self.now))
        self.deaths.append(self.now)
        verdict = self.ledger.start_failed(self.now - ago, self.now, jitter=jitter)
        failures, last = 0, float("-inf")
        for it in self.row:
            if it.began >= last:
                failures, last = failures + 1, it.ended
        if self.given_up():
            assert verdict is None
            return
        assert verdict == self.policy.delay(failures, jitter=jitter)
        many = f"{failures} starts failed in a row"
        assert self.ledger.reason == (many if failures > 1 else "the start failed")
        most = self.policy.max_failed_starts
        assert self.ledger.breaks_pool is (most is not None and failures >= most)

    def given_up(self) -> bool:
        most, period = self.policy.max_restarts, self.policy.period
        if most is None:
            return False
        if sum(time >= self.now - period for time in self.deaths) <= most:
            return False
        # However many there were, more than one above the limit say nothing.
        assert self.ledger.given_up == (
            f"{most + 1} workers died within 60 s, and the policy allows {most}"
        )
        return True

    @rule()
    def one_dies_in_a_job(self) -> None:
        self.deaths.append(self.now)
        verdict = self.ledger.died(self.now, blamed=True)
        assert verdict == (None if self.given_up() else 0.0)

    @invariant()
    def its_memory_is_bounded(self) -> None:
        if hasattr(self, "ledger"):
            most = self.policy.max_restarts
            assert len(self.ledger._deaths) <= (0 if most is None else most + 1)


TestLedger = LedgerMachine.TestCase


# How long a restart waits, and the rest that the model does not know.


class OnePool:
    """A ledger, and what happens in its pool."""

    def __init__(
        self, policy: RestartPolicy | None = None, *, workers: int = 1
    ) -> None:
        self.ledger = RestartLedger(policy or RestartPolicy(), workers)
        self.now = 1_000.0

    def fail(self, *, after: float = 1.0, jitter: float = 0.0) -> float | None:
        """Let a start fail that began now, *after* seconds."""
        began, self.now = self.now, self.now + after
        return self.ledger.start_failed(began, self.now, jitter=jitter)

    def die(self, *, after: float = 0.0) -> float | None:
        """Let a worker die that has no job, *after* seconds."""
        self.now += after
        return self.ledger.died(self.now, blamed=False)

    def crash(self, *, after: float = 0.0) -> float | None:
        """Let one die in the middle of a job."""
        self.now += after
        return self.ledger.died(self.now, blamed=True)


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


@pytest.mark.parametrize("workers", [1, 4])
def test_some_idle_deaths_for_each_worker_are_free_and_others_wait(
    workers: int,
) -> None:
    pool = OnePool(workers=workers)
    pool.ledger.ready(0.01, pool.now)  # a tenth of the time: ten a second
    free = BURST * workers
    assert [pool.die() for _ in range(free)] == [0.0] * free
    assert [pool.die() for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])


def test_what_was_free_comes_back_with_time() -> None:
    pool = OnePool()
    pool.ledger.ready(0.01, pool.now)
    for _ in range(BURST):
        pool.die()
    assert [pool.die(after=0.1)] == pytest.approx([0.0])
    assert [pool.die(after=0.05)] == pytest.approx([0.05])
    after_a_rest = [pool.die(after=1_000.0), *(pool.die() for _ in range(BURST - 1))]
    assert after_a_rest == [0.0] * BURST
    assert [pool.die()] == pytest.approx([0.1])


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
    assert [pool.die()] == pytest.approx([interval])


def test_none_waits_for_longer_when_starts_have_become_slow() -> None:
    pool = OnePool(workers=2)
    pool.ledger.ready(0.01, pool.now)
    for _ in range(2 * BURST):
        pool.die()
    assert [pool.die(), pool.die()] == pytest.approx([0.1, 0.2])
    # The first of them is forked then, and takes half of that again to be ready.
    pool.now += 0.15
    pool.ledger.ready(0.05, pool.now)
    assert [pool.die()] == pytest.approx([0.05 + 0.5]), "behind the second"
    pool.now += 0.55 + 0.05
    pool.ledger.ready(0.05, pool.now)
    assert [pool.die()] == pytest.approx([0.5 - 0.05])


def test_the_time_before_a_slow_start_counts_as_it_was() -> None:
    pool = OnePool()
    assert [pool.die() for _ in range(BURST)] == [0.0] * BURST
    pool.now += 0.05  # half a restart has come, at one each 0.1 s
    pool.ledger.ready(0.05, pool.now)
    assert [pool.die()] == [pytest.approx(0.25)]  # the other half, at 0.5 s


@given(took=st.floats(0, 0.05), workers=st.integers(1, 8), every=st.floats(0.001, 1.0))
def test_a_storm_takes_at_most_a_tenth_of_the_time(
    took: float, workers: int, every: float
) -> None:
    """Of one core, if a start computes for as long as it takes."""
    pool = OnePool(workers=workers)
    pool.ledger.ready(took, pool.now)
    begun: list[float] = []  # when the next worker is forked
    start, due = pool.now, pool.now
    while pool.now < start + 20.0:
        pool.now = max(pool.now + every, due)
        verdict = pool.die()
        assert verdict is not None
        due = pool.now + verdict
        begun.append(due)
    seconds = begun[-1] - start
    spent = took * (len(begun) - BURST * workers)
    assert spent <= 0.1 * seconds + 1e-6
    if every <= 0.01:
        assert len(begun) >= seconds, "and yet they are followed"


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
        assert None in verdicts
    else:
        with pytest.raises(ValueError, match="never exceed"):
            policy_of()
