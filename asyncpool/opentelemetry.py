"""Metrics and spans of pools for OpenTelemetry, through its API.

:func:`instrument` exports the figures of a pool as metrics, and makes spans of its jobs in the
service.  The module needs the extra ``opentelemetry``, which has the API alone.  The SDK,
which exports, is the service's own choice.
"""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Hashable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cache, partial, wraps
from time import monotonic, time_ns
from types import NoneType
from typing import Any, TypeVar

from asyncpool import __version__
from asyncpool._core import checks, log_messages as say
from asyncpool._core.deadlines import RateLimit
from asyncpool._engine.hub import Attempt
from asyncpool._engine.job import PoolJob
from asyncpool._engine.life_log import LOGGER
from asyncpool._observe.metrics import (
    LOCK,
    POOL_METRICS,
    Exported,
    Exports,
    Metric,
    Reading,
)
from asyncpool._wire.messages import JobContext, with_parts
from asyncpool.enums import JobOutcome, RunState
from asyncpool.errors import JobTimeoutError, PoolClosedError, WorkerCrashedError
from asyncpool.pool import Pool
from asyncpool.sharedpool._remote_pool import RemotePool, figures_of

try:
    from opentelemetry.context import Context, get_current
    from opentelemetry.metrics import (
        CallbackOptions,
        MeterProvider,
        Observation,
        get_meter,
        get_meter_provider,
    )
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import (
        Link,
        NonRecordingSpan,
        Span,
        SpanContext,
        SpanKind,
        Status,
        StatusCode,
        TraceFlags,
        Tracer,
        TracerProvider,
        get_current_span,
        get_tracer,
        set_span_in_context,
    )
except ModuleNotFoundError as _error:
    if (_error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise ModuleNotFoundError(
        "asyncpool.opentelemetry needs opentelemetry-api, which is not installed: "
        "pip install 'asyncpool-supervised[opentelemetry]'",
        name=_error.name,
    ) from None

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
            made = _JobSpans(get_tracer(*_SCOPE, tracer_provider), pool, max_traced)
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
                    exported.final = exported.reading(last)

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


# The spans of jobs, which the service makes: so a job whose worker was killed has them too.
#
# A span that waits, ``submit FUNCTION``, begins with the job, and each attempt has a span of its
# own, ``process FUNCTION``, which begins as the job is sent to a worker.  Only then its number is
# known, and only what the worker knows can be the parent of spans that are made there.  The
# sampler decides once for each job, about the first of these spans.  If that is not recorded,
# nothing more is done for the job but to hand the trace context on, which says so.
#
# Only so many jobs a second get as far as that.  The others hand on the context of their caller,
# and if one of them fails, its spans are made afterwards.

POOL = "asyncpool.pool.name"
FUNCTION = "code.function.name"
VIA = "asyncpool.job.via"
OUTCOME = "asyncpool.job.outcome"
ERROR = "error.type"
SLOT = "asyncpool.worker.slot"
JOB = "asyncpool.job.id"
ATTEMPT = "asyncpool.job.attempt"
RUN = "asyncpool.job.run.duration"
PID = "asyncpool.worker.pid"
NODE = "asyncpool.node.name"
DELIVERY = "asyncpool.job.delivery"
CRASH_KIND = "asyncpool.worker.crash.kind"
CRASH_SIGNAL = "asyncpool.worker.crash.signal"

# How an attempt ends that its worker gives back without having begun it.
GIVEN_BACK = "given back"

# Neither a caller that has cancelled a job nor a worker that gives one back has failed.
_NO_FAILURES = frozenset((JobOutcome.OK, JobOutcome.CANCELLED, GIVEN_BACK))

# A job that the sampler does not want counts as a tenth of one that has spans: it takes 5 us of
# the event loop, and the other one takes 65.
_ASKED = 0.1

# Of so many kinds of jobs it is kept what their workers get, and of so many callers of maps that
# they are sampled.
_MOST_KEPT = 1000

# What was sent of no job yet.
_NOTHING = (None, b"", b"")

_Method = TypeVar("_Method", bound=Callable[..., None])


def _harmless(method: _Method) -> _Method:
    """Return *method*; what a sampler or a processor raises in it is no concern of the pool."""

    @wraps(method)
    def call(self: _JobSpans, /, *args: Any) -> None:
        try:
            method(self, *args)
        except Exception as error:  # noqa: BLE001 - no concern of the pool
            self.fail(error)

    return call  # type: ignore[return-value]


def _is_of_map(job: PoolJob[Any]) -> bool:
    """Tell whether a job is an item of a map, or several."""
    options = job.options
    # What holds the pool open is a map, or a session.
    return options.hold is not None and options.session is None


def _stands_for(caller: SpanContext, flags: int) -> Span:
    """Return a span that is *caller* to its children, but for its flags."""
    context = SpanContext(
        caller.trace_id,
        caller.span_id,
        is_remote=False,  # it is from here, also if it is read from headers
        trace_flags=TraceFlags(flags),
        trace_state=caller.trace_state,
    )
    return NonRecordingSpan(context)


@dataclass(slots=True)
class _Trace:
    """The spans of one open job.

    Attributes:
        waiting: The span in which the job waits, or has waited.
        parent: The context of the first span, of which the others are children.
        attributes: What all of them have.
        attempt: The span of the attempt, while there is one.
        before: The span of the attempt before.
    """

    waiting: Span
    parent: Context
    attributes: dict[str, Any]
    attempt: Span | None = None
    before: Span | None = None


class _JobSpans:
    """Makes the spans of the jobs of one pool; see :class:`JobTracer` for its methods.

    Args:
        tracer: Makes spans.
        pool: The pool, which is not held.
        most: How many jobs a second may have spans, and how many of the others that fail;
            ``None`` for all.  A job that the sampler does not want counts as a tenth.

    Attributes:
        traced: The open jobs that have spans, by number.
        limit: Which jobs may have spans; it counts the others.
    """

    def __init__(
        self, tracer: Tracer, pool: Pool | RemotePool, most: int | None
    ) -> None:
        life: Any = pool._life  # noqa: SLF001
        self._tracer, self._pool, self._hub = tracer, pool.name, life.hub
        # Returns the name of the node that has a slot, if the workers are on nodes.
        self._node_with: Callable[[int], str] | None = getattr(life, "node_with", None)
        self._failed = False
        self._since = monotonic()
        self.traced: dict[int, _Trace] = {}
        self.limit = RateLimit(most)
        self._failures = RateLimit(most)
        # What a worker gets of jobs without spans: for each kind of job the context of the last
        # one, and its packed context before and after.  With the same ones the same is done.
        # The kinds: above the bound, in a map or not; dropped, by function; and without a trace.
        self._sent: dict[Hashable, tuple[object, bytes, bytes]] = {}
        self._unsampled: Span | None = None
        self._callers: dict[tuple[int, int], SpanContext] = {}

    def fail(self, error: Exception) -> None:
        """Log what a sampler or a processor has raised; it may do so for each span."""
        if not self._failed:
            self._failed = True
            say.SPANS_FAILED.log(LOGGER, {"pool": self._pool}, error=error)

    # Of every job: as little as possible.

    def queued(self, job: PoolJob[Any], /) -> None:
        """Begin the span in which a job waits, if there may be one, and the sampler wants it."""
        try:
            context, limit = get_current(), self.limit
            kind: Any
            if above := job.queued_at < limit.next_at:
                limit.refused += 1
                kind = job.options.hold is not None and _is_of_map(job)
            else:
                kind = job.function.name
            # Nearly all jobs of a busy pool end here.
            known_in, before, after = self._sent.get(kind, _NOTHING)
            if known_in is context and before == job.context:
                job.context = after
            elif above:
                self._hand_on(job, context, of_map=kind)
            else:
                limit.spend(job.queued_at, _ASKED)
                self._begin(job, context)
        except Exception as error:  # noqa: BLE001 - no concern of the pool
            self.fail(error)

    def _hand_on(self, job: PoolJob[Any], context: Context, *, of_map: bool) -> None:
        """Hand on the *context* in which a job is submitted: it gets no spans of its own.

        A map may have any number of jobs.  Spans that these make do not get into the trace of
        the map's caller, so to them the caller's span is one that is not sampled.
        """
        caller, sent = get_current_span(context).get_span_context(), context
        if of_map and caller.is_valid and caller.trace_flags.sampled:
            if len(self._callers) >= _MOST_KEPT:
                self._callers.clear()
            self._callers[caller.trace_id, caller.span_id] = caller
            sent = set_span_in_context(_stands_for(caller, 0), context)
        self._send_as(of_map, job, context, sent)

    def _begin(self, job: PoolJob[Any], context: Context) -> None:
        name, attributes = self._name(job)
        caller, parent, links = (
            get_current_span(context).get_span_context(),
            context,
            [],
        )
        span: Span | None = None
        if _is_of_map(job) and caller.is_valid:
            # A trace of its own, which links to the map's caller: one trace with all jobs of a
            # map, which may be any number, would help nobody.
            parent, links = Context(), [Link(caller)]
            if not caller.trace_flags.sampled:
                span = NonRecordingSpan(caller)  # nobody sees what the link leads to
        span = span or self._tracer.start_span(
            name, parent, SpanKind.PRODUCER, attributes, links
        )
        if span.is_recording():
            span.set_attribute(JOB, job.id)
            within = set_span_in_context(span, context)
            self.traced[job.id] = _Trace(span, within, {**attributes, JOB: job.id})
            self.limit.spend(job.queued_at, 1 - _ASKED)
            self._hub.trace(job.id)
        # Else the worker is to know that the trace of the job is not recorded.
        elif caller.is_valid and caller.trace_flags.sampled:
            self._send(job, context)
        elif caller.is_valid:
            # What is dropped of a caller whose trace is not recorded is dropped each time.
            self._send_as(job.function.name, job, context, context)
        elif span.get_span_context().is_valid:  # else there is no SDK
            # One for all jobs without a trace: which one they have not makes no difference.
            self._unsampled = self._unsampled or span
            known_in, before, after = self._sent.get(None, _NOTHING)
            if known_in is context and before == job.context:
                job.context = after
            else:
                sent = set_span_in_context(self._unsampled, context)
                self._send_as(None, job, context, sent)

    def _send_as(
        self,
        kind: Hashable,
        job: PoolJob[Any],
        context: Context,
        sent: Context,
    ) -> None:
        """Have the worker get *sent*, as it does for each such job with the same *context*."""
        before = job.context
        self._send(job, sent)
        if len(self._sent) >= _MOST_KEPT:
            self._sent.clear()
        self._sent[kind] = context, before, job.context

    def _send(self, job: PoolJob[Any], context: Context) -> None:
        """Have the worker get *context*."""
        headers: dict[str, str] = {}
        inject(headers, context)
        if headers:
            # Too much baggage: then the worker knows of no trace.
            with suppress(ValueError):
                job.context = with_parts(job.context, trace=pickle.dumps(headers, 5))

    def _name(self, job: PoolJob[Any]) -> tuple[str, dict[str, str]]:
        """Return what the first span of a job is called, and its attributes."""
        function = job.function.name
        about = {POOL: self._pool, FUNCTION: function, VIA: job.function.figures.via}
        return f"submit {function}", about

    # Of jobs that are recorded.

    @_harmless
    def sending(self, job: PoolJob[Any], slot: int, /) -> None:
        """End the waiting, and begin an attempt."""
        trace = self.traced.get(job.id)
        if trace is None:
            return
        now = time_ns()
        trace.waiting.end(now)
        before = trace.before
        if self._node_with is None:
            where: dict[str, Any] = {SLOT: slot, PID: job.worker_pid or 0}
        else:  # which of its workers the node takes is known when the attempt has ended
            where = {NODE: self._node_with(slot)}
        trace.attempt = self._tracer.start_span(
            f"process {trace.attributes[FUNCTION]}",
            trace.parent,
            SpanKind.CONSUMER,
            {**trace.attributes, ATTEMPT: job.attempt, **where},
            () if before is None else [Link(before.get_span_context())],
            now,
        )
        self._send(job, set_span_in_context(trace.attempt, trace.parent))

    @_harmless
    def unassigned(self, job: PoolJob[Any], /) -> None:
        """End an attempt that has not begun, and let the job wait again."""
        trace = self.traced.get(job.id)
        if trace is not None and trace.attempt is not None:
            self._end(trace, GIVEN_BACK, None, None)
            self._wait(trace)

    @_harmless
    def attempt_failed(
        self, job: PoolJob[Any], error: BaseException, attempt: Attempt | None, /
    ) -> None:
        """End an attempt that has failed, and let the job wait again."""
        trace = self.traced.get(job.id)
        if trace is not None and trace.attempt is not None:
            trace.before, outcome = trace.attempt, JobOutcome.RAISED
            if isinstance(error, WorkerCrashedError):
                outcome = JobOutcome.CRASHED
            elif isinstance(error, JobTimeoutError):
                outcome = JobOutcome.TIMEOUT
            self._end(trace, outcome, error, attempt)
            self._wait(trace)

    @_harmless
    def ended(
        self,
        job: PoolJob[Any],
        outcome: JobOutcome,
        error: BaseException | None,
        attempt: Attempt | None,
        /,
    ) -> None:
        """End the last span of a job, or make those of one that has failed without any.

        If the sampler has been asked about the job before, it is asked the same once more: whoever
        decides by the trace gives the same answer.
        """
        trace = self.traced.pop(job.id, None)
        if trace is not None:
            self._end(trace, outcome, error, attempt)
            return
        # A call that was refused has never been a job.
        if error is None or outcome is JobOutcome.REFUSED:
            return
        queued = job.queued_at if attempt is None else attempt.queued
        if queued < self._since or not self._failures.take(monotonic()):
            return
        now, at = time_ns(), monotonic()

        def moment(then: float) -> int:
            return now - int((at - then) * 1e9)

        context, links = self._caller_of(job)
        name, common = self._name(job)
        about: dict[str, Any] = {**common, JOB: job.id}
        span = self._tracer.start_span(
            name, context, SpanKind.PRODUCER, about, links, moment(queued)
        )
        if not span.is_recording():
            return
        if attempt is not None:
            began = moment(attempt.began)
            span.end(began)
            about |= {ATTEMPT: job.attempt, SLOT: attempt.slot}
            if self._node_with is not None:
                about[NODE] = self._node_with(attempt.slot)
            if attempt.run is not None:
                about[RUN] = attempt.run
                now = began + int(attempt.run * 1e9)
            span = self._tracer.start_span(
                f"process {common[FUNCTION]}",
                set_span_in_context(span, context),
                SpanKind.CONSUMER,
                about,
                start_time=began,
            )
        _finish(span, outcome, error, now)

    def stop(self) -> None:
        """End the spans of all jobs that are open, without an outcome."""
        traces, self.traced = self.traced, {}
        for trace in traces.values():
            with suppress(Exception):
                (trace.attempt or trace.waiting).end()

    def _wait(self, trace: _Trace) -> None:
        name = f"wait {trace.attributes[FUNCTION]}"
        trace.waiting = self._tracer.start_span(
            name, trace.parent, SpanKind.INTERNAL, trace.attributes
        )

    def _end(
        self,
        trace: _Trace,
        outcome: str,
        error: BaseException | None,
        attempt: Attempt | None,
    ) -> None:
        # Both clocks at once: what the machine does between two readings is an error of the times.
        end, at = time_ns(), monotonic()
        span, trace.attempt = trace.attempt, None
        if span is not None and attempt is not None:
            if self._node_with is not None:
                span.set_attribute(SLOT, attempt.slot)
            if attempt.run is not None:
                # It has come to its outcome some time ago.
                end -= int((at - attempt.began - attempt.run) * 1e9)
                span.set_attribute(RUN, attempt.run)
                # It may have waited in its worker, behind another short job, or on its node.
                span.add_event("begun", timestamp=end - int(attempt.run * 1e9))
        _finish(span or trace.waiting, outcome, error, end)

    def _caller_of(self, job: PoolJob[Any]) -> tuple[Context, list[Link]]:
        """Return the parent of a job whose caller's context was handed on, and links."""
        packed = JobContext.unpack(job.context).trace
        if not packed:
            return Context(), []
        context = extract(pickle.loads(packed), Context())  # noqa: S301 - as made above
        caller = get_current_span(context).get_span_context()
        if not caller.is_valid:
            return context, []
        sampled = self._callers.get((caller.trace_id, caller.span_id))
        if sampled is not None and _is_of_map(job):
            return Context(), [Link(sampled)]
        return set_span_in_context(_stands_for(caller, caller.trace_flags), context), []


def _finish(span: Span, outcome: str, error: BaseException | None, end: int) -> None:
    """End the last span of a job, or of an attempt, at *end*, and say in it what has failed."""
    span.set_attribute(OUTCOME, str(outcome))
    if outcome not in _NO_FAILURES:
        # Before anything that asks the error for its text, which may raise.
        span.set_status(Status(StatusCode.ERROR, outcome))
    if outcome not in _NO_FAILURES and error is not None:
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        span.set_attribute(ERROR, f"{module}{kind.__qualname__}")
        delivery = getattr(error, "delivery", None)
        if delivery is not None:
            span.set_attribute(DELIVERY, str(delivery))
        if isinstance(error, WorkerCrashedError) and error.crashes:
            crash = error.crashes[-1]
            span.set_attribute(CRASH_KIND, str(crash.kind))
            if crash.signal is not None:
                span.set_attribute(CRASH_SIGNAL, crash.signal)
        with suppress(Exception):
            span.set_status(Status(StatusCode.ERROR, str(error)))
            span.record_exception(error, timestamp=end)
    span.end(end)
