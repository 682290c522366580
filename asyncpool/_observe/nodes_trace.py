"""The trace of a pool whose workers belong to agents."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from time import monotonic

from asyncpool._core.remote.slot_numbers import SLOTS
from asyncpool._core.trace.nodes_trace_book import NodesTraceBook
from asyncpool._observe.live_trace import next_number
from asyncpool._observe.trace import Trace
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.stats import PoolStats


class NodesTrace(Trace):
    """A trace that shows nodes too; see :class:`Trace`."""

    def __init__(
        self,
        path: str,
        *,
        name: str,
        concurrency: int,
        hub: PoolHub,
        stats: Callable[[], PoolStats],
        most: int | None,
    ) -> None:
        super().__init__(
            path,
            name=name,
            concurrency=concurrency,
            hub=hub,
            stats=stats,
            most=most,
            book=partial(
                NodesTraceBook,
                slots=SLOTS,
                next_number=next_number,
                name_of=self._name_of,
            ),
        )

    def _name_of(self, first_slot: int) -> str:
        names = {node.first_slot: node.name for node in self._stats().nodes}
        return names.get(first_slot, f"with slot {first_slot}")

    def count(self) -> None:
        """Have the book note the figures, those of nodes too."""
        super().count()
        assert isinstance(self._book, NodesTraceBook)
        stats = self._stats()
        self._book.count_nodes(monotonic(), stats.nodes, stats.slots)
