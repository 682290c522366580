"""Call a function on many items, with enough of them in jobs to keep the pool busy."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from functools import partial

from asyncpool._core.base.names import function_name
from asyncpool._runtime.map.batch_runner import BatchRunner
from asyncpool._runtime.map.batches import Batch, Part, Task, TimeSlice
from asyncpool._runtime.map.map_backend import MapBackend
from asyncpool._runtime.map.sources import Source
from asyncpool._runtime.state.draining import MapHold


class MapRun:
    """One run of a map.

    Args:
        backend: The pool.
        task: What the map does with each item.
        source: Where the items come from.
        news: The source sets it when there is something new.
        chunksize: How many items travel as one job; ``None`` lets the pool choose.
        buffersize: How many items may be drawn and not yielded; ``None`` lets the pool choose.
        ordered: Whether batches come in the order of their items.
    """

    def __init__(
        self,
        backend: MapBackend,
        task: Task,
        source: Source,
        news: asyncio.Event,
        *,
        chunksize: int | None,
        buffersize: int | None,
        ordered: bool,
    ) -> None:
        self._backend = backend
        self._hold = MapHold(function_name(task.function))
        self._source = source
        self._news = news
        # If ordered, all batches in their order; else those that are complete, as they come.
        self._ready: deque[Batch] = deque()
        self._ordered = ordered
        self._runner = BatchRunner(
            backend,
            task,
            chunksize=chunksize,
            buffersize=buffersize,
            hold=self._hold,
            on_complete=partial(
                _take_note, None if ordered else self._ready, news, self._hold
            ),
            on_held=news.set,
        )
        self._pace = self._runner.pace
        self._open = 0  # batches that were begun and not yielded
        self._next = 0

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield the batches, each when it is complete.

        Raises:
            BaseException: What the source has raised, once all items before it are done.

        Cancellation:
            Cancels the open jobs.
        """
        source, time_slice = self._source, TimeSlice()
        try:
            self._backend.draining.hold(self._hold)
            while True:
                if time_slice.over:
                    await asyncio.sleep(0)
                    time_slice = TimeSlice()
                drew_all = self._draw(time_slice)
                if source.exhausted:
                    self._hold.drawn()
                batch = self._take()
                if batch is not None:
                    yield batch
                    self._hold.under_way -= len(batch.items)
                elif source.exhausted and not self._open:
                    break
                elif drew_all:
                    await self._wait()
            if source.error is not None:
                raise source.error
        finally:
            self._runner.stop()
            self._hold.release()
            await source.aclose()

    def _draw(self, time_slice: TimeSlice) -> bool:
        """Draw and submit items; return whether to wait now, since there is no room for more."""
        source, workers = self._source, self._backend.most_workers
        while not source.exhausted and not self._runner.full:
            size = self._pace.size(workers)
            room = self._pace.window(workers) - self._hold.under_way
            if room < size and self._hold.under_way:
                break
            items = source.draw(size, room)
            if not items:
                break
            batch = Batch(self._next, items)
            if self._ordered:
                self._ready.append(batch)
            self._open += 1
            self._hold.begin()
            self._hold.under_way += len(items)
            self._next += len(items)
            self._runner.send(Part(batch, 0, len(items)))
            if time_slice.over:
                return False
        return True

    def _take(self) -> Batch | None:
        """Return the next batch, if it is complete."""
        if not self._ready or self._ready[0].open:
            return None
        self._open -= 1
        return self._ready.popleft()

    async def _wait(self) -> None:
        if self._runner.full and not self._runner.running:
            await self._backend.admission.room()
            self._runner.send_held()
        else:
            self._news.clear()
            await self._news.wait()


# A function, since a method would refer to the run, and the run to what calls it: a cycle.
def _take_note(
    ready: deque[Batch] | None, news: asyncio.Event, hold: MapHold, batch: Batch
) -> None:
    if ready is not None:
        ready.append(batch)
    hold.done()
    news.set()
