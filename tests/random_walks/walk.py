"""One walk: the steps that it takes, where it fails, and the shortest that fails there."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from hypothesis.stateful import (
    INITIALIZE_RULE_MARKER,
    INVARIANT_MARKER,
    RULE_MARKER,
    RuleBasedStateMachine,
)

from tests.random_walks.sampling import (
    DrawAgainError,
    Recorded,
    Recorder,
    UnknownStrategyError,
    sample,
)

__all__ = ["Failure", "Model", "Step", "shortest", "told", "walk", "walk_again"]

# How likely a rule is in a walk, beside the others; most walks do without some.
_ODDS = (0, 0, 1, 1, 3, 10)
_LENGTHS = (15, 30, 60)


@dataclass(frozen=True, slots=True)
class Step:
    """A rule that happened: its name, and its arguments."""

    rule: str
    arguments: dict[str, Any]

    def __str__(self) -> str:
        return (
            f"{self.rule}({', '.join(f'{k}={v!r}' for k, v in self.arguments.items())})"
        )


@dataclass(frozen=True, slots=True)
class Failure:
    """Where a walk has failed: the error, and the place that raised it."""

    error: BaseException

    @property
    def place(self) -> tuple[str, str, int]:
        frame = traceback.extract_tb(self.error.__traceback__)[-1]
        return type(self.error).__name__, frame.filename, frame.lineno or 0


class Model:
    """A state machine of Hypothesis, with its rules by name."""

    def __init__(self, machine: type[RuleBasedStateMachine]) -> None:
        self.machine = machine
        self.first = _marked(machine, INITIALIZE_RULE_MARKER)
        self.rules = _marked(machine, RULE_MARKER)
        self._invariants = _marked(machine, INVARIANT_MARKER)

    def begin(self) -> RuleBasedStateMachine:
        return self.machine()

    def possible(self, state: RuleBasedStateMachine) -> Iterator[str]:
        """Yield the names of the rules that may happen now."""
        for name, rule in self.rules.items():
            if all(condition(state) for condition in rule.preconditions):
                yield name

    def happen(self, state: RuleBasedStateMachine, step: Step) -> None:
        """Let a rule happen, and check the invariants."""
        rule = self.first.get(step.rule) or self.rules[step.rule]
        rule.function(state, **step.arguments)
        for invariant in self._invariants.values():
            if all(condition(state) for condition in invariant.preconditions):
                invariant.function(state)


def _marked(machine: type[RuleBasedStateMachine], marker: str) -> dict[str, Any]:
    found = {
        name: getattr(getattr(machine, name), marker, None) for name in dir(machine)
    }
    return {name: rule for name, rule in found.items() if rule is not None}


def walk(model: Model, random: Random) -> tuple[list[Step], Failure | None]:
    """Walk through *model*; return the steps, and where it has failed if it has."""
    odds = {name: random.choice(_ODDS) for name in model.rules}
    steps: list[Step] = []

    def choose(state: RuleBasedStateMachine) -> Iterator[tuple[str, Any]]:
        yield from model.first.items()
        for _ in range(random.choice(_LENGTHS)):
            names = [name for name in model.possible(state) if odds[name]]
            if not names:
                return
            [name] = random.choices(names, [odds[name] for name in names])
            yield name, model.rules[name]

    def go(state: RuleBasedStateMachine) -> None:
        for name, rule in choose(state):
            drawn = {key: sample(it, random) for key, it in rule.arguments.items()}
            steps.append(Step(name, drawn))
            model.happen(state, steps[-1])

    return steps, _try(model, go)


def walk_again(model: Model, steps: list[Step]) -> Failure | None:
    """Take these *steps*, without those that cannot happen; return where it fails."""

    def go(state: RuleBasedStateMachine) -> None:
        for step in steps:
            if step.rule in model.first or step.rule in model.possible(state):
                model.happen(state, _replayed(step))

    return _try(model, go)


def shortest(model: Model, steps: list[Step], failure: Failure) -> list[Step]:
    """Leave out steps as long as the walk fails in the same place."""
    size = max(1, len(steps) // 2)
    while True:
        at, fewer = 0, False
        while at < len(steps):
            rest = [*steps[:at], *steps[at + size :]]
            again = walk_again(model, rest)
            if again is not None and again.place == failure.place:
                steps, fewer = rest, True
            else:
                at += size
        if size == 1 and not fewer:
            return steps
        size = max(1, size // 2)


def told(model: Model, steps: list[Step], failure: Failure) -> str:
    """Return the shortest of *steps* that fail in the same place, and how they do."""
    again = walk_again(model, steps)
    if again is None or again.place != failure.place:
        about = "It does not fail again: it depends on more than its steps."
    else:
        steps = shortest(model, steps, failure)
        failure = walk_again(model, steps) or failure
        about = f"The shortest that fails there has {len(steps)}:"
    lines = [f"a walk has failed.  {about}", *map(str, steps)]
    return (
        "\n  ".join(lines) + "\n" + "".join(traceback.format_exception(failure.error))
    )


def _try(model: Model, go: Callable[[RuleBasedStateMachine], None]) -> Failure | None:
    state = model.begin()
    try:
        go(state)
        state.teardown()
    except DrawAgainError:
        return None
    except UnknownStrategyError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what is sought
        return Failure(error)
    return None


def _replayed(step: Step) -> Step:
    """Return *step* with something to draw the same values from."""
    parts = step.arguments.items()
    again = {k: Recorded(v.drawn) if isinstance(v, Recorder) else v for k, v in parts}
    return Step(step.rule, again)
