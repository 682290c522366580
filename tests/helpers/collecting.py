"""Tests without the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

__all__ = ["no_collector"]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Whatever goes goes at once, or stays."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
