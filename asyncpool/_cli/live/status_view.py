"""How the state of a pool or a server looks in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncpool._cli.live.pool_view import STYLES, pool_view
from asyncpool._cli.map.progress import duration, size_text


def status_view(
    status: dict[str, Any], cpu: dict[int, float] | None = None
) -> RenderableType:
    """Return an answer to ``status`` for a terminal.

    Args:
        status: The answer.
        cpu: By slot, the percentage of a core that its worker uses, if that is known.
    """
    # A server of an older version does not say what it is.
    if status.get("kind") == "pool":
        return pool_view(status, cpu or {})
    return _server_view(status)


def _server_view(status: dict[str, Any]) -> RenderableType:
    slots: list[dict[str, Any]] = status["slots"]
    state = status["state"]
    head = Text.assemble(
        (f"{status['name']}", "bold"),
        f"  pid {status['pid']}  ",
        (state, STYLES.get(state, "")),
        f"  {status['spread']}  {'  '.join(status['addresses'])}",
        (f"  {status['which']}" if status["which"] != status["name"] else "", "dim"),
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
