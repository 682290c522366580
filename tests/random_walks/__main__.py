"""Walk at random: ``python -m tests.random_walks [--minutes N]``, which ``make walks`` runs.

It ends at the first walk that fails, and prints the shortest that fails in the same place.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from itertools import count
from random import Random

from tests.core.test_supervision import SupervisionMachine
from tests.random_walks.walk import Model, told, walk


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.random_walks", description=__doc__
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (1)")
    parser.add_argument("--seed", type=int, help="which walks; others each time")
    asked = parser.parse_args(argv)
    seed = time.time_ns() % 1_000_000 if asked.seed is None else asked.seed
    model, ends = Model(SupervisionMachine), time.monotonic() + 60 * asked.minutes
    for number in count():
        if time.monotonic() >= ends:
            print(f"seed {seed}: {number} walks, and every promise was kept")
            return 0
        steps, failure = walk(model, Random(f"{seed} {number}"))
        if failure is not None:
            print(f"seed {seed}: walk {number} has failed, with {len(steps)} steps")
            print(told(model, steps, failure))
            return 1
    raise AssertionError("count() ends")


if __name__ == "__main__":
    sys.exit(main())
