"""Count what a Python file is made of, for ``asyncpool map``; the README shows how."""

import ast
import warnings
from pathlib import Path


def nodes(path: str) -> int:
    """Return how many nodes the syntax tree of a file has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the compiler thinks of old code
        return sum(1 for _ in ast.walk(ast.parse(Path(path).read_bytes())))
