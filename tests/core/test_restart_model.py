"""The restart ledger against a model that remembers every crash for ever."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from asyncpool._core.restart import Break, Park, Restart, RestartLedger, RestartPolicy

WORKERS = 3

policies = st.builds(
    RestartPolicy,
    base=st.sampled_from([0.0, 0.5]),
    cap=st.sampled_from([0.5, 2.0]),
    jitter=st.booleans(),
    healthy_after=st.sampled_from([3.0, 10.0]),
    max_failed_starts=st.none() | st.integers(1, 4),
    max_short_runs=st.none() | st.integers(1, 6),
    max_crashes=st.none() | st.integers(1, 8),
    period=st.just(60.0),
    fruitless_limit=st.integers(1, 4),
    count_blamed=st.booleans(),
)


@dataclass(frozen=True)
class Past:
    """A crash."""

    time: float
    run: float | None
    blamed: bool
    outcomes: int
    number: int


class LedgerMachine(RuleBasedStateMachine):
    """Ask for verdicts, and derive each from the whole history."""

    @initialize(policy=policies)
    def start(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.ledger = RestartLedger(policy, WORKERS)
        self.now = 0.0
        self.counted: list[float] = []  # times of the pool's own crashes
        self.lives: list[list[Past]] = [[] for _ in range(WORKERS)]
        self.last_delay = [0.0] * WORKERS
        self.crashes = 0
        self.absolved = 0  # the last one of a worker that had served, by a job

    @rule(
        slot=st.integers(0, WORKERS - 1),
        wait=st.sampled_from([0.0, 0.0, 1.0, 12.0, 60.0]),
        run=st.sampled_from([None, 0.0, 2.9, 3.0, 4.5, 11.0]),
        blamed=st.booleans(),
        outcomes=st.sampled_from([0, 0, 1]),
        roll=st.floats(0, 1, exclude_max=True),
    )
    def crash(
        self,
        slot: int,
        wait: float,
        run: float | None,
        *,
        blamed: bool,
        outcomes: int,
        roll: float,
    ) -> None:
        self.now += wait
        blamed = blamed and run is not None
        outcomes = 0 if run is None else outcomes
        policy, life = self.policy, self.lives[slot]
        if run is not None and run >= max(
            policy.healthy_after, 2 * self.last_delay[slot]
        ):
            life.clear()
            self.last_delay[slot] = 0.0
        counts = policy.count_blamed or not blamed
        self.crashes += 1
        if blamed and outcomes:
            self.absolved = self.crashes
        life.append(Past(self.now, run, not counts, outcomes, self.crashes))
        if counts:
            self.counted.append(self.now)
        verdict = self.ledger.record(
            slot, now=self.now, run=run, blamed=blamed, outcomes=outcomes, roll=roll
        )
        assert verdict == self.expected(life, roll)
        if isinstance(verdict, Restart):
            self.last_delay[slot] = verdict.delay

    def expected(self, life: list[Past], roll: float) -> Restart | Park | Break:
        policy = self.policy
        own = [past for past in life if not past.blamed]
        if life[-1].blamed:
            fruitless = 0
            for past in life:
                barren = past.blamed and past.number > self.absolved
                fruitless = 0 if past.outcomes else fruitless + barren
            return Restart(
                policy.delay(max(0, fruitless - policy.fruitless_limit + 2), roll=roll)
            )
        recent = sum(time >= self.now - policy.period for time in self.counted)
        limit = policy.crash_limit(WORKERS)
        if recent > limit:
            # However many there were, more than one above the limit say nothing.
            return Break(f"{min(recent, limit + 1)} workers crashed within 60 s")
        failed = 0
        for past in life:
            failed = failed + 1 if past.run is None else 0
        if policy.max_failed_starts is not None and failed >= policy.max_failed_starts:
            return Park(f"{failed} starts failed in a row")
        if policy.max_short_runs is not None and len(own) >= policy.max_short_runs:
            return Park(f"{len(own)} runs in a row were short")
        streak = sum(not past.outcomes for past in own)
        return Restart(0.0 if own[-1].outcomes else policy.delay(streak, roll=roll))

    @invariant()
    def its_memory_is_bounded(self) -> None:
        if hasattr(self, "ledger"):
            assert len(self.ledger._window) <= self.policy.crash_limit(WORKERS) + 1
            assert len(self.ledger._records) <= WORKERS


TestLedger = LedgerMachine.TestCase


@given(st.lists(st.floats(0, 0.5), min_size=1, max_size=60))
def test_what_counts_is_forgotten_when_all_is_calm(waits: list[float]) -> None:
    policy = RestartPolicy(base=0.0, max_failed_starts=None, max_short_runs=None)
    ledger = RestartLedger(policy, WORKERS)
    now = 0.0
    for wait in waits:
        now += wait
        ledger.record(0, now=now, run=0.0, blamed=False, outcomes=0, roll=0.0)
    now += policy.period + 1
    verdict = ledger.record(1, now=now, run=0.0, blamed=False, outcomes=0, roll=0.0)
    assert verdict == Restart(0.0)
    assert list(ledger._window) == [now]
