"""The trace contexts of jobs on their way to the workers, where spans find their parents.

All jobs of one caller share one context, which each worker gets once; so what was packed for
the last job is remembered.
"""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

from opentelemetry.context import Context
from opentelemetry.propagate import extract, inject
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from asyncpool._core.wire.context import JobContext, with_trace
from asyncpool._runtime.job.job import Job

# Of so many callers of maps it is remembered that they are sampled.
_MOST_CALLERS = 1000


def is_of_map(job: Job[Any]) -> bool:
    """Tell whether a job is an item of a map, or several."""
    options = job._options
    # What holds the pool open is a map, or a session.
    return options.hold is not None and options.bound is None


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

    def hand_on(self, job: Job[Any], context: Context) -> None:
        """Hand on the *context* in which a job is submitted: it gets no spans of its own.

        A map may have any number of jobs.  Spans that these make do not get into the trace of
        the map's caller, so to them the caller's span is one that is not sampled.
        """
        before, of_map = job._context, is_of_map(job)
        caller = get_current_span(context).get_span_context()
        sent = context
        if of_map and caller.is_valid and caller.trace_flags.sampled:
            self._remember(caller)
            sent = set_span_in_context(_stands_for(caller, 0), context)
        self.send(job, sent)
        self.handed = context, of_map, before, job._context

    def drop_again(self, job: Job[Any], context: Context) -> bool:
        """Treat a job as the last one that the sampler did not want; return whether it is alike."""
        known_in, function, before, after = self._dropped
        if (
            known_in is not context
            or function != job._function.name
            or before != job._context
        ):
            return False
        job._context = after
        return True

    def drop(self, job: Job[Any], context: Context, span: Span) -> None:
        """Have the worker know that the trace of a job is not recorded."""
        before, caller = job._context, get_current_span(context)
        if caller.get_span_context().is_valid:
            self.send(job, context)
            # What is dropped of a caller whose trace is not recorded is dropped each time.
            if not caller.get_span_context().trace_flags.sampled:
                self._dropped = context, job._function.name, before, job._context
        elif span.get_span_context().is_valid:  # else there is no SDK
            # One for all jobs without a trace: which one they have not makes no difference.
            root, packed, after = self._dropped_root
            if root is not context or packed != before:
                self._unsampled = self._unsampled or span
                self.send(job, set_span_in_context(self._unsampled, context))
                self._dropped_root = context, before, job._context
            else:
                job._context = after

    def send(self, job: Job[Any], context: Context) -> None:
        """Have the worker get *context*."""
        headers: dict[str, str] = {}
        inject(headers, context)
        if not headers:
            return
        # Too much baggage: then the worker knows of no trace.
        with suppress(ValueError):
            job._context = with_trace(job._context, pickle.dumps(headers, 5))

    def caller_of(self, job: Job[Any]) -> tuple[Context, list[Link]]:
        """Return the parent of a job that :meth:`hand_on` was called for, and links."""
        packed = JobContext.unpack(job._context).trace
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
