"""Jobs whose lease lasts a second, on a machine that may hold this process up for longer.

The keeper then gives the lease up, as it must, and the job is over.  Who waits for a beat, or
for the job to begin, would wait for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

from tests.helpers.gate import Gate, Visitor

T = TypeVar("T")


async def unless_over(
    job: asyncio.Future[Any], step: Coroutine[Any, Any, T]
) -> T | None:
    """Return what *step* returns, or None if *job* is over before that."""
    waiting = asyncio.create_task(step)
    await asyncio.wait({job, waiting}, return_when=asyncio.FIRST_COMPLETED)
    if waiting.done():
        return waiting.result()
    waiting.cancel()
    await asyncio.wait({waiting})  # it may hold what the next step needs
    return None


async def begun(
    gate: Gate, submit: Callable[[str], asyncio.Future[Any]]
) -> tuple[asyncio.Future[Any], Visitor]:
    """Submit jobs that say a word at *gate*, until one is there before its lease lapses."""
    words = map(str, count())
    while True:
        word = next(words)
        job = submit(word)
        worker = await unless_over(job, gate.visitor(word))
        if worker is not None:
            return job, worker
