"""How the state of a pool or a server looks in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncpool._cli.live.pool_view import STYLES, pool_view
from asyncpool._cli.units import duration, size_text
from asyncpool._observe.history import histogram_of

# What is shown as 1000 with three digits.
_ROUND = 999.5


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


def brief(seconds: float | None) -> str:
    """Return a duration in three digits and a unit."""
    if seconds is None:
        return "-"
    for unit, size in (("µs", 1e-6), ("ms", 1e-3)):
        if seconds < size * _ROUND:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < _ROUND else f"{seconds:,.0f} s"


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
    return Group(head, figures, *_requests(status.get("requests", {})), _table(slots))


def _requests(told: dict[str, Any]) -> Iterator[Text]:
    """Yield a line about the requests, if the workers count them."""
    responses: dict[str, Any] = told.get("responses", {})
    if not responses:
        return
    line = Text("responses ")
    for status, durations in sorted(responses.items()):
        took = histogram_of(durations)
        style = "yellow" if status == "5xx" else ""
        times = f"{brief(took.quantile(0.5))}, 99%: {brief(took.quantile(0.99))}"
        line.append(f"  {status} {took.count:,}", style)
        line.append(f" ({times})", "dim")
    line.append(f"   {told['open']:,} open, {told['refused']:,} refused, ")
    line.append(f"{told['cut']:,} cut off", "yellow" if told["cut"] else "")
    if late := told.get("timed_out", 0):
        line.append(f", {late:,} timed out", "yellow")
    yield line


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
            Text("ready", style="green")
            if slot["ready"]
            else Text(slot["state"], style="red" if slot["state"] == "busy" else ""),
            f"{slot['connections']:,}",
            f"{slot['handed']:,}",
            duration(slot["uptime"]),
            size_text(slot["memory"]),
        )
    return table
