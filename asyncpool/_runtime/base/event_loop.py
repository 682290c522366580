"""The event loop that a pool lives in, and the error for using the pool elsewhere.

Also a way to wait for something that goes on if the wait is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Any, TypeVar


def elsewhere(what: str) -> RuntimeError:
    """Return the error for using *what* in another event loop than its own."""
    return RuntimeError(
        f"{what} belongs to another event loop: from another thread use "
        "asyncio.run_coroutine_threadsafe() or loop.call_soon_threadsafe()"
    )


def check_home(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Check that *what* is used in its own loop, which is *loop* if it was started.

    Raises:
        RuntimeError: If another loop runs here, or if *loop* runs in another thread.
    """
    here = asyncio._get_running_loop()  # noqa: SLF001 - no exception if there is none
    # If its loop does not run now, a plain call disturbs nobody.
    if loop is not None and here is not loop and (here or loop.is_running()):
        raise elsewhere(what)


R = TypeVar("R")


async def shielded(future: asyncio.Future[R]) -> R:
    """Wait for *future* and return its result, as :func:`asyncio.shield` does.

    If the waiter has been cancelled, a later exception of the future is dropped.  From
    Python 3.14 on, :func:`asyncio.shield` would report it to the loop's exception handler.

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
        future.exception()  # marks it as retrieved


def anyio_shield() -> contextlib.AbstractContextManager[object]:
    """Return what keeps the cancelled scopes of anyio, if there are any, from ending a wait.

    Such a scope cancels the task in every turn of the loop.  The first one loads anyio's backend,
    25 modules and 30 ms: as long as that is not loaded, this task can be in none.
    """
    if "anyio._backends._asyncio" not in sys.modules:
        return contextlib.nullcontext()
    import anyio  # noqa: PLC0415 - see above

    return anyio.CancelScope(shield=True)


async def outlast(future: asyncio.Future[Any]) -> None:
    """Wait for the end of *future*, even if this task is cancelled meanwhile.

    Cancellation:
        Is raised when the future is done.
    """
    cancelled: asyncio.CancelledError | None = None
    with anyio_shield():
        while not future.done():
            try:
                await asyncio.wait((future,))
            except asyncio.CancelledError as error:
                cancelled = error  # of Task.cancel(); a scope's does not get here
    if cancelled is not None:
        raise cancelled
