"""The pools whose figures one meter provider collects."""

from __future__ import annotations

import threading
import weakref
from functools import partial

from opentelemetry.metrics import (
    CallbackOptions,
    MeterProvider,
    Observation,
    get_meter,
    get_meter_provider,
)

from asyncpool import __version__
from asyncpool._core.deadlines import RateLimit
from asyncpool._observe.pool_metrics import POOL_METRICS, PoolMetric
from asyncpool._observe.readings import (
    Readable,
    Reading,
    StatsReader,
)
from asyncpool.enums import RunState
from asyncpool.pool import Pool
from asyncpool.sharedpool._remote_pool import RemotePool, figures_of
from asyncpool.stats import Histogram, PoolStats

# What says who has made a metric or a span.
SCOPE = ("asyncpool", __version__)

POOL = "asyncpool.pool.name"
FUNCTION = "code.function.name"
VIA = "asyncpool.job.via"
OUTCOME = "asyncpool.job.outcome"
ERROR = "error.type"
SLOT = "asyncpool.worker.slot"

INSTRUMENTS = [metric for metric in POOL_METRICS if metric.names[1]]

# How many pools that have ended are kept until their last figures are collected.  Without
# this bound a program that has no reader of metrics would keep all of them.
_MOST_ENDED = 100


class ExportedPool:
    """One pool that is exported, until the garbage collector removes it.

    The last figures of a pool that has ended stay until they were collected once: a reader of
    metrics comes by once in a minute, and a pool may not live as long.

    Attributes:
        name: Its name.
        limit: What counts the jobs that got no spans, if it has spans.
        pool: What has the figures of the pool.
        final: The last figures, once the pool has ended.
        told: Whether these were collected.
    """

    def __init__(self, pool: Pool | RemotePool, limit: RateLimit | None) -> None:
        self.name = pool.name
        self.limit = limit
        self.pool = weakref.ref(figures_of(pool))
        self.final: Reading[PoolStats] | None = None
        self.told = False
        self._life: weakref.ref[object] = weakref.ref(pool._life)  # noqa: SLF001
        self._reader = StatsReader[PoolStats]()

    @property
    def over(self) -> bool:
        """Whether there is nothing more to tell."""
        if self.pool() is not None:
            return False
        return self.told if self.final is not None else self._life() is None

    def end(self, pool: Readable[PoolStats]) -> None:
        """Keep the last figures of the pool, which *pool* has."""
        self.final = self._reader.read(pool)

    def read(self) -> Reading[PoolStats] | None:
        """Return the figures as they are now, if anybody has them."""
        if self.final is not None:
            self.told = True
            return self.final
        pool = self.pool()
        return None if pool is None else self._reader.read(pool)


class PoolMetrics:
    """All pools of one meter provider: a meter may have each instrument only once.

    Args:
        provider: The provider; ``None`` for the global one, whichever that will be.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        # Reentrant, since the garbage collector may run any code, also an uninstrument().
        self._lock = threading.RLock()
        self._pools: dict[str, ExportedPool] = {}
        self._readings: list[tuple[ExportedPool, Reading[PoolStats]]] = []
        # The instruments that have read these; at first they are as if all had.
        self._seen = {metric.names for metric in INSTRUMENTS}
        meter = get_meter(*SCOPE, provider)
        for metric in INSTRUMENTS:
            create = getattr(meter, f"create_observable_{metric.kind}")
            create(
                metric.names[1],
                callbacks=[partial(self._observe, metric)],
                unit=metric.unit,
                description=metric.meaning,
            )
        meter.create_observable_counter(
            "asyncpool.job.untraced",
            callbacks=[self._observe_untraced],
            unit="{job}",
            description="Jobs above max_traced, which got no spans unless they failed.",
        )

    def add(self, pool: Pool | RemotePool, limit: RateLimit | None) -> ExportedPool:
        """Export *pool*, and how many of its jobs *limit* refuses.

        Raises:
            ValueError: If another pool has its name that is not closed.
        """
        with self._lock:
            known = self._pools.get(pool.name)
            there = None if known is None else known.pool()
            # The garbage collector may remove a closed pool much later: it blocks no new one.
            if there is not None and there.stats().state is not RunState.CLOSED:
                raise ValueError(
                    f"another pool called {pool.name} is instrumented: give one of them "
                    "another name, or uninstrument() the other one first"
                )
            self._pools[pool.name] = exported = ExportedPool(pool, limit)
            ended = [each for each in self._pools.values() if each.final is not None]
            for each in ended[:-_MOST_ENDED]:
                del self._pools[each.name]
            return exported

    def remove(self, exported: ExportedPool) -> None:
        """Export a pool no more."""
        with self._lock:
            if self._pools.get(exported.name) is exported:
                del self._pools[exported.name]

    def _observe(self, metric: PoolMetric, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            if metric.names in self._seen:
                self._read()
            self._seen.add(metric.names)
            readings = self._readings
        observations: list[Observation] = []
        for exported, reading in readings:
            for values, figure in metric.read(reading):
                assert not isinstance(figure, Histogram)
                # Of 200 functions all outcomes would be more series than an SDK keeps (2000).
                if metric.names[0] == "jobs" and not figure and values[-1] != "ok":
                    continue
                attributes = dict(zip(metric.labels.values(), values, strict=True))
                observations.append(
                    Observation(
                        figure,
                        {POOL: exported.name}
                        | {
                            name: value if type(value) is int else str(value)
                            for name, value in attributes.items()
                        },
                    )
                )
        return observations

    def _observe_untraced(self, _: CallbackOptions) -> list[Observation]:
        with self._lock:
            pools = [each for each, _ in self._readings]
        return [
            Observation(each.limit.refused, {POOL: each.name})
            for each in pools
            if each.limit is not None
        ]

    def _read(self) -> None:
        """Read all pools: a new collection has begun, since an instrument asks once more.

        The SDK asks each instrument by itself, and to read a pool takes 30 us for each worker.
        """
        self._seen.clear()
        for exported in list(self._pools.values()):
            if exported.over:
                del self._pools[exported.name]
        found = [(each, each.read()) for each in self._pools.values()]
        self._readings = [(each, reading) for each, reading in found if reading]


_lock = threading.RLock()
_of_default: list[PoolMetrics] = []
_by_provider: weakref.WeakKeyDictionary[MeterProvider, PoolMetrics] = (
    weakref.WeakKeyDictionary()
)


def metrics_of(provider: MeterProvider | None) -> PoolMetrics:
    """Return the pools of *provider*; of the global one if it is ``None``."""
    with _lock:
        # Before there is a global provider there is a proxy of it, which leads to it later.
        if provider is None or provider is get_meter_provider():
            if not _of_default:
                _of_default.append(PoolMetrics(None))
            return _of_default[0]
        found = _by_provider.get(provider)
        if found is None:
            found = _by_provider[provider] = PoolMetrics(provider)
        return found
