"""Put servers of the same application through the same trials, and show what was found."""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from shutil import which

from benchmarks import environment, report as common
from benchmarks.cluster import report
from benchmarks.cluster.base import FULL, QUICK, Finding, Scale, Trial
from benchmarks.cluster.running import NotServingError
from benchmarks.cluster.servers import DISTRIBUTIONS, SERVERS
from benchmarks.cluster.trials import TRIALS
from benchmarks.cluster.wrk import MISSING
from benchmarks.runner import Outcome


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--cluster", action="store_true", help="servers, and not pools: this page")
    add("--quick", action="store_true", help="one short round, in under four minutes")
    add("--rounds", type=int, metavar="N", help="default: 3, or 1 if quick")
    add("--trial", action="append", choices=TRIALS, help="may be repeated")
    add(
        "--server",
        action="append",
        type=server,
        metavar="NAME",
        help=f"may be repeated; NAME or NAME+asyncio: {', '.join(SERVERS)}",
    )
    add("--json", type=Path, metavar="FILE", help="write the results here")
    add("--no-plots", action="store_true", help="draw nothing")
    return parser.parse_args(arguments)


def server(name: str) -> str:
    """Return the row of a server; they run on uvloop unless told otherwise."""
    known, _, loop = name.partition("+")
    if known not in SERVERS or loop not in {"", "asyncio", "uvloop"}:
        raise argparse.ArgumentTypeError(f"no such server: {name}")
    return f"{known}+{loop or 'uvloop'}"


def rows_of(trial: Trial, given: Sequence[str] | None, *, quick: bool) -> list[str]:
    """Return who goes through *trial*: all on uvloop, for some also on asyncio."""
    if given:
        return list(given)
    names = trial.quick if quick else tuple(SERVERS)
    return [f"{name}+{loop}" for loop in trial.loops for name in names]


def run(
    trials: Sequence[Trial], given: Sequence[str] | None, *, rounds: int, quick: bool
) -> Iterator[Outcome]:
    """Yield cell after cell; servers take turns, in an order that moves each round."""
    for turn in range(rounds):
        for trial in trials:
            if trial.once and turn:
                continue
            rows = rows_of(trial, given, quick=quick)
            start = turn * 3 % len(rows)
            for row in (*rows[start:], *rows[:start]):
                finding = measure(trial, row, QUICK if quick else FULL)
                cell = {"round": turn, "question": trial.name, "row": row}
                yield {**cell, **asdict(finding)}


def measure(trial: Trial, row: str, scale: Scale) -> Finding:
    """Put one server through one trial; whatever it does is a finding."""
    if not SERVERS[row.partition("+")[0]].is_installed:
        return Finding({}, "missing")
    try:
        return trial.measure(row, scale)
    except NotServingError as error:
        return Finding({}, "does not serve", str(error))
    except Exception as error:
        note = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return Finding({}, "failed", note)


def progress(cell: Outcome, rounds: int) -> None:
    first = next(iter(cell["figures"].items()), ("", ""))
    answer = "{} = {:.4g}".format(*first) if cell["figures"] else ""
    where = f"[{cell['round'] + 1}/{rounds}] {cell['question']:<9}{cell['row']:<18}"
    print(where, answer, cell["status"], cell["note"], file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Return the exit code: 2 if what is needed is not there."""
    options = parse(arguments)
    trials = [TRIALS[name] for name in options.trial or TRIALS]
    if TRIALS["speed"] in trials and not which("wrk"):
        print(MISSING, file=sys.stderr)
        return 2
    environment.warn_if_busy()
    rounds = max(1, options.rounds or (1 if options.quick else 3))
    head: dict[str, object] = {
        "environment": environment.describe(DISTRIBUTIONS),
        "quick": options.quick,
        "rounds": rounds,
    }
    cells = []
    for cell in run(trials, options.server, rounds=rounds, quick=options.quick):
        progress(cell, rounds)
        cells.append(cell)
    cells.sort(key=lambda cell: order(cell["row"]))
    head["summary"] = summary = common.summarise(cells)
    print(report.tables(summary, trials))
    # The published results are those of a whole run, never of a part of one.
    whole = not (options.quick or options.trial or options.server)
    if path := options.json or (report.LATEST if whole else None):
        common.write(path, head, cells)
        if whole and not options.no_plots:
            draw(path)
    return 0


def order(row: str) -> tuple[bool, int]:
    name, _, loop = row.partition("+")
    return loop != "uvloop", list(SERVERS).index(name)


def draw(path: Path) -> None:
    try:
        from benchmarks.cluster import plots
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
    else:
        plots.draw(path, common.IMAGES)
