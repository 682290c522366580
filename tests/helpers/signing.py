"""Items and jobs that each leave a line, so that it is known which were run."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

__all__ = ["Item", "numbers_in", "signing"]

# What jobs.choose() does, and with what.
Item = tuple[str, Any]


def signing(path: Path, count: int) -> list[Item]:
    """Return items that each leave a line in *path*."""
    return [("sign", (str(path), n)) for n in range(count)]


def numbers_in(path: Path) -> Counter[int]:
    """Return how often each number is in *path*."""
    return Counter(int(line) for line in path.read_text().split())
