"""Run a model until it has done what it is for."""

from __future__ import annotations

from typing import Any

from hypothesis import seed, settings
from hypothesis.stateful import run_state_machine_as_test

__all__ = ["run_until_seen"]


def run_until_seen(machine: Any, wanted: set[str]) -> None:
    """Run *machine* until all of *wanted* is in its counter ``seen``, with one seed after another.

    What a seed leads to depends on all modules that are loaded: Hypothesis looks for constants there.
    """
    machine.seen.clear()
    tries = settings(
        max_examples=200, stateful_step_count=40, derandomize=True, database=None
    )
    for number in range(10):
        run_state_machine_as_test(seed(number)(machine), settings=tries)
        if wanted <= (+machine.seen).keys():
            return
    raise AssertionError(f"never happened: {wanted - (+machine.seen).keys()}")
