"""The jobs: light to import, since every worker of every peer imports them."""

from __future__ import annotations

import os
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    T = TypeVar("T")


def same(number: int) -> int:
    """Return *number*."""
    return number


def noop() -> None:
    """Cost nothing, so that the whole time is the pool's."""


def nap(seconds: float) -> int:
    """Hold a worker without using a core, and tell which worker it was."""
    time.sleep(seconds)
    return os.getpid()


def snooze(seconds: float) -> int:
    """Do what nap() does; nobody knows of this one how long it takes."""
    return nap(seconds)


def hold(file: str, seconds: float) -> None:
    """Write into *file* which worker this is, then hold it."""
    with open(file, "w", encoding="ascii") as out:  # noqa: PTH123 - pathlib is heavy
        out.write(f"{os.getpid()}\n")
    time.sleep(seconds)


def spin(seconds: float) -> None:
    """Compute, and nothing else, until that much of a core's time is used."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def hog(digits: int) -> None:
    """Spend years in one C call that never lets go of the GIL."""
    pow(3, digits)


def count_spins(seconds: float, whole: float) -> int:
    """Call ``spin(seconds)`` for *whole* seconds, and count the calls."""
    until, calls = time.perf_counter() + whole, 0
    while time.perf_counter() < until:
        spin(seconds)
        calls += 1
    return calls


def echo(value: T) -> T:
    return value


def record(number: int) -> dict[str, object]:
    """Make what a small result mostly is."""
    return {"number": number, "text": str(number), "list": [number, number]}


def item(size: int) -> object:
    """Make an array of so many bytes; of none, a number."""
    if not size:
        return 0
    import numpy as np

    return np.zeros(size, dtype=np.uint8)


def items(count: int, size: int) -> Iterator[object]:
    for _ in range(count):
        yield item(size)


async def as_coroutine(fn: Callable[..., T], *args: object) -> T:
    """Run *fn* in a peer that takes nothing but coroutine functions."""
    return fn(*args)
