"""Our column of the torture table, which must be good in every cell."""

from __future__ import annotations

import json

import pytest

from benchmarks.report import LATEST
from benchmarks.runner import ROOT
from benchmarks.torture.faults import FAULTS
from benchmarks.torture.report import as_matrix
from benchmarks.torture.results import CellResult
from benchmarks.torture.runner import run_cell

# Pool.map is for a later version; the table shows a dash there.
NOT_YET = {"map"}


@pytest.mark.parametrize("fault", sorted(set(FAULTS) - NOT_YET))
def test_our_column_is_all_good(fault: str) -> None:
    cell = run_cell("asyncpool", fault, timeout=20.0)
    assert cell.verdict == "good", f"{cell.text}: {dict(cell.seen)} {dict(cell.notes)}"


def test_the_runner_can_tell_good_from_bad() -> None:
    cell = run_cell("ProcessPoolExecutor", "kill-running", timeout=8.0)
    assert (cell.verdict, cell.text) == ("bad", "pool dead")


def test_the_readme_shows_rows_of_the_published_table_and_its_sums() -> None:
    published = json.loads((LATEST.parent / "torture.json").read_text())["cells"]
    head, line, *rows = as_matrix([CellResult(**cell) for cell in published]).split(
        "\n"
    )
    _, _, table = (ROOT / "README.md").read_text().partition(f"{head}\n{line}\n")
    shown = table.partition("\n\n")[0].split("\n")
    assert len(shown) > 3
    assert shown[-1] == rows[-2]
    assert shown == [row for row in rows if row in shown], "in their order"
