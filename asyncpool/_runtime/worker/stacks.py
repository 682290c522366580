"""Ask workers for the stacks of their threads, all at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from asyncpool._core.wire.stacks import are_whole
from asyncpool._runtime.worker.handle import WorkerHandle

# Seconds that a worker's control thread has to write the stacks, before a signal makes a handler
# in C write them; and seconds that the pool then waits for that handler.
_PATIENCE = 1.0
_LOOKS = 80
_NEXT_LOOK = 0.01


class Stacks:
    """The questions for stacks that have no answer yet."""

    def __init__(self) -> None:
        self._asked: dict[WorkerHandle, asyncio.Event] = {}
        self._lock = asyncio.Lock()  # since reading a page's stacks erases them

    def written(self, handle: WorkerHandle) -> None:
        """Note that a worker has written its stacks."""
        if handle in self._asked:
            self._asked[handle].set()

    async def ask(self, handles: Iterable[WorkerHandle]) -> dict[int, str]:
        """Return the stacks of all threads of these workers, by slot.

        Cancellation:
            Safe.
        """
        alive = [handle for handle in handles if handle.pid is not None]
        async with self._lock, asyncio.TaskGroup() as group:
            asked = [
                group.create_task(
                    self._ask(handle), name=f"asyncpool stacks of slot {handle.slot}"
                )
                for handle in alive
            ]
        texts = [task.result() for task in asked]
        return {
            handle.slot: text for handle, text in zip(alive, texts, strict=True) if text
        }

    async def _ask(self, handle: WorkerHandle) -> str:
        handle.page.read_stacks()  # erases an older dump
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
        """Wait until the worker writes no more; the handler in C gives no notice."""
        before = b""
        for _ in range(_LOOKS):
            await asyncio.sleep(_NEXT_LOOK)
            written = handle.page.written_stacks
            if are_whole(written, before):
                return
            before = written
