"""Ask every question of every peer, in turns, and show the answers."""

import argparse
import compileall
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import environment, report
from benchmarks.peers import PEERS, QUICK_ROWS, ROWS
from benchmarks.questions import QUESTIONS
from benchmarks.runner import ROOT, Outcome, run_cell


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m benchmarks", description=__doc__)
    add = parser.add_argument
    add("--cluster", action="store_true", help="servers, and not pools: see its --help")
    add("--quick", action="store_true", help="one short round, in under two minutes")
    add("--rounds", type=int, metavar="N", help="default: 3, or 1 if quick")
    add("--question", action="append", choices=QUESTIONS, help="may be repeated")
    add(
        "--peer",
        action="append",
        type=row,
        metavar="NAME",
        help=f"may be repeated; NAME or NAME+uvloop: {', '.join(PEERS)}",
    )
    add("--loop", choices=("asyncio", "uvloop"), help="run every peer on this loop")
    add("--json", type=Path, metavar="FILE", help="write the results here")
    add("--no-plots", action="store_true", help="draw nothing")
    return parser.parse_args(arguments)


def row(name: str) -> str:
    peer, _, loop = name.partition("+")
    if peer not in PEERS or loop not in {"", "uvloop"}:
        raise argparse.ArgumentTypeError(f"no such peer: {name}")
    return name


def rows_of(options: argparse.Namespace) -> list[str]:
    rows = list(options.peer or (QUICK_ROWS if options.quick else ROWS))
    if options.loop:
        suffix = "+uvloop" if options.loop == "uvloop" else ""
        rows = [name.partition("+")[0] + suffix for name in rows]
    return list(dict.fromkeys(rows))


def run(
    questions: Sequence[str], rows: Sequence[str], *, rounds: int, quick: bool
) -> Iterator[Outcome]:
    """Yield cell after cell: peers take turns, in an order that moves each round.

    What else the machine does then hits all of them alike, and nobody is always
    the first after a pause.
    """
    for turn in range(rounds):
        start = turn * 3 % len(rows)
        for name in questions:
            question = QUESTIONS[name]
            if question.once and turn:
                continue
            asked = [r for r in rows if not question.only or r in question.only]
            asked += [r for r in question.extra if "asyncpool" in asked]
            for peer in (*asked[start:], *asked[:start]):
                outcome = run_cell(name, peer, quick=quick, limit=question.limit)
                yield {"round": turn, "question": name, "row": peer, **outcome}


def progress(cell: Outcome, rounds: int) -> None:
    first = next(iter(cell["figures"].items()), ("", ""))
    answer = cell["status"] if cell["status"] != "ok" else "{} = {:.4g}".format(*first)
    where = f"[{cell['round'] + 1}/{rounds}] {cell['question']:<11}{cell['row']:<18}"
    print(where, answer, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    questions = options.question or list(QUESTIONS)
    rows = rows_of(options)
    environment.warn_if_busy()
    rounds = max(1, options.rounds or (1 if options.quick else 3))
    # As pip does with what it installs, the peers for example.
    for package in ("asyncpool", "benchmarks"):
        compileall.compile_dir(ROOT / package, quiet=1)
    head: dict[str, object] = {
        "environment": environment.describe(),
        "quick": options.quick,
        "rounds": rounds,
    }
    cells = []
    for cell in run(questions, rows, rounds=rounds, quick=options.quick):
        progress(cell, rounds)
        cells.append(cell)
    cells.sort(key=lambda c: (c["round"], questions.index(c["question"])))
    cells.sort(key=lambda c: [*rows, *PEERS].index(c["row"]))
    head["summary"] = summary = report.summarise(cells)
    print(report.tables(summary, (QUESTIONS[name] for name in questions)))
    # The published results are those of a whole run, never of a part of one.
    whole = not (options.quick or options.question or options.peer or options.loop)
    if path := options.json or (report.LATEST if whole else None):
        report.write(path, head, cells)
        if whole and not options.no_plots:
            draw(path)


def draw(path: Path) -> None:
    try:
        from benchmarks import plots
    except ImportError as error:
        print(f"no plots: {error}", file=sys.stderr)
    else:
        plots.draw(path, report.IMAGES)


if __name__ == "__main__":
    try:
        if "--cluster" in sys.argv[1:]:
            from benchmarks.cluster import command

            sys.exit(command.main())
        main()
    except KeyboardInterrupt:
        sys.exit(130)
