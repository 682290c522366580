"""The findings as a JSON file, and the tables as a picture."""

import json
import platform
import re
from collections.abc import Iterable
from dataclasses import asdict
from io import StringIO
from pathlib import Path

from rich.console import Console

from census.account import Account
from census.measure import Finding, Module, Unparsed
from census.report import show
from census.totals import Totals

WIDTH = 110  # columns of the picture


def save_json(target: Path, findings: Iterable[Finding], totals: Totals) -> None:
    """Write everything that was found, and nothing that differs between runs."""
    ordered = sorted(findings, key=lambda finding: finding.path)
    document = {
        "python": platform.python_version(),
        "totals": totals.counts,
        "modules": [asdict(f) for f in ordered if isinstance(f, Module)],
        "unparsed": [asdict(f) for f in ordered if isinstance(f, Unparsed)],
    }
    target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def save_svg(
    target: Path, totals: Totals, account: Account | None, *, equal: bool | None
) -> None:
    """Draw the tables as they look on a terminal."""
    console = Console(record=True, width=WIDTH, file=StringIO(), force_terminal=True)
    show(console, totals, account, equal=equal)
    svg = console.export_svg(title="examples/stdlib_census.py")
    # A picture that fetches its fonts from elsewhere is not shown everywhere.
    alone = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    target.write_text(alone, encoding="utf-8")
