"""The trace of one cluster: from its events and figures to the lines of a file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any

from asyncpool._core.trace.cluster_trace_book import ClusterTraceBook, Counted
from asyncpool._observe.trace import LiveTrace, TraceFile, next_number
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import RollResult


@dataclass(frozen=True, slots=True)
class Look:
    """What a trace sees of a cluster at one moment.

    Attributes:
        figures: The figures that it shows.
        draining: For how many seconds the workers have been draining that do, by slot.
    """

    figures: Counted
    draining: dict[int, float]


class ClusterTrace(LiveTrace):
    """Hears the events of a cluster, and writes its trace.

    Args:
        path: The file.
        name: What the cluster is called.
        hub: What tells the events.
        look: Returns what there is to see now.

    Raises:
        OSError: If the file cannot be written.
    """

    def __init__(
        self, path: str, *, name: str, hub: PoolHub, look: Callable[[], Look]
    ) -> None:
        title = f"cluster {name}"
        file = TraceFile(path, title)
        self._book = ClusterTraceBook(title, next_number(), os.getpid())
        self._see = look
        super().__init__(file, self._book, hub)

    def note(self, event: Any) -> None:
        """Have the book note an event."""
        self._book.happened(event, monotonic())

    def count(self) -> None:
        """Have the book note the figures, and who drains."""
        seen, now = self._see(), monotonic()
        for slot, seconds in seen.draining.items():
            self._book.drains(slot, now - seconds)
        self._book.count(now, seen.figures)

    def follow(self, reload: asyncio.Future[RollResult]) -> None:
        """Have the book note a reload, from now to its end."""
        self._book.begin_reload(monotonic())
        reload.add_done_callback(self._on_reloaded)

    def _on_reloaded(self, reload: asyncio.Future[RollResult]) -> None:
        if reload.cancelled() or reload.exception() is not None:
            self._book.end_reload(monotonic(), 0, "the cluster has ended")
        else:
            result = reload.result()
            self._book.end_reload(monotonic(), result.replaced, result.reason)
