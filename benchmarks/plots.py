"""Draw the results, from their JSON: ``python -m benchmarks.plots [FILE [FOLDER]]``.

One panel per question, with its first figure and the same peers in the same
order, so that a row can be followed across.
"""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

from benchmarks.base import Figure, Question
from benchmarks.peers import label
from benchmarks.questions import QUESTIONS
from benchmarks.report import IMAGES, LATEST, number

mpl.use("Agg")

OURS, PEERS, TEXT = "#d9480f", "#b8c0c8", "#343a40"
COLUMNS = 4


def draw(source: Path, folder: Path) -> Path:
    """Draw what *source* holds into ``benchmarks.png`` in *folder*."""
    from matplotlib import pyplot as plt

    results = json.loads(source.read_text("utf-8"))
    summary = results["summary"]
    shown = [q for q in QUESTIONS.values() if q.name in summary]
    lines = -(-(len(shown) + 1) // COLUMNS)
    rows = list(next(iter(summary.values())))
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
        panel(axes, question, summary[question.name])
    for axes in grid[:, 0]:
        name_rows(axes, rows)
    for axes in panels[len(shown) :]:
        axes.axis("off")
    caption(panels[len(shown)], results)
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "benchmarks.png"
    picture.savefig(target, dpi=120, facecolor="white")
    plt.close(picture)
    return target


def panel(axes: Any, question: Question, rows: dict[str, Any]) -> None:
    figure = question.figures[0]
    values = {row: r["figures"].get(figure.key) for row, r in rows.items()}
    limit = room(values)
    for place, (row, value) in enumerate(values.items()):
        bar(axes, place, row, value, limit=limit, status=rows[row]["status"])
    axes.set_title(
        f"{question.title}\n{unit(question, figure)}", fontsize=9, loc="left"
    )
    axes.set_xlim(0, limit * 1.28)
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
    return f"{detail}{figure.unit}: {better} is better"


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
    print(draw(*(given + [LATEST, IMAGES][len(given) :])))
