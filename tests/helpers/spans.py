"""Spans and metrics that stay in memory, and how tests look at them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from opentelemetry import trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanContext

import asyncpool

__all__ = [
    "Figures",
    "Spans",
    "about",
    "context_of",
    "set_up_worker",
    "spans_of_worker",
    "trace_here",
]

HERE = "tests.helpers.jobs"


class Spans:
    """The spans of one service."""

    def __init__(self, sampler: Sampler = ParentBased(ALWAYS_ON)) -> None:  # noqa: B008
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.tracer = self.provider.get_tracer("service")
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def ended(self) -> tuple[ReadableSpan, ...]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> ReadableSpan:
        [span] = [span for span in self.ended() if span.name == name]
        return span

    def attempts(self) -> list[ReadableSpan]:
        return [span for span in self.ended() if span.name.startswith("process")]

    def tree(self) -> list[str]:
        """Return a line for each span, indented below its parent, in the order of their begins."""
        return list(_lines(sorted(self.ended(), key=_begin), None, 0))


def about(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span, without what they all have before their names."""
    return {
        name.removeprefix("asyncpool."): value
        for name, value in (span.attributes or {}).items()
    }


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def _begin(span: ReadableSpan) -> int:
    assert span.start_time is not None
    return span.start_time


def _lines(spans: list[ReadableSpan], parent: int | None, depth: int) -> Iterable[str]:
    for span in spans:
        if (span.parent.span_id if span.parent else None) == parent:
            yield "  " * depth + _line(span)
            yield from _lines(spans, context_of(span).span_id, depth + 1)


def _line(span: ReadableSpan) -> str:
    about = span.attributes or {}
    attempt = about.get("asyncpool.job.attempt")
    words = [
        span.name.replace(f"{HERE}.", ""),
        "" if attempt is None else f"#{attempt}",
        str(about.get("asyncpool.job.outcome", "")),
        "" if span.status.is_unset else span.status.status_code.name,
        str(about.get("error.type", "")),
    ]
    return " ".join(word for word in words if word)


class Figures:
    """The metrics of one service."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def points(self) -> dict[str, dict[frozenset[tuple[str, Any]], Any]]:
        """Collect; return the points of each metric, by their attributes."""
        data = self.reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: {
                frozenset((point.attributes or {}).items()): point
                for point in metric.data.data_points
            }
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def values(self, name: str, **attributes: Any) -> Any:
        """Collect; return the one value of a metric that has these attributes."""
        wanted = {f"asyncpool.{key}": value for key, value in attributes.items()}
        [point] = [
            point
            for about, point in self.points()[name].items()
            if wanted.items() <= dict(about).items()
        ]
        return point.value


# In workers.


def set_up_worker() -> None:
    """Make an SDK, as an initializer does."""
    state = asyncpool.worker_state()
    state.exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(state.exporter))
    trace.set_tracer_provider(provider)


def provider_into(out: IO[str], service: str) -> TracerProvider:
    """Return what writes each span into *out* at once, as a line of JSON."""
    resource = Resource.create({"service.name": service})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = ConsoleSpanExporter(out=out, formatter=_as_line)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return provider


def _as_line(span: ReadableSpan) -> str:
    return f"{span.to_json(indent=None)}\n"


def export_from_worker(path: str) -> None:
    """Have the spans of this worker in a file, as an initializer does."""
    out = asyncpool.worker_state().out = open(path, "a")  # noqa: SIM115
    trace.set_tracer_provider(provider_into(out, "worker"))


def trace_here(_item: object = None) -> None:
    with trace.get_tracer("job").start_as_current_span("inside"):
        pass


async def trace_here_later() -> None:
    trace_here()


def trace_items(count: int) -> Iterable[int]:
    for number in range(count):
        trace_here()
        yield number


def spans_of_worker() -> list[tuple[int, int | None]]:
    """Return the trace and the parent of each span that the worker has made until now."""
    return [
        (context_of(span).trace_id, span.parent and span.parent.span_id)
        for span in asyncpool.worker_state().exporter.get_finished_spans()
        if span.name == "inside"
    ]
