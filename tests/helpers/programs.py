"""Programs of others that some tests drive: a Redis server, Prometheus, nginx, Chromium."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

__all__ = ["find_program", "find_programs"]

# Where ``make test`` has them unpacked, if the machine lacks them.
_FOLDERS = [
    str(Path(__file__).parents[2] / folder / "bin")
    for folder in (".redis", ".prometheus", ".nginx", ".chromium")
]


def find_program(name: str) -> str:
    """Return the path of a program; skip the test if there is none."""
    return find_programs(name)[0]


def find_programs(*names: str) -> list[str]:
    """Return the paths of programs that belong together; skip the test if one is missing."""
    for place in (None, *_FOLDERS):
        found = [shutil.which(name, path=place) for name in names]
        if all(found):
            return [path for path in found if path]
    pytest.skip(f"there is no {' with '.join(names)} here: .ci/programs has it")
