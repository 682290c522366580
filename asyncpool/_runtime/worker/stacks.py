"""Have workers say where they are, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncpool._runtime.worker.handle import WorkerHandle

# Seconds that a worker's own thread has to write them down, before a signal makes it; and
# that it is looked at after that.
_PATIENCE = 1.0
_LOOKS = 20
_NEXT_LOOK = 0.01


class Stacks:
    """The questions where workers are that have no answer yet."""

    def __init__(self) -> None:
        self._asked: dict[WorkerHandle, asyncio.Event] = {}
        self._lock = asyncio.Lock()  # who asks reads them, and they are gone then

    def written(self, handle: WorkerHandle) -> None:
        """Take note that a worker has said where it is."""
        if handle in self._asked:
            self._asked[handle].set()

    async def ask(self, handles: Iterable[WorkerHandle]) -> dict[int, str]:
        """Return the stacks of all threads of these workers, by slot.

        Cancellation:
            Safe.
        """
        alive = [handle for handle in handles if handle.pid is not None]
        async with self._lock:
            texts = await asyncio.gather(*map(self._ask, alive))
        return {
            handle.slot: text for handle, text in zip(alive, texts, strict=True) if text
        }

    async def _ask(self, handle: WorkerHandle) -> str:
        handle.page.read_stacks()  # whatever was written before
        answered = self._asked[handle] = asyncio.Event()
        handle.requests.ask_for_stacks()
        try:
            async with asyncio.timeout(_PATIENCE):
                await answered.wait()
        except TimeoutError:
            handle.demand_stacks()
            await self._watch(handle)
        finally:
            del self._asked[handle]
        return handle.page.read_stacks()

    async def _watch(self, handle: WorkerHandle) -> None:
        """Wait until it writes no more; a signal handler in C tells nobody."""
        seen = 0
        for _ in range(_LOOKS):
            await asyncio.sleep(_NEXT_LOOK)
            size = handle.page.stacks_size
            if size == seen > 0:
                return
            seen = size
