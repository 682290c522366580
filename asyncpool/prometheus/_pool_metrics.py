"""The metrics of a pool: their names, their meanings, and where their figures come from."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from asyncpool._core.slots.exit_reasons import CAUSES
from asyncpool._observe.readings import Reading
from asyncpool.enums import CrashKind, RunState, SlotState
from asyncpool.prometheus._families import (
    ExportedMetric,
    Figures,
    MetricMaker,
)
from asyncpool.prometheus._node_metrics import NODE_METRICS
from asyncpool.stats import FunctionStats, Histogram, PoolStats

# In these states a slot has no worker, and needs none.
_UNUSED = frozenset((SlotState.UNUSED, SlotState.RETIRED))

_MAKE: MetricMaker[PoolStats] = MetricMaker("asyncpool", "pool")


def _histogram_by_function(
    name: str, meaning: str, read: Callable[[FunctionStats], Histogram]
) -> ExportedMetric[PoolStats]:
    return _MAKE.labelled(
        HistogramMetricFamily,
        name,
        meaning,
        ("function", "via"),
        lambda at: [
            ((each.function, each.via), read(each)) for each in at.stats.functions
        ],
    )


def _jobs(reading: Reading[PoolStats]) -> Figures:
    for each in reading.stats.functions:
        for outcome, count in each.jobs.items():
            yield (each.function, each.via, outcome), count


def _map_items(reading: Reading[PoolStats]) -> Figures:
    for each in reading.stats.functions:
        if each.via == "map":
            yield (each.function,), each.items


def _workers(reading: Reading[PoolStats]) -> Figures:
    states = [slot.state for slot in reading.stats.slots]
    for state in SlotState:
        if state not in _UNUSED:
            yield (state,), states.count(state)


def _memory(reading: Reading[PoolStats]) -> Figures:
    for slot in reading.stats.slots:
        if slot.pid is not None:
            yield (str(slot.slot),), slot.memory


def _longest_running(stats: PoolStats) -> float:
    seconds = (job.seconds for slot in stats.slots for job in slot.running)
    return max(seconds, default=0.0)


METRICS: tuple[ExportedMetric[PoolStats], ...] = (
    _MAKE.labelled(
        GaugeMetricFamily,
        "pool_state",
        "Where the pool is in its life: 1 for its state, 0 for the others.",
        ("state",),
        lambda at: [((state,), at.stats.state is state) for state in RunState],
    ),
    _MAKE.counter(
        "jobs_submitted", "Jobs that the pool has accepted.", lambda at: at.submitted
    ),
    _MAKE.counter(
        "jobs_refused",
        "Calls that the pool did not take: it was full, broken or closed.",
        lambda at: at.refused,
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "jobs",
        "Jobs that have ended, by function, by how it was called, and by outcome.",
        ("function", "via", "outcome"),
        _jobs,
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "map_items",
        "Items of maps that have an outcome and travelled with others as one job.",
        ("function",),
        _map_items,
    ),
    _histogram_by_function(
        "job_run_seconds",
        "How long those attempts ran that a worker has brought to an outcome.",
        lambda each: each.run,
    ),
    _histogram_by_function(
        "job_wait_seconds",
        "How long these attempts waited before they began, in the queue and in the worker.",
        lambda each: each.wait,
    ),
    _MAKE.counter(
        "job_timeouts",
        "Jobs whose timeout, queue_timeout or deadline was over.",
        lambda at: at.timeouts,
    ),
    _MAKE.counter(
        "job_retries", "Attempts after one that raised.", lambda at: at.retries
    ),
    _MAKE.counter(
        "job_takeovers",
        "Jobs that went back to the queue because their worker died.",
        lambda at: at.takeovers,
    ),
    _MAKE.gauge(
        "jobs_running",
        "Jobs that workers run now.",
        lambda at: sum(len(slot.job_ids) for slot in at.slots),
    ),
    _MAKE.gauge(
        "jobs_longest_running_seconds",
        "How long the job has been running that began first; 0 if none runs.",
        _longest_running,
    ),
    _MAKE.gauge("jobs_queued", "Jobs that wait for a worker.", lambda at: at.queued),
    _MAKE.gauge(
        "queue_oldest_seconds",
        "How long the oldest job in the queue has waited; 0 if there is none.",
        lambda at: at.oldest_queued,
    ),
    _MAKE.gauge(
        "workers_wanted",
        "How many workers the pool should have.",
        lambda at: at.workers,
    ),
    _MAKE.labelled(
        GaugeMetricFamily,
        "workers",
        "Workers by state; a slot that is vacant or parked lacks its worker.",
        ("state",),
        _workers,
    ),
    _MAKE.counter(
        "worker_starts", "Processes that were started.", lambda at: at.spawned
    ),
    _MAKE.counter(
        "worker_restarts",
        "Processes that were started to replace another one.",
        lambda at: at.restarts,
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "worker_exits",
        "Ends of workers, by cause.",
        ("cause",),
        lambda at: [((cause,), at.stats.exits.get(cause, 0)) for cause in CAUSES],
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "worker_crashes",
        "Unplanned deaths of workers, failed starts included, by kind.",
        ("kind",),
        lambda at: [((kind,), at.stats.crash_kinds.get(kind, 0)) for kind in CrashKind],
    ),
    _MAKE.histogram(
        "worker_start_seconds",
        "How long workers took from their start until they were ready.",
        lambda at: at.started,
    ),
    _MAKE.labelled(
        CounterMetricFamily,
        "worker_cpu_seconds",
        "CPU time of all workers of the pool, also of those that have ended.",
        (),
        lambda at: [((), at.cpu)],
    ),
    _MAKE.labelled(
        GaugeMetricFamily,
        "worker_memory_bytes",
        "Memory that the worker of a slot has to itself.",
        ("slot",),
        _memory,
    ),
    _MAKE.gauge(
        "shared_memory_bytes",
        "Memory that the pool shares with its workers, for large arguments and results.",
        lambda at: at.shared_memory,
    ),
    _MAKE.histogram(
        "loop_lag_seconds",
        "How late the event loop ran what was due, measured once a second while jobs "
        "are open.",
        lambda at: at.loop_lag,
    ),
    _MAKE.counter(
        "events_dropped",
        "Events that slow listeners of the pool have missed.",
        lambda at: at.dropped_events,
    ),
    _MAKE.counter(
        "nodes_lost",
        "Agents of the pool that were lost, or could not be used.",
        lambda at: at.lost_nodes,
    ),
    _MAKE.counter(
        "clients_lost",
        "Clients of a shared pool that were gone, or not heard, while they had jobs.",
        lambda at: at.lost_clients,
    ),
    _MAKE.counter(
        "clients_refused",
        "Clients of a shared pool that did not come in, or were cut off.",
        lambda at: at.refused_clients,
    ),
    *NODE_METRICS,
)
