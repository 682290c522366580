"""Weigh the project: each figure beside its record and its ceiling.

    usage: weight.py [--check | --lower]

The ceilings in weight.json say how light the project is to be.  Until it is, no figure may be above
its record there: ``--check`` fails then, and ``--lower`` records what has become lighter.  Once all
ceilings hold, they are what is checked.

A line of code is one that is neither blank, nor comment, nor docstring.
"""

from __future__ import annotations

import ast
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
RECORDS = Path(__file__).with_suffix(".json")

# What is measured, not counted: it says something of this machine, too, and is not checked.
CPU = "CPU of a program with one job, in ProcessPoolExecutor's"

# Paths below the package; what is in none of these is the local pool's.
ROOMS = {
    "remote (clients, agents, shared pools, Ray)": "_remote sharedpool ray",
    "cluster (servers)": "_cluster cluster",
    "seen (control, trace, profile, metrics, dashboard's data)": (
        "_core/figures _wire/profile _worker/profile profile _observe "
        "prometheus opentelemetry"
    ),
    "command line": "_cli cli __main__",
    "neighbours (joblib, Dask)": "joblib dask",
}

OURS = """
import asyncio, sys
import asyncpool
async def first_job():
    async with asyncpool.Pool(2) as pool:
        await pool.submit(abs, -1)
asyncio.run(first_job())
print(sum(name.startswith("asyncpool") for name in sys.modules))
"""
THEIRS = """
import asyncio, concurrent.futures
async def first_job():
    with concurrent.futures.ProcessPoolExecutor(2) as executor:
        await asyncio.get_running_loop().run_in_executor(executor, abs, -1)
asyncio.run(first_job())
print(0)
"""
USED = """
import resource
used = resource.getrusage(resource.RUSAGE_SELF)
print(used.ru_utime + used.ru_stime)
"""


def lines_of_code(path: Path) -> int:
    """Count the lines of a file that are code."""
    source = path.read_text()
    other = {
        token.start[0]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and token.line.strip().startswith("#")
    }
    kinds = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, kinds) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            other.update(range(first.lineno, (first.end_lineno or 0) + 1))
    rows = enumerate(source.splitlines(), 1)
    return sum(bool(row.strip()) and number not in other for number, row in rows)


def room_of(name: str) -> str:
    """Return which part of the package a file belongs to."""
    for room, prefixes in ROOMS.items():
        if re.match(rf"({'|'.join(prefixes.split())})[/_.]", name):
            return room
    return "local pool"


def package() -> dict[str, float]:
    """Weigh the package."""
    rooms = dict.fromkeys(["local pool", *ROOMS], 0)
    files = sorted((ROOT / "asyncpool").rglob("*.py"))
    for path in files:
        rooms[room_of(str(path.relative_to(ROOT / "asyncpool")))] += lines_of_code(path)
    names = re.search(
        r"__all__\s*(?::[^=]+)?=\s*[\[(](.*?)[\])]",
        (ROOT / "asyncpool/__init__.py").read_text(),
        re.DOTALL,
    )
    return {
        **{f"code lines: {room}": lines for room, lines in rooms.items()},
        "code lines: all of the package": sum(rooms.values()),
        "modules of the package": len(files),
        "public names": len(re.findall(r"[\"']\w+[\"']", names[1])) if names else 0,
    }


def lines(paths: Iterable[Path]) -> int:
    """Count the lines of files, all of them."""
    return sum(len(path.read_text().splitlines()) for path in paths)


def around() -> dict[str, float]:
    """Weigh the tests and the documents."""
    tests = sorted((ROOT / "tests").rglob("*.py"))
    private = re.compile(r"^\s*(from|import) asyncpool\._", re.MULTILINE)
    inside = [path for path in tests if private.search(path.read_text())]
    pages = [*(ROOT / "docs").rglob("*.md"), *ROOT.glob("*.md")]
    return {
        "lines of tests": lines(tests),
        "files of tests that import private modules": len(inside),
        "words of documentation": sum(len(path.read_text().split()) for path in pages),
        "lines of the README": lines([ROOT / "README.md"]),
    }


def run(program: str) -> tuple[int, float]:
    """Return what a program prints, and the CPU seconds that it has used."""
    command = [sys.executable, "-c", program + USED]
    # Where no bytecode may be written, each process would compile the package.
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=env, check=True
    )
    printed, used = done.stdout.split()
    return int(printed), float(used)


def cpu(program: str) -> float:
    """Return the least CPU seconds that a program takes."""
    return min(run(program)[1] for _ in range(7))


def main(option: str = "") -> int:
    """Print the figures; check them, or record what has become lighter."""
    figures = package() | around()
    figures["modules loaded for a first job"] = run(OURS)[0]
    known: dict[str, dict[str, float]] = json.loads(RECORDS.read_text())
    held = all(value <= known[name]["ceiling"] for name, value in figures.items())
    bound = "ceiling" if held else "record"
    heavier = [name for name, value in figures.items() if value > known[name][bound]]
    if option == "--check":
        for name in heavier:
            print(
                f"{name}: {figures[name]:,}, above the {bound}, {known[name][bound]:,}"
            )
        return bool(heavier)
    if option == "--lower":
        for name, value in figures.items():
            known[name]["record"] = min(value, known[name]["record"])
        rows = (f"  {json.dumps(name)}: {json.dumps(known[name])}" for name in known)
        RECORDS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    print(f"{'':70}{'now':>8}{'record':>9}{'ceiling':>9}")
    for name, value in (figures | {CPU: round(cpu(OURS) / cpu(THEIRS), 2)}).items():
        record = f"{known[name]['record']:,}" if name in figures else ""
        row = f"{name:70}{value:>8,}{record:>9}{known[name]['ceiling']:>9,}"
        print(row + "  heavier" * (name in heavier))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
