"""Jobs above ``max_traced``: whose children their spans are, and those of the ones that fail."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased

from asyncpool import JobTimeoutError, Pool, WorkerCrashedError
from asyncpool.opentelemetry import instrument, uninstrument
from tests.helpers import jobs, spans as traced
from tests.helpers.gate import Gate
from tests.helpers.inside import trace_no_more
from tests.helpers.patience import patience
from tests.helpers.spans import Figures, Spans, context_of

pytestmark = pytest.mark.asyncio

CRASHED = "asyncpool.errors.WorkerCrashedError"


@asynccontextmanager
async def busy(spans: Spans, **options: Any) -> AsyncGenerator[Pool]:
    """A pool of which no more job is traced."""
    async with patience(), Pool(1, **options) as pool:
        instrument(pool, tracer_provider=spans.provider)
        trace_no_more(pool)
        yield pool


async def test_a_burst_is_traced_up_to_the_bound_and_the_rest_is_counted() -> None:
    spans, figures = Spans(), Figures()
    async with patience(), Pool(2) as pool:
        instrument(
            pool,
            tracer_provider=spans.provider,
            meter_provider=figures.provider,
            max_traced=10,
        )
        await asyncio.gather(*(pool.submit(jobs.square, 1) for _ in range(100)))
        traced_jobs = {about(span)["job.id"] for span in spans.ended()}
        untraced = figures.values("asyncpool.job.untraced")
    assert set(range(1, 11)) <= traced_jobs
    assert len(traced_jobs) + untraced == 100
    assert untraced > 0


async def test_without_a_bound_all_are_traced() -> None:
    spans = Spans()
    async with patience(), Pool(2) as pool:
        instrument(pool, tracer_provider=spans.provider, max_traced=None)
        await asyncio.gather(*(pool.submit(jobs.square, 1) for _ in range(500)))
    counts = Counter(about(span)["job.id"] for span in spans.ended())
    assert counts.keys() == {*range(1, 501)}
    # The call and its attempt, and one that a worker gave back, if the machine held that one up.
    assert min(counts.values()) == 2


async def test_what_a_sampler_refuses_counts_as_a_tenth() -> None:
    figures, sampler = Figures(), Counting()
    spans = Spans(sampler)
    async with patience(), Pool(1) as pool:
        instrument(
            pool,
            tracer_provider=spans.provider,
            meter_provider=figures.provider,
            max_traced=10,
        )
        await asyncio.gather(*(pool.submit(jobs.square, 1) for _ in range(200)))
        untraced = figures.values("asyncpool.job.untraced")
    assert sampler.asked >= 91
    assert sampler.asked + untraced == 200


class Counting(ParentBased):
    """Refuses all, and counts them."""

    def __init__(self) -> None:
        super().__init__(ALWAYS_OFF)
        self.asked = 0

    def should_sample(self, *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        return super().should_sample(*args, **kwargs)


async def test_spans_inside_are_children_of_the_callers_span() -> None:
    spans = Spans()
    async with busy(spans, initializer=traced.set_up_worker) as pool:
        with spans.tracer.start_as_current_span("request"):
            token = context.attach(baggage.set_baggage("customer", "Mia"))
            for _ in range(3):
                await pool.submit(traced.trace_here)
            assert await pool.submit(baggage.get_baggage, "customer") == "Mia"
            context.detach(token)
        with spans.tracer.start_as_current_span("other"):
            await pool.submit(traced.trace_here)
        await pool.submit(traced.trace_here)  # it has no parent
        inside = await pool.submit(traced.spans_of_worker)
    request, other = (context_of(spans.named(each)) for each in ("request", "other"))
    parents = [request] * 3 + [other]
    assert inside[:4] == [(each.trace_id, each.span_id) for each in parents]
    assert spans.tree() == ["request", "other"]


async def test_spans_inside_a_map_do_not_get_into_the_trace_of_its_caller() -> None:
    spans = Spans()
    async with busy(spans, initializer=traced.set_up_worker) as pool:
        with spans.tracer.start_as_current_span("request"):
            await pool.map(traced.trace_here, range(4), chunksize=2)
        assert await pool.submit(traced.spans_of_worker) == []
    assert spans.tree() == ["request"]


async def test_a_job_that_raises_has_its_spans_afterwards() -> None:
    spans = Spans()
    async with busy(spans) as pool:
        with spans.tracer.start_as_current_span("request"):
            before = time.time_ns()
            with pytest.raises(ZeroDivisionError):
                await pool.submit(jobs.divide, 1, 0)
            after = time.time_ns()
            await pool.submit(jobs.divide, 1, 1)
    assert spans.tree() == [
        "request",
        "  submit divide",
        "    process divide #1 raised ERROR ZeroDivisionError",
    ]
    process = spans.named("process tests.helpers.jobs.divide")
    submit = spans.named("submit tests.helpers.jobs.divide")
    assert submit.start_time is not None
    assert process.start_time is not None
    assert process.end_time is not None
    # Of two clocks, which are read one after the other.
    assert before - 1_000_000 <= submit.start_time <= process.start_time
    assert submit.end_time == process.start_time
    told = about(process)
    run = told["job.run.duration"]
    assert process.end_time == process.start_time + int(run * 1e9)
    assert process.end_time <= after + 1_000_000
    assert (told["job.id"], told["worker.slot"]) == (1, 0)
    assert any(event.name == "exception" for event in process.events)


async def test_jobs_whose_worker_dies_or_whose_time_is_over() -> None:
    spans = Spans()
    async with busy(spans) as pool:
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(time.sleep, 1000)
        async with Gate() as gate:
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            with pytest.raises(JobTimeoutError):
                await pool.options(queue_timeout=0.01).submit(jobs.square, 2)
            visitor.release()
            await job
    assert spans.tree() == [
        "submit posix._exit",
        f"  process posix._exit #1 crashed ERROR {CRASHED}",
        "submit time.sleep",
        "  process time.sleep #1 timeout ERROR asyncpool.errors.JobTimeoutError",
        "submit square timeout ERROR asyncpool.errors.JobTimeoutError",
    ]


async def test_a_failure_of_a_map_has_a_link_to_its_caller() -> None:
    spans = Spans()
    async with busy(spans) as pool:
        with (
            spans.tracer.start_as_current_span("request"),
            pytest.raises(WorkerCrashedError),
        ):
            await pool.map(os._exit, [3])
    submit = spans.named("submit posix._exit")
    [link] = submit.links
    assert link.context == context_of(spans.named("request"))
    assert submit.parent is None
    [process] = spans.attempts()
    assert process.parent == context_of(submit)


async def test_a_failure_is_not_told_if_the_sampler_does_not_want_it() -> None:
    spans = Spans(ParentBased(ALWAYS_OFF))
    async with busy(spans) as pool:
        with spans.tracer.start_as_current_span("request"):
            with pytest.raises(ZeroDivisionError):
                await pool.submit(jobs.divide, 1, 0)
            with pytest.raises(WorkerCrashedError):
                await pool.map(os._exit, [3])
        uninstrument(pool)
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
    assert spans.tree() == []


def about(span: ReadableSpan) -> dict[str, Any]:
    """Return the attributes of a span, without what they all have before their names."""
    return {
        name.removeprefix("asyncpool."): value
        for name, value in (span.attributes or {}).items()
    }
