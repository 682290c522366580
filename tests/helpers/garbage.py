"""What jobs leave behind in their worker: alive, or for the collector to find."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
import weakref
from collections.abc import AsyncIterator, Iterator
from types import FrameType
from typing import Any, NoReturn

from tests.helpers import jobs

_watched: list[weakref.ref[Any]] = []


async def _raise() -> NoReturn:
    raise LookupError


def _is_called_by_a_frame() -> bool:
    """Tell whether the frame of a coroutine that has raised keeps the one that called it.

    It does on Python 3.12 and the first releases of 3.13 (gh-100964).  It then keeps the event
    loop's, which has the error: only the collector finds that cycle.
    """
    coroutine, frames = _raise(), list[FrameType]()
    try:
        coroutine.send(None)
    except LookupError as error:
        frames += (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return frames[-1].f_back is not None


_FOUND_LATER = _is_called_by_a_frame()


class Thing:
    """An object that there may be weak references to."""


def watch(*things: object) -> None:
    _watched.extend(map(weakref.ref, things))


def stop_collector() -> int:
    """Leave it to reference counts what is gone; return what there was before."""
    found = gc.collect()
    gc.disable()
    _watched.clear()
    return found


def count() -> tuple[int, int]:
    """Return how many things were watched, and how many are still there."""
    if _FOUND_LATER:
        gc.collect()
    return len(_watched), sum(ref() is not None for ref in _watched)


def collect() -> int:
    return gc.collect()


def largest_in_hand() -> int:
    """Return how many bytes the worker has of other jobs, while this one runs."""
    frame, found = sys._getframe(), [0]
    while frame.f_code.co_name != "serve":
        assert frame.f_back is not None
        frame = frame.f_back
        found += [
            len(value) for value in frame.f_locals.values() if type(value) is bytes
        ]
    return max(found)


# Jobs, each with a thing of its own besides its argument.


def give(thing: Thing) -> Thing:
    local, result = Thing(), Thing()
    watch(thing, local, result)
    return result


def fail(thing: Thing) -> None:
    local = Thing()
    watch(thing, local)
    try:
        _fail(local)
    except KeyError as error:
        raise LookupError(thing) from error


def _fail(thing: Thing) -> NoReturn:
    raise KeyError(thing)


def wait(thing: Thing, gate: str) -> None:
    local = Thing()
    watch(thing, local)
    jobs.wait_at(gate, "waiting")


def lock(thing: Thing) -> Any:
    watch(thing)
    return [thing, iter([thing]), lambda: thing]


async def give_later(thing: Thing) -> Thing:
    await asyncio.sleep(0)
    return give(thing)


async def fail_later(thing: Thing) -> None:
    await asyncio.sleep(0)
    fail(thing)


async def wait_later(thing: Thing, gate: str) -> None:
    local = Thing()
    watch(thing, local)
    with jobs.arrive(gate, "waiting") as sock:
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_recv(sock, 100)


def count_up(thing: Thing, most: int) -> Iterator[Thing]:
    local = Thing()
    watch(thing, local)
    for _ in range(most):
        item = Thing()
        watch(item)
        yield item


async def count_up_later(thing: Thing, most: int) -> AsyncIterator[Thing]:
    for item in count_up(thing, most):
        await asyncio.sleep(0)
        yield item


def fail_for_odd(thing: tuple[int, Thing]) -> Thing:
    number, argument = thing
    watch(argument)
    if number % 2:
        raise LookupError(argument)
    return give(argument)
