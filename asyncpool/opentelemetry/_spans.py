"""The spans of jobs, which the service makes: so a job whose worker was killed has them too.

A span that waits, ``submit FUNCTION``, begins with the job, and each attempt has a span of its
own, ``process FUNCTION``, which begins as the job is sent to a worker.  Only then its number is
known, and only what the worker knows can be the parent of spans that are made there.  The
sampler decides once for each job, about the first of these spans.  If that is not recorded,
nothing more is done for the job but to hand the trace context on, which says so.
"""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from contextlib import suppress
from time import time_ns
from typing import Any, Concatenate, ParamSpec, TypeAlias

from opentelemetry.context import Context, get_current
from opentelemetry.propagate import inject
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanKind,
    Status,
    StatusCode,
    Tracer,
    get_current_span,
    set_span_in_context,
)

from asyncpool._core.base import pool_messages as say
from asyncpool._core.wire.context import with_trace
from asyncpool._runtime.job.job import Job
from asyncpool.enums import JobOutcome
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.events import Via
from asyncpool.opentelemetry._instruments import (
    ERROR,
    FUNCTION,
    OUTCOME,
    POOL,
    SLOT,
    VIA,
)

P = ParamSpec("P")

JOB = "asyncpool.job.id"
ATTEMPT = "asyncpool.job.attempt"
RUN = "asyncpool.job.run.duration"
DELIVERY = "asyncpool.job.delivery"
PID = "asyncpool.worker.pid"
CRASH_KIND = "asyncpool.worker.crash.kind"
CRASH_SIGNAL = "asyncpool.worker.crash.signal"

# How an attempt ends that its worker gives back without having begun it.
GIVEN_BACK = "given back"

# Neither a caller that has cancelled a job nor a worker that gives one back has failed.
_NO_FAILURES = frozenset((JobOutcome.OK, JobOutcome.CANCELLED, GIVEN_BACK))

# Of so many functions the name and the attributes of their spans are kept.
_MOST_NAMED = 1000

_LOGGER = logging.getLogger("asyncpool")

_Method: TypeAlias = Callable[Concatenate["JobSpans", P], None]


def _harmless(method: _Method[P]) -> _Method[P]:
    """Return *method*; what a sampler or a processor raises in it is no concern of the pool."""

    def call(self: JobSpans, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - no concern of the pool
            if not self.failed:  # it may raise for each span
                self.failed = True
                say.SPANS_FAILED.log(_LOGGER, {"pool": self.pool}, error=error)

    return call


class _Trace:
    """The spans of one open job.

    Attributes:
        attributes: What all of them have.
        parent: The context of the first span, of which the others are children.
        waiting: The span in which the job waits, or has waited.
        attempt: The span of the attempt, while there is one.
        before: The span of the attempt before.
        ran_at: When that attempt came to an outcome.
        run: How many seconds the function ran.
    """

    __slots__ = (
        "attempt",
        "attributes",
        "before",
        "parent",
        "ran_at",
        "run",
        "waiting",
    )

    def __init__(
        self, waiting: Span, parent: Context, attributes: dict[str, Any]
    ) -> None:
        self.waiting = waiting
        self.parent = parent
        self.attributes = attributes
        self.attempt: Span | None = None
        self.before: Span | None = None
        self.ran_at = 0
        self.run = 0.0


class JobSpans:
    """Makes the spans of the jobs of one pool; see :class:`JobTracer` for its methods.

    Args:
        tracer: Makes spans.
        pool: The name of the pool.

    Attributes:
        pool: As above.
        failed: Whether anything has raised.
        traced: The open jobs that have spans, by number.
    """

    def __init__(self, tracer: Tracer, pool: str) -> None:
        self.pool = pool
        self.failed = False
        self._tracer = tracer
        self.traced: dict[int, _Trace] = {}
        self._named: dict[tuple[str, Via], tuple[str, dict[str, str]]] = {}
        # The last jobs that were dropped: where and what they were, and their packed context
        # before and after.
        self._dropped: tuple[object, str, bytes, bytes] = (None, "", b"", b"")
        self._dropped_root: tuple[object, bytes, bytes] = (None, b"", b"")
        self._unsampled: Span | None = None

    # Of every job: as little as possible.

    @_harmless
    def queued(self, job: Job[Any], /) -> None:
        """Begin the span in which a job waits, if the sampler wants it."""
        context, function = get_current(), job._function
        dropped_in, dropped, before, after = self._dropped
        if (
            dropped_in is context
            and dropped == function.name
            and before == job._context
        ):
            job._context = after
            return
        via = function.figures.via
        found = self._named.get((function.name, via))
        name, attributes = found or self._name(function.name, via)
        options = job._options
        # What holds the pool open is a map, or a session.
        if options.hold is None or options.bound is not None:
            span = self._tracer.start_span(name, context, SpanKind.PRODUCER, attributes)
        else:
            span = self._start_of_map(name, context, attributes)
        if span.is_recording():
            span.set_attribute(JOB, job.id)
            parent = set_span_in_context(span, context)
            self.traced[job.id] = _Trace(span, parent, {**attributes, JOB: job.id})
        else:
            self._hand_on(job, context, span)

    def _name(self, function: str, via: Via) -> tuple[str, dict[str, str]]:
        attributes = {POOL: self.pool, FUNCTION: function, VIA: via}
        named = f"submit {function}", attributes
        if len(self._named) >= _MOST_NAMED:
            self._named.clear()
        self._named[function, via] = named
        return named

    def _start_of_map(
        self, name: str, context: Context, attributes: dict[str, str]
    ) -> Span:
        """Begin the span of a job of a map: a trace of its own, which links to the map's caller.

        A map may have any number of jobs, and one trace with all of them would help nobody.
        """
        caller = get_current_span(context).get_span_context()
        if not caller.is_valid:
            return self._tracer.start_span(name, context, SpanKind.PRODUCER, attributes)
        if not caller.trace_flags.sampled:
            return NonRecordingSpan(caller)  # nobody sees what the link leads to
        return self._tracer.start_span(
            name, Context(), SpanKind.PRODUCER, attributes, [Link(caller)]
        )

    def _hand_on(self, job: Job[Any], context: Context, span: Span) -> None:
        """Have the worker know that the trace of a job is not recorded."""
        before, caller = job._context, get_current_span(context)
        if caller.get_span_context().is_valid:
            self._send(job, context)
            # What is dropped of a caller whose trace is not recorded is dropped each time.
            # All jobs of one caller share one context, which each worker gets once.
            if not caller.get_span_context().trace_flags.sampled:
                self._dropped = context, job._function.name, before, job._context
        elif span.get_span_context().is_valid:  # else there is no SDK
            # One for all jobs without a trace: which one they have not makes no difference.
            root, packed, after = self._dropped_root
            if root is not context or packed != before:
                self._unsampled = self._unsampled or span
                self._send(job, set_span_in_context(self._unsampled, context))
                self._dropped_root = context, before, job._context
            else:
                job._context = after

    def _send(self, job: Job[Any], context: Context) -> None:
        headers: dict[str, str] = {}
        inject(headers, context)
        with suppress(
            ValueError
        ):  # too much baggage: then the worker knows of no trace
            job._context = with_trace(job._context, pickle.dumps(headers, 5))

    # Of jobs that are recorded.

    @_harmless
    def sending(self, job: Job[Any], slot: int, /) -> None:
        """End the waiting, and begin an attempt."""
        trace = self.traced.get(job.id)
        if trace is None:
            return
        now = time_ns()
        trace.waiting.end(now)
        before = trace.before
        trace.attempt = self._tracer.start_span(
            f"process {trace.attributes[FUNCTION]}",
            trace.parent,
            SpanKind.CONSUMER,
            {
                **trace.attributes,
                ATTEMPT: job.attempt,
                SLOT: slot,
                PID: job.worker_pid or 0,
            },
            () if before is None else [Link(before.get_span_context())],
            now,
        )
        trace.ran_at = 0
        self._send(job, set_span_in_context(trace.attempt, trace.parent))

    @_harmless
    def ran(self, job: Job[Any], run: float, /) -> None:
        """Take note of when an attempt has come to its outcome."""
        trace = self.traced.get(job.id)
        if trace is not None:
            trace.ran_at, trace.run = time_ns(), run

    @_harmless
    def given_back(self, job: Job[Any], /) -> None:
        """End an attempt that has not begun, and let the job wait again."""
        trace = self.traced.get(job.id)
        if trace is not None and trace.attempt is not None:
            self._end(trace, GIVEN_BACK, None)
            self._wait(trace)

    @_harmless
    def again(self, job: Job[Any], error: BaseException, /) -> None:
        """End an attempt that has failed, and let the job wait again."""
        trace = self.traced.get(job.id)
        if trace is not None and trace.attempt is not None:
            trace.before = trace.attempt
            self._end(trace, _outcome_of(error), error)
            self._wait(trace)

    @_harmless
    def ended(
        self, job: Job[Any], outcome: JobOutcome, error: BaseException | None, /
    ) -> None:
        """End the last span of a job."""
        trace = self.traced.pop(job.id, None)
        if trace is not None:
            self._end(trace, outcome, error)

    def stop(self) -> None:
        """End the spans of all jobs that are open, without an outcome."""
        traces, self.traced = self.traced, {}
        for trace in traces.values():
            with suppress(Exception):
                (trace.attempt or trace.waiting).end()

    def _wait(self, trace: _Trace) -> None:
        trace.waiting = self._tracer.start_span(
            f"wait {trace.attributes[FUNCTION]}",
            trace.parent,
            SpanKind.INTERNAL,
            trace.attributes,
        )

    def _end(self, trace: _Trace, outcome: str, error: BaseException | None) -> None:
        end, span = time_ns(), trace.attempt
        if span is None:
            span = trace.waiting
        elif trace.ran_at:
            end = trace.ran_at
            span.set_attribute(RUN, trace.run)
            # It may have waited in its worker, behind another short job.
            span.add_event("begun", timestamp=end - int(trace.run * 1e9))
        trace.attempt = None
        span.set_attribute(OUTCOME, str(outcome))
        if outcome not in _NO_FAILURES:
            _describe(span, outcome, error, end)
        span.end(end)


def _describe(span: Span, outcome: str, error: BaseException | None, end: int) -> None:
    """Say in *span* what has failed."""
    if error is None:
        span.set_status(Status(StatusCode.ERROR, outcome))
        return
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    span.set_attribute(ERROR, name)
    delivery = getattr(error, "delivery", None)
    if delivery is not None:
        span.set_attribute(DELIVERY, str(delivery))
    if isinstance(error, WorkerCrashedError) and error.crashes:
        crash = error.crashes[-1]
        span.set_attribute(CRASH_KIND, str(crash.kind))
        if crash.signal is not None:
            span.set_attribute(CRASH_SIGNAL, crash.signal)
    # Before anything that asks the error for its text, which may raise.
    span.set_status(Status(StatusCode.ERROR, outcome))
    with suppress(Exception):
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.record_exception(error, timestamp=end)


def _outcome_of(error: BaseException) -> JobOutcome:
    """Return how an attempt has ended after which there is another one."""
    if isinstance(error, WorkerCrashedError):
        return JobOutcome.CRASHED
    if isinstance(error, JobTimeoutError):
        return JobOutcome.TIMEOUT
    return JobOutcome.RAISED
