"""The findings as tables, one for each trial."""

from collections.abc import Iterable
from typing import Any

from benchmarks.base import Figure
from benchmarks.cluster.base import Trial
from benchmarks.cluster.servers import BASELINE, label
from benchmarks.report import Summary, heading, number, remark
from benchmarks.runner import ROOT, Outcome

LATEST = ROOT / "benchmarks" / "results" / "cluster.json"
RATE = "1/s"


def tables(summary: Summary, trials: Iterable[Trial]) -> str:
    parts = (table(trial, summary[trial.name]) for trial in trials)
    return "\n\n".join(parts)


def table(trial: Trial, rows: dict[str, Outcome]) -> str:
    """Lay out one trial; rates have their ratio to the baseline's on the same loop."""
    heads = [head(figure) for figure in trial.figures]
    lines = [trial.title, f"{'':<36}" + "  ".join(heads)]
    for row, outcome in rows.items():
        base = rows.get("+".join([BASELINE, *row.split("+")[1:]]), {})
        cells = (
            f"{cell(figure, outcome['figures'], base.get('figures', {})):>{len(text)}}"
            for figure, text in zip(trial.figures, heads, strict=True)
        )
        lines.append(f"  {label(row):<34}" + "  ".join(cells) + remark(outcome))
    return "\n".join(lines)


def head(figure: Figure) -> str:
    text = heading(figure) if figure.unit == RATE else ", ".join(titles(figure))
    return f"{text:>10}"


def titles(figure: Figure) -> list[str]:
    return [text for text in (figure.title, figure.unit) if text]


def cell(figure: Figure, figures: dict[str, Any], base: dict[str, Any]) -> str:
    if figure.key not in figures:
        return "-"
    value = figures[figure.key]
    if not figure.unit:
        return f"{value:.0f}"
    ratio = ""
    if figure.unit == RATE and base.get(figure.key):
        ratio = f" ({number(value / base[figure.key])}x)"
    return number(value) + ratio
