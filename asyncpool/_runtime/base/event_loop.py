"""The event loop that a pool lives in: whoever acts on it elsewhere is refused.

Wait for what goes on if its waiter is cancelled.
"""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar


def elsewhere(what: str) -> RuntimeError:
    """Return the error for *what* is used in another event loop than its own."""
    return RuntimeError(
        f"{what} belongs to another event loop: from another thread use "
        "asyncio.run_coroutine_threadsafe() or loop.call_soon_threadsafe()"
    )


def check_home(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Check that *what*, which belongs to *loop* if it was started, is used there.

    Raises:
        RuntimeError: If another loop runs here, or *loop* does so in another thread.
    """
    here = asyncio._get_running_loop()  # noqa: SLF001 - no exception if there is none
    # Between two runs of its loop there is nobody whom a plain call could disturb.
    if loop is not None and here is not loop and (here or loop.is_running()):
        raise elsewhere(what)


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
