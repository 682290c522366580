"""Draw the trials of servers: ``python -m benchmarks.cluster.plots [FILE [FOLDER]]``.

To the left the rates of all of them; to the right what clients of asyncpool and of
gunicorn saw while workers were reloaded and killed: the longest latency of each tenth of a
second, and the requests that failed.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.cluster.report import LATEST
from benchmarks.cluster.servers import OURS, label
from benchmarks.plots import OURS as ORANGE, PEERS as GREY, TEXT, dress
from benchmarks.report import IMAGES, number

mpl.use("Agg")

BLUE = "#4c8dae"
DEFAULT = "handoff+uvloop"
LONGEST = 20_000.0  # ms: a client gives up after 10 000
PEER = "gunicorn+uvloop"
TIMELINES = {
    "reloads": "Rolling reloads",
    "deploy": "A bad deploy, and its repair",
    "kills": "A worker killed every 0.5 s",
}


def draw(source: Path, folder: Path) -> Path:
    """Draw what *source* holds into a picture in *folder*."""
    from matplotlib import pyplot as plt

    results = json.loads(source.read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    plt.rcParams.update({"font.size": 9, "text.color": TEXT, "axes.labelcolor": TEXT})
    picture = plt.figure(figsize=(13, 6.4), layout="constrained")
    grid = picture.add_gridspec(len(TIMELINES), 2, width_ratios=(4, 7))
    draw_rates(picture.add_subplot(grid[:2, 0]), results["summary"]["speed"])
    caption(picture.add_subplot(grid[2, 0]), results)
    for place, (trial, title) in enumerate(TIMELINES.items()):
        cells = [c for c in results["cells"] if c["question"] == trial]
        draw_timeline(picture.add_subplot(grid[place, 1]), cells, title)
    target = folder / "cluster.png"
    picture.savefig(target, dpi=110, facecolor="white")
    plt.close(picture)
    return target


def draw_rates(axes: Any, rows: dict[str, Any]) -> None:
    shown = {row: found for row, found in rows.items() if row.endswith("+uvloop")}
    for place, (row, found) in enumerate(shown.items()):
        ours = row.partition("+")[0] in OURS
        if not found["figures"]:
            axes.text(0, place, f" {found['status']}", va="center", style="italic")
            continue
        rate, p99 = found["figures"]["rate"], found["figures"]["p99_ms"]
        axes.barh(place, rate, height=0.7, color=ORANGE if ours else GREY)
        text = f" {number(rate)} (p99 {number(p99)} ms)"
        axes.text(rate, place, text, va="center", weight="bold" if ours else "normal")
    axes.set_title("Requests/s, 2 workers, keep-alive", fontsize=10, loc="left")
    axes.set_yticks(range(len(shown)), [label(row) for row in shown])
    axes.set_xlim(0, axes.get_xlim()[1] * 1.5)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def draw_timeline(axes: Any, cells: Sequence[dict[str, Any]], title: str) -> None:
    found = {cell["row"]: cell for cell in cells if cell["timeline"]}
    for row, color in ((PEER, BLUE), (DEFAULT, ORANGE)):
        if row in found:
            draw_server(axes, found[row], color)
    axes.set_yscale("log")
    axes.set_ylim(0.3, LONGEST)
    dress(axes, title, "s", "longest latency, ms")
    if found:
        above = (1.0, 0.98)
        axes.legend(
            loc="lower right",
            bbox_to_anchor=above,
            ncols=2,
            frameon=False,
            fontsize=8.5,  # or it covers the title
            handlelength=1.2,
            columnspacing=1.2,
        )


def draw_server(axes: Any, cell: dict[str, Any], color: str) -> None:
    failed = int(cell["figures"]["failed"] + cell["figures"]["refused"])
    total = int(cell["figures"]["requests"])
    name = label(cell["row"]).partition(",")[0] + f": {failed} of {total} failed"
    points = [(when, longest) for when, _, longest, _ in cell["timeline"] if longest]
    axes.plot(*zip(*points, strict=True), color=color, linewidth=1.2, label=name)
    bad = [when for when, _, _, failures in cell["timeline"] if failures]
    if bad:
        axes.plot(bad, [LONGEST / 4] * len(bad), "x", color=color, markersize=5)
    for mark in cell["marks"]:
        axes.plot(mark, 0.4, marker="^", color=color, markersize=4)


def caption(axes: Any, results: dict[str, Any]) -> None:
    """Say what the signs mean, and with what all of it was measured."""
    here = results["environment"]
    axes.axis("off")
    axes.text(
        0.0,
        0.8,
        "▲ a reload, or a kill     x requests failed\n"
        "500 requests/s, most on connections that are kept\n\n"
        f"{here['python']}, {here['kernel']}, {here['cpus']} CPUs\n"
        f"{here['processor']}, uvloop everywhere\n"
        f"commit {here['commit']}, {here['date'][:10]}"
        + (", a quick run" if results["quick"] else ""),
        transform=axes.transAxes,
        va="top",
        linespacing=1.5,
    )


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    print(draw(*(given + [LATEST, IMAGES][len(given) :])))
