"""Programs of others that some tests drive: a Redis server, Prometheus, Chromium."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

__all__ = ["find_program"]

# Where ``make test`` has them unpacked, if the machine lacks them.
_FOLDERS = [
    str(Path(__file__).parents[2] / folder / "bin")
    for folder in (".redis", ".prometheus", ".chromium")
]


def find_program(name: str) -> str:
    """Return the path of a program; skip the test if there is none."""
    found = shutil.which(name) or shutil.which(name, path=os.pathsep.join(_FOLDERS))
    if found is None:
        pytest.skip(f"there is no {name} here: .ci/programs has it")
    return found
