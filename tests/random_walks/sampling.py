"""Draw values from strategies of Hypothesis, without Hypothesis.

Hypothesis has no public way to do that outside of a test, so this module knows how its strategies
look inside (6.170), those that the models use.  A strategy that it does not know raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["DrawAgainError", "Recorded", "Recorder", "UnknownStrategyError", "sample"]

# How often the first value of a strategy is drawn whatever the others are.  It is the simplest by
# convention, and rules do something for it, as in "if whim == 0".
FIRST = 0.5


class UnknownStrategyError(Exception):
    """There is no way to draw from such a strategy yet."""


def sample(strategy: Any, random: Random) -> Any:
    """Draw a value from *strategy*.

    Raises:
        UnknownStrategyError: If this module does not know it.
    """
    strategy = _unwrapped(strategy)
    name = type(strategy).__name__
    if name not in _SAMPLERS:
        raise UnknownStrategyError(f"no sampler for {name}: {strategy!r}")
    return _SAMPLERS[name](strategy, random)


def _unwrapped(strategy: Any) -> Any:
    while hasattr(strategy, "wrapped_strategy"):
        strategy = strategy.wrapped_strategy
    return strategy


def _one_of_several(strategy: Any, random: Random) -> Any:
    values = list(strategy.elements)
    return values[0] if random.random() < FIRST else random.choice(values)


def _integer(strategy: Any, random: Random) -> int:
    least, most = strategy.start, strategy.end
    return int(least if random.random() < FIRST else random.randint(least, most))


def _list(strategy: Any, random: Random) -> list[Any]:
    size = random.randint(strategy.min_size, strategy.max_size)
    return [sample(strategy.element_strategy, random) for _ in range(size)]


_SAMPLERS: dict[str, Callable[[Any, Random], Any]] = {
    "BooleansStrategy": lambda _, random: random.random() < 0.5,
    "BuildsStrategy": lambda it, random: it.target(
        *[sample(part, random) for part in it.args],
        **{name: sample(part, random) for name, part in it.kwargs.items()},
    ),
    "DataStrategy": lambda _, random: Recorder(random),
    "IntegersStrategy": _integer,
    "JustStrategy": lambda it, _: it.value,
    "ListStrategy": _list,
    "OneOfStrategy": lambda it, random: sample(
        random.choice(it.original_strategies), random
    ),
    "SampledFromStrategy": _one_of_several,
}


class Recorder:
    """What a rule draws from; it keeps what was drawn, for :class:`Recorded`."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self.drawn: list[Any] = []

    def __repr__(self) -> str:
        return repr(self.drawn)

    def draw(self, strategy: Any) -> Any:
        value = sample(strategy, self._random)
        self.drawn.append(value)
        return value


class DrawAgainError(Exception):
    """A rule draws other values than it drew before, since others came before it."""


class Recorded:
    """What a rule draws from that happens again."""

    def __init__(self, drawn: list[Any]) -> None:
        self._drawn = iter(drawn)

    def draw(self, strategy: Any) -> Any:
        try:
            value = next(self._drawn)
        except StopIteration:
            raise DrawAgainError from None
        if value not in getattr(_unwrapped(strategy), "elements", [value]):
            raise DrawAgainError
        return value
