"""``asyncpool doctor``: what this platform offers, and whether pools work here."""

from __future__ import annotations

import asyncio
import json
import sys

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from asyncpool._cli.doctor.checks import examine, self_test
from asyncpool._cli.doctor.containment import containment
from asyncpool._cli.doctor.finding import Finding
from asyncpool._cli.parameters import Exit
from asyncpool._cli.worker_lines import WorkerLines

_MARKS = {"ok": ("✓", "green"), "note": ("-", "yellow"), "bad": ("✗", "red")}


@click.command("doctor", short_help="Tell what this platform offers, and test it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def doctor_command(*, as_json: bool) -> None:
    """Tell what this platform offers, and test in seconds that pools work here.

    The exit code is 1 if anything that pools need is missing or fails.
    """
    facts, kept = examine(), containment()
    # What the dying workers of the test print is no news.
    with WorkerLines.on(Console(quiet=True)):
        tests = asyncio.run(self_test())
    bad = any(finding.state == "bad" for finding in (*facts, *tests))
    if as_json:
        click.echo(
            json.dumps(
                {
                    "ok": not bad,
                    "platform": [finding.as_dict() for finding in facts],
                    "containment": [finding.as_dict() for finding in kept],
                    "self_test": [finding.as_dict() for finding in tests],
                }
            )
        )
    else:
        console = Console(highlight=False)
        parts = {"platform": facts, "containment": kept, "self-test": tests}
        for title, findings in parts.items():
            console.print(_table(title, findings))
    sys.exit(Exit.FAILED if bad else Exit.OK)


def _table(title: str, findings: list[Finding]) -> Table:
    table = Table(box=None, title=title, title_justify="left", show_header=False)
    table.title_style = "bold"
    for finding in findings:
        mark, style = _MARKS[finding.state]
        table.add_row(Text(mark, style=style), Text(finding.name), Text(finding.detail))
    return table
