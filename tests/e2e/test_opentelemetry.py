"""The spans of real jobs, however they end, and what happens if something is wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import signal
import time
import weakref
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    SamplingResult,
    StaticSampler,
)
from opentelemetry.trace import SpanKind

import asyncpool
from asyncpool import Pool, RestartPolicy
from asyncpool.errors import (
    JobTimeoutError,
    NodeLostError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.opentelemetry import instrument, uninstrument
from asyncpool.sharedpool import connect
from tests.helpers import jobs, spans as traced
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import trace_no_more
from tests.helpers.nodes import two_nodes
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import idle, kill_worker
from tests.helpers.shared_pools import shared
from tests.helpers.spans import Figures, Spans, about, context_of

pytestmark = ONE_LOOP


@contextmanager
def instrumented(pool: Pool, **options: Any) -> Iterator[None]:
    """Follow the jobs of a pool that other tests have, too."""
    instrument(pool, **options)
    try:
        yield
    finally:
        uninstrument(pool)


async def test_the_spans_of_a_job_that_returns(faced: Faced) -> None:
    spans = Spans()
    async with patience(), faced(name="images") as (caller, pool):
        instrument(caller, tracer_provider=spans.provider)
        with spans.tracer.start_as_current_span("request"):
            assert await caller.submit(jobs.square, 3) == 9
    assert spans.tree() == ["request", "  submit square", "    process square #1 ok"]
    submit = spans.named("submit tests.helpers.jobs.square")
    process = spans.named("process tests.helpers.jobs.square")
    assert (submit.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    common = {
        "pool.name": caller.name,
        "code.function.name": "tests.helpers.jobs.square",
        "job.via": "submit",
        "job.id": 1,
    }
    assert about(submit) == common
    told = about(process)
    if caller is pool:
        assert told.pop("worker.pid") > 0
    else:
        assert told.pop("node.name") == f"images@{os.getpid()}"
    run = told.pop("job.run.duration")
    assert told == {**common, "job.attempt": 1, "job.outcome": "ok", "worker.slot": 0}
    assert submit.end_time == process.start_time
    [begun] = process.events
    assert begun.name == "begun"
    assert process.end_time == begun.timestamp + int(run * 1e9)
    assert not process.links


async def test_the_spans_of_jobs_that_fail_or_are_cancelled() -> None:
    spans = Spans()
    async with patience(), Gate() as gate, Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
        running = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        queued.cancel()
        running.cancel()
        modules = await pool.submit(jobs.modules)
    assert not [it for it in modules if "opentelemetry" in it], (
        "nobody has asked for it"
    )
    assert spans.tree() == [
        "submit divide",
        "  process divide #1 raised ERROR ZeroDivisionError",
        "submit stay",
        "  process stay #1 timeout ERROR asyncpool.errors.JobTimeoutError",
        "submit wait_at",
        "  process wait_at #1 cancelled",
        "submit square cancelled",
        "submit modules",
        "  process modules #1 ok",
    ]
    raised = spans.named("process tests.helpers.jobs.divide")
    assert raised.status.description == "division by zero"
    told = {event.name: event.attributes for event in raised.events}["exception"]
    assert told is not None
    assert told["exception.type"] == "ZeroDivisionError"
    assert "return one / other" in str(told["exception.stacktrace"])
    late = spans.named("process tests.helpers.jobs.stay")
    assert late.start_time is not None
    assert late.end_time is not None
    assert late.end_time - late.start_time >= 50_000_000


# With two, the other worker gets the job in the very turn in which the first one is gone.
@pytest.mark.parametrize("workers", [1, 2])
async def test_a_job_whose_worker_was_killed_has_a_span_of_each_attempt(
    workers: int,
) -> None:
    spans = Spans()
    async with patience(), Gate() as gate, Pool(workers, ready="all") as pool:
        instrument(pool, tracer_provider=spans.provider)
        with spans.tracer.start_as_current_span("request"):
            job = pool.options(max_attempts=2).submit(
                jobs.wait_in_every_attempt, gate.path
            )
            first = await gate.visitor("attempt 1")
            os.kill(first.pid, signal.SIGKILL)
            (await gate.visitor("attempt 2")).release()
            await job
    name = "wait_in_every_attempt"
    crashed = "asyncpool.errors.WorkerCrashedError"
    assert spans.tree() == [
        "request",
        f"  submit {name}",
        f"    process {name} #1 crashed ERROR {crashed}",
        f"    wait {name}",
        f"    process {name} #2 ok",
    ]
    one, other = spans.attempts()
    told = about(one)
    assert (told["worker.pid"], told["job.delivery"]) == (first.pid, "started")
    assert (told["worker.crash.kind"], told["worker.crash.signal"]) == (
        "crash",
        "SIGKILL",
    )
    assert "job.run.duration" not in told, "nobody knows it"
    assert one.status.description is not None
    assert "was killed by SIGKILL" in one.status.description
    [link] = other.links
    assert link.context == context_of(one)


async def test_attempts_that_fail_have_spans_of_their_own(faced: Faced) -> None:
    spans = Spans()
    async with patience(), faced() as (caller, _):
        instrument(caller, tracer_provider=spans.provider)
        options = caller.options(max_attempts=3, retry_on=(LookupError,))
        await options.submit(jobs.fail_before_attempt_3, 1)
        with pytest.raises(WorkerCrashedError):
            await caller.submit(os._exit, 3)
    name = "fail_before_attempt_3"
    assert spans.tree() == [
        f"submit {name}",
        f"  process {name} #1 raised ERROR LookupError",
        f"  wait {name}",
        f"  process {name} #2 raised ERROR LookupError",
        f"  wait {name}",
        f"  process {name} #3 ok",
        "submit posix._exit",
        "  process posix._exit #1 crashed ERROR asyncpool.errors.WorkerCrashedError",
    ]
    first, second, *_ = spans.attempts()
    assert [link.context for link in second.links] == [context_of(first)]
    assert {about(span)["worker.slot"] for span in spans.attempts()} == {0}


async def test_the_jobs_of_a_map_have_traces_of_their_own_which_link_to_the_caller(
    pool: Pool,
) -> None:
    spans = Spans()
    with (
        instrumented(pool, tracer_provider=spans.provider),
        spans.tracer.start_as_current_span("request") as request,
    ):
        await pool.map(jobs.square, range(30), chunksize=10)
    waiting = [span for span in spans.ended() if span.name.startswith("submit")]
    assert len(waiting) >= 3
    assert all(span.parent is None for span in waiting)
    for span in waiting:
        assert [link.context for link in span.links] == [request.get_span_context()]
    traces = {context_of(span).trace_id for span in waiting}
    assert len(traces) == len(waiting)
    assert request.get_span_context().trace_id not in traces
    assert {about(span)["job.via"] for span in waiting} <= {"map", "submit"}
    done = "  process square #1 ok"
    # A part that waits in the worker behind a slow one may be given back.
    waits = {"  process square #1 given back", "  wait square"}
    assert set(spans.tree()) - waits == {"request", "submit square", done}
    assert spans.tree().count(done) == len(waiting)


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_spans_inside_a_job_are_children_of_its_attempt(
    faced: Faced, concurrency: int
) -> None:
    spans, setup = Spans(), {"initializer": traced.set_up_worker}
    async with patience(), faced(concurrency=concurrency, **setup) as (caller, pool):
        instrument(caller, tracer_provider=spans.provider)
        await caller.submit(traced.trace_here)
        await caller.submit(traced.trace_here_later)
        await caller.map(traced.trace_here, [1, 2], chunksize=2)
        async for _ in caller.stream(traced.trace_items, 2):
            pass
        if caller is pool:
            await caller.broadcast(traced.trace_here)
        async with caller.worker(fresh=False) as worker:
            await worker.submit(traced.trace_here)
        # With large arguments a job takes another way.
        await caller.submit(traced.trace_here, np.zeros(1 << 20))
        inside = await caller.submit(traced.spans_of_worker)
    attempts = {
        (context_of(span).trace_id, context_of(span).span_id)
        for span in spans.attempts()
    }
    assert set(inside) <= attempts
    assert len(inside) == 8 + (caller is pool)
    if caller is pool:
        vias = {about(span)["job.via"] for span in spans.ended()}
        assert vias == {"submit", "map", "stream", "broadcast"}


async def test_the_caller_is_the_parent_whatever_it_calls(pair: Pool) -> None:
    spans = Spans()
    with (
        instrumented(pair, tracer_provider=spans.provider),
        spans.tracer.start_as_current_span("request"),
    ):
        async for _ in pair.stream(range, 2):
            pass
        await pair.broadcast(jobs.pid)
        async with pair.worker(fresh=False) as worker:
            await worker.submit(jobs.square, 2)
        await pair.submit(jobs.size, np.zeros(1 << 20))
    assert spans.tree() == [
        "request",
        "  submit builtins.range",
        "    process builtins.range #1 ok",
        "  submit pid",
        "    process pid #1 ok",
        "  submit pid",
        "    process pid #1 ok",
        "  submit square",
        "    process square #1 ok",
        "  submit size",
        "    process size #1 ok",
    ]


async def test_spans_inside_a_job_that_is_not_traced_are_not_recorded(
    faced: Faced,
) -> None:
    spans = Spans(ParentBased(ALWAYS_OFF))
    async with patience(), faced(initializer=traced.set_up_worker) as (pool, _):
        instrument(pool, tracer_provider=spans.provider)
        for _ in range(3):
            await pool.submit(traced.trace_here)
        with spans.tracer.start_as_current_span("request"):
            for _ in range(3):
                await pool.submit(traced.trace_here)
            await pool.submit(traced.trace_here_later)
            assert await pool.map(jobs.square, range(3)) == [0, 1, 4]
        assert await pool.submit(traced.spans_of_worker) == []
        uninstrument(pool)
        await pool.submit(traced.trace_here)
        assert len(await pool.submit(traced.spans_of_worker)) == 1
    assert spans.tree() == []


async def test_the_sampler_decides(pool: Pool) -> None:
    class OneOfTwo(StaticSampler):
        asked = 0

        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            self.asked += 1
            sampler = ALWAYS_ON if self.asked % 2 else ALWAYS_OFF
            return sampler.should_sample(*args, **kwargs)

    sampler = OneOfTwo(Decision.DROP)
    spans = Spans(ParentBased(sampler))
    with instrumented(pool, tracer_provider=spans.provider):
        squares = [pool.submit(jobs.square, number) for number in range(4)]
        await asyncio.gather(*squares)
        await idle(pool)
    told = Counter(about(span)["job.id"] for span in spans.ended())
    assert told == {squares[0].id: 2, squares[2].id: 2}
    assert sampler.asked == 4, "of each job without a parent, and of no attempt"


async def test_baggage_travels_along() -> None:
    spans = Spans()
    async with patience(), Pool(1, initializer=traced.set_up_worker) as pool:
        instrument(pool, tracer_provider=spans.provider)
        token = context.attach(baggage.set_baggage("customer", "7"))
        try:
            assert await pool.submit(customer) == "7"
            context.attach(baggage.set_baggage("customer", "x" * 20_000))
            assert await pool.submit(customer) is None, "it is too large"
        finally:
            context.detach(token)
    assert len(spans.ended()) == 4


def customer() -> object:
    return baggage.get_baggage("customer")


async def test_a_worker_that_gives_a_job_back(pair: Pool, gate: Gate) -> None:
    spans = Spans()
    with instrumented(pair, tracer_provider=spans.provider, max_traced=None):
        # Short jobs are sent ahead, and given back when the one before them is long.
        await asyncio.gather(*(pair.submit(jobs.pass_by, gate.path) for _ in range(50)))
        await asyncio.gather(*(pair.submit(jobs.square, n) for n in range(500)))
        await idle(pair)
    names = [span.name.partition(" ")[0] for span in spans.ended()]
    assert names.count("submit") == 550
    outcomes = [about(span)["job.outcome"] for span in spans.ended() if span.events]
    assert outcomes == ["ok"] * 550
    given_back = [
        span for span in spans.ended() if about(span).get("job.outcome") == "given back"
    ]
    assert names.count("process") == 550 + len(given_back)
    assert names.count("wait") == len(given_back)
    assert all(span.status.is_unset for span in given_back)


async def test_the_end_of_the_pool_ends_all_spans() -> None:
    spans = Spans()
    async with patience(), Gate() as gate:
        pool = Pool(1)
        await pool.start()
        instrument(pool, tracer_provider=spans.provider)
        running = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        await pool.close(finish="none", timeout=0)
        for job in (running, queued):
            with pytest.raises(PoolClosedError):
                await job
    closed = "aborted ERROR asyncpool.errors.PoolClosedError"
    assert spans.tree() == [
        "submit wait_at",
        f"  process wait_at #1 {closed}",
        f"submit square {closed}",
    ]


async def test_uninstrument_ends_what_is_open(pool: Pool, gate: Gate) -> None:
    spans, figures = Spans(), Figures()
    meters, tracers = figures.provider, spans.provider
    with instrumented(pool, tracer_provider=tracers, meter_provider=meters):
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
    visitor.release()
    await job
    await pool.submit(jobs.square, 1)
    assert spans.tree() == ["submit wait_at", "  process wait_at #1"]
    assert figures.points() == {}
    with instrumented(pool, tracer_provider=spans.provider):
        await pool.submit(jobs.square, 1)
    assert spans.tree()[2:] == ["submit square", "  process square #1 ok"]


async def test_the_jobs_of_a_broken_pool_end_in_their_spans() -> None:
    spans, figures = Spans(), Figures()
    policy = RestartPolicy.limited(1, 60)
    async with patience(), Gate() as gate, Pool(1, restart_policy=policy) as pool:
        await kill_worker(pool)
        instrument(
            pool, tracer_provider=spans.provider, meter_provider=figures.provider
        )
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        os.kill(visitor.pid, signal.SIGKILL)
        with pytest.raises(WorkerCrashedError):
            await running
        with pytest.raises(PoolBrokenError):
            await queued
        broken = figures.values("asyncpool.pool.state", **{"pool.state": "broken"})
        with pytest.raises(PoolBrokenError):
            pool.submit(jobs.square, 2)
    assert broken == 1
    assert spans.tree() == [
        "submit wait_at",
        "  process wait_at #1 crashed ERROR asyncpool.errors.WorkerCrashedError",
        "submit square aborted ERROR asyncpool.errors.PoolBrokenError",
    ]


@pytest.mark.logs("spans-failed")
async def test_what_a_span_processor_raises_is_logged_once(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: object, **__: object) -> NoReturn:
            raise LookupError("no")

    spans = Spans()
    spans.provider.add_span_processor(Broken())
    caplog.set_level(logging.ERROR, "asyncpool")
    with instrumented(pool, tracer_provider=spans.provider):
        found = await asyncio.gather(*(pool.submit(jobs.square, n) for n in (1, 2)))
    assert found == [1, 4]
    assert caplog.messages == [f"the spans of pool {pool.name} are incomplete"]


async def test_without_an_sdk_jobs_run_as_ever(pool: Pool) -> None:
    with instrumented(pool):
        assert await pool.map(jobs.square, range(3)) == [0, 1, 4]
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)


async def test_metrics_alone_follow_no_job_and_the_last_ones_outlive_the_pool() -> None:
    figures = Figures()
    pool = Pool(1, name="images")
    instrument(pool, meter_provider=figures.provider, spans=False)
    async with patience(), pool:
        await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
        await kill_worker(pool)
        await idle(pool)
        crashes = figures.points()["asyncpool.worker.crashes"].values()
    assert sum(point.value for point in crashes) == 1
    assert [p.value for p in crashes if p.attributes["error.type"] == "crash"] == [1]
    del pool
    gc.collect()
    await asyncio.sleep(0)
    [ended] = figures.points()["asyncpool.job.ended"].values()
    assert ended.value == 20
    assert "asyncpool.job.ended" not in figures.points()


# Jobs above ``max_traced``: whose children their spans are, and those of the ones that fail.

CRASHED = "asyncpool.errors.WorkerCrashedError"


@asynccontextmanager
async def busy(spans: Spans, **options: Any) -> AsyncGenerator[Pool]:
    """A pool of which no more job is traced."""
    async with patience(), Pool(1, **options) as pool:
        instrument(pool, tracer_provider=spans.provider)
        trace_no_more(pool)
        yield pool


async def test_a_burst_is_traced_up_to_the_bound_and_the_rest_is_counted(
    pair: Pool,
) -> None:
    spans, figures = Spans(), Figures()
    providers = {"tracer_provider": spans.provider, "meter_provider": figures.provider}
    with instrumented(pair, max_traced=10, **providers):
        squares = [pair.submit(jobs.square, 1) for _ in range(100)]
        await asyncio.gather(*squares)
        traced_jobs = {about(span)["job.id"] for span in spans.ended()}
        untraced = figures.values("asyncpool.job.untraced")
    assert {job.id for job in squares[:10]} <= traced_jobs
    assert len(traced_jobs) + untraced == 100
    assert untraced > 0


async def test_what_a_sampler_refuses_counts_as_a_tenth(pool: Pool) -> None:
    figures, sampler = Figures(), Counting()
    providers = {
        "tracer_provider": Spans(sampler).provider,
        "meter_provider": figures.provider,
    }
    with instrumented(pool, max_traced=10, **providers):
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
        inside = await pool.submit(traced.spans_of_worker)
        with spans.tracer.start_as_current_span("map"):
            # Those of a map do not get into the trace of its caller.
            await pool.map(traced.trace_here, range(4), chunksize=2)
        assert await pool.submit(traced.spans_of_worker) == inside
        await pool.submit(traced.trace_here)  # it has no parent
        assert len(await pool.submit(traced.spans_of_worker)) == 5
    request, other = (context_of(spans.named(each)) for each in ("request", "other"))
    parents = [request] * 3 + [other]
    assert inside == [(each.trace_id, each.span_id) for each in parents]
    assert spans.tree() == ["request", "other", "map"]


async def test_jobs_that_fail_have_their_spans_afterwards() -> None:
    spans = Spans()
    async with busy(spans) as pool, Gate() as gate:
        with spans.tracer.start_as_current_span("request"):
            before = time.time_ns()
            with pytest.raises(ZeroDivisionError):
                await pool.submit(jobs.divide, 1, 0)
            after = time.time_ns()
            await pool.submit(jobs.divide, 1, 1)
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(time.sleep, 1000)
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        with pytest.raises(JobTimeoutError):
            await pool.options(queue_timeout=0.01).submit(jobs.square, 2)
        visitor.release()
        await job
    assert spans.tree() == [
        "request",
        "  submit divide",
        "    process divide #1 raised ERROR ZeroDivisionError",
        "submit posix._exit",
        f"  process posix._exit #1 crashed ERROR {CRASHED}",
        "submit time.sleep",
        "  process time.sleep #1 timeout ERROR asyncpool.errors.JobTimeoutError",
        "submit square timeout ERROR asyncpool.errors.JobTimeoutError",
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


# Jobs whose workers belong to agents: the spans of a local pool, with the node.


def process_of(spans: Spans, job: str) -> ReadableSpan:
    """Return the span of the only attempt at a job."""
    return spans.named(f"process tests.helpers.jobs.{job}")


def begin_of(span: ReadableSpan) -> int:
    """Return when an attempt began on its node, in nanoseconds."""
    return {event.name: event.timestamp for event in span.events}["begun"]


def end_of(spans: Spans, job: str) -> int:
    """Return when the only attempt at a job was over, in nanoseconds."""
    end = process_of(spans, job).end_time
    assert end is not None
    return end


async def test_the_time_on_a_node_before_the_begin_is_seen(tmp_path: Path) -> None:
    spans, loop = Spans(), asyncio.get_running_loop()
    async with patience(), Gate() as gate, shared(tmp_path, 1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        first = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        second = pool.submit(jobs.square, 2)
        asked = loop.time()
        await pool.stats()  # the agent has it by now
        round_trip = loop.time() - asked
        visitor.release()
        await asyncio.gather(first, second)
    end, other = end_of(spans, "wait_at"), process_of(spans, "square")
    assert other.start_time is not None
    assert other.start_time < end
    # By half of the round trip the agent's clock may be wrong, for each of the two.
    assert begin_of(other) > end - 5_000_000 - int(round_trip * 1e9)


async def test_the_clock_of_a_node_is_known_after_its_first_answer(
    tmp_path: Path,
) -> None:
    """However long the job takes that it answers: half of that was the error before."""
    spans = Spans()
    async with patience(), shared(tmp_path, 1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        await asyncio.gather(pool.submit(jobs.stay, 0.5), pool.submit(jobs.square, 2))
    begun = begin_of(process_of(spans, "square"))
    assert begun > end_of(spans, "stay") - 200_000_000


async def test_each_span_names_its_node_and_the_slot_by_which_the_client_knows_it() -> (
    None
):
    spans = Spans()
    async with patience(), Gate() as gate, two_nodes() as (pool, _, _):
        instrument(pool, tracer_provider=spans.provider)
        both = [pool.submit(jobs.wait_at, gate.path, str(n)) for n in range(2)]
        for visitor in [await gate.visitor(str(n)) for n in range(2)]:
            visitor.release()
        await asyncio.gather(*both)
    found = {
        about(span)["node.name"]: about(span)["worker.slot"]
        for span in spans.attempts()
    }
    assert found == {"node-0": 0, "node-1": 10_000}


async def test_a_job_whose_node_is_lost_has_a_span_on_each_node() -> None:
    spans = Spans()
    async with patience(), Gate() as gate, two_nodes() as (pool, one, two):
        instrument(pool, tracer_provider=spans.provider)
        job = pool.options(max_attempts=2).submit(jobs.wait_in_every_attempt, gate.path)
        visitor = await gate.visitor("attempt 1")
        pids = [each.stats().slots[0].pid for each in (one, two)]
        first = pids.index(visitor.pid)
        pool.networks[first].parted = True
        (await gate.visitor("attempt 2")).release()
        await job
        other = pool.submit(jobs.wait_at, gate.path, "last")
        await gate.visitor("last")
        pool.networks[1 - first].parted = True
        with pytest.raises(NodeLostError):
            await other
    name, lost = "wait_in_every_attempt", "asyncpool.errors.NodeLostError"
    assert spans.tree() == [
        f"submit {name}",
        f"  process {name} #1 crashed ERROR asyncpool.errors.WorkerCrashedError",
        f"  wait {name}",
        f"  process {name} #2 ok",
        "submit wait_at",
        f"  process wait_at #1 crashed ERROR {lost}",
    ]
    nodes = [about(span)["node.name"] for span in spans.attempts()]
    assert nodes == [f"node-{first}", f"node-{1 - first}", f"node-{1 - first}"]
    assert ["worker.slot" in about(span) for span in spans.attempts()] == [
        False,
        True,
        False,
    ]


async def test_jobs_without_spans_hand_on_the_context_of_their_caller(
    tmp_path: Path,
) -> None:
    spans = Spans()
    async with (
        patience(),
        shared(tmp_path, 1, initializer=traced.set_up_worker) as pool,
    ):
        instrument(pool, tracer_provider=spans.provider)
        trace_no_more(pool)
        with spans.tracer.start_as_current_span("request") as request:
            await pool.submit(traced.trace_here)
            with pytest.raises(ZeroDivisionError):
                await pool.submit(jobs.divide, 1, 0)
        await pool.submit(traced.trace_here)  # nobody is its caller
        uninstrument(pool)
        with spans.tracer.start_as_current_span("other"):
            await pool.submit(traced.trace_here)
        inside = await pool.submit(traced.spans_of_worker)
    caller = request.get_span_context()
    assert inside[0] == (caller.trace_id, caller.span_id)
    assert [parent for _, parent in inside[1:]] == [None, None]
    # The one that has failed has been followed by nobody, so when it began is not known.
    assert spans.tree() == [
        "request",
        "  submit divide raised ERROR ZeroDivisionError",
        "other",
    ]


async def test_clients_of_one_pool_have_their_own_traces(tmp_path: Path) -> None:
    spans = Spans()
    async with (
        patience(),
        shared(tmp_path, 1, initializer=traced.set_up_worker) as pool,
        connect(pool.name) as other,
    ):
        instrument(pool, tracer_provider=spans.provider)
        await pool.submit(traced.trace_here)
        await other.submit(traced.trace_here)
        inside = await other.submit(traced.spans_of_worker)
    [process] = spans.attempts()
    assert [parent for _, parent in inside] == [context_of(process).span_id, None]


async def test_the_metrics_of_a_shared_pool(tmp_path: Path) -> None:
    figures, name = Figures(), f"unix:{tmp_path / 'pool.sock'}"
    for _ in range(2):  # one that is closed holds no name
        async with patience(), shared(tmp_path, 1) as pool:
            instrument(pool, meter_provider=figures.provider, spans=False)
            await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(3)))
            await pool.stats()
            assert figures.values("asyncpool.job.submitted", **{"pool.name": name}) == 3
        uninstrument(pool)
        with pytest.raises(PoolClosedError, match=f"^pool {name} is closed$"):
            instrument(pool)
    assert figures.points() == {}


async def test_an_instrumented_pool_that_is_dropped_is_freed(tmp_path: Path) -> None:
    pool = connect(f"unix:{tmp_path / 'nobody'}")
    instrument(pool)
    ref = weakref.ref(pool)
    del pool
    gc.collect()
    assert ref() is None


def trace_and_die_once() -> None:
    traced.trace_here()
    if asyncpool.current_job().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)


async def test_one_trace_goes_through_all_processes(tmp_path: Path) -> None:
    path = tmp_path / "spans"
    setup: dict[str, Any] = {
        "initializer": traced.export_from_worker,
        "initargs": (str(path),),
    }
    with path.open("a") as out:
        provider = traced.provider_into(out, "shop")
        async with patience(), Pool(1, **setup) as pool:
            instrument(pool, tracer_provider=provider)
            with provider.get_tracer("shop").start_as_current_span("request"):
                await pool.options(max_attempts=2).submit(trace_and_die_once)
    spans = [json.loads(line) for line in path.read_text().splitlines()]
    words = {it["context"]["span_id"]: it["name"].partition(" ")[0] for it in spans}
    found = sorted(
        (
            it["resource"]["attributes"]["service.name"],
            words[it["context"]["span_id"]],
            words.get(it["parent_id"], ""),
        )
        for it in spans
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
    assert len({it["context"]["trace_id"] for it in spans}) == 1
    inside = {it["parent_id"] for it in spans if it["name"] == "inside"}
    assert len(inside) == 2, "each is a child of its own attempt"
    codes = {it["status"]["status_code"] for it in spans if "process" in it["name"]}
    assert codes == {"UNSET", "ERROR"}
