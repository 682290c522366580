"""The event loop that a pool lives in: whoever acts on it elsewhere is refused."""

from __future__ import annotations

import asyncio


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
