"""The event loops that the tests run with."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import zlib
from collections.abc import Callable

import pytest

__all__ = ["BOTH_LOOPS", "LOOP_NAMES", "loop_factories", "skips", "warm_up"]

LOOP_NAMES = ("asyncio", "uvloop")

# A module's ``pytestmark``: its tests are for each loop that is installed.
BOTH_LOOPS = pytest.mark.asyncio(loop_factories=LOOP_NAMES)


def skips(item: pytest.Item) -> bool:
    """Tell whether a test is to be left to the other loop.

    Of the tests that are for each loop, half run with the one and half with the other:
    what would depend on the loop shows in one test or another.  ``ASYNCPOOL_LOOPS=other``
    runs those that are left out by default, and ``ASYNCPOOL_LOOPS=both`` runs all.
    """
    halves = {"": 0, "other": 1}
    asked = os.environ.get("ASYNCPOOL_LOOPS", "")
    marker = item.get_closest_marker("asyncio")
    if asked not in halves or marker is None or "loop_factories" not in marker.kwargs:
        return False
    if len(loop_factories()) < len(LOOP_NAMES):
        return False
    name, _, cell = item.name.partition("[")
    loop, _, case = cell.removesuffix("]").partition("-")
    turn = zlib.crc32(f"{name} {case}".encode()) + halves[asked]
    return loop in LOOP_NAMES and loop != LOOP_NAMES[turn % len(LOOP_NAMES)]


def loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Return what makes each loop that is installed."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
        "asyncio": asyncio.new_event_loop
    }
    if importlib.util.find_spec("uvloop") is not None:
        import uvloop

        factories["uvloop"] = uvloop.new_event_loop
    return factories


def warm_up() -> None:
    """Have each loop open what it keeps for the life of the process.

    For libuv that is a pipe for signals, which is no leak of the first test.
    """
    for factory in loop_factories().values():
        factory().close()
