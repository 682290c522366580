"""The spans of jobs, which the service makes: so a job whose worker was killed has them too.

A span that waits, ``submit FUNCTION``, begins with the job, and each attempt has a span of its
own, ``process FUNCTION``, which begins as the job is sent to a worker.  Only then its number is
known, and only what the worker knows can be the parent of spans that are made there.  The
sampler decides once for each job, about the first of these spans.  If that is not recorded,
nothing more is done for the job but to hand the trace context on, which says so.

Only so many jobs a second get as far as that.  The others hand on the context of their caller,
and if one of them fails, its spans are made afterwards.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from time import monotonic, time_ns
from typing import Any, Concatenate, ParamSpec, TypeAlias

from opentelemetry.context import Context, get_current
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
    get_current_span,
    set_span_in_context,
)

from asyncpool._core import log_messages as say
from asyncpool._core.deadlines import RateLimit
from asyncpool._engine.hub import Attempt, PoolHub
from asyncpool._engine.job import PoolJob
from asyncpool._engine.life_log import LOGGER
from asyncpool._wire.messages import JobContext, with_parts
from asyncpool.enums import JobOutcome
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.events import Via

POOL = "asyncpool.pool.name"
FUNCTION = "code.function.name"
VIA = "asyncpool.job.via"
OUTCOME = "asyncpool.job.outcome"
ERROR = "error.type"
SLOT = "asyncpool.worker.slot"

# What a span says of a job, or of an attempt, that has failed.

DELIVERY = "asyncpool.job.delivery"
CRASH_KIND = "asyncpool.worker.crash.kind"
CRASH_SIGNAL = "asyncpool.worker.crash.signal"

# How an attempt ends that its worker gives back without having begun it.
GIVEN_BACK = "given back"

# Neither a caller that has cancelled a job nor a worker that gives one back has failed.
_NO_FAILURES = frozenset((JobOutcome.OK, JobOutcome.CANCELLED, GIVEN_BACK))


def finish(span: Span, outcome: str, error: BaseException | None, end: int) -> None:
    """End the last span of a job, or of an attempt, at *end*."""
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


def outcome_of(error: BaseException) -> JobOutcome:
    """Return how an attempt has ended after which there is another one."""
    if isinstance(error, WorkerCrashedError):
        return JobOutcome.CRASHED
    if isinstance(error, JobTimeoutError):
        return JobOutcome.TIMEOUT
    return JobOutcome.RAISED


# The trace contexts of jobs on their way to the workers, where spans find their parents.
#
# All jobs of one caller share one context, which each worker gets once; so what was packed for
# the last job is remembered.

# Of so many callers of maps it is remembered that they are sampled.
_MOST_CALLERS = 1000


def is_of_map(job: PoolJob[Any]) -> bool:
    """Tell whether a job is an item of a map, or several."""
    options = job.options
    # What holds the pool open is a map, or a session.
    return options.hold is not None and options.session is None


class JobContexts:
    """Sets the trace contexts of the jobs of one pool.

    Attributes:
        handed: Of the last job whose caller's context was handed on: that context, whether the
            job was one of a map, and its packed context before and after.  For a job with the
            same context and the same packed one the same is done.
    """

    def __init__(self) -> None:
        self.handed: tuple[object, bool, bytes, bytes] = (None, False, b"", b"")
        # The last jobs that were dropped: where and what they were, and their packed context
        # before and after.
        self._dropped: tuple[object, str, bytes, bytes] = (None, "", b"", b"")
        self._dropped_root: tuple[object, bytes, bytes] = (None, b"", b"")
        self._unsampled: Span | None = None
        self._callers: dict[tuple[int, int], SpanContext] = {}

    def hand_on(self, job: PoolJob[Any], context: Context) -> None:
        """Hand on the *context* in which a job is submitted: it gets no spans of its own.

        A map may have any number of jobs.  Spans that these make do not get into the trace of
        the map's caller, so to them the caller's span is one that is not sampled.
        """
        before, of_map = job.context, is_of_map(job)
        caller = get_current_span(context).get_span_context()
        sent = context
        if of_map and caller.is_valid and caller.trace_flags.sampled:
            self._remember(caller)
            sent = set_span_in_context(_stands_for(caller, 0), context)
        self.send(job, sent)
        self.handed = context, of_map, before, job.context

    def drop_again(self, job: PoolJob[Any], context: Context) -> bool:
        """Treat a job as the last one that the sampler did not want; return whether it is alike."""
        known_in, function, before, after = self._dropped
        if (
            known_in is not context
            or function != job.function.name
            or before != job.context
        ):
            return False
        job.context = after
        return True

    def drop(self, job: PoolJob[Any], context: Context, span: Span) -> None:
        """Have the worker know that the trace of a job is not recorded."""
        before, caller = job.context, get_current_span(context)
        if caller.get_span_context().is_valid:
            self.send(job, context)
            # What is dropped of a caller whose trace is not recorded is dropped each time.
            if not caller.get_span_context().trace_flags.sampled:
                self._dropped = context, job.function.name, before, job.context
        elif span.get_span_context().is_valid:  # else there is no SDK
            # One for all jobs without a trace: which one they have not makes no difference.
            root, packed, after = self._dropped_root
            if root is not context or packed != before:
                self._unsampled = self._unsampled or span
                self.send(job, set_span_in_context(self._unsampled, context))
                self._dropped_root = context, before, job.context
            else:
                job.context = after

    def send(self, job: PoolJob[Any], context: Context) -> None:
        """Have the worker get *context*."""
        headers: dict[str, str] = {}
        inject(headers, context)
        if not headers:
            return
        # Too much baggage: then the worker knows of no trace.
        with suppress(ValueError):
            job.context = with_parts(job.context, trace=pickle.dumps(headers, 5))

    def caller_of(self, job: PoolJob[Any]) -> tuple[Context, list[Link]]:
        """Return the parent of a job that :meth:`hand_on` was called for, and links."""
        packed = JobContext.unpack(job.context).trace
        if not packed:
            return Context(), []
        context = extract(pickle.loads(packed), Context())  # noqa: S301 - as made above
        caller = get_current_span(context).get_span_context()
        if not caller.is_valid:
            return context, []
        if is_of_map(job):
            remembered = self._callers.get((caller.trace_id, caller.span_id))
            if remembered is not None:
                return Context(), [Link(remembered)]
        return set_span_in_context(_stands_for(caller, caller.trace_flags), context), []

    def _remember(self, caller: SpanContext) -> None:
        if len(self._callers) >= _MOST_CALLERS:
            self._callers.clear()
        self._callers[caller.trace_id, caller.span_id] = caller


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


P = ParamSpec("P")

JOB = "asyncpool.job.id"
ATTEMPT = "asyncpool.job.attempt"
RUN = "asyncpool.job.run.duration"
PID = "asyncpool.worker.pid"
NODE = "asyncpool.node.name"

# A job that the sampler does not want counts as a tenth of one that has spans: it takes 5 us of
# the event loop, and the other one takes 65.
_ASKED = 0.1

# Of so many functions the name and the attributes of their spans are kept.
_MOST_NAMED = 1000


_Method: TypeAlias = Callable[Concatenate["JobSpans", P], None]


def _harmless(method: _Method[P]) -> _Method[P]:
    """Return *method*; what a sampler or a processor raises in it is no concern of the pool."""

    def call(self: JobSpans, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001 - no concern of the pool
            self.fail(error)

    return call


class _Trace:
    """The spans of one open job.

    Attributes:
        attributes: What all of them have.
        parent: The context of the first span, of which the others are children.
        waiting: The span in which the job waits, or has waited.
        attempt: The span of the attempt, while there is one.
        before: The span of the attempt before.
    """

    __slots__ = ("attempt", "attributes", "before", "parent", "waiting")

    def __init__(
        self, waiting: Span, parent: Context, attributes: dict[str, Any]
    ) -> None:
        self.waiting = waiting
        self.parent = parent
        self.attributes = attributes
        self.attempt: Span | None = None
        self.before: Span | None = None


class JobSpans:
    """Makes the spans of the jobs of one pool; see :class:`JobTracer` for its methods.

    Args:
        tracer: Makes spans.
        pool: The name of the pool.
        hub: What tells of its jobs.
        most: How many jobs a second may have spans, and how many of the others that fail;
            ``None`` for all.  A job that the sampler does not want counts as a tenth.
        node_with: Returns the name of the node that has a slot, if the workers are on nodes.

    Attributes:
        pool: As above.
        failed: Whether anything has raised.
        traced: The open jobs that have spans, by number.
        limit: Which jobs may have spans; it counts the others.
    """

    def __init__(
        self,
        tracer: Tracer,
        pool: str,
        hub: PoolHub,
        most: int | None,
        node_with: Callable[[int], str] | None = None,
    ) -> None:
        self.pool = pool
        self._node_with = node_with
        self.failed = False
        self._tracer = tracer
        self._hub = hub
        self._since = monotonic()
        self.traced: dict[int, _Trace] = {}
        self.limit = RateLimit(most)
        self._failures = RateLimit(most)
        self._contexts = JobContexts()
        self._named: dict[tuple[str, Via], tuple[str, dict[str, str]]] = {}

    def fail(self, error: Exception) -> None:
        """Log what a sampler or a processor has raised; it may do so for each span."""
        if not self.failed:
            self.failed = True
            say.SPANS_FAILED.log(LOGGER, {"pool": self.pool}, error=error)

    # Of every job: as little as possible.

    def queued(self, job: PoolJob[Any], /) -> None:
        """Begin the span in which a job waits, if there may be one, and the sampler wants it."""
        try:
            context, limit = get_current(), self.limit
            # Nearly all jobs of a busy pool end here, so what they have in common is compared here.
            if job.queued_at < limit.next_at:
                limit.refused += 1
                known_in, map_, before, after = self._contexts.handed
                if (
                    context is known_in
                    and job.context == before
                    and (job.options.hold is not None and is_of_map(job)) is map_
                ):
                    job.context = after
                else:
                    self._contexts.hand_on(job, context)
            elif not self._contexts.drop_again(job, context):
                limit.spend(job.queued_at, _ASKED)
                self._begin(job, context)
        except Exception as error:  # noqa: BLE001 - no concern of the pool
            self.fail(error)

    def _begin(self, job: PoolJob[Any], context: Context) -> None:
        name, attributes = self._name(job)
        if is_of_map(job):
            span = self._start_of_map(name, context, attributes)
        else:
            span = self._tracer.start_span(name, context, SpanKind.PRODUCER, attributes)
        if span.is_recording():
            span.set_attribute(JOB, job.id)
            parent = set_span_in_context(span, context)
            self.traced[job.id] = _Trace(span, parent, {**attributes, JOB: job.id})
            self.limit.spend(job.queued_at, 1 - _ASKED)
            self._hub.trace(job.id)
        else:
            self._contexts.drop(job, context, span)

    def _name(self, job: PoolJob[Any]) -> tuple[str, dict[str, str]]:
        """Return what the first span of a job is called, and its attributes."""
        function, via = job.function.name, job.function.figures.via
        named = self._named.get((function, via))
        if named is None:
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
        trace.attempt = self._tracer.start_span(
            f"process {trace.attributes[FUNCTION]}",
            trace.parent,
            SpanKind.CONSUMER,
            {**trace.attributes, ATTEMPT: job.attempt, **self._worker(job, slot)},
            () if before is None else [Link(before.get_span_context())],
            now,
        )
        self._contexts.send(job, set_span_in_context(trace.attempt, trace.parent))

    def _worker(self, job: PoolJob[Any], slot: int) -> dict[str, Any]:
        """Return the attributes that say where an attempt is sent."""
        if self._node_with is None:
            return {SLOT: slot, PID: job.worker_pid or 0}
        # Which of its workers the node takes is known when the attempt has ended.
        return {NODE: self._node_with(slot)}

    @_harmless
    def given_back(self, job: PoolJob[Any], /) -> None:
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
            trace.before = trace.attempt
            self._end(trace, outcome_of(error), error, attempt)
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
        """End the last span of a job, or make those of one that has failed without any."""
        trace = self.traced.pop(job.id, None)
        if trace is not None:
            self._end(trace, outcome, error, attempt)
        # A call that was refused has never been a job.
        elif error is not None and outcome is not JobOutcome.REFUSED:
            queued = job.queued_at if attempt is None else attempt.queued
            if queued >= self._since and self._failures.take(monotonic()):
                self._tell_failure(job, outcome, error, attempt)

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

    def _end(
        self,
        trace: _Trace,
        outcome: str,
        error: BaseException | None,
        attempt: Attempt | None,
    ) -> None:
        # Both clocks at once: what the machine does between two readings is an error of the times.
        end, at = time_ns(), monotonic()
        span = trace.attempt
        if span is None:
            span = trace.waiting
        elif attempt is not None:
            if self._node_with is not None:
                span.set_attribute(SLOT, attempt.slot)
            if attempt.run is not None:
                # It has come to its outcome some time ago.
                end -= int((at - attempt.began - attempt.run) * 1e9)
                span.set_attribute(RUN, attempt.run)
                # It may have waited in its worker, behind another short job, or on its node.
                span.add_event("begun", timestamp=end - int(attempt.run * 1e9))
        trace.attempt = None
        finish(span, outcome, error, end)

    def _tell_failure(
        self,
        job: PoolJob[Any],
        outcome: JobOutcome,
        error: BaseException,
        attempt: Attempt | None,
    ) -> None:
        """Make the spans of a job that has failed without any, if the sampler wants them.

        If it has been asked about the job before, it is asked the same once more: whoever
        decides by the trace gives the same answer.
        """
        now, at = time_ns(), monotonic()

        def moment(then: float) -> int:
            return now - int((at - then) * 1e9)

        context, links = self._contexts.caller_of(job)
        name, common = self._name(job)
        about: dict[str, Any] = {**common, JOB: job.id}
        queued = moment(job.queued_at if attempt is None else attempt.queued)
        span = self._tracer.start_span(
            name, context, SpanKind.PRODUCER, about, links, queued
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
        finish(span, outcome, error, now)
