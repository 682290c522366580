"""What a span says of a job, or of an attempt, that has failed."""

from __future__ import annotations

from contextlib import suppress

from opentelemetry.trace import Span, Status, StatusCode

from asyncpool.enums import JobOutcome
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.opentelemetry._instruments import ERROR, OUTCOME

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
