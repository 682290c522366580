"""The benchmark itself, where it is quick: that it runs, ends, and draws what it has found."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.peers import label
from benchmarks.report import IMAGES, LATEST
from benchmarks.runner import ROOT
from tests.helpers.patience import PATIENCE

OURS = "asyncpool"


def run(*args: str) -> str:
    """Run Python by hand, as in a pipeline, and return what it prints."""
    done = subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
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


# Plots.

TITLES = {
    "Throughput by jobs in flight": ("throughput", "curve"),
    "Bandwidth by size of the array": ("bandwidth", "curve"),
    "Latency of one no-op call": ("latency", "samples"),
    "SIGKILL until the pool is full again": ("recovery", "samples"),
}


def test_the_readme_shows_the_plots_of_the_published_run() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in ("curves.png", "benchmarks.png"):
        assert f"docs/img/{name}" in readme
        assert (IMAGES / name).stat().st_size > 10_000


# Draws it, and prints what is in each panel.  In a process of its own, since what draws
# keeps its fonts open.
DRAW = """
import json, sys
from pathlib import Path
from benchmarks import plots
from matplotlib import pyplot

pictures = []
pyplot.close = pictures.append
found = plots.draw(Path(sys.argv[1]), Path(sys.argv[2]))
assert [path.name for path in found] == ["benchmarks.png", "curves.png"]
assert all(path.exists() for path in found)
panels = {
    axes.get_title(loc="left"): [
        line.get_label() for line in axes.get_lines() if len(line.get_xdata()) > 2
    ]
    for axes in pictures[1].axes
}
print(json.dumps(panels))
"""


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="it draws")
def test_each_plot_has_the_peers_beside_us(tmp_path: Path) -> None:
    panels = json.loads(run("-c", DRAW, str(LATEST), str(tmp_path)))
    cells = json.loads(LATEST.read_text())["cells"]
    assert list(panels) == list(TITLES)
    for title, (question, what) in TITLES.items():
        rows = {
            cell["row"]: None
            for cell in cells
            if cell["question"] == question and cell[what]
        }
        assert sorted(panels[title]) == sorted(map(label, rows)), title
        assert label(OURS) in panels[title]
        assert len(panels[title]) > 3, "peers"
