"""Tests of tests/random_walks: what happens in a walk, and what is left of one that fails."""

from __future__ import annotations

from itertools import count
from random import Random

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tests.random_walks.walk import Failure, Model, Step, shortest, walk, walk_again


class Purse(RuleBasedStateMachine):
    """Has some money, and must never have more than *limit*."""

    limit = 1000
    seen: list[int]

    @initialize(money=st.integers(1, 3))
    def start(self, money: int) -> None:
        self.money, self.seen = money, []

    @rule(money=st.sampled_from([1, 2, 5]))
    def earn(self, money: int) -> None:
        self.money += money

    @precondition(lambda self: self.money > 0)
    @rule(data=st.data())
    def spend(self, data: st.DataObject) -> None:
        money = data.draw(st.sampled_from(range(1, self.money + 1)))
        self.seen.append(money)
        self.money -= money

    @rule(all_of_it=st.booleans())
    def lose(self, *, all_of_it: bool) -> None:
        self.money = 0 if all_of_it else self.money - self.money // 2

    @invariant()
    def nobody_is_in_debt_or_rich(self) -> None:
        assert 0 <= self.money <= self.limit


class SmallPurse(Purse):
    limit = 20


def failing_walk(model: Model, rule_: str) -> tuple[list[Step], Failure]:
    """Return the first walk that fails and has that rule."""
    for seed in count():
        steps, failure = walk(model, Random(seed))
        if failure is not None and any(step.rule == rule_ for step in steps):
            return steps, failure
    raise AssertionError("count() ends")


def test_what_is_left_of_a_walk_that_fails_is_what_it_needs_for_that() -> None:
    model = Model(SmallPurse)
    steps, failure = failing_walk(model, "spend")
    again = walk_again(model, steps)
    assert again is not None
    assert again.place == failure.place
    few = shortest(model, steps, failure)
    assert {step.rule for step in few} == {"start", "earn"}
    for left_out in range(1, len(few)):
        assert walk_again(model, [*few[:left_out], *few[left_out + 1 :]]) is None
