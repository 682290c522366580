"""Wait for what goes on if its waiter is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

R = TypeVar("R")


async def shielded(future: asyncio.Future[R]) -> R:
    """Return what comes of *future*, as :func:`asyncio.shield` has it.

    What it raises when its waiter has gone is nobody's.  From Python 3.14 on
    :func:`asyncio.shield` tells the loop's exception handler of it.

    Cancellation:
        Safe: the future goes on.
    """
    if not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            future.add_done_callback(_ignore)
            raise
    return future.result()


def _ignore(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()  # heard
