"""What the examples show is what happens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.scripts import ROOT, promised


def run(
    *command: str, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.parametrize("name", ["quickstart", "resume", "with_dask", "with_joblib"])
def test_the_short_examples_print_what_they_say(name: str) -> None:
    path = ROOT / "examples" / f"{name}.py"
    done = run(str(path))
    assert (done.returncode, done.stdout) == (0, promised(path.read_text()))


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


def test_the_joblib_backend_runs_initializers_and_ends_what_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "program.py"
    path.write_text("""
import os, time
import joblib
import with_joblib

def step(number):
    if number:
        raise ValueError("the second")
    time.sleep(3600)

with joblib.parallel_config(
    "asyncpool", n_jobs=2, initializer=os.chdir, initargs=("/",)
):
    print(joblib.Parallel()(joblib.delayed(os.getcwd)() for _ in range(2)))
    with joblib.Parallel() as parallel:
        try:
            parallel(joblib.delayed(step)(number) for number in range(2))
        except ValueError as error:
            print(error)
        print(parallel(joblib.delayed(abs)(-number) for number in range(2)))
""")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'examples'}"}
    done = run(str(path), env=environment)
    assert done.stdout == "['/', '/']\nthe second\n[0, 1]\n", done.stderr
