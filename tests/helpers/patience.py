"""How long a test waits for an event before it counts as lost."""

from __future__ import annotations

import asyncio
import os

__all__ = ["PATIENCE", "look_again", "patience"]

# Only tests that fail wait as long.  20 s were too few on two cores that four other programs use:
# what starts several interpreters took longer there.
PATIENCE = 60.0 * float(os.environ.get("ASYNCPOOL_TEST_PATIENCE", "1"))


def patience(times: int = 1) -> asyncio.Timeout:
    """Bound what is awaited inside; ``async with patience(): ...``.

    Args:
        times: How often as long, for what takes seconds on a quiet machine.
    """
    return asyncio.timeout(times * PATIENCE)


async def look_again() -> None:
    """Pause while waiting for what nobody tells of: who looked all the time would take a core."""
    loop = asyncio.get_running_loop()
    soon = loop.create_future()
    loop.call_later(0.002, soon.set_result, None)
    await soon
