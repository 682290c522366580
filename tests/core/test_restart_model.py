"""The restart ledger against a model that remembers every death for ever."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from asyncpool._core.policies.restart import (
    GiveUpRestarting,
    RestartDecision,
    RestartLedger,
    RestartPolicy,
    RestartWorker,
    RetryStart,
)

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
        given_up = self.given_up()
        # How long it waits is the matter of a test of its own.
        assert verdict == given_up or (
            given_up is None and isinstance(verdict, RestartWorker)
        )

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
        expected = self.given_up()
        if expected is None:
            most = self.policy.max_failed_starts
            expected = RetryStart(
                self.policy.delay(failures, jitter=jitter),
                f"{failures} starts failed in a row"
                if failures > 1
                else "the start failed",
                breaks_pool=most is not None and failures >= most,
            )
        assert verdict == expected

    def given_up(self) -> RestartDecision | None:
        most, period = self.policy.max_restarts, self.policy.period
        if most is None:
            return None
        recent = sum(time >= self.now - period for time in self.deaths)
        if recent <= most:
            return None
        # However many there were, more than one above the limit say nothing.
        return GiveUpRestarting(
            f"{min(recent, most + 1)} workers died within 60 s, "
            f"and the policy allows {most}"
        )

    @rule()
    def one_dies_in_a_job(self) -> None:
        self.deaths.append(self.now)
        verdict = self.ledger.died(self.now, blamed=True)
        assert verdict == (self.given_up() or RestartWorker(0.0))

    @invariant()
    def its_memory_is_bounded(self) -> None:
        if hasattr(self, "ledger"):
            most = self.policy.max_restarts
            assert len(self.ledger._deaths) <= (0 if most is None else most + 1)


TestLedger = LedgerMachine.TestCase
