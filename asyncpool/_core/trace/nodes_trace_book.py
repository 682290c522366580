"""Which lines of a trace the jobs of a pool with several nodes become.

Each node is a process of the trace, whose tracks are its slots, and the queue is in the process
of the pool.  All times are those of the client's clock.  By how much those of a node may be
wrong is a curve of that node, "error of the clock".
"""

from __future__ import annotations

from collections.abc import Callable

from asyncpool._core.trace.trace_book import TraceBook
from asyncpool._core.trace.trace_lines import LineMaker, track_of

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

    from asyncpool.stats import NodeStats, SlotStats


class NodesTraceBook(TraceBook):
    """The book of a pool with nodes; see :class:`TraceBook`.

    Args:
        name: What the pool is called.
        number: What the trace calls it.
        service: The process id of the service.
        concurrency: How many jobs each worker runs at once.
        slots: How far apart the first slots of two nodes are.
        next_number: Returns what the trace calls the next node.
        name_of: Returns the name of a node, by its first slot.
    """

    def __init__(
        self,
        name: str,
        number: int,
        service: int,
        concurrency: int,
        *,
        slots: int,
        next_number: Callable[[], int],
        name_of: Callable[[int], str],
    ) -> None:
        super().__init__(name, number, service, concurrency)
        self._number = number
        self._slots = slots
        self._next_number = next_number
        self._name_of = name_of
        # By their first slots: what makes their lines, and what they are called.
        self._nodes: dict[int, tuple[LineMaker, str]] = {}

    def count_nodes(
        self, now: float, nodes: Iterable[NodeStats], slots: Iterable[SlotStats]
    ) -> None:
        """Write those figures of nodes that have changed, and note the workers in their slots."""
        for slot in slots:
            if slot.pid is not None:
                self._pids[slot.slot] = slot.pid
        for node in nodes:
            make = self._make_of(node.first_slot)
            figures: list[tuple[str, str, float]] = [
                ("queued jobs", "jobs", node.queued),
                ("busy workers", "workers", node.busy),
                ("memory of the workers", "MB", round(node.memory / 1e6, 1)),
            ]
            if node.clock_error is not None:
                error = round(node.clock_error * 1e3, 1)
                figures.append(("error of the clock", "ms", error))
            for figure in figures:
                self._count(make, now, *figure)

    def lost(self, now: float, lines: int) -> None:
        """Write that so many lines are missing, since the disk was too slow for them."""
        super().lost(now, lines)
        for make, name in self._nodes.values():
            self.lines.append(make.process(name))

    def _at(self, slot: int, lane: int) -> tuple[LineMaker, int]:
        place = slot % self._slots
        return self._make_of(slot - place), track_of(place, lane)

    def _make_of(self, first_slot: int) -> LineMaker:
        found = self._nodes.get(first_slot)
        if found is None:
            make = LineMaker(self._next_number(), self._number)
            found = make, f"node {self._name_of(first_slot)}"
            self._nodes[first_slot] = found
            self.lines.append(make.process(found[1]))
        return found[0]
