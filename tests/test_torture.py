"""Our column of the torture table, which must be good in every cell."""

from __future__ import annotations

import pytest

from benchmarks.torture.faults import FAULTS
from benchmarks.torture.runner import run_cell

NOT_YET = {"map"}  # the table shows a dash there


@pytest.mark.nightly
@pytest.mark.parametrize("fault", sorted(set(FAULTS) - NOT_YET))
def test_our_column_is_all_good(fault: str) -> None:
    cell = run_cell("asyncpool", fault, timeout=20.0)
    assert cell.verdict == "good", f"{cell.text}: {dict(cell.seen)} {dict(cell.notes)}"


def test_the_runner_can_tell_good_from_bad() -> None:
    cell = run_cell("ProcessPoolExecutor", "kill-running", timeout=8.0)
    assert (cell.verdict, cell.text) == ("bad", "pool dead")
