"""The thread that commits items to the journal, and writes the files."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Sequence

from asyncpool._cli.journal.journal import Done, Journal
from asyncpool._cli.map.outputs import Outputs

_SYNC_EVERY = 1.0  # s; what the files hold beyond that is written again after a crash


class Writer:
    """Commits first, then writes: what a file has, the journal has already.

    Args:
        journal: The journal, if there is one.
        outputs: The files.
        on_written: Called in the loop with how many items were written, and the length of
            their lines.
        on_trouble: Called in the loop with the error that ended the thread.
    """

    def __init__(
        self,
        journal: Journal | None,
        outputs: Outputs,
        on_written: Callable[[int, int], None],
        on_trouble: Callable[[Exception], None],
    ) -> None:
        self._journal = journal
        self._outputs = outputs
        self._on_written = on_written
        self._on_trouble = on_trouble
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[tuple[Sequence[Done], Sequence[Done]] | None]
        self._queue = queue.SimpleQueue()
        self._sync_at = time.monotonic() + _SYNC_EVERY
        self._ended = asyncio.Event()
        # A daemon, since nothing ends a write to a pipe that nobody reads.
        self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
        self._thread.start()

    def put(self, fresh: Sequence[Done], replayed: Sequence[Done] = ()) -> None:
        """Have these written: *fresh* into the journal too, which has the others."""
        self._queue.put((fresh, replayed))

    async def close(self) -> None:
        """Return when everything is written, or the thread has failed."""
        self._queue.put(None)
        await self._ended.wait()
        self._thread.join()

    def _run(self) -> None:
        try:
            while self._write_some():
                pass
            if self._journal is not None:
                self._journal.add((), self._outputs.sync())
        except Exception as error:  # noqa: BLE001 - the loop has to hear of it
            self._loop.call_soon_threadsafe(self._on_trouble, error)
        self._loop.call_soon_threadsafe(self._ended.set)

    def _write_some(self) -> bool:
        """Write what there is; tell whether more will come."""
        fresh: list[Done] = []
        replayed: list[Done] = []
        more = self._queue.get()
        while more is not None:
            fresh += more[0]
            replayed += more[1]
            if self._queue.empty():
                break
            more = self._queue.get()
        if not fresh and not replayed:
            return False  # the end came alone, and says nothing of any batch
        batch = None
        if self._journal is not None and fresh:
            batch = self._commit(self._journal, fresh)
        ready = self._outputs.write(fresh + replayed, batch)
        size = sum(len(done.line) for done in ready)
        self._loop.call_soon_threadsafe(self._on_written, len(ready), size)
        return more is not None

    def _commit(self, journal: Journal, fresh: list[Done]) -> int:
        position = None
        if time.monotonic() >= self._sync_at:
            position = self._outputs.sync()
            self._sync_at = time.monotonic() + _SYNC_EVERY
        return journal.add(fresh, position)
