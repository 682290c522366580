"""What type checkers do not see of the files that are made for them.

They see whether a line that must be rejected is (``make types``): a mark that hides no
error is one.  But a line that has the mark of one of them may be valid for the other.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parent / "typing").glob("*.py"))

ANY_MARK = re.compile(r"#\s*(type|pyright):")
BOTH_MARKS = re.compile(
    r"  # type: ignore\[[a-z, -]+\]  # pyright: ignore\[[a-zA-Z, ]+\]$"
)


def marked(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if ANY_MARK.search(line)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.stem))
def test_what_is_rejected_is_rejected_by_both_checkers(path: Path) -> None:
    assert [line for line in marked(path) if not BOTH_MARKS.search(line)] == []
