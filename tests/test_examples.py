"""What the examples show is what happens."""

from __future__ import annotations

import re
import subprocess
import sys

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
