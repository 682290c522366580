"""The metrics of a pool: their names, their meanings, and where their figures come from."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from asyncpool._observe.readings import (
    BOUNDS,
    Reading,
    longest_running,
    memory_by_slot,
    running,
    workers_by_state,
)
from asyncpool.enums import CrashKind, RunState
from asyncpool.stats import FunctionStats, Histogram, PoolStats

Figure = float | Histogram
Figures = Iterable[tuple[tuple[str, ...], Figure]]


@dataclass(frozen=True, slots=True)
class PoolMetric:
    """One metric.

    Attributes:
        kind: The type of it in ``prometheus_client``.
        name: Its name without the prefix; that of a counter gets ``_total`` behind it.
        meaning: Its help text.
        labels: Its labels besides that of the pool.
        read: Returns the figure for each combination of values of these labels.
    """

    kind: type[CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily]
    name: str
    meaning: str
    labels: tuple[str, ...]
    read: Callable[[Reading], Figures]

    def family(self, readings: Iterable[tuple[str, Reading]] = ()) -> Metric:
        """Return the metric with the figures of the pools whose names these are."""
        labels = ("pool", *self.labels)
        family = self.kind(f"asyncpool_{self.name}", self.meaning, labels=labels)
        for pool, reading in readings:
            for values, figure in self.read(reading):
                if isinstance(family, HistogramMetricFamily):
                    assert isinstance(figure, Histogram)
                    family.add_metric((pool, *values), _buckets(figure), figure.total)
                else:
                    assert not isinstance(figure, Histogram)
                    family.add_metric((pool, *values), figure)
        return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return each bound with the number of durations below it, and last all durations."""
    pairs = list(zip(histogram.bounds, histogram.counts, strict=True))
    buckets: list[tuple[str, float]] = [
        (str(most), sum(count for bound, count in pairs if bound <= most))
        for most in BOUNDS
    ]
    return [*buckets, ("+Inf", histogram.count)]


def _counter(name: str, meaning: str, read: Callable[[PoolStats], float]) -> PoolMetric:
    return PoolMetric(
        CounterMetricFamily, name, meaning, (), lambda at: [((), read(at.stats))]
    )


def _gauge(name: str, meaning: str, read: Callable[[PoolStats], float]) -> PoolMetric:
    return PoolMetric(
        GaugeMetricFamily, name, meaning, (), lambda at: [((), read(at.stats))]
    )


def _histogram(
    name: str, meaning: str, read: Callable[[PoolStats], Histogram]
) -> PoolMetric:
    return PoolMetric(
        HistogramMetricFamily, name, meaning, (), lambda at: [((), read(at.stats))]
    )


def _histogram_by_function(
    name: str, meaning: str, read: Callable[[FunctionStats], Histogram]
) -> PoolMetric:
    return PoolMetric(
        HistogramMetricFamily,
        name,
        meaning,
        ("function", "via"),
        lambda at: [
            ((each.function, each.via), read(each)) for each in at.stats.functions
        ],
    )


def _jobs(reading: Reading) -> Figures:
    for each in reading.stats.functions:
        for outcome, count in each.jobs.items():
            yield (each.function, each.via, outcome), count


def _map_items(reading: Reading) -> Figures:
    for each in reading.stats.functions:
        if each.via == "map":
            yield (each.function,), each.items


METRICS = (
    PoolMetric(
        GaugeMetricFamily,
        "pool_state",
        "Where the pool is in its life: 1 for its state, 0 for the others.",
        ("state",),
        lambda at: [((state,), at.stats.state is state) for state in RunState],
    ),
    _counter(
        "jobs_submitted", "Jobs that the pool has accepted.", lambda at: at.submitted
    ),
    _counter(
        "jobs_refused",
        "Calls that the pool did not take: it was full, broken or closed.",
        lambda at: at.refused,
    ),
    PoolMetric(
        CounterMetricFamily,
        "jobs",
        "Jobs that have ended, by function, by how it was called, and by outcome.",
        ("function", "via", "outcome"),
        _jobs,
    ),
    PoolMetric(
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
    _counter(
        "job_timeouts",
        "Jobs whose timeout, queue_timeout or deadline was over.",
        lambda at: at.timeouts,
    ),
    _counter("job_retries", "Attempts after one that raised.", lambda at: at.retries),
    _counter(
        "job_takeovers",
        "Jobs that went back to the queue because their worker died.",
        lambda at: at.takeovers,
    ),
    _gauge(
        "jobs_running",
        "Jobs that workers run now.",
        running,
    ),
    _gauge(
        "jobs_longest_running_seconds",
        "How long the job has been running that began first; 0 if none runs.",
        longest_running,
    ),
    _gauge("jobs_queued", "Jobs that wait for a worker.", lambda at: at.queued),
    _gauge(
        "queue_oldest_seconds",
        "How long the oldest job in the queue has waited; 0 if there is none.",
        lambda at: at.oldest_queued,
    ),
    _gauge(
        "workers_wanted",
        "How many workers the pool should have.",
        lambda at: at.workers,
    ),
    PoolMetric(
        GaugeMetricFamily,
        "workers",
        "Workers by state; a slot that is vacant or parked lacks its worker.",
        ("state",),
        lambda at: [((state,), count) for state, count in workers_by_state(at.stats)],
    ),
    _counter("worker_starts", "Processes that were started.", lambda at: at.spawned),
    _counter(
        "worker_restarts",
        "Processes that were started to replace another one.",
        lambda at: at.restarts,
    ),
    PoolMetric(
        CounterMetricFamily,
        "worker_crashes",
        "Unplanned deaths of workers, failed starts included, by kind.",
        ("kind",),
        lambda at: [((kind,), at.stats.crash_kinds.get(kind, 0)) for kind in CrashKind],
    ),
    _histogram(
        "worker_start_seconds",
        "How long workers took from their start until they were ready.",
        lambda at: at.started,
    ),
    PoolMetric(
        CounterMetricFamily,
        "worker_cpu_seconds",
        "CPU time of all workers of the pool, also of those that have ended.",
        (),
        lambda at: [((), at.cpu)],
    ),
    PoolMetric(
        GaugeMetricFamily,
        "worker_memory_bytes",
        "Memory that the worker of a slot has to itself.",
        ("slot",),
        lambda at: [((str(slot),), size) for slot, size in memory_by_slot(at.stats)],
    ),
    _gauge(
        "shared_memory_bytes",
        "Memory that the pool shares with its workers, for large arguments and results.",
        lambda at: at.shared_memory,
    ),
    _histogram(
        "loop_lag_seconds",
        "How late the event loop ran what was due, measured once a second while jobs "
        "are open.",
        lambda at: at.loop_lag,
    ),
    _counter(
        "events_dropped",
        "Events that slow listeners of the pool have missed.",
        lambda at: at.dropped_events,
    ),
)
