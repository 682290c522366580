"""The event loops that the tests run with."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import zlib
from collections.abc import Callable

import pytest

__all__ = [
    "BOTH_LOOPS",
    "EACH_LOOP",
    "LOOP_NAMES",
    "loop_factories",
    "skips",
    "warm_up",
]

LOOP_NAMES = ("asyncio", "uvloop")

# A module's ``pytestmark``: its tests are for each loop that is installed.
BOTH_LOOPS = pytest.mark.asyncio(loop_factories=LOOP_NAMES)

# As parameters of tests or fixtures: their tests are for each loop, of workers or of programs.
EACH_LOOP = [
    pytest.param(name, marks=pytest.mark.each_loop(name), id=name)
    for name in LOOP_NAMES
]


def skips(item: pytest.Item) -> bool:
    """Tell whether a test is to be left to the other loop.

    Of the tests that are for each loop, half run with the one and half with the other:
    what would depend on the loop shows in one test or another.  So it is with the loops of workers,
    and a test that is for each of both runs once.  ``ASYNCPOOL_LOOPS=other``
    runs with the other loops, and ``ASYNCPOOL_LOOPS=both`` runs all.
    """
    halves = {"": 0, "other": 1}
    asked = os.environ.get("ASYNCPOOL_LOOPS", "")
    if asked not in halves or len(loop_factories()) < len(LOOP_NAMES):
        return False
    name, _, cell = item.name.partition("[")
    parts = cell.removesuffix("]").split("-")
    loops = _loops_of(item, parts)
    for loop in loops:
        parts.remove(loop)
    turn = zlib.crc32(f"{name} {'-'.join(parts)}".encode())
    return any(
        loop != LOOP_NAMES[((turn >> bit) + halves[asked]) % len(LOOP_NAMES)]
        for bit, loop in enumerate(loops)
    )


def _loops_of(item: pytest.Item, parts: list[str]) -> list[str]:
    """Return the loops that a test is for, if it is for each, from its parameters."""
    found = []
    both = item.get_closest_marker("asyncio")
    if both and "loop_factories" in both.kwargs and parts[0] in LOOP_NAMES:
        found.append(parts[0])
    each = item.get_closest_marker("each_loop")
    return found if each is None else [*found, str(each.args[0])]


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
