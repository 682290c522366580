"""The metrics of a pool: their names and units, and where their figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from asyncpool import __version__
from asyncpool._observe.readings import (
    Reading,
    longest_running,
    memory_by_slot,
    running,
    workers_by_state,
)
from asyncpool.enums import CrashKind, JobOutcome, RunState
from asyncpool.stats import PoolStats

Attributes = Mapping[str, str | int]
Figures = Iterable[tuple[Attributes, float]]

# What says who has made a metric or a span.
SCOPE = ("asyncpool", __version__)

POOL = "asyncpool.pool.name"
FUNCTION = "code.function.name"
VIA = "asyncpool.job.via"
OUTCOME = "asyncpool.job.outcome"
ERROR = "error.type"
SLOT = "asyncpool.worker.slot"

_NONE: Attributes = {}


@dataclass(frozen=True, slots=True)
class Instrument:
    """A metric that is read when it is collected.

    Attributes:
        kind: A counter only grows; sums of an up-down counter over attributes make sense,
            and those of a gauge do not.
        name: Its name.
        unit: Its unit, in UCUM.
        meaning: Its description.
        read: Returns the figure for each combination of attributes besides the pool's name.
    """

    kind: Literal["counter", "up_down_counter", "gauge"]
    name: str
    unit: str
    meaning: str
    read: Callable[[Reading[PoolStats]], Figures]


def _plain(
    kind: Literal["counter", "up_down_counter", "gauge"],
    name: str,
    unit: str,
    meaning: str,
    read: Callable[[PoolStats], float],
) -> Instrument:
    return Instrument(kind, name, unit, meaning, lambda at: [(_NONE, read(at.stats))])


def _ended(reading: Reading[PoolStats]) -> Figures:
    for each in reading.stats.functions:
        for outcome, count in each.jobs.items():
            # Of 200 functions all outcomes would be more series than an SDK keeps (2000).
            if count or outcome is JobOutcome.OK:
                about = {FUNCTION: each.function, VIA: each.via, OUTCOME: str(outcome)}
                yield about, count


def _items(reading: Reading[PoolStats]) -> Figures:
    for each in reading.stats.functions:
        if each.via == "map":
            yield {FUNCTION: each.function}, each.items


INSTRUMENTS = (
    Instrument(
        "up_down_counter",
        "asyncpool.pool.state",
        "1",
        "Where the pool is in its life: 1 for its state, 0 for the others.",
        lambda at: [
            ({"asyncpool.pool.state": str(state)}, int(at.stats.state is state))
            for state in RunState
        ],
    ),
    _plain(
        "counter",
        "asyncpool.job.submitted",
        "{job}",
        "Jobs that the pool has accepted.",
        lambda at: at.submitted,
    ),
    _plain(
        "counter",
        "asyncpool.job.refused",
        "{job}",
        "Calls that the pool did not take: it was full, broken or closed.",
        lambda at: at.refused,
    ),
    Instrument(
        "counter",
        "asyncpool.job.ended",
        "{job}",
        "Jobs that have ended, by function, by how it was called, and by outcome.",
        _ended,
    ),
    Instrument(
        "counter",
        "asyncpool.job.items",
        "{item}",
        "Items of maps that have an outcome and travelled with others as one job.",
        _items,
    ),
    _plain(
        "counter",
        "asyncpool.job.timeouts",
        "{job}",
        "Jobs whose timeout, queue_timeout or deadline was over.",
        lambda at: at.timeouts,
    ),
    _plain(
        "counter",
        "asyncpool.job.retries",
        "{attempt}",
        "Attempts after one that raised.",
        lambda at: at.retries,
    ),
    _plain(
        "counter",
        "asyncpool.job.takeovers",
        "{job}",
        "Jobs that went back to the queue because their worker died.",
        lambda at: at.takeovers,
    ),
    _plain(
        "up_down_counter",
        "asyncpool.job.active",
        "{job}",
        "Jobs that workers run now.",
        running,
    ),
    _plain(
        "gauge",
        "asyncpool.job.active.age",
        "s",
        "How long the job has been running that began first; 0 if none runs.",
        longest_running,
    ),
    _plain(
        "up_down_counter",
        "asyncpool.job.queue.length",
        "{job}",
        "Jobs that wait for a worker.",
        lambda at: at.queued,
    ),
    _plain(
        "gauge",
        "asyncpool.job.queue.age",
        "s",
        "How long the oldest job in the queue has waited; 0 if there is none.",
        lambda at: at.oldest_queued,
    ),
    _plain(
        "up_down_counter",
        "asyncpool.worker.wanted",
        "{worker}",
        "How many workers the pool should have.",
        lambda at: at.workers,
    ),
    Instrument(
        "up_down_counter",
        "asyncpool.worker.count",
        "{worker}",
        "Workers by state; a slot that is vacant or parked lacks its worker.",
        lambda at: [
            ({"asyncpool.worker.state": str(state)}, count)
            for state, count in workers_by_state(at.stats)
        ],
    ),
    _plain(
        "counter",
        "asyncpool.worker.starts",
        "{worker}",
        "Processes that were started.",
        lambda at: at.spawned,
    ),
    _plain(
        "counter",
        "asyncpool.worker.restarts",
        "{worker}",
        "Processes that were started to replace another one.",
        lambda at: at.restarts,
    ),
    Instrument(
        "counter",
        "asyncpool.worker.crashes",
        "{crash}",
        "Unplanned deaths of workers, failed starts included, by kind.",
        lambda at: [
            ({ERROR: str(kind)}, at.stats.crash_kinds.get(kind, 0))
            for kind in CrashKind
        ],
    ),
    Instrument(
        "counter",
        "asyncpool.worker.cpu.time",
        "s",
        "CPU time of all workers of the pool, also of those that have ended.",
        lambda at: [(_NONE, at.cpu)],
    ),
    Instrument(
        "up_down_counter",
        "process.memory.usage",
        "By",
        "Memory that the worker of a slot has to itself.",
        lambda at: [({SLOT: slot}, size) for slot, size in memory_by_slot(at.stats)],
    ),
    _plain(
        "up_down_counter",
        "asyncpool.shared_memory.usage",
        "By",
        "Memory that the pool shares with its workers, for large arguments and results.",
        lambda at: at.shared_memory,
    ),
    _plain(
        "counter",
        "asyncpool.event.dropped",
        "{event}",
        "Events that slow listeners of the pool have missed.",
        lambda at: at.dropped_events,
    ),
    _plain(
        "counter",
        "asyncpool.node.lost",
        "{node}",
        "Agents of the pool that were lost, or could not be used.",
        lambda at: at.lost_nodes,
    ),
    _plain(
        "counter",
        "asyncpool.client.lost",
        "{client}",
        "Clients of a shared pool that were gone, or not heard, while they had jobs.",
        lambda at: at.lost_clients,
    ),
    _plain(
        "counter",
        "asyncpool.client.refused",
        "{client}",
        "Clients of a shared pool that did not come in, or were cut off.",
        lambda at: at.refused_clients,
    ),
)
