"""The metrics of a pool, for Prometheus and OpenTelemetry: names, units, and where the figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from asyncpool._core.slots import CAUSES
from asyncpool._observe.readings import Reading
from asyncpool.enums import CrashKind, RunState, SlotState
from asyncpool.stats import FunctionStats, Histogram, PoolStats

Kind = Literal["counter", "gauge", "up_down_counter", "histogram"]
Values = tuple[str | int, ...]
Figures = Iterable[tuple[Values, float | Histogram]]

# In these states a slot has no worker, and needs none.
_UNUSED = frozenset((SlotState.UNUSED, SlotState.REMOVED))

_STATE = {"state": "asyncpool.pool.state"}
_FUNCTION = {"function": "code.function.name"}
_CALL = {**_FUNCTION, "via": "asyncpool.job.via"}


@dataclass(frozen=True, slots=True)
class PoolMetric:
    """One metric.

    Attributes:
        kind: A counter only grows; sums of an up-down counter over attributes make sense,
            and those of a gauge do not.
        names: For Prometheus, without its prefix, and for OpenTelemetry, which lacks some.
        unit: Its unit for OpenTelemetry, in UCUM.
        meaning: Its description.
        labels: The labels besides the pool's name, and what they are called in OpenTelemetry.
        read: Returns the figure for each combination of values of the labels.
    """

    kind: Kind
    names: tuple[str, str]
    unit: str
    meaning: str
    labels: Mapping[str, str]
    read: Callable[[Reading[PoolStats]], Figures]


def _one(
    kind: Kind,
    names: tuple[str, str],
    unit: str,
    meaning: str,
    read: Callable[[PoolStats], float | Histogram],
) -> PoolMetric:
    return PoolMetric(kind, names, unit, meaning, {}, lambda at: [((), read(at.stats))])


def _by_call(
    name: str, meaning: str, read: Callable[[FunctionStats], Histogram]
) -> PoolMetric:
    return PoolMetric(
        "histogram",
        (name, ""),
        "s",
        meaning,
        _CALL,
        lambda at: [((it.function, it.via), read(it)) for it in at.stats.functions],
    )


def _workers(reading: Reading[PoolStats]) -> Figures:
    states = [slot.state for slot in reading.stats.slots]
    return [((it,), states.count(it)) for it in SlotState if it not in _UNUSED]


def _longest_running(stats: PoolStats) -> float:
    seconds = (job.seconds for slot in stats.slots for job in slot.running)
    return max(seconds, default=0.0)


POOL_METRICS = (
    PoolMetric(
        "up_down_counter",
        ("pool_state", "asyncpool.pool.state"),
        "1",
        "Where the pool is in its life: 1 for its state, 0 for the others.",
        _STATE,
        lambda at: [((it,), int(at.stats.state is it)) for it in RunState],
    ),
    _one(
        "counter",
        ("jobs_submitted", "asyncpool.job.submitted"),
        "{job}",
        "Jobs that the pool has accepted.",
        lambda at: at.submitted,
    ),
    _one(
        "counter",
        ("jobs_refused", "asyncpool.job.refused"),
        "{job}",
        "Calls that the pool did not take: it was full, broken or closed.",
        lambda at: at.refused,
    ),
    PoolMetric(
        "counter",
        ("jobs", "asyncpool.job.ended"),
        "{job}",
        "Jobs that have ended, by function, by how it was called, and by outcome.",
        {**_CALL, "outcome": "asyncpool.job.outcome"},
        lambda at: [
            ((it.function, it.via, outcome), count)
            for it in at.stats.functions
            for outcome, count in it.jobs.items()
        ],
    ),
    PoolMetric(
        "counter",
        ("map_items", "asyncpool.job.items"),
        "{item}",
        "Items of maps that have an outcome and travelled with others as one job.",
        _FUNCTION,
        lambda at: [
            ((it.function,), it.items) for it in at.stats.functions if it.via == "map"
        ],
    ),
    _by_call(
        "job_run_seconds",
        "How long those attempts ran that a worker has brought to an outcome.",
        lambda each: each.run,
    ),
    _by_call(
        "job_wait_seconds",
        "How long these attempts waited before they began, in the queue and in the worker.",
        lambda each: each.wait,
    ),
    _one(
        "counter",
        ("job_timeouts", "asyncpool.job.timeouts"),
        "{job}",
        "Jobs whose timeout, queue_timeout or deadline was over.",
        lambda at: at.timeouts,
    ),
    _one(
        "counter",
        ("job_retries", "asyncpool.job.retries"),
        "{attempt}",
        "Attempts after one that raised.",
        lambda at: at.retries,
    ),
    _one(
        "counter",
        ("job_takeovers", "asyncpool.job.takeovers"),
        "{job}",
        "Jobs that went back to the queue because their worker died.",
        lambda at: at.takeovers,
    ),
    _one(
        "up_down_counter",
        ("jobs_running", "asyncpool.job.active"),
        "{job}",
        "Jobs that workers run now.",
        lambda at: sum(len(slot.job_ids) for slot in at.slots),
    ),
    _one(
        "gauge",
        ("jobs_longest_running_seconds", "asyncpool.job.active.age"),
        "s",
        "How long the job has been running that began first; 0 if none runs.",
        _longest_running,
    ),
    _one(
        "up_down_counter",
        ("jobs_queued", "asyncpool.job.queue.length"),
        "{job}",
        "Jobs that wait for a worker.",
        lambda at: at.queued,
    ),
    _one(
        "gauge",
        ("queue_oldest_seconds", "asyncpool.job.queue.age"),
        "s",
        "How long the oldest job in the queue has waited; 0 if there is none.",
        lambda at: at.oldest_queued,
    ),
    _one(
        "up_down_counter",
        ("workers_wanted", "asyncpool.worker.wanted"),
        "{worker}",
        "How many workers the pool should have.",
        lambda at: at.workers,
    ),
    PoolMetric(
        "up_down_counter",
        ("workers", "asyncpool.worker.count"),
        "{worker}",
        "Workers by state; a slot that is vacant or parked lacks its worker.",
        {"state": "asyncpool.worker.state"},
        _workers,
    ),
    _one(
        "counter",
        ("worker_starts", "asyncpool.worker.starts"),
        "{worker}",
        "Processes that were started.",
        lambda at: at.spawned,
    ),
    _one(
        "counter",
        ("worker_restarts", "asyncpool.worker.restarts"),
        "{worker}",
        "Processes that were started to replace another one.",
        lambda at: at.restarts,
    ),
    PoolMetric(
        "counter",
        ("worker_exits", ""),
        "{worker}",
        "Ends of workers, by cause.",
        {"cause": ""},
        lambda at: [((cause,), at.stats.exits.get(cause, 0)) for cause in CAUSES],
    ),
    PoolMetric(
        "counter",
        ("worker_crashes", "asyncpool.worker.crashes"),
        "{crash}",
        "Unplanned deaths of workers, failed starts included, by kind.",
        {"kind": "error.type"},
        lambda at: [((kind,), at.stats.crash_kinds.get(kind, 0)) for kind in CrashKind],
    ),
    _one(
        "histogram",
        ("worker_start_seconds", ""),
        "s",
        "How long workers took from their start until they were ready.",
        lambda at: at.started,
    ),
    PoolMetric(
        "counter",
        ("worker_cpu_seconds", "asyncpool.worker.cpu.time"),
        "s",
        "CPU time of all workers of the pool, also of those that have ended.",
        {},
        lambda at: [((), at.cpu)],
    ),
    PoolMetric(
        "up_down_counter",
        ("worker_memory_bytes", "process.memory.usage"),
        "By",
        "Memory that the worker of a slot has to itself.",
        {"slot": "asyncpool.worker.slot"},
        lambda at: [
            ((slot.slot,), slot.memory)
            for slot in at.stats.slots
            if slot.pid is not None
        ],
    ),
    _one(
        "up_down_counter",
        ("shared_memory_bytes", "asyncpool.shared_memory.usage"),
        "By",
        "Memory that the pool shares with its workers, for large arguments and results.",
        lambda at: at.shared_memory,
    ),
    _one(
        "histogram",
        ("loop_lag_seconds", ""),
        "s",
        "How late the event loop ran what was due, measured once a second while jobs "
        "are open.",
        lambda at: at.loop_lag,
    ),
    _one(
        "counter",
        ("events_dropped", "asyncpool.event.dropped"),
        "{event}",
        "Events that slow listeners of the pool have missed.",
        lambda at: at.dropped_events,
    ),
    _one(
        "counter",
        ("nodes_lost", "asyncpool.node.lost"),
        "{node}",
        "Agents of the pool that were lost, or could not be used.",
        lambda at: at.lost_nodes,
    ),
    _one(
        "counter",
        ("clients_lost", "asyncpool.client.lost"),
        "{client}",
        "Clients of a shared pool that were gone, or not heard, while they had jobs.",
        lambda at: at.lost_clients,
    ),
    _one(
        "counter",
        ("clients_refused", "asyncpool.client.refused"),
        "{client}",
        "Clients of a shared pool that did not come in, or were cut off.",
        lambda at: at.refused_clients,
    ),
)
