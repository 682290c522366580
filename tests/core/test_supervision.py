"""All that a pool decides: random walks through a model with imaginary workers.

The rules, in ``supervision_rules``, are all that a shell can report; the promises are checked by
the shell in ``imaginary/`` at each command, by ``supervision_promises`` after each rule, and by the
teardown, which sees every story to a good end.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from random import Random
from typing import Any, ClassVar, get_args

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import initialize, precondition, rule

from tests.core.endings import close_whatever_happens, get_well
from tests.core.imaginary.shell import ImaginaryShell
from tests.core.pool_core import RestartPolicy, cmd
from tests.core.supervision_promises import SupervisionPromises
from tests.core.supervision_rules import plans, policies
from tests.random_walks.walk import Model, told, walk


class SupervisionMachine(SupervisionPromises):
    """Let happen whatever can happen to a pool, in any order."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        workers=st.integers(1, 4),
        plan=plans,
        policy=policies,
        manners=st.sampled_from(["kind", "deaf", "undead"]),
    )
    def start(
        self,
        workers: int,
        policy: RestartPolicy,
        plan: dict[str, Any],
        manners: str,
    ) -> None:
        self.shell = ImaginaryShell(workers=workers, policy=policy, **plan)
        self.shell.start()
        self.manners = manners

    @precondition(lambda self: self.shell.finished)
    @rule(workers=st.integers(1, 4), policy=policies, plan=plans)
    def start_over(
        self, workers: int, policy: RestartPolicy, plan: dict[str, Any]
    ) -> None:
        self.seen.update(self.shell.seen)
        self.shell = ImaginaryShell(workers=workers, policy=policy, **plan)
        self.shell.start()

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        shell = self.shell
        if shell.closing is None:
            get_well(shell)
            for _ in range(0 if shell.broken else 3):
                shell.submit()
                shell.prepare(math.inf)
        if not shell.finished:
            close_whatever_happens(shell, self.manners)
        self.seen.update(shell.seen)


# With fewer examples than that, the model keeps its promises, and what is rare does not happen.
_USUAL = 60

# How often each thing must have happened.
_FLOOR = {
    "submit": 150,
    "completed": 100,
    "cancelled": 15,
    "lost": 3,
    "broken": 10,
    "closed": 15,
    "an answer to retry after": 3,
    "a late hello": 6,
    "a fault": 15,
    "close again": 1,
    "a broken pool recovered": 5,
    "parked": 30,
    "a restart behind the limit of forks": 10,
    "died busy, told no": 10,
    "died idle, told no": 6,
    "died starting, told no": 30,
    "died idle, told stopped": 15,
    "died starting, told terminated": 1,
    "died busy, told killed": 1,
    "a job that travels ahead": 100,
    "a job beside others": 100,
    "died beside others": 10,
    "killed beside others": 3,
    "a job that overtakes others": 30,
    "an urgent job that need not wait": 1,
    "a keyed job that need not wait": 30,
    "a keyed job that waits": 30,
    "a keyed job that waits while others are idle": 10,
    "a keyed job whom nobody is there for": 1,
    "a keyed job that had to wait": 30,
    "a keyed job that came back": 10,
    "places that changed": 30,
    "an errand": 100,
    "an errand that begins": 60,
    "an errand that nobody runs": 10,
    "a revoked job": 3,
    "a revoke in vain": 1,
    "a stall": 1,
    "late": 3,
    "expired": 1,
    "an outcome that nobody wanted": 1,
    "an outcome of a job that was asked to end": 1,
    "Interrupt": 6,
    "WriteStacks": 6,
    "killed when it had said where it was": 1,
    "killed for a job": 1,
    "hung": 1,
    "hung without a job": 1,
    "hung while it was to end": 1,
    "hung no more": 1,
    "killed since it hung": 1,
    "left: worn": 1,
    "left: asked": 1,
    "left: max_jobs": 1,
    "left: max_age": 1,
    "left: idle": 1,
    "left: resize": 1,
    "left: roll": 1,
    "left a job behind": 1,
    "killed for its size": 1,
    "as many jobs as it may have": 30,
    "killed by order": 3,
    "killed by order, at work": 1,
    "killed since it would not leave": 1,
    "roll": 10,
    "a complete roll": 3,
    "a roll in vain": 1,
    "an early start that failed": 3,
    "an early replacement that came up": 3,
    "filled by a roll": 1,
    "resize": 10,
    "killed for a job, late": 1,
    "untouched by a death": 10,
    "requeued": 1,
    "prepared": 150,
    "submitted when prepared": 100,
    "submitted when prepared while the pool closes": 15,
    "refused": 3,
    "loaded": 100,
    "withdrawn": 6,
    "withdrawn, and another one sent": 3,
    "requeued before it was sent": 10,
    "closed before it was sent": 1,
    "unpacked": 30,
    "unpacked while the pool closes": 3,
    "closed while it was unpacked": 1,
    "Offer": 30,
    "a call of a session": 20,
    "a call whose session is over": 3,
    "a session that ends": 20,
    "a session that lost its worker": 10,
    "a worker of a pool that drains": 15,
    "held open while the pool closes": 6,
}

# So many walks make all of that happen, as a rule, and else there are more.
_WALKS = 700
_MOST_WALKS = 4_000


def test_the_model_does_all_that_it_is_for_and_keeps_its_promises() -> None:
    seen, model = SupervisionMachine.seen, Model(SupervisionMachine)
    seen.clear()
    tries = settings()
    # Other walks each time, but for a run that is to be the same as the last one.
    first = "the same" if tries.derandomize else str(time.time_ns())
    walks = _WALKS * tries.max_examples // _USUAL
    rare: list[str] = []
    for number in range(max(walks, _MOST_WALKS)):
        steps, failure = walk(model, Random(f"{first} {number}"))
        if failure is not None:
            pytest.fail(told(model, steps, failure))
        if number + 1 >= walks and number % 100 == 99:
            rare = [what for what, least in _FLOOR.items() if seen[what] < least]
            if not rare or tries.max_examples < _USUAL:
                break
    else:
        raise AssertionError(f"hardly ever happened: {rare}")
    if tries.max_examples >= _USUAL:
        assert {command.__name__ for command in get_args(cmd.Command)} <= set(seen)
