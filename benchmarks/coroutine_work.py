"""The jobs that are coroutines, apart from the others, which do not need asyncio."""

import asyncio


async def doze() -> None:
    """Let go of the loop for one turn."""
    await asyncio.sleep(0)
