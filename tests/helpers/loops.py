"""The event loops that the tests run with."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import zlib
from collections.abc import Callable

import pytest

__all__ = ["BOTH_LOOPS", "IN_TURNS", "LOOP_NAMES", "loop_factories", "skips", "warm_up"]

LOOP_NAMES = ("asyncio", "uvloop")

# A module's ``pytestmark``: each of its tests runs with each loop, and is skipped
# where that is not installed.
BOTH_LOOPS = pytest.mark.asyncio(loop_factories=LOOP_NAMES)

# The same for large tables of faults: half of a table with the one loop and half with the
# other, unless all is wanted; see :func:`skips`.
IN_TURNS = [BOTH_LOOPS, pytest.mark.in_turns]


def skips(item: pytest.Item) -> bool:
    """Tell whether a test is to be left to the other loop.

    ``ASYNCPOOL_ALL_LOOPS=1`` has every test run with every loop, as ``make test-all`` does.
    """
    if os.environ.get("ASYNCPOOL_ALL_LOOPS") or len(loop_factories()) < len(LOOP_NAMES):
        return False
    name, _, cell = item.name.partition("[")
    loop, _, case = cell.partition("-")
    if not case or item.get_closest_marker("in_turns") is None:
        return False
    return loop != LOOP_NAMES[zlib.crc32(f"{name} {case}".encode()) % len(LOOP_NAMES)]


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
