"""The event loops that the tests run with."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable

import pytest

__all__ = ["BOTH_LOOPS", "LOOP_NAMES", "loop_factories", "warm_up"]

LOOP_NAMES = ("asyncio", "uvloop")

# A module's ``pytestmark``: each of its tests runs with each loop, and is skipped
# where that is not installed.
BOTH_LOOPS = pytest.mark.asyncio(loop_factories=LOOP_NAMES)


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
