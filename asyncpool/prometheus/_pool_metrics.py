"""The metrics of a pool for Prometheus; those of its nodes only a pool whose workers belong to agents has."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)

from asyncpool._observe.pool_metrics import POOL_METRICS, PoolMetric
from asyncpool._observe.readings import Reading
from asyncpool.prometheus._families import ExportedMetric, Figures, MetricMaker
from asyncpool.stats import NodeStats, PoolStats

_MAKE: MetricMaker[PoolStats] = MetricMaker("asyncpool", "pool")

_KINDS = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}


def _exported(metric: PoolMetric) -> ExportedMetric[PoolStats]:
    def read(reading: Reading[PoolStats]) -> Figures:
        for values, figure in metric.read(reading):
            yield tuple(map(str, values)), figure

    kind = _KINDS.get(metric.kind, GaugeMetricFamily)
    labels = tuple(metric.labels)
    return _MAKE.labelled(kind, metric.names[0], metric.meaning, labels, read)


def _metric(
    kind: type[CounterMetricFamily | GaugeMetricFamily],
    name: str,
    meaning: str,
    read: Callable[[NodeStats], float],
) -> ExportedMetric[PoolStats]:
    return _MAKE.labelled(
        kind,
        name,
        meaning,
        ("node",),
        lambda at: [((node.name,), read(node)) for node in at.stats.nodes],
    )


def _workers(reading: Reading[PoolStats]) -> Figures:
    for node in reading.stats.nodes:
        yield (node.name, "idle"), node.idle
        yield (node.name, "busy"), node.busy


def _clock_error(reading: Reading[PoolStats]) -> Figures:
    for node in reading.stats.nodes:
        if node.clock_error is not None:
            yield (node.name,), node.clock_error


METRICS: tuple[ExportedMetric[PoolStats], ...] = (
    *map(_exported, POOL_METRICS),
    _metric(
        GaugeMetricFamily,
        "node_trusted",
        "Whether the agent of the node gets jobs; 0 if it has been silent for too long.",
        lambda node: not node.suspected,
    ),
    _metric(
        GaugeMetricFamily,
        "node_silent_seconds",
        "For how long nothing was heard of the agent of the node.",
        lambda node: node.silent,
    ),
    _metric(
        GaugeMetricFamily,
        "node_jobs",
        "Jobs of this client that the node has.",
        lambda node: node.jobs,
    ),
    _metric(
        GaugeMetricFamily,
        "node_jobs_queued",
        "Jobs that wait for a worker on the node.",
        lambda node: node.queued,
    ),
    _MAKE.labelled(
        GaugeMetricFamily,
        "node_workers",
        "Workers of the node that are idle, and those that are busy.",
        ("node", "state"),
        _workers,
    ),
    _metric(
        CounterMetricFamily,
        "node_worker_crashes",
        "Unplanned deaths of workers of the node.",
        lambda node: node.crashes,
    ),
    _metric(
        CounterMetricFamily,
        "node_worker_cpu_seconds",
        "CPU time of all workers of the node, also of those that have ended.",
        lambda node: node.cpu,
    ),
    _metric(
        GaugeMetricFamily,
        "node_worker_memory_bytes",
        "Memory that the workers of the node have to themselves.",
        lambda node: node.memory,
    ),
    _MAKE.labelled(
        GaugeMetricFamily,
        "node_clock_error_seconds",
        "By how much the times of what ran on the node may be wrong.",
        ("node",),
        _clock_error,
    ),
)
