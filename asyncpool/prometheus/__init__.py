"""Figures of pools for Prometheus, through ``prometheus_client``.

:func:`register` adds a pool to a registry.  At each scrape the collector reads
:meth:`asyncpool.Pool.stats` in the service, which has the figures of all workers.  So the
multiprocess mode of ``prometheus_client`` is not needed, and the counters keep what workers
did that have died.  The module needs the extra ``prometheus``.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

from asyncpool._observe.readings import PoolReader, Reading
from asyncpool.enums import RunState
from asyncpool.pool import Pool

try:
    from prometheus_client import REGISTRY
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector, CollectorRegistry
except ModuleNotFoundError as _error:
    if _error.name != "prometheus_client":
        raise
    raise ModuleNotFoundError(
        "asyncpool.prometheus needs prometheus_client, which is not installed: "
        "pip install 'asyncpool-supervised[prometheus]'",
        name=_error.name,
    ) from None

from asyncpool.prometheus._metrics import METRICS

__all__ = ["register", "unregister"]


def register(pool: Pool, registry: CollectorRegistry = REGISTRY) -> None:
    """Export the figures of *pool* in *registry*, with the name of the pool as a label.

    You may call it at any time, also before the pool is started, and from any thread.
    Scrapes may come from any thread too.  The registry does not keep the pool alive: once the
    garbage collector has removed a pool, scrapes have no figures of it.  A closed pool keeps
    its counters until then, or until another pool with its name is registered.

    Args:
        pool: The pool.
        registry: The registry; by default the one that ``prometheus_client`` exports.

    Raises:
        TypeError: If *pool* is not a :class:`asyncpool.Pool`, or *registry* is not a
            ``CollectorRegistry``.
        ValueError: If the registry has this pool, or another one with the same name that is
            not closed.
    """
    if not isinstance(pool, Pool):
        raise TypeError(f"register() needs a Pool, not {type(pool).__name__}")
    if not isinstance(registry, CollectorRegistry):
        raise TypeError(
            f"register() needs a CollectorRegistry, not {type(registry).__name__}"
        )
    with _lock:
        collector = _collectors.get(registry)
        if collector is None:
            collector = _PoolCollector()
            registry.register(collector)  # which calls its describe()
            _collectors[registry] = collector
        collector.add(pool)


def unregister(pool: Pool, registry: CollectorRegistry = REGISTRY) -> None:
    """Stop exporting *pool* in *registry*.

    Args:
        pool: The pool.
        registry: The registry; by default the one that ``prometheus_client`` exports.

    Raises:
        ValueError: If the registry does not have this pool.
    """
    with _lock:
        collector = _collectors.get(registry)
        if collector is None or not collector.remove(pool):
            raise ValueError(f"pool {pool.name} is not registered in this registry")


class _Entry:
    """One pool that is exported, until the garbage collector removes it."""

    def __init__(self, pool: Pool) -> None:
        self.pool = weakref.ref(pool)
        self._reader = PoolReader()

    def reading(self, pool: Pool) -> Reading:
        """Read the figures of *pool*, which is this entry's."""
        return self._reader.read(pool)


class _PoolCollector(Collector):
    """All pools of one registry: a registry may have each metric only once."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    def add(self, pool: Pool) -> None:
        entry = self._entries.get(pool.name)
        there = None if entry is None else entry.pool()
        if there is pool:
            raise ValueError(f"pool {pool.name} is already registered in this registry")
        # The garbage collector may remove a closed pool much later: it blocks no new one.
        if there is not None and there.stats().state is not RunState.CLOSED:
            raise ValueError(
                f"another pool called {pool.name} is registered in this registry: "
                "give one of them another name, or unregister() the other one first"
            )
        self._entries[pool.name] = _Entry(pool)

    def remove(self, pool: Pool) -> bool:
        """Forget *pool*; tell whether it was there."""
        entry = self._entries.get(pool.name)
        if entry is None or entry.pool() is not pool:
            return False
        del self._entries[pool.name]
        return True

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without figures: the registry asks for their names."""
        return (metric.family() for metric in METRICS)

    def collect(self) -> Iterator[Metric]:
        """Yield the figures of all pools as they are now."""
        readings = list(self._readings())
        return (metric.family(readings) for metric in METRICS)

    def _readings(self) -> Iterator[tuple[str, Reading]]:
        with _lock:
            entries = list(self._entries.items())
        for name, entry in entries:
            pool = entry.pool()
            if pool is not None:
                yield name, entry.reading(pool)
                continue
            with _lock:  # a new pool may have got the name
                if self._entries.get(name) is entry:
                    del self._entries[name]


# Reentrant, since the garbage collector may run any code, also an unregister().
_lock = threading.RLock()
_collectors: weakref.WeakKeyDictionary[CollectorRegistry, _PoolCollector] = (
    weakref.WeakKeyDictionary()
)
