"""A receiver of OpenTelemetry's protocol, OTLP over HTTP, made of the protocol's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

__all__ = ["Receiver", "export_from_worker", "receiving"]


class Receiver:
    """What has arrived.

    Attributes:
        url: Where it listens.
        traces: The requests with spans.
        metrics: The requests with metrics.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.traces: list[ExportTraceServiceRequest] = []
        self.metrics: list[ExportMetricsServiceRequest] = []

    def spans(self) -> Iterator[tuple[str, Any]]:
        """Yield each span, and the name of the service that has sent it."""
        for request in self.traces:
            for resource in request.resource_spans:
                about = {
                    pair.key: pair.value.string_value
                    for pair in resource.resource.attributes
                }
                for scope in resource.scope_spans:
                    for span in scope.spans:
                        yield about["service.name"], span

    def metric(self, name: str) -> Any:
        """Return the last that came of a metric."""
        found = [
            metric
            for request in self.metrics
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
        ]
        return found[-1]

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            self.traces.append(ExportTraceServiceRequest.FromString(body))
        else:
            assert path == "/v1/metrics"
            self.metrics.append(ExportMetricsServiceRequest.FromString(body))


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Listen at a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.take(self.path, body)
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield receiver
        finally:
            server.shutdown()
            thread.join()


def export_from_worker(url: str) -> None:
    """Make an SDK that exports each span at once, as an initializer does."""
    from opentelemetry import trace

    provider = TracerProvider(resource=Resource.create({"service.name": "worker"}))
    exporter = OTLPSpanExporter(f"{url}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
