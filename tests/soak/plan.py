"""What is known of a job before it is submitted."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

__all__ = ["Plan", "draw_key", "draw_options", "is_", "make_plan"]

# Few, so that jobs of the same key meet.
_KEYS = 4


class Plan(NamedTuple):
    """A job to be, but for its key.

    Attributes:
        kind: What the table at the end calls it.
        function: What it calls, with the path of the book, its key and
        args: these.
        options: Its options.
        good: Tells whether a value is right, without the signature.
        ends: What it may end with by itself.
        max_attempts: How often it may be started.
    """

    kind: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    options: dict[str, Any]
    good: Callable[[tuple[Any, ...]], bool]
    ends: frozenset[str]
    max_attempts: int


def make_plan(
    kind: str,
    function: Callable[..., Any],
    *args: Any,
    good: Callable[..., bool] = lambda *_: False,
    ends: str = "value",
    **options: Any,
) -> Plan:
    return Plan(
        kind=kind,
        function=function,
        args=args,
        options=options,
        good=lambda rest: good(*rest),
        ends=frozenset(ends.split("|")),
        max_attempts=options.get("max_attempts", 1),
    )


def is_(*expected: object) -> Callable[..., bool]:
    return lambda *rest: rest == expected


def draw_options(rng: Random) -> dict[str, Any]:
    """Draw how urgent a job, a stream or a map is, and which worker it is for."""
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["priority"] = rng.randrange(-2, 3)
    return options | draw_key(rng, 0.1)


def draw_key(rng: Random, share: float) -> dict[str, Any]:
    """Draw which worker a job is for; but for that *share*, they are for any."""
    if rng.random() >= share:
        return {}
    return {"key": f"key {rng.randrange(_KEYS)}"}
