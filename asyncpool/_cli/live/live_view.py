"""How a pool or server looks in a terminal that shows it until Ctrl-C."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncpool._cli.live.last_minute import LastMinute, sparkline
from asyncpool._cli.live.status_view import brief, status_view
from asyncpool._core.base.text import printable

_WIDTH = 60


def live_view(status: dict[str, Any], minute: LastMinute) -> RenderableType:
    """Return a pool or server with what happened to it in the last minute."""
    return Group(
        status_view(status, minute.cpu), _curves(status, minute), _crashes(minute)
    )


def _curves(status: dict[str, Any], minute: LastMinute) -> RenderableType:
    """Return the last minute, one line for each curve."""
    moments = list(minute.moments)
    if not moments:
        return Text()
    is_pool = status.get("kind") == "pool"
    table = Table.grid(padding=(0, 2, 0, 0))
    rates: list[float | None] = [moment.rate for moment in moments]
    what = "jobs/s" if is_pool else "connections/s"
    table.add_row(what, sparkline(rates, _WIDTH), f"{moments[-1].rate:,.0f}")
    if is_pool:
        for title, values in (
            ("p50", [moment.median for moment in moments]),
            ("p99", [moment.slowest for moment in moments]),
        ):
            known = [value for value in values if value is not None]
            last = known[-1] if known else None
            table.add_row(title, sparkline(values, _WIDTH), brief(last))
    return table


def _crashes(minute: LastMinute) -> RenderableType:
    lines: list[RenderableType] = []
    for at, crash in reversed(minute.crashes):
        when = time.strftime("%H:%M:%S", time.localtime(at))
        how = crash["signal"] or (
            "no process" if crash["exit_code"] is None else f"exit {crash['exit_code']}"
        )
        job = f" in {crash['function']}" if crash["function"] else ""
        tail = crash["stderr_tail"]
        last = (
            f": {tail[-1]}" if tail else f": {crash['detail']}" * bool(crash["detail"])
        )
        text = f"{when}  slot {crash['slot']}  {crash['kind']}, {how}{job}{last}"
        lines.append(
            Text(printable(text), style="red", no_wrap=True, overflow="ellipsis")
        )
    return Group(*lines)
