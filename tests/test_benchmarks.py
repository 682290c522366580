"""The benchmark itself, where it is quick: that it runs, ends, and says what it has found."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from benchmarks.over_ray import ROWS as OVER_RAY
from benchmarks.report import IMAGES, LATEST
from benchmarks.runner import ROOT
from tests.helpers.patience import PATIENCE

OURS = "asyncpool"
QUICK_OVER_RAY = ("--rounds", "1", "--jobs", "500", "--calls", "5")


def run(*args: str, wait: float = PATIENCE) -> str:
    """Run Python by hand, as in a pipeline, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=wait,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def published_files() -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in (LATEST, *IMAGES.glob("*.png"))}


@pytest.mark.parametrize("peer", [OURS, "ppe-fork", "aiomultiprocess"])
def test_nobody_holds_the_output_of_a_cell_when_it_has_ended(peer: str) -> None:
    """Pools are not closed there, and workers of others may wait for ever then."""
    if peer == "aiomultiprocess":  # whose workers always do
        pytest.importorskip(peer)
    found = json.loads(run("-m", "benchmarks.cell", "latency", peer, "--quick"))
    assert (found["status"], found["note"]) == ("ok", "")
    assert found["figures"]
    assert len(found["samples"]) == 101


def test_a_quick_run_writes_what_it_has_found(tmp_path: Path) -> None:
    peers = ["--peer", OURS, "--peer", "ppe-fork", "--peer", f"{OURS}+uvloop"]
    path = tmp_path / "found.json"
    pytest.importorskip("uvloop")
    command = ["--quick", "--question", "latency", *peers, "--json", str(path)]
    published = published_files()
    table = run("-m", "benchmarks", *command)
    found = json.loads(path.read_text())
    assert found["quick"] is True
    assert found["rounds"] == 1
    asked = [(cell["question"], cell["row"], cell["status"]) for cell in found["cells"]]
    rows = [OURS, "ppe-fork", f"{OURS}+uvloop"]
    assert sorted(asked) == sorted(("latency", row, "ok") for row in rows)
    assert list(found["summary"]["latency"]) == rows
    assert "(1.00x)" in table, "what others are compared with"
    assert published_files() == published, "it is no whole run"


def two_digits(number: float) -> str:
    """Write a large number as the README does: 97,000."""
    return f"{round(number, 2 - len(str(int(number)))):,.0f}"


RECOVERY = {"breaks": "never", "loses calls": "loses the call"}


def test_the_readme_says_what_the_published_run_has_measured() -> None:
    summary = json.loads(LATEST.read_text())["summary"]

    def row(
        title: str, question: str, figure: str, shown: Callable[[float], str]
    ) -> str:
        cells = [title]
        for peer in (OURS, "ppe-fork", "mp-pool", "pebble", "anyio"):
            found = summary[question][peer]
            words = RECOVERY.get(found["status"])
            cells.append(words or shown(found["figures"][figure]))
        return f"| {' | '.join(cells)} |"

    readme = (ROOT / "README.md").read_text().splitlines()
    for line in (
        row("one no-op call, awaited", "latency", "p50_us", "{:.0f} µs".format),
        row("no-op jobs per second", "throughput", "jobs_per_s", two_digits),
        row(
            "64 MB array there and back, GB/s", "bandwidth", "gb_per_s", "{:.1f}".format
        ),
        row(
            "pool full again after a SIGKILL", "recovery", "p50_ms", "{:.0f} ms".format
        ),
        row("first result of a new pool", "start", "first_ms", "{:.0f} ms".format),
    ):
        assert line in readme


def test_the_simulated_cluster_ends_its_jobs_and_draws_how(tmp_path: Path) -> None:
    path = tmp_path / "curves.svg"
    printed = run(
        *("-m", "benchmarks.simulated_cluster", "--agents", "20", "--jobs", "5000"),
        *("--losses", "20", "--credits", "window", "32", "--picture", str(path)),
    )
    lines = printed.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["the window", "32 credits"]
    for line in lines:
        lost, again = re.findall(r"(\d+) nodes lost, (\d+) jobs begun again", line)[0]
        assert int(lost) > 0
        assert int(again) > 0
    drawing = ET.fromstring(path.read_text())
    assert len(drawing.findall("{http://www.w3.org/2000/svg}polyline")) == 2


@pytest.mark.skipif(find_spec("ray") is None, reason="it compares with Ray")
def test_each_way_over_ray_is_measured() -> None:
    printed = run("-m", "benchmarks.over_ray", *QUICK_OVER_RAY, wait=4 * PATIENCE)
    rows = re.findall(
        r"^\| `(.+)` \| ([\d,]+) \| (\S+) ms \| (\d+) µs \|$", printed, re.MULTILINE
    )
    assert [name for name, *_ in rows] == list(OVER_RAY)
    for name, *figures in rows:
        assert all(float(each.replace(",", "")) > 0 for each in figures), name
