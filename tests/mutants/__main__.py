"""The command: which mutants of which modules live."""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.mutants.mutate import Mutant, mutants
from tests.mutants.run import ROOT, Outcome, Trial

CORE = ROOT / "asyncpool" / "_core"
TESTS = ROOT / "tests" / "core"
# What decides most, and has the fewest lines for it: some minutes for all of them.
DECISIONS = (
    "attempts",
    "capacity",
    "closing",
    "dispatcher",
    "job_ending",
    "lifecycle",
    "queue",
    "replacement",
    "restart",
    "slots",
    "termination",
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__
    )
    parser.add_argument(
        "modules", nargs="*", default=DECISIONS, help="names of modules of _core"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="how many at once"
    )
    parser.add_argument(
        "--with", nargs="*", default=[], dest="more", help="names of more test files"
    )
    asked = parser.parse_args(argv)
    _import_what_tests_need()
    for name in asked.modules:
        _report(name, asked.more, asked.jobs)
    return 0


def _report(name: str, more: Sequence[str], jobs: int) -> None:
    [path] = CORE.rglob(f"{name}.py")
    # Of restart.py: test_restart.py, test_restart_ledger.py, test_restart_model.py.
    files = sorted(TESTS.glob(f"test_{name}*.py"))
    files += [TESTS / f"test_{test}.py" for test in more]
    began, outcomes = time.monotonic(), Counter[Outcome]()
    for mutant, outcome in _try_all(path, files, jobs):
        outcomes[outcome] += 1
        if outcome is Outcome.LIVES:
            print(f"  {path.relative_to(ROOT)}:{mutant}", flush=True)
    seconds = round(time.monotonic() - began)
    lives, total = outcomes[Outcome.LIVES], outcomes.total()
    print(f"{name}: {lives} of {total} mutants live ({seconds} s)", flush=True)


def _try_all(
    path: Path, files: Sequence[Path], jobs: int
) -> Iterator[tuple[Mutant, Outcome]]:
    source = path.read_text()
    limit = _limit_of(path, files)
    trials = deque[tuple[Mutant, Trial]]()
    for mutant in mutants(source):
        if len(trials) == jobs:
            before, trial = trials.popleft()
            yield before, trial.end()
        trials.append((mutant, Trial(path, mutant.tree, files, limit)))
    for mutant, trial in trials:
        yield mutant, trial.end()


def _limit_of(path: Path, files: Sequence[Path]) -> float:
    """Return how long the tests of a mutant may take, from how long those of no mutant do."""
    began = time.monotonic()
    unchanged = ast.parse(path.read_text())
    if Trial(path, unchanged, files, 600.0).end() is not Outcome.LIVES:
        raise SystemExit(f"the tests of {path.stem} fail without any mutant")
    return 10.0 + 5 * (time.monotonic() - began)


def _import_what_tests_need() -> None:
    """Import it once, and not in each fork: only the package has to be imported there."""
    for name in ("hypothesis.stateful", "psutil", "uvloop", "anyio", "cloudpickle"):
        if importlib.util.find_spec(name.partition(".")[0]) is not None:
            importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
