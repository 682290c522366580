"""Figures of pools and clusters for Prometheus, through ``prometheus_client``.

:func:`register` adds a pool or a cluster to a registry.  At each scrape the collector reads its
``stats()`` in the process that has it, which has the figures of all workers.  So the
multiprocess mode of ``prometheus_client`` is not needed, and the counters keep what workers
did that have died.  The module needs the extra ``prometheus``.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import Any

try:
    from prometheus_client import REGISTRY
except ModuleNotFoundError as _error:
    if _error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "asyncpool.prometheus needs prometheus_client, which is not installed: "
        "pip install 'asyncpool-supervised[prometheus]'",
        name=_error.name,
    ) from None

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric as Family,
)
from prometheus_client.registry import Collector, CollectorRegistry

from asyncpool._observe.metrics import (
    CLUSTER_METRICS,
    LOCK,
    NODE_METRICS,
    POOL_METRICS,
    Exported,
    Exports,
    Metric,
    Reading,
)
from asyncpool.cluster import Cluster
from asyncpool.pool import Pool
from asyncpool.sharedpool._remote_pool import RemotePool, figures_of
from asyncpool.stats import Histogram

__all__ = ["register", "unregister"]

# The bounds in each exported histogram, in seconds.  They never change, or nobody could
# compare two readings.  Each bound is a series for each function, so there are only powers of
# four, from 64 us to 72 minutes: every second one of the powers of two in PoolStats.
_BOUNDS = tuple((1 << digits) / 1e6 for digits in range(6, 34, 2))

_KINDS = {"counter": CounterMetricFamily, "histogram": HistogramMetricFamily}
_METRICS = {
    "pool": [it for it in (*POOL_METRICS, *NODE_METRICS) if it.name],
    "cluster": CLUSTER_METRICS,
}


class _StatsCollector(Collector):
    """All pools of one registry, or all clusters: a registry may have each metric only once."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.exports = Exports(what, "registered in this registry", "unregister()")

    def describe(self) -> Iterator[Family]:
        """Yield the metrics without figures: the registry asks for their names."""
        return self._families([])

    def collect(self) -> Iterator[Family]:
        """Yield all figures as they are now."""
        return self._families(self.exports.readings())

    def _families(self, readings: list[tuple[str, Reading]]) -> Iterator[Family]:
        for metric in _METRICS[self._what]:
            yield _family(metric, self._what, readings)


def _family(metric: Metric, what: str, readings: list[tuple[str, Reading]]) -> Family:
    kind: Any = _KINDS.get(metric.kind, GaugeMetricFamily)
    family = kind(metric.name, metric.meaning, labels=(what, *metric.labels))
    for name, reading in readings:
        for values, figure in metric.read(reading):
            labels = (name, *map(str, values))
            if isinstance(figure, Histogram):
                family.add_metric(labels, _buckets(figure), figure.total)
            else:
                family.add_metric(labels, figure)
    return family  # type: ignore[no-any-return]


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    """Return each bound with the number of durations below it, and last all durations."""
    pairs = list(zip(histogram.bounds, histogram.counts, strict=True))
    buckets: list[tuple[str, float]] = [
        (str(most), sum(count for bound, count in pairs if bound <= most))
        for most in _BOUNDS
    ]
    return [*buckets, ("+Inf", histogram.count)]


_collectors: dict[
    str, weakref.WeakKeyDictionary[CollectorRegistry, _StatsCollector]
] = {"pool": weakref.WeakKeyDictionary(), "cluster": weakref.WeakKeyDictionary()}


def register(
    pool: Pool | RemotePool | Cluster, registry: CollectorRegistry = REGISTRY
) -> None:
    """Export the figures of *pool* in *registry*, with its name as a label.

    Those of a pool whose workers belong to agents are at most a second old: from the first
    scrape on it asks its agents each second, until there was none for a minute and a half.

    You may call it at any time, also before the pool or cluster is started, and from any thread.
    Scrapes may come from any thread too.  The registry does not keep the pool or cluster alive:
    once the garbage collector has removed it, scrapes have no figures of it.  A closed one keeps
    its counters until then, or until another one with its name is registered.

    Args:
        pool: The pool, also one of :func:`asyncpool.connect` or :class:`asyncpool.ray.Pool`; or the
            cluster.
        registry: The registry; by default the one that ``prometheus_client`` exports.

    Raises:
        TypeError: If *pool* is neither a :class:`asyncpool.Pool` nor a
            :class:`asyncpool.Cluster`, or *registry* is not a ``CollectorRegistry``.
        ValueError: If the registry has this pool or cluster, or another one with the same name
            that is not closed.
    """
    if not isinstance(pool, Pool | RemotePool | Cluster):
        raise TypeError(
            f"register() needs a Pool or a Cluster, not {type(pool).__name__}"
        )
    if not isinstance(registry, CollectorRegistry):
        raise TypeError(
            f"register() needs a CollectorRegistry, not {type(registry).__name__}"
        )
    what = _kind_of(pool)
    with LOCK:
        collector = _collectors[what].get(registry)
        if collector is None:
            collector = _StatsCollector(what)
            registry.register(collector)  # which calls its describe()
            _collectors[what][registry] = collector
        collector.exports.add(Exported(figures_of(pool)))


def unregister(
    pool: Pool | RemotePool | Cluster, registry: CollectorRegistry = REGISTRY
) -> None:
    """Stop exporting *pool* in *registry*.

    Args:
        pool: The pool, or the cluster.
        registry: The registry; by default the one that ``prometheus_client`` exports.

    Raises:
        ValueError: If the registry does not have it.
    """
    what = _kind_of(pool)
    collector = _collectors[what].get(registry)
    if collector is None or not collector.exports.remove(figures_of(pool)):
        raise ValueError(f"{what} {pool.name} is not registered in this registry")


def _kind_of(pool: Pool | RemotePool | Cluster) -> str:
    return "cluster" if isinstance(pool, Cluster) else "pool"
