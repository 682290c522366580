"""Which files the census covers."""

import random
import sysconfig
from dataclasses import dataclass
from pathlib import Path

FOREIGN = {"site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Library:
    """Python files, as sorted *paths* below a directory *root*."""

    root: str
    paths: tuple[str, ...]


def standard_library(limit: int | None, seed: int) -> Library:
    """Return the library of this Python, or *limit* files of it drawn at random."""
    root = sysconfig.get_path("stdlib")
    paths = sorted(
        str(path.relative_to(root))
        for path in Path(root).rglob("*.py")
        if path.is_file() and FOREIGN.isdisjoint(path.relative_to(root).parts)
    )
    if limit is not None and limit < len(paths):
        paths = sorted(random.Random(seed).sample(paths, limit))
    return Library(root, tuple(paths))
