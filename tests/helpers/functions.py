"""Functions as a pool knows them, for tests that have none."""

from __future__ import annotations

from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import Function


def known_function(
    name: str = "", *, number: int = 0, payload: bytes = b""
) -> Function:
    """Return a function of which nothing is counted yet."""
    return Function(number, payload, name, FunctionTotals().of(name, "submit"))
