"""``python -m benchmarks.torture``: the whole table, or a part of it."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path

from benchmarks.torture import report
from benchmarks.torture.faults import FAULTS
from benchmarks.torture.peers import OURS, PEERS
from benchmarks.torture.results import CellResult
from benchmarks.torture.runner import TIMEOUT, run_cell


def main() -> int:
    options = parse()
    peers = options.peer or list(PEERS)
    faults = options.fault or list(FAULTS)
    cells = []
    for cell in run(faults, peers, options.timeout, options.jobs):
        print(f"{cell.fault:<22}{cell.peer:<22}{cell.text}", file=sys.stderr)
        cells.append(cell)
    print(report.as_text(cells))
    if options.json:
        write_json(options.json, cells, options.timeout)
    if options.markdown:
        options.markdown.write_text(report.as_markdown(cells, options.timeout))
    if options.matrix:
        options.matrix.write_text(report.as_matrix(cells))
    return int(any(cell.peer == OURS and cell.verdict == "bad" for cell in cells))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.torture",
        description="Put asyncpool and its peers through the same faults.",
    )
    parser.add_argument("--peer", action="append", choices=PEERS)
    parser.add_argument("--fault", action="append", choices=FAULTS)
    parser.add_argument("--timeout", type=float, default=TIMEOUT, metavar="S")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    parser.add_argument("--matrix", type=Path, metavar="FILE")
    parser.add_argument("--jobs", type=int, default=1, metavar="N")
    return parser.parse_args()


def run(
    faults: Sequence[str], peers: Sequence[str], timeout: float, jobs: int
) -> Iterator[CellResult]:
    threads = ThreadPoolExecutor(jobs)
    try:
        yield from threads.map(
            lambda pair: run_cell(pair[1], pair[0], timeout=timeout),
            product(faults, peers),
        )
    finally:  # Ctrl-C ends the cell that runs, and starts no other
        threads.shutdown(cancel_futures=True)


def write_json(path: Path, cells: Sequence[CellResult], timeout: float) -> None:
    found = {
        "machine": report.machine(),
        "versions": report.versions(dict.fromkeys(cell.peer for cell in cells)),
        "timeout": timeout,
        "cells": [asdict(cell) for cell in cells],
    }
    path.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
