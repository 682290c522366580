"""Draw the results, from their JSON: ``python -m benchmarks.plots [FILE [FOLDER]]``.

``benchmarks.png`` has one panel per question, with its first figure and the same peers
in the same order, so that a row can be followed across.  ``curves.png`` shows what one
number hides: how figures depend on the load, and how single measurements are spread.
"""

import json
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.base import Figure, Question
from benchmarks.peers import LABELS, label
from benchmarks.questions import QUESTIONS
from benchmarks.report import IMAGES, LATEST, number

mpl.use("Agg")

OURS, PEERS, TEXT = "#d9480f", "#b8c0c8", "#343a40"
COLUMNS = 4
TITLE = 36  # characters in a line
ABSENT: dict[str, Any] = {"figures": {}, "status": "not asked"}


def draw(source: Path, folder: Path) -> list[Path]:
    """Draw what *source* holds into pictures in *folder*."""
    results = json.loads(source.read_text("utf-8"))
    folder.mkdir(parents=True, exist_ok=True)
    return [
        draw_bars(results, folder / "benchmarks.png"),
        draw_curves(results, folder / "curves.png"),
    ]


def draw_bars(results: dict[str, Any], target: Path) -> Path:
    from matplotlib import pyplot as plt

    summary = results["summary"]
    shown = [q for q in QUESTIONS.values() if q.name in summary]
    lines = -(-(len(shown) + 1) // COLUMNS)
    rows = list(next(iter(summary.values())))
    # Rows that are there for one question have their place in the tables.
    plt.rcParams.update({"font.size": 9, "text.color": TEXT, "axes.labelcolor": TEXT})
    picture, grid = plt.subplots(
        lines,
        COLUMNS,
        figsize=(13, lines * (0.26 * len(rows) + 0.9)),
        squeeze=False,
        layout="constrained",
    )
    panels = list(grid.flat)
    for axes, question in zip(panels, shown, strict=False):
        found = {row: summary[question.name].get(row, ABSENT) for row in rows}
        panel(axes, question, found)
    for axes in grid[:, 0]:
        name_rows(axes, rows)
    for axes in panels[len(shown) :]:
        axes.axis("off")
    caption(panels[len(shown)], results)
    picture.savefig(target, dpi=120, facecolor="white")
    plt.close(picture)
    return target


def draw_curves(results: dict[str, Any], target: Path) -> Path:
    from matplotlib import pyplot as plt

    picture, grid = plt.subplots(1, 4, figsize=(15, 4.2), layout="constrained")
    summary = results["summary"]
    for axes, (name, title, across, up) in zip(grid[:2], CURVES, strict=True):
        for row, outcome in summary.get(name, {}).items():
            curve(axes, row, outcome["curve"])
        axes.set_xscale("log")
        axes.set_yscale("log")
        dress(axes, title, across, up)
    draw_memory(grid[1], results["environment"]["copy_gb_per_s"])
    for axes, (name, title, across) in zip(grid[2:], SPREADS, strict=True):
        for row in summary.get(name, {}):
            samples = [
                sample
                for cell in results["cells"]
                if (cell["question"], cell["row"]) == (name, row)
                for sample in cell["samples"]
            ]
            shares = [100 * (n + 1) / len(samples) for n in range(len(samples))]
            curve(axes, row, list(zip(sorted(samples), shares, strict=True)))
        axes.set_xscale("log")
        dress(axes, title, across, "% of all, at most")
    handles, labels = grid[0].get_legend_handles_labels()
    picture.legend(handles, labels, loc="outside lower center", ncols=5, frameon=False)
    picture.savefig(target, dpi=110, facecolor="white")
    plt.close(picture)
    return target


CURVES = (
    ("throughput", "Throughput by jobs in flight", "no-op jobs in flight", "jobs/s"),
    ("bandwidth", "Bandwidth by size of the array", "bytes", "GB/s, both ways"),
)
SPREADS = (
    ("latency", "Latency of one no-op call", "µs"),
    ("recovery", "SIGKILL until the pool is full again", "ms"),
)


def curve(axes: Any, row: str, points: Sequence[Sequence[float]]) -> None:
    if not points:
        return
    ours = row.startswith("asyncpool")
    place = [name for name in LABELS if not name.startswith("asyncpool")]
    name = row.partition("+")[0]
    shade = 0.0 if ours else place.index(name) / len(place)
    axes.plot(
        [x for x, _ in points],
        [y for _, y in points],
        color=OURS if ours else mpl.colormaps["GnBu"](0.4 + 0.6 * shade),
        linestyle="--" if "+" in row else "-",
        linewidth=2.2 if ours else 1.2,
        zorder=2 if ours else 1,
        label=label(row),
    )


def draw_memory(axes: Any, rate: float) -> None:
    """Show how fast memory is: each way takes one copy at the least."""
    axes.axhline(rate, color=TEXT, linewidth=0.8, linestyle=":")
    axes.annotate(
        f"copying 64 MB: {number(rate)}",
        (axes.get_xlim()[0], rate),
        xytext=(4, 3),
        textcoords="offset points",
        fontsize=8,
    )


def dress(axes: Any, title: str, across: str, up: str) -> None:
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_xlabel(across)
    axes.set_ylabel(up)
    axes.grid(visible=True, color="#e9ecef", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def panel(axes: Any, question: Question, rows: dict[str, Any]) -> None:
    figure = question.figures[0]
    values = {row: r["figures"].get(figure.key) for row, r in rows.items()}
    limit = room(values)
    for place, (row, value) in enumerate(values.items()):
        bar(axes, place, row, value, limit=limit, status=rows[row]["status"])
    title = textwrap.fill(question.title, TITLE)
    axes.set_title(f"{title}\n{unit(question, figure)}", fontsize=9, loc="left")
    axes.set_xlim(0, (limit or 1.0) * 1.28)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)


def name_rows(axes: Any, rows: list[str]) -> None:
    axes.tick_params(length=0)
    axes.set_yticks(range(len(rows)), [label(row) for row in rows])
    for tick, row in zip(axes.get_yticklabels(), rows, strict=True):
        tick.set_color(OURS if row.startswith("asyncpool") else TEXT)


def bar(
    axes: Any, place: int, row: str, value: float | None, *, limit: float, status: str
) -> None:
    ours = row.startswith("asyncpool")
    color = OURS if ours else PEERS
    weight = "bold" if ours else "normal"
    if value is None:
        axes.text(limit * 0.02, place, status, va="center", style="italic", color=TEXT)
        return
    axes.barh(place, min(value, limit), height=0.7, color=color)
    text = f" {number(value)}" + ("" if status == "ok" else f" ({status})")
    cut = " »" if value > limit else ""
    end = min(value, limit)
    axes.text(end, place, cut + text, va="center", weight=weight, color=TEXT)


def room(values: dict[str, float | None]) -> float:
    """Choose where a panel ends; one peer far beyond all others is cut off.

    Our own bar is never cut: a ratio that flatters is not the reader's to guess,
    and one that does not is to be seen.
    """
    known = sorted(value for value in values.values() if value is not None)
    if not known:
        return 1.0
    ours = [v for row, v in values.items() if v and row.startswith("asyncpool")]
    second = known[-2] if len(known) > 1 else known[-1]
    return max([min(known[-1], 2 * second), *ours])


def unit(question: Question, figure: Figure) -> str:
    better = "more" if figure.more_is_better else "less"
    detail = f"{figure.title}, " if len(question.figures) > 1 else ""
    return f"{detail}{figure.unit}: {better} is better".replace(", :", ":")


def caption(axes: Any, results: dict[str, Any]) -> None:
    """Say with what all of it was measured."""
    here = results["environment"]
    rounds = f"{results['rounds']} interleaved round{'s' * (results['rounds'] > 1)}"
    axes.text(
        0.02,
        0.95,
        f"{here['python']}, {here['kernel']}\n"
        f"{here['processor']}\n"
        f"{here['cpus']} CPUs, {here['memory_gb']} GB\n\n"
        f"2 workers (4 for start and memory)\n"
        f"medians over {rounds}\n"
        f"» cut off, far beyond the others\n\n"
        f"commit {here['commit']}, {here['date'][:10]}",
        transform=axes.transAxes,
        va="top",
        linespacing=1.5,
    )


if __name__ == "__main__":
    given = [Path(argument) for argument in sys.argv[1:]]
    print(*draw(*(given + [LATEST, IMAGES][len(given) :])), sep="\n")
