"""The trace of a pool whose workers belong to agents."""

from __future__ import annotations

import os

from asyncpool._core.remote.slot_numbers import SLOTS
from asyncpool._core.trace.nodes_trace_book import NodesTraceBook
from asyncpool._observe.trace import Trace, next_number
from asyncpool.stats import PoolStats


class NodesTrace(Trace):
    """A trace that shows nodes too; see :class:`Trace`."""

    def _make_book(self, title: str, concurrency: int) -> NodesTraceBook:
        return NodesTraceBook(
            title,
            next_number(),
            os.getpid(),
            concurrency,
            slots=SLOTS,
            next_number=next_number,
            name_of=self._name_of,
        )

    def _name_of(self, first_slot: int) -> str:
        names = {node.first_slot: node.name for node in self._stats().nodes}
        return names.get(first_slot, f"with slot {first_slot}")

    def _count(self, stats: PoolStats, now: float) -> None:
        super()._count(stats, now)
        assert isinstance(self._book, NodesTraceBook)
        self._book.count_nodes(now, stats.nodes, stats.slots)
