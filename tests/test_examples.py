"""What the README and the examples show is what happens."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def promised(source: str) -> str:
    _, _, output = source.partition("# Output:\n")
    return "".join(f"{line.removeprefix('# ')}\n" for line in output.splitlines())


@pytest.mark.parametrize("name", ["quickstart", "resume", "with_dask", "with_joblib"])
def test_the_short_examples_print_what_they_say(name: str) -> None:
    path = ROOT / "examples" / f"{name}.py"
    done = run(str(path))
    assert (done.returncode, done.stdout) == (0, promised(path.read_text()))


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_the_readme_run(program: str, tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(program)
    done = run(str(path))
    assert (done.returncode, done.stdout) == (0, promised(program)), done.stderr


def test_the_first_command_of_the_readme_runs(tmp_path: Path) -> None:
    command, *_ = re.findall(r"```sh\n(.*?)```", README, re.DOTALL)
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "count_nodes.py", tmp_path / "examples")
    for name, words in (("python", ""), ("asyncpool", "-m asyncpool ")):
        shim = tmp_path / name
        shim.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        shim.chmod(0o755)
    done = subprocess.run(
        ["sh", "-ec", command],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "examples" / "nodes.jsonl").read_text().splitlines()
    found = {
        Path(line["input"]).name: line["result"] for line in map(json.loads, lines)
    }
    assert len(found) > 100
    tree = ast.parse(Path(ast.__file__).read_text())
    assert found["ast.py"] == sum(1 for _ in ast.walk(tree))


def test_the_census_survives_its_chaos() -> None:
    done = run("examples/stdlib_census.py", "--limit=60", "--chaos=0.2", "--plain")
    assert done.returncode == 0, done.stderr
    assert "equal to the serial run" in done.stdout
    assert re.search(r"worker deaths +[1-9]", done.stdout), done.stdout


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--chaos", "2"], "--chaos"),
        (["--workers", "0"], "--workers"),
        (["--no-such-option"], "--no-such-option"),
    ],
)
def test_the_census_refuses_nonsense(arguments: list[str], complaint: str) -> None:
    done = run("examples/stdlib_census.py", *arguments)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
