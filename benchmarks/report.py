"""Condense cells to medians, and show them as tables and as JSON."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.base import Figure, Question
from benchmarks.peers import BASELINE, label
from benchmarks.runner import ROOT, Outcome

LATEST = ROOT / "benchmarks" / "results" / "latest.json"
IMAGES = ROOT / "docs" / "img"

Summary = dict[str, dict[str, Outcome]]


def summarise(cells: Sequence[Outcome]) -> Summary:
    """Return question -> row -> medians over the rounds, and what went wrong."""
    table: dict[str, dict[str, list[Outcome]]] = {}
    for cell in cells:
        table.setdefault(cell["question"], {}).setdefault(cell["row"], []).append(cell)
    return {
        question: {row: merge(rounds) for row, rounds in rows.items()}
        for question, rows in table.items()
    }


def merge(rounds: Sequence[Outcome]) -> Outcome:
    keys = dict.fromkeys(key for cell in rounds for key in cell["figures"])
    wrong = [cell for cell in rounds if cell["status"] != "ok"]
    return {
        "figures": {
            key: median(c["figures"][key] for c in rounds if key in c["figures"])
            for key in keys
        },
        "curve": merge_curves([c["curve"] for c in rounds if c["status"] == "ok"]),
        "status": wrong[0]["status"] if wrong else "ok",
        "note": wrong[0]["note"] if wrong else "",
        "wrong": len(wrong),
        "rounds": len(rounds),
    }


def merge_curves(curves: Sequence[Sequence[Sequence[float]]]) -> list[list[float]]:
    points: dict[float, list[float]] = {}
    for x, y in (point for curve in curves for point in curve):
        points.setdefault(x, []).append(y)
    return [[x, median(ys)] for x, ys in sorted(points.items())]


def tables(summary: Summary, questions: Iterable[Question]) -> str:
    """Lay out one table per question, with ratios to the baseline's figures."""
    parts = (table(q, summary[q.name]) for q in questions if q.name in summary)
    return "\n\n".join(parts)


def table(question: Question, rows: dict[str, Outcome]) -> str:
    names = (row for row in rows if row.partition("+")[0] == BASELINE)
    base: dict[str, float] = rows[n]["figures"] if (n := next(names, "")) else {}
    head = f"{'':<34}" + "".join(f"{heading(f):>26}" for f in question.figures)
    better = "more" if question.figures[0].more_is_better else "less"
    lines = [f"{question.title} ({better} is better)", head.rstrip()]
    for row, outcome in rows.items():
        cells = (cell(f, outcome["figures"], base) for f in question.figures)
        line = f"  {label(row):<32}" + "".join(cells).rstrip()
        lines.append(line + remark(outcome))
    return "\n".join(lines)


def heading(figure: Figure) -> str:
    return f"{figure.title}, {figure.unit} (ratio)" if figure.unit else figure.title


def cell(figure: Figure, figures: dict[str, float], base: dict[str, float]) -> str:
    if figure.key not in figures:
        return f"{'-':>18}{'':8}"
    ratio = ""
    if figure.unit and base.get(figure.key):
        ratio = f"({number(figures[figure.key] / base[figure.key])}x)"
    return f"{number(figures[figure.key]):>18}{ratio:>8}"


def remark(outcome: Outcome) -> str:
    """Say what went wrong, and in how many rounds if not in all."""
    if outcome["status"] == "ok":
        return ""
    share = f" in {outcome['wrong']} of {outcome['rounds']} rounds"
    note = f": {outcome['note']}" if outcome["note"] else ""
    often = share if outcome["wrong"] < outcome["rounds"] else ""
    return f"  {outcome['status']}{often}{note}"


def number(value: float) -> str:
    """Write three significant digits, and thousands apart."""
    if abs(value) >= 100:
        digits = len(str(int(abs(value)))) - 3
        return f"{round(value, -digits):,.0f}".replace(",", " ")
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def write(path: Path, head: dict[str, Any], cells: Sequence[Outcome]) -> None:
    """Write *head* to be read and the *cells* one per line, all or nothing."""
    lines = ",\n".join(f"  {json.dumps(cell)}" for cell in cells)
    text = json.dumps(head, indent=1).removesuffix("\n}")
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(f'{text},\n "cells": [\n{lines}\n ]\n}}\n', "utf-8")
    scratch.replace(path)
