"""Figures of pools and clusters for Prometheus, through ``prometheus_client``.

:func:`register` adds a pool or a cluster to a registry.  At each scrape the collector reads its
``stats()`` in the process that has it, which has the figures of all workers.  So the
multiprocess mode of ``prometheus_client`` is not needed, and the counters keep what workers
did that have died.  The module needs the extra ``prometheus``.
"""

from __future__ import annotations

from typing import Any

from asyncpool.cluster import Cluster
from asyncpool.pool import Pool
from asyncpool.sharedpool._remote_pool import RemotePool, figures_of

try:
    from prometheus_client import REGISTRY
    from prometheus_client.registry import CollectorRegistry
except ModuleNotFoundError as _error:
    if _error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "asyncpool.prometheus needs prometheus_client, which is not installed: "
        "pip install 'asyncpool-supervised[prometheus]'",
        name=_error.name,
    ) from None

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector, CollectorRegistry

from asyncpool._observe.readings import Reading, Stats, StatsReader
from asyncpool.enums import RunState
from asyncpool.prometheus._cluster_metrics import CLUSTER_METRICS
from asyncpool.prometheus._families import ExportedMetric
from asyncpool.prometheus._pool_metrics import METRICS

__all__ = ["register", "unregister"]


# What a registry asks at each scrape: a collector for its pools, and one for its clusters.

# Reentrant, since the garbage collector may run any code, also an unregister().
_lock = threading.RLock()


S = TypeVar("S", bound=Stats)
S_co = TypeVar("S_co", bound=Stats, covariant=True)


class _Exported(Protocol[S_co]):
    """A pool or a cluster."""

    name: str

    def stats(self) -> S_co:
        """Return its figures."""
        ...


@dataclass(slots=True)
class _Entry(Generic[S]):
    """One pool or cluster that is exported.

    Attributes:
        exported: It, until the garbage collector removes it.
        reader: What reads its figures.
    """

    exported: weakref.ref[_Exported[S]]
    reader: StatsReader[S] = field(default_factory=StatsReader)


class _StatsCollector(Collector, Generic[S]):
    """All pools of one registry, or all clusters: a registry may have each metric only once.

    Args:
        what: What errors call one: ``"pool"``.
        metrics: What is exported of each.
    """

    def __init__(self, what: str, metrics: Sequence[ExportedMetric[S]]) -> None:
        self._what = what
        self._metrics = metrics
        self._entries: dict[str, _Entry[S]] = {}

    def add(self, exported: _Exported[S]) -> None:
        """Export *exported*.

        Raises:
            ValueError: If it is exported, or another one with its name that is not closed.
        """
        what, name = self._what, exported.name
        entry = self._entries.get(name)
        there = None if entry is None else entry.exported()
        if there is exported:
            raise ValueError(f"{what} {name} is already registered in this registry")
        # The garbage collector may remove a closed one much later: it blocks no new one.
        if there is not None and there.stats().state is not RunState.CLOSED:
            raise ValueError(
                f"another {what} called {name} is registered in this registry: "
                "give one of them another name, or unregister() the other one first"
            )
        self._entries[name] = _Entry(weakref.ref(exported))

    def remove(self, exported: _Exported[S]) -> bool:
        """Forget *exported*; tell whether it was there."""
        entry = self._entries.get(exported.name)
        if entry is None or entry.exported() is not exported:
            return False
        del self._entries[exported.name]
        return True

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without figures: the registry asks for their names."""
        return (metric.family() for metric in self._metrics)

    def collect(self) -> Iterator[Metric]:
        """Yield all figures as they are now."""
        readings = list(self._readings())
        return (metric.family(readings) for metric in self._metrics)

    def _readings(self) -> Iterator[tuple[str, Reading[S]]]:
        with _lock:
            entries = list(self._entries.items())
        for name, entry in entries:
            exported = entry.exported()
            if exported is not None:
                yield name, entry.reader.read(exported)
                continue
            with _lock:  # a new one may have got the name
                if self._entries.get(name) is entry:
                    del self._entries[name]


class _Collectors:
    """The collectors of all registries, of pools or of clusters.

    Args:
        what: As of :class:`_StatsCollector`.
        metrics: Likewise.
    """

    def __init__(self, what: str, metrics: Sequence[ExportedMetric[Any]]) -> None:
        self._what = what
        self._metrics = metrics
        self._of: weakref.WeakKeyDictionary[CollectorRegistry, _StatsCollector[Any]] = (
            weakref.WeakKeyDictionary()
        )

    def add(self, exported: _Exported[Any], registry: CollectorRegistry) -> None:
        """Export *exported* in *registry*; see :meth:`_StatsCollector.add`."""
        with _lock:
            collector = self._of.get(registry)
            if collector is None:
                collector = _StatsCollector(self._what, self._metrics)
                registry.register(collector)  # which calls its describe()
                self._of[registry] = collector
            collector.add(exported)

    def remove(self, exported: _Exported[Any], registry: CollectorRegistry) -> None:
        """Export *exported* in *registry* no more.

        Raises:
            ValueError: If it was not.
        """
        with _lock:
            collector = self._of.get(registry)
            if collector is None or not collector.remove(exported):
                raise ValueError(
                    f"{self._what} {exported.name} is not registered in this registry"
                )


_POOLS = _Collectors("pool", METRICS)
_CLUSTERS = _Collectors("cluster", CLUSTER_METRICS)


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
    exported = figures_of(pool)
    _collectors_of(pool).add(exported, registry)


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
    exported = figures_of(pool)
    _collectors_of(pool).remove(exported, registry)


def _collectors_of(pool: Pool | RemotePool | Cluster) -> _Collectors:
    return _CLUSTERS if isinstance(pool, Cluster) else _POOLS
