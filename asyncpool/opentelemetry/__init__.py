"""Metrics and spans of pools for OpenTelemetry, through its API.

:func:`instrument` exports the figures of a pool as metrics, and makes spans of its jobs in the
service.  The module needs the extra ``opentelemetry``, which has the API alone.  The SDK,
which exports, is the service's own choice.
"""

from __future__ import annotations

import weakref
from contextlib import ExitStack
from functools import cache, partial
from types import NoneType
from typing import Any

from asyncpool import __version__
from asyncpool._core import checks
from asyncpool._observe.metrics import (
    LOCK,
    POOL_METRICS,
    Exported,
    Exports,
    Metric,
    Reading,
)
from asyncpool.enums import RunState
from asyncpool.errors import PoolClosedError
from asyncpool.pool import Pool
from asyncpool.sharedpool._remote_pool import RemotePool, figures_of

try:
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        Observation,
        get_meter,
        get_meter_provider,
    )
    from opentelemetry.trace import TracerProvider, get_tracer
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        "asyncpool.opentelemetry needs opentelemetry-api, which is not installed: "
        "pip install 'asyncpool-supervised[opentelemetry]'",
        name=_error.name,
    ) from None

from asyncpool.opentelemetry._spans import POOL, JobSpans

__all__ = ["instrument", "uninstrument"]

# What says who has made a metric or a span.
_SCOPE = ("asyncpool", __version__)


def instrument(
    pool: Pool | RemotePool,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    spans: bool = True,
    metrics: bool = True,
    max_traced: int | None = 200,
) -> None:
    """Export the figures of *pool* as metrics, and make spans of its jobs.

    You may call it before or after the start of the pool, and before the SDK is set up.  If
    the pool is started, call it in the pool's event loop.  What it does ends with the pool, and
    with :func:`uninstrument`.  The pool never waits for a collector, and no error of a
    sampler, a span processor or an exporter reaches its jobs.

    Args:
        pool: The pool, also one of :func:`asyncpool.connect` or :class:`asyncpool.ray.Pool`.  Its
            name is an attribute of all metrics and spans.
        tracer_provider: Makes the spans; the global one by default.
        meter_provider: Collects the metrics; the global one by default.
        spans: Whether to make spans.
        metrics: Whether to export metrics.  They cost nothing until they are collected.
        max_traced: How many jobs a second may have spans, so that a busy pool stays fast; ``None``
            for all.  A job that the sampler does not want counts as a tenth.  A job above the
            bound hands the context of its caller on to its worker, and has spans only if it
            fails: as many of these a second, made afterwards.

    Raises:
        TypeError: If *pool* is not a :class:`asyncpool.Pool`, or a provider is none, or
            *max_traced* is no int.
        ValueError: If the pool is instrumented already, if another pool with its name is
            instrumented that is not closed, if neither spans nor metrics are wanted, or if
            *max_traced* is less than 1.
        PoolClosedError: If the pool is closed.
        RuntimeError: If the pool was started in another event loop.
    """
    _check("instrument", pool, Pool, RemotePool)
    _check("instrument", tracer_provider, TracerProvider, NoneType)
    _check("instrument", meter_provider, MeterProvider, NoneType)
    if not spans and not metrics:
        raise ValueError("instrument() needs spans, or metrics, or both")
    checks.at_least(1).or_none()("max_traced", max_traced)
    # Nothing here holds the pool, or nobody would notice that it is dropped.
    life: Any = pool._life  # noqa: SLF001
    is_remote = isinstance(pool, RemotePool)
    life.check_loop()
    with LOCK:
        if pool in _instrumented:
            raise ValueError(
                f"pool {pool.name} is already instrumented: uninstrument() it first"
            )
        if (
            life.over
            if is_remote
            else figures_of(pool).stats().state is RunState.CLOSED
        ):
            raise PoolClosedError(f"pool {pool.name} is closed")
        made, undo = None, ExitStack()
        if spans:
            node_with = life.node_with if is_remote else None
            tracer = get_tracer(*_SCOPE, tracer_provider)
            made = JobSpans(tracer, pool.name, life.hub, max_traced, node_with)
        if metrics:
            figures = weakref.ref(figures_of(pool))
            exported = Exported(figures(), life, made.limit if made else None)
            exports = _metrics_of(meter_provider).exports
            exports.add(exported)
            undo.callback(lambda: exports.remove(figures()))

            def keep_last() -> None:
                """Keep the last figures of the pool, which may be gone at the next collection."""
                last = figures() if is_remote else life.engine
                if last is not None:
                    exported.end(last)

            life.hub.ends.append(keep_last)
        if made is not None:
            life.hub.add_tracer(made)
            undo.callback(made.stop)
            undo.callback(life.hub.remove_tracer, made)
        _instrumented[pool] = undo


def uninstrument(pool: Pool | RemotePool) -> None:
    """Undo :func:`instrument`: no more metrics of *pool*, and no more spans of its jobs.

    The spans of jobs that are open end now, without an outcome.

    Raises:
        TypeError: If *pool* is not a :class:`asyncpool.Pool`.
        ValueError: If the pool is not instrumented.
        RuntimeError: If the pool was started in another event loop.
    """
    _check("uninstrument", pool, Pool, RemotePool)
    pool._life.check_loop()  # noqa: SLF001
    with LOCK:
        undo = _instrumented.pop(pool, None)
    if undo is None:
        raise ValueError(f"pool {pool.name} is not instrumented")
    undo.close()


def _check(caller: str, it: object, kind: type, *others: type) -> None:
    if not isinstance(it, (kind, *others)):
        raise TypeError(f"{caller}() needs a {kind.__name__}, not {type(it).__name__}")


_instrumented: weakref.WeakKeyDictionary[Any, ExitStack] = weakref.WeakKeyDictionary()


class _PoolMetrics:
    """The metrics of all pools of one meter provider, which has each instrument only once.

    Args:
        provider: The provider; ``None`` for the global one, whichever that will be.
    """

    def __init__(self, provider: MeterProvider | None) -> None:
        self.exports = Exports("pool", "instrumented", "uninstrument()")
        self._readings: list[tuple[str, Reading]] = []
        # The metrics that have these readings; at first it is as if all had.
        self._seen = set(POOL_METRICS)
        meter = get_meter(*_SCOPE, provider)
        for metric in POOL_METRICS:
            if metric.otel:
                getattr(meter, f"create_observable_{metric.kind}")(
                    metric.otel,
                    callbacks=[partial(self._observe, metric)],
                    unit=metric.unit,
                    description=metric.meaning,
                )

    def _observe(self, metric: Metric, _: CallbackOptions) -> list[Observation]:
        with LOCK:
            # The SDK asks for each metric by itself, and to read a pool takes 30 us for each
            # worker.  When a metric is asked for once more, a new collection has begun.
            if metric in self._seen:
                self._seen.clear()
                self._readings = self.exports.readings()
            self._seen.add(metric)
            readings = self._readings
        observations: list[Observation] = []
        for pool, reading in readings:
            for values, figure in metric.read(reading):
                # Of 200 functions all outcomes would be more series than an SDK keeps (2000).
                if "outcome" in metric.labels and not figure and values[-1] != "ok":
                    continue
                shown = (it if type(it) is int else str(it) for it in values)
                about = dict(zip(metric.attributes, shown, strict=True))
                observations.append(Observation(figure, {POOL: pool, **about}))  # type: ignore[arg-type]
        return observations


_by_provider: weakref.WeakKeyDictionary[MeterProvider, _PoolMetrics] = (
    weakref.WeakKeyDictionary()
)


@cache
def _global_metrics() -> _PoolMetrics:
    return _PoolMetrics(None)


def _metrics_of(provider: MeterProvider | None) -> _PoolMetrics:
    # Before there is a global provider there is a proxy of it, which leads to it later.
    if provider is None or provider is get_meter_provider():
        return _global_metrics()
    if provider not in _by_provider:
        _by_provider[provider] = _PoolMetrics(provider)
    return _by_provider[provider]
