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

from asyncpool.prometheus import _cluster_metrics, _pool_metrics
from asyncpool.prometheus._collectors import Collectors

__all__ = ["register", "unregister"]

_POOLS = Collectors("pool", _pool_metrics.METRICS)
_CLUSTERS = Collectors("cluster", _cluster_metrics.METRICS)


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
    exported: Any = figures_of(pool)
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
    exported: Any = figures_of(pool)
    _collectors_of(pool).remove(exported, registry)


def _collectors_of(pool: Pool | RemotePool | Cluster) -> Collectors:
    return _CLUSTERS if isinstance(pool, Cluster) else _POOLS
