"""Spans and metrics that go over OTLP, to a receiver of the protocol or to nobody."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading

import pytest
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    SpanExporter,
    SpanExportResult,
)

import asyncpool
from asyncpool import Pool
from asyncpool.opentelemetry import instrument
from tests.helpers import jobs
from tests.helpers.otlp import export_from_worker, receiving
from tests.helpers.patience import patience
from tests.helpers.spans import trace_here

pytestmark = pytest.mark.asyncio

RESOURCE = Resource.create({"service.name": "shop"})


def trace_and_die_once() -> None:
    trace_here()
    if asyncpool.current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


async def test_one_trace_goes_through_all_processes() -> None:
    with receiving() as receiver:
        provider = TracerProvider(resource=RESOURCE, shutdown_on_exit=False)
        exporter = OTLPSpanExporter(f"{receiver.url}/v1/traces")
        provider.add_span_processor(BatchSpanProcessor(exporter))
        async with (
            patience(),
            Pool(
                1, initializer=export_from_worker, initargs=(receiver.url,), name="p"
            ) as pool,
        ):
            instrument(pool, tracer_provider=provider)
            with provider.get_tracer("shop").start_as_current_span("request"):
                await pool.options(max_attempts=2).submit(trace_and_die_once)
        await asyncio.to_thread(provider.shutdown)
        spans = list(receiver.spans())
    parents = {span.span_id: span.name.partition(" ")[0] for _, span in spans}
    found = sorted(
        (service, span.name.partition(" ")[0], parents.get(span.parent_span_id, ""))
        for service, span in spans
    )
    assert found == [
        ("shop", "process", "submit"),
        ("shop", "process", "submit"),
        ("shop", "request", ""),
        ("shop", "submit", "request"),
        ("shop", "wait", "submit"),
        ("worker", "inside", "process"),
        ("worker", "inside", "process"),
    ]
    assert len({span.trace_id for _, span in spans}) == 1
    inside = {span.parent_span_id for service, span in spans if service == "worker"}
    assert len(inside) == 2, "each is a child of its own attempt"
    codes = [span.status.code for _, span in spans if span.name.startswith("process")]
    assert sorted(codes) == [0, 2], "unset, and an error"


async def test_metrics_arrive() -> None:
    with receiving() as receiver:
        exporter = OTLPMetricExporter(f"{receiver.url}/v1/metrics")
        reader = PeriodicExportingMetricReader(exporter)
        provider = MeterProvider([reader], RESOURCE, shutdown_on_exit=False)
        async with patience(), Pool(1, name="images") as pool:
            instrument(pool, meter_provider=provider, spans=False)
            await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
        await asyncio.to_thread(provider.shutdown)
    [ended] = receiver.metric("asyncpool.job.ended").sum.data_points
    assert ended.as_int == 20
    assert receiver.metric("asyncpool.job.ended").sum.is_monotonic
    assert {pair.key: pair.value.string_value for pair in ended.attributes} == {
        "asyncpool.pool.name": "images",
        "asyncpool.job.via": "submit",
        "asyncpool.job.outcome": "ok",
        "code.function.name": "tests.helpers.jobs.square",
    }


async def test_a_collector_that_cannot_be_reached_is_no_concern_of_the_pool(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    provider = TracerProvider(shutdown_on_exit=False)
    exporter = OTLPSpanExporter(f"{url}/v1/traces", timeout=0.1)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(f"{url}/v1/metrics", timeout=0.1), 10_000, 1000
    )
    meters = MeterProvider([reader], shutdown_on_exit=False)
    async with patience(), Pool(2) as pool:
        instrument(pool, tracer_provider=provider, meter_provider=meters)
        squares = [pool.submit(jobs.square, n) for n in range(200)]
        assert await asyncio.gather(*squares) == [n * n for n in range(200)]
        await asyncio.to_thread(provider.force_flush)
        assert await pool.submit(jobs.square, 3) == 9
    await asyncio.to_thread(provider.shutdown)
    await asyncio.to_thread(meters.shutdown)
    loggers = {record.name.partition(".")[0] for record in caplog.records}
    assert "opentelemetry" in loggers
    assert "asyncpool" not in loggers


async def test_a_collector_that_does_not_answer_holds_up_no_job() -> None:
    class Stuck(SpanExporter):
        begun, answer = threading.Event(), threading.Event()

        def export(self, *_: object) -> SpanExportResult:
            self.begun.set()
            self.answer.wait()
            return SpanExportResult.FAILURE

    exporter = Stuck()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=16, max_export_batch_size=8)
    )
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=provider)
        squares = [pool.submit(jobs.square, n) for n in range(50)]
        await asyncio.gather(*squares)
        await asyncio.to_thread(exporter.begun.wait)
        assert await pool.submit(jobs.square, 3) == 9
    assert not exporter.answer.is_set()
    exporter.answer.set()
    await asyncio.to_thread(provider.shutdown)
