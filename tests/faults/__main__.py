"""The command: plant one fault after the other in a copy of the project, and run tests there."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from tests.faults import __doc__ as about
from tests.faults.corpus import ROOT, Fault, defects, mutants

_ALL = ("tests/core", "tests/runtime", "tests/worker", "tests/e2e", "tests/cli")
_INSIDE = _ALL[:3]
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", ".*_cache", ".hypothesis")
_MARK = "ASYNCPOOL_FAULT"  # in the environment of all that the tests of one fault start
_FOUND = re.compile(r"^(?:FAILED|ERROR) (\S+?)(?:\[.*?\])?(?: - .*)?$", re.MULTILINE)
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=about)
    add = parser.add_argument
    add("which", nargs="*", help="ids or capabilities, or 'mutants'; by default all")
    add("--all-tests", action="store_true", help="run all tests, not a fault's own")
    add("--first", action="store_true", help="leave a fault when a test has found it")
    add("--limit", type=float, default=100.0, help="seconds for one test")
    add("--workers", type=int, default=0, help="processes of pytest-xdist")
    add("--out", type=Path, default=ROOT / "build/faults.jsonl", help="to go on with")
    add("--table", action="store_true", help="run nothing, print the table")
    asked = parser.parse_args(argv)
    # A run that is ended removes its copy.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(1))
    chosen, rows = list(_chosen(set(asked.which))), _read(asked.out)
    if not asked.table:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        _run(chosen, rows, asked)
    _report([rows[fault.id] for fault in chosen if fault.id in rows])
    return 0


def _chosen(which: set[str]) -> Iterator[Fault]:
    yield from (it for it in defects() if not which or which & {it.id, it.capability})
    if not which or any(it.startswith("mutants") for it in which):
        every = not which or "mutants" in which
        yield from (it for it in mutants() if every or it.capability in which)


def _read(out: Path) -> dict[str, Row]:
    lines = out.read_text().splitlines() if out.is_file() else []
    return {row["id"]: row for row in map(json.loads, lines)}


def _run(chosen: list[Fault], rows: dict[str, Row], asked: argparse.Namespace) -> None:
    tests = dict.fromkeys(test for fault in chosen for test in fault.tests)
    # What fails without any fault tells nothing.
    none = Fault("none", "none", "", (), (*tests,))
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        copy = Path(folder) / "project"
        shutil.copytree(ROOT, copy, ignore=_LEFT_OUT, symlinks=True)
        for fault in (none, *chosen):
            if fault.id in rows:
                continue
            row: Row = {"id": fault.id, "capability": fault.capability}
            row |= {"meets": fault.meets, "found": [], "trouble": ""}
            began = time.monotonic()
            try:
                row["found"] = _plant(fault, copy, asked)
            except (ValueError, SyntaxError) as error:
                row["trouble"] = str(error)
            if fault is not none:
                row["found"] = [
                    it for it in row["found"] if it not in rows["none"]["found"]
                ]
            row["seconds"] = round(time.monotonic() - began, 1)
            rows[fault.id] = row
            with asked.out.open("a") as file:
                print(json.dumps(row), file=file)
            outcome = row["trouble"] or ", ".join(row["found"]) or "NOT FOUND"
            print(f"{fault.id} ({row['seconds']} s): {outcome}", flush=True)


def _plant(fault: Fault, copy: Path, asked: argparse.Namespace) -> list[str]:
    """Return the tests that find *fault*.

    Raises:
        ValueError: If it does not apply, or tests cannot even be collected.
        SyntaxError: If the result is no Python.
    """
    texts = fault.planted(copy)
    before = {file: (copy / file).read_bytes() for file in texts}
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=no", "--no-header"]
    command += [
        "-p",
        "no:cacheprovider",
        f"-n{asked.workers}",
        f"--timeout={asked.limit}",
    ]
    longest = 100 * asked.limit if asked.all_tests else 10 * asked.limit
    command += ["-x"] * (asked.first and bool(fault.edits))
    command += _ALL if asked.all_tests else fault.tests
    mark, hang = uuid.uuid4().hex, list[str]()
    own = {"PYTHONPATH": f"{copy}", "HYPOTHESIS_PROFILE": "mutants", _MARK: mark}
    try:
        for file, text in texts.items():
            (copy / file).write_text(text)
        process = subprocess.Popen(
            command,
            cwd=copy,
            env={**os.environ, **own},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=longest if fault.edits else None)
        except subprocess.TimeoutExpired:
            hang = ["a hang"]
            _kill_all(mark)
            output, _ = process.communicate()
    finally:
        _kill_all(mark)
        for file, data in before.items():
            (copy / file).write_bytes(data)
            # The same second and the same size would make it valid for the next fault.
            for stale in (copy / file).parent.glob(f"__pycache__/{Path(file).stem}.*"):
                stale.unlink()
    text = output.decode(errors="replace")
    if not hang and process.returncode not in {0, 1}:
        raise ValueError(f"pytest has ended with {process.returncode}: {text[-300:]}")
    return sorted({*_FOUND.findall(text)}) + hang


def _kill_all(mark: str) -> None:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{_MARK}={mark}".encode() in (process / "environ").read_bytes():
                os.kill(int(process.name), signal.SIGKILL)


def _report(rows: Iterable[Row]) -> None:
    """Print the table, and what was not found or does not apply."""
    applied = sorted(
        (it for it in rows if not it["trouble"]), key=itemgetter("capability")
    )
    table: list[tuple[str, ...]] = [
        ("", "faults", "found", "by one test", "from outside only", "inside only")
    ]
    for name, group in groupby(applied, itemgetter("capability")):
        table.append((name, *_counts([it["found"] for it in group])))
    table.append(("all", *_counts([it["found"] for it in applied])))
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        cells = (it.ljust(width) for it, width in zip(line, widths, strict=True))
        print("| " + " | ".join(cells) + " |")
    for row in rows:
        if row["trouble"] or not row["found"]:
            print(f"{row['id']}: {row['trouble'] or 'not found'}: {row['meets']}")


def _counts(all_found: list[list[str]]) -> tuple[str, ...]:
    inside = [[it.startswith(_INSIDE) for it in found] for found in all_found if found]
    once = sum(len(each) == 1 for each in inside)
    outside = sum(not any(each) for each in inside)
    counts = len(all_found), len(inside), once, outside, sum(map(all, inside))
    return tuple(map(str, counts))


if __name__ == "__main__":
    sys.exit(main())
