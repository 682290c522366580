"""How the state of a cluster looks in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncpool._cli.map.progress import duration, size_text

_STYLES = {"running": "green", "closing": "yellow", "broken": "red"}


def status_view(status: dict[str, Any]) -> RenderableType:
    """Return an answer to ``status`` for a terminal."""
    slots: list[dict[str, Any]] = status["slots"]
    state = status["state"]
    head = Text.assemble(
        (f"{status['name']}", "bold"),
        f"  pid {status['pid']}  ",
        (state, _STYLES.get(state, "")),
        f"  {status['spread']}  {'  '.join(status['addresses'])}",
        (f"  {status['which']}", "dim"),
    )
    ready = sum(slot["ready"] for slot in slots)
    # Of a cluster of an older version there is no such figure.
    lost = status.get("lost", 0)
    figures = Text.assemble(
        f"{ready} of {status['workers']} workers ready   "
        f"{sum(slot['connections'] for slot in slots):,} connections open, "
        f"{status['handed']:,} in all   ",
        (f"{status['restarts']:,} restarts", "yellow" if status["restarts"] else ""),
        f", {status['crashes']:,} crashes   ",
        (f"{lost:,} lost for want of descriptors   " if lost else "", "red"),
        size_text(sum(slot["memory"] for slot in slots)),
    )
    return Group(head, figures, _table(slots))


def _table(slots: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in (
        "slot",
        "generation",
        "pid",
        "state",
        "open",
        "in all",
        "up",
        "memory",
    ):
        table.add_column(title, justify="left" if title == "state" else "right")
    for slot in slots:
        table.add_row(
            str(slot["slot"]),
            str(slot["generation"]),
            str(slot["pid"] or "-"),
            # One that serves is idle as far as jobs go.
            Text("ready", style="green") if slot["ready"] else Text(slot["state"]),
            f"{slot['connections']:,}",
            f"{slot['handed']:,}",
            duration(slot["uptime"]),
            size_text(slot["memory"]),
        )
    return table
