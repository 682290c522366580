"""How the state of a pool looks in a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from asyncpool._cli.units import duration, size_text

STYLES = {"running": "green", "closing": "yellow", "broken": "red"}

_SLOTS = {"idle": "green", "busy": "cyan", "parked": "red", "stopping": "yellow"}


def pool_view(status: dict[str, Any], cpu: dict[int, float]) -> RenderableType:
    """Return the status of a pool for a terminal.

    Args:
        status: Its answer to ``status``.
        cpu: By slot, the percentage of a core that its worker uses.
    """
    slots: list[dict[str, Any]] = status["slots"]
    state = status["state"]
    head = Text.assemble(
        (f"{status['name']}", "bold"),
        f"  pid {status['pid']}  ",
        (state, STYLES.get(state, "")),
        "  pool",
        (f"  {status['which']}" if status["which"] != status["name"] else "", "dim"),
    )
    queue = f"{status['queued']:,} queued"
    if status["queued"]:
        queue += f", the oldest for {status['oldest_queued']:.3g} s"
    ended = status["completed"] + status["failed"] + status["cancelled"]
    raised = sum(row["jobs"].get("raised", 0) for row in status["functions"])
    figures = Text.assemble(
        f"{status['idle'] + status['busy']} of {status['workers']} workers ready   ",
        (queue, "yellow" if status["queued"] else ""),
        f"   {ended:,} jobs ended: {raised:,} raised, {status['failed']:,} failed, ",
        f"{status['timeouts']:,} late   ",
        (f"{status['crashes']:,} crashes", "yellow" if status["crashes"] else ""),
        f"   {size_text(sum(slot['memory'] for slot in slots))}",
    )
    losses = [
        f"{name.replace('_', ' ')}: {status[name]:,}"
        for name in ("lost_nodes", "lost_clients", "refused_clients")
        if status.get(name)
    ]
    nodes = status.get("nodes")
    tables: list[RenderableType] = [_node_table(nodes)] if nodes else []
    if losses:
        tables.insert(0, Text("   ".join(losses), "yellow"))
    return Group(head, figures, *tables, _table(slots, cpu))


def _node_table(nodes: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    titles = ("slots", "state", "heard", "jobs", "queued", "busy", "crashes")
    for title in (*titles, "CPU", "memory", "clock"):
        side: JustifyMethod = "left" if title == "state" else "right"
        table.add_column(title, justify=side, no_wrap=True)
    table.add_column("node", overflow="ellipsis")  # the only one that gives way
    for node in nodes:
        suspected, crashes = node["suspected"], node["crashes"]
        error = node["clock_error"]
        table.add_row(
            f"{node['first_slot']}+",
            Text("silent", style="red") if suspected else Text("ready", style="green"),
            f"{node['silent']:.1f} s",
            f"{node['jobs']:,}",
            f"{node['queued']:,}",
            f"{node['busy']:,}/{node['workers']:,}",
            Text(f"{crashes:,}", style="yellow" if crashes else ""),
            duration(node["cpu"]),
            size_text(node["memory"]),
            "?" if error is None else f"\N{PLUS-MINUS SIGN}{error * 1e3:.1f} ms",
            node["name"],
        )
    return table


def _table(slots: list[dict[str, Any]], cpu: dict[int, float]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    titles = ("slot", "pid", "state", "jobs", "up", "CPU", "memory", "for", "function")
    for title in titles:
        is_text = title in {"state", "function"}
        table.add_column(title, justify="left" if is_text else "right")
    for slot in slots:
        used = cpu.get(slot["slot"])
        running = slot["running"]
        table.add_row(
            str(slot["slot"]),
            str(slot["pid"] or "-"),
            Text(slot["state"], style=_SLOTS.get(slot["state"], "")),
            f"{slot['jobs']:,}",
            duration(slot["uptime"]),
            # Without a look before, it is the mean since its start.
            f"{_mean(slot) if used is None else used:.0f}%",
            size_text(slot["memory"]),
            f"{max(each['seconds'] for each in running):.1f} s" if running else "",
            Text(_at_work(running), no_wrap=True, overflow="ellipsis"),
        )
    return table


def _mean(slot: dict[str, Any]) -> float:
    uptime: float = slot["uptime"]
    return 100 * slot["cpu"] / uptime if uptime > 0 else 0.0


def _at_work(running: list[dict[str, Any]]) -> str:
    """Return what a worker runs: the job that runs for longest, and how many others."""
    if not running:
        return ""
    longest = max(running, key=lambda job: job["seconds"])
    others = f" and {len(running) - 1} more" if len(running) > 1 else ""
    again = f", attempt {longest['attempt']}" if longest["attempt"] > 1 else ""
    return f"{longest['function']} (job {longest['job_id']}{again}){others}"
