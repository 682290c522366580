"""The pool that all rules are about, and what they draw from."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine

from tests.core.imaginary.shell import ImaginaryShell
from tests.core.list_queue import PRIORITIES
from tests.core.pool_core import RestartPolicy, WorkerLimits

__all__ = [
    "SupervisionRules",
    "anything",
    "coins",
    "keys",
    "plans",
    "policies",
    "ranks",
    "rolls",
]

policies = st.builds(
    RestartPolicy,
    initial_delay=st.sampled_from([0.05, 0.5]),
    max_delay=st.sampled_from([1.0, 8.0]),
    max_failed_starts=st.sampled_from([2, 1, 5, None]),
    max_restarts=st.sampled_from([None, None, None, 2, 7]),
)
wear = st.sampled_from(
    [
        {},
        {},
        {"max_jobs": 3},
        {"max_jobs": 3, "exact": True},
        {"max_jobs": 9, "exact": True},
    ]
)
limits = st.builds(
    lambda wear, **others: WorkerLimits(**wear, **others),
    wear=wear,
    max_age=st.sampled_from([None, 20.0]),
    drain_timeout=st.sampled_from([600.0, 5.0, None]),
)
plans = st.builds(
    lambda surge, **others: {
        **others,
        "max_surge": surge[0],
        "max_unavailable": surge[1],
    },
    surge=st.sampled_from([(1, 0), (1, 0), (2, 0), (0, 1), (1, 1)]),
    limits=limits,
    more=st.sampled_from([0, 0, 2, 5]),
    width=st.sampled_from([1, 1, 1, 2, 3, 7]),
)
anything = st.data()
rolls = st.sampled_from([0.0, 0.5, 0.999])
coins = st.booleans()
ranks = st.sampled_from(PRIORITIES)
keys = st.integers(0, 5)


class SupervisionRules(RuleBasedStateMachine):
    """Some of the rules of a supervisor with imaginary workers."""

    shell: ImaginaryShell
