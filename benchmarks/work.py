"""The jobs: light to import, since every worker of every peer imports them."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def noop() -> None:
    """Cost nothing, so that the whole time is the pool's."""


def nap(seconds: float) -> int:
    """Hold a worker without using a core, and tell which worker it was."""
    time.sleep(seconds)
    return os.getpid()


def hold(file: str, seconds: float) -> None:
    """Write into *file* which worker this is, then hold it."""
    Path(file).write_text(f"{os.getpid()}\n", "ascii")
    time.sleep(seconds)


def echo(value: T) -> T:
    return value


async def as_coroutine(fn: Callable[..., T], *args: object) -> T:
    """Run *fn* in a peer that takes nothing but coroutine functions."""
    return fn(*args)
