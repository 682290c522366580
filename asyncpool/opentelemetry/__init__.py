"""Metrics and spans of pools for OpenTelemetry, through its API.

:func:`instrument` exports the figures of a pool as metrics, and makes spans of its jobs in the
service.  The module needs the extra ``opentelemetry``, which has the API alone.  The SDK,
which exports, is the service's own choice.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable

from asyncpool._core import checks
from asyncpool._observe.readings import Readable
from asyncpool.enums import RunState
from asyncpool.errors import PoolClosedError
from asyncpool.pool import Pool
from asyncpool.sharedpool._remote_pool import RemotePool, figures_of
from asyncpool.stats import PoolStats

try:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider, get_tracer
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        "asyncpool.opentelemetry needs opentelemetry-api, which is not installed: "
        "pip install 'asyncpool-supervised[opentelemetry]'",
        name=_error.name,
    ) from None

from asyncpool.opentelemetry._metrics import (
    SCOPE,
    ExportedPool,
    PoolMetrics,
    metrics_of,
)
from asyncpool.opentelemetry._spans import JobSpans

__all__ = ["instrument", "uninstrument"]


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
    _check_pool("instrument", pool)
    if tracer_provider is not None:
        _check("instrument", tracer_provider, TracerProvider)
    if meter_provider is not None:
        _check("instrument", meter_provider, MeterProvider)
    if not spans and not metrics:
        raise ValueError("instrument() needs spans, or metrics, or both")
    checks.at_least(1).or_none()("max_traced", max_traced)
    pool._life.check_loop()  # noqa: SLF001
    with _lock:
        if pool in _instrumented:
            raise ValueError(
                f"pool {pool.name} is already instrumented: uninstrument() it first"
            )
        if _is_closed(pool):
            raise PoolClosedError(f"pool {pool.name} is closed")
        made = None
        if spans:
            hub = pool._life.hub  # noqa: SLF001
            tracer = get_tracer(*SCOPE, tracer_provider)
            node_with = None
            if isinstance(pool, RemotePool):
                node_with = pool._life.node_with  # noqa: SLF001
            made = JobSpans(tracer, pool.name, hub, max_traced, node_with)
        meter = metrics_of(meter_provider) if metrics else None
        _instrumented[pool] = _Instrumentation(pool, made, meter)


def uninstrument(pool: Pool | RemotePool) -> None:
    """Undo :func:`instrument`: no more metrics of *pool*, and no more spans of its jobs.

    The spans of jobs that are open end now, without an outcome.

    Raises:
        TypeError: If *pool* is not a :class:`asyncpool.Pool`.
        ValueError: If the pool is not instrumented.
        RuntimeError: If the pool was started in another event loop.
    """
    _check_pool("uninstrument", pool)
    pool._life.check_loop()  # noqa: SLF001
    with _lock:
        instrumentation = _instrumented.pop(pool, None)
    if instrumentation is None:
        raise ValueError(f"pool {pool.name} is not instrumented")
    instrumentation.undo()


class _Instrumentation:
    """What was added to one pool.

    Args:
        pool: The pool.
        spans: Makes its spans, if anything does.
        metrics: Has its figures, if anything does.
    """

    def __init__(
        self,
        pool: Pool | RemotePool,
        spans: JobSpans | None,
        metrics: PoolMetrics | None,
    ) -> None:
        # Not the pool, or nobody would notice that it is dropped.
        self._life = pool._life  # noqa: SLF001
        self._last = _last_figures(pool)
        self._spans = spans
        self._metrics = metrics
        self._exported: ExportedPool | None = None
        if metrics is not None:
            self._exported = metrics.add(pool, None if spans is None else spans.limit)
            self._life.hub.ends.append(self._on_end)
        if spans is not None:
            self._life.hub.add_tracer(spans)

    def undo(self) -> None:
        if self._spans is not None:
            self._life.hub.remove_tracer(self._spans)
            self._spans.stop()
        if self._metrics is not None and self._exported is not None:
            self._metrics.remove(self._exported)

    def _on_end(self) -> None:
        """Keep the last figures of the pool, which may be gone when they are collected."""
        last = self._last()
        if self._exported is not None and last is not None:
            self._exported.end(last)


def _last_figures(
    pool: Pool | RemotePool,
) -> Callable[[], Readable[PoolStats] | None]:
    """Return what finds the figures of *pool* at its end, if they are still there."""
    if isinstance(pool, RemotePool):
        return weakref.ref(figures_of(pool))
    life = pool._life  # noqa: SLF001
    return lambda: life.supervisor


def _is_closed(pool: Pool | RemotePool) -> bool:
    if isinstance(pool, RemotePool):
        return pool._life.over  # noqa: SLF001
    return pool.stats().state is RunState.CLOSED


def _check_pool(caller: str, pool: object) -> None:
    if not isinstance(pool, RemotePool):
        _check(caller, pool, Pool)


def _check(caller: str, given: object, kind: type) -> None:
    if not isinstance(given, kind):
        raise TypeError(
            f"{caller}() needs a {kind.__name__}, not {type(given).__name__}"
        )


# Reentrant, since the garbage collector may run any code, also an uninstrument().
_lock = threading.RLock()
_instrumented: weakref.WeakKeyDictionary[Pool | RemotePool, _Instrumentation] = (
    weakref.WeakKeyDictionary()
)
