"""The tables at the end."""

from collections import Counter
from statistics import median

from rich import box
from rich.console import Console, JustifyMethod
from rich.table import Table
from rich.text import Text

from asyncpool.events import Crash
from census.account import Account
from census.totals import Totals

NUMBERS = {"count", "lines", "in a job", "no job"}


def show(
    console: Console, totals: Totals, account: Account | None, *, equal: bool | None
) -> None:
    """Print what was found and what it took.

    Args:
        console: Where to.
        totals: What was found.
        account: What the pool went through, if there was one.
        equal: Whether a serial run found the same; ``None`` if nobody asked.
    """
    console.print(_beside(_counts(totals), _imported(totals)))
    console.print(_longest(totals))
    if totals.unparsed:
        console.print(_unparsed(totals))
    if account is not None:
        tables = [_figures(account)]
        if account.crashes:
            tables.append(_deaths(account))
        console.print(_beside(*tables))
    if equal is not None:
        verdict = "equal to" if equal else "different from"
        style = "bold green" if equal else "bold red"
        console.print(f"{verdict} the serial run", style=style)


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold cyan",
        header_style="dim",
        box=box.SIMPLE_HEAD,
    )
    for name in columns:
        # Paths and names stay whole; there is room for reasons to be wrapped.
        justify: JustifyMethod = "right" if name in NUMBERS else "left"
        table.add_column(name, justify=justify, no_wrap=name != "reason")
    return table


def _beside(*tables: Table) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_row(*tables)
    return grid


def _counts(totals: Totals) -> Table:
    table = _table("The standard library", "what", "count")
    for name, count in totals.counts.items():
        table.add_row(name, f"{count:,}")
    return table


def _imported(totals: Totals) -> Table:
    table = _table("Most imported", "module", "count")
    for name, count in totals.imported:
        table.add_row(Text(name), f"{count:,}")
    return table


def _longest(totals: Totals) -> Table:
    table = _table("Longest functions", "lines", "function", "where")
    for function, path in totals.longest:
        where = f"{path}:{function.line}"
        table.add_row(f"{function.lines:,}", Text(function.name), Text(where))
    return table


def _unparsed(totals: Totals) -> Table:
    table = _table("Files that cannot be parsed", "file", "reason")
    for finding in totals.unparsed:
        table.add_row(Text(finding.path), Text(finding.reason))
    return table


def _figures(account: Account) -> Table:
    assert account.stats is not None
    stats = account.stats
    jobs = sum(account.attempts.values())
    started = sum(number * count for number, count in account.attempts.items())
    table = _table("The pool", "what", "count")
    table.add_row("workers", str(stats.workers))
    table.add_row("files a second", f"{jobs / account.seconds:,.0f}")
    table.add_row("jobs done", f"{jobs:,}")
    table.add_row("attempts", f"{started:,}")
    table.add_row("most for one job", str(max(account.attempts)))
    table.add_row("worker deaths", str(stats.crashes))
    if account.kills:
        table.add_row("killed from outside", str(account.kills))
    table.add_row("restarts", str(stats.restarts))
    table.add_row("takeovers", str(stats.takeovers))
    if account.unbegun:
        table.add_row("of jobs not begun", str(account.unbegun))
    if account.healed:
        table.add_row("healed in (median)", _milliseconds(median(account.healed)))
        table.add_row("healed in (worst)", _milliseconds(max(account.healed)))
    return table


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _deaths(account: Account) -> Table:
    table = _table("How workers died", "way", "in a job", "no job")
    in_a_job = Counter(_way(c) for c in account.crashes if c.job_id is not None)
    without = Counter(_way(c) for c in account.crashes if c.job_id is None)
    for way in sorted(in_a_job | without):
        table.add_row(way, str(in_a_job[way]), str(without[way]))
    table.add_section()
    table.add_row("all", str(in_a_job.total()), str(without.total()))
    return table


def _way(crash: Crash) -> str:
    if crash.signal is None and crash.exit_code is None:
        return crash.kind
    way = crash.signal or f"exit status {crash.exit_code}"
    if crash.kind == "failed start":
        return f"{way}, starting"
    return way if crash.kind == "crash" else f"{way}, {crash.kind}"
