"""Tests of asyncpool/_core/trace/nodes_trace_book.py: nodes are processes, their slots tracks."""

from __future__ import annotations

import itertools
from dataclasses import replace

from asyncpool._core.trace.nodes_trace_book import NodesTraceBook
from asyncpool.enums import JobOutcome, SlotState
from asyncpool.events import JobEnded, JobQueued, JobStarted
from asyncpool.stats import SlotStats
from tests.helpers.told_pool import NODE
from tests.helpers.traces import PROCESS, Traced, check

OTHER = replace(NODE, name="10.0.0.2", first_slot=10_000, clock_error=None)

SLOT = SlotStats(
    slot=10_001,
    generation=1,
    pid=77,
    state=SlotState.IDLE,
    seconds=0.0,
    job_id=None,
    job_ids=(),
    running=(),
    jobs=0,
    uptime=1.0,
    cpu=0.0,
    memory=0,
)


def book() -> NodesTraceBook:
    names = {node.first_slot: node.name for node in (NODE, OTHER)}
    numbers = itertools.count(1001)
    return NodesTraceBook(
        "pool shop",
        1000,
        4711,
        1,
        slots=10_000,
        next_number=lambda: next(numbers),
        name_of=names.__getitem__,
    )


def run(book: NodesTraceBook, job: int, slot: int, at: float) -> None:
    book.queued(JobQueued(job, "app.work", "submit", 0, at))
    book.started(JobStarted(job, "app.work", 1, slot, at + 1))
    book.ended(JobEnded(job, "app.work", JobOutcome.OK, 1, slot, 1.0, 2.0, at + 3))


def whole(book: NodesTraceBook) -> Traced:
    book.end(100.0)
    return check("".join(book.lines))


def test_jobs_are_on_the_tracks_of_their_nodes_and_wait_in_the_pool() -> None:
    it = book()
    it.count_nodes(0.0, (NODE, OTHER), (SLOT,))
    run(it, 1, 0, at=1.0)
    run(it, 2, 10_001, at=1.5)
    trace = whole(it)
    assert trace.processes == ["pool shop", "node 10.0.0.1", "node 10.0.0.2"]
    assert {s.args["job"]: s.track for s in trace.slices} == {
        1: PROCESS + 10_000,
        2: 2 * PROCESS + 20_000,
    }
    assert trace.names[2 * PROCESS + 20_000] == "slot 10001"
    assert {s.args["job"]: s.args["worker"] for s in trace.slices} == {1: 0, 2: 77}
    assert [(s.begin, s.end) for s in trace.slices] == [
        (2_000_000, 4_000_000),
        (2_500_000, 4_500_000),
    ]
    # The arrows lead from the queue, which is the pool's, to the node's slots.
    assert sorted(trace.waits) == [1, 2]
    assert all(len(arrows) == 1 for arrows in trace.arrows.values())
    assert len(trace.arrows) == 2


def test_the_error_of_a_clock_is_a_curve_of_its_node_once_it_is_known() -> None:
    it = book()
    for clock_error in (0.0015, 0.00151, 0.002):
        it.count_nodes(1.0, (replace(NODE, clock_error=clock_error), OTHER), ())
    trace = whole(it)
    assert trace.counters["node 10.0.0.1: error of the clock"] == [1.5, 2.0]
    assert trace.counters["node 10.0.0.1: queued jobs"] == [2]
    assert "node 10.0.0.2: error of the clock" not in trace.counters
    assert trace.counters["node 10.0.0.2: busy workers"] == [3]


def test_names_come_again_after_lines_were_lost() -> None:
    it = book()
    run(it, 1, 10_001, at=1.0)
    it.lines[1:] = []  # the disk was too slow
    it.lost(5.0, 3)
    run(it, 2, 10_001, at=10.0)
    trace = whole(it)
    assert trace.processes == ["pool shop", "node 10.0.0.2"]
    assert trace.names[PROCESS + 20_000] == "slot 10001"
