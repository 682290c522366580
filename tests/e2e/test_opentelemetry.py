"""The spans of real jobs, however they end, and what happens if something is wrong."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from typing import Any, NoReturn

import numpy as np
import pytest
from opentelemetry import baggage, context
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    SamplingResult,
    StaticSampler,
)
from opentelemetry.trace import SpanKind

from asyncpool import (
    JobTimeoutError,
    Pool,
    PoolBrokenError,
    PoolClosedError,
    RestartPolicy,
    WorkerCrashedError,
)
from asyncpool.opentelemetry import instrument, uninstrument
from tests.helpers import jobs, spans as traced
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import idle, kill_worker
from tests.helpers.spans import Figures, Spans, about, context_of

pytestmark = BOTH_LOOPS


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
    assert told == {
        **common,
        "job.attempt": 1,
        "job.outcome": "ok",
        "worker.slot": 0,
    }
    assert submit.end_time == process.start_time
    [begun] = process.events
    assert begun.name == "begun"
    assert process.end_time == begun.timestamp + int(run * 1e9)
    assert not process.links


async def test_the_span_of_a_job_that_raises_has_the_error() -> None:
    spans = Spans()
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
    assert spans.tree() == [
        "submit divide",
        "  process divide #1 raised ERROR ZeroDivisionError",
    ]
    process = spans.named("process tests.helpers.jobs.divide")
    assert process.status.description == "division by zero"
    told = {event.name: event.attributes for event in process.events}["exception"]
    assert told is not None
    assert told["exception.type"] == "ZeroDivisionError"
    assert "return one / other" in str(told["exception.stacktrace"])


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


async def test_a_timeout_is_an_error_of_the_span() -> None:
    spans = Spans()
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
    assert spans.tree() == [
        "submit stay",
        "  process stay #1 timeout ERROR asyncpool.errors.JobTimeoutError",
    ]
    span = spans.named("process tests.helpers.jobs.stay")
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.end_time - span.start_time >= 50_000_000


async def test_jobs_that_are_cancelled() -> None:
    spans = Spans()
    async with patience(), Gate() as gate, Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        running = pool.submit(jobs.wait_at, gate.path)
        await gate.visitor()
        queued = pool.submit(jobs.square, 2)
        queued.cancel()
        running.cancel()
        await idle(pool)
    assert spans.tree() == [
        "submit wait_at",
        "  process wait_at #1 cancelled",
        "submit square cancelled",
    ]


async def test_the_jobs_of_a_map_have_traces_of_their_own_which_link_to_the_caller() -> (
    None
):
    spans = Spans()
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        with spans.tracer.start_as_current_span("request") as request:
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


async def test_a_map_of_a_caller_that_is_not_traced_is_not_traced() -> None:
    spans = Spans(ParentBased(ALWAYS_OFF))
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        with spans.tracer.start_as_current_span("request"):
            assert await pool.map(jobs.square, range(3)) == [0, 1, 4]
    assert spans.tree() == []


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


async def test_the_caller_is_the_parent_whatever_it_calls() -> None:
    spans = Spans()
    async with patience(), Pool(2) as pool:
        instrument(pool, tracer_provider=spans.provider)
        with spans.tracer.start_as_current_span("request"):
            async for _ in pool.stream(range, 2):
                pass
            await pool.broadcast(jobs.pid)
            async with pool.worker() as worker:
                await worker.submit(jobs.square, 2)
            await pool.submit(jobs.size, np.zeros(1 << 20))
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


async def test_each_attempt_is_the_parent_of_its_own_spans() -> None:
    spans = Spans()
    async with patience(), Pool(1, initializer=traced.set_up_worker) as pool:
        instrument(pool, tracer_provider=spans.provider)
        options = pool.options(max_attempts=3, retry_on=(LookupError,))
        await options.submit(trace_and_fail_before_attempt_3)
        inside = await pool.submit(traced.spans_of_worker)
    attempts = [
        context_of(span).span_id
        for span in spans.attempts()
        if "attempt_3" in span.name
    ]
    assert [parent for _, parent in inside] == attempts
    assert len(attempts) == 3


def trace_and_fail_before_attempt_3() -> None:
    traced.trace_here()
    jobs.fail_before_attempt_3(0)


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
        assert await pool.submit(traced.spans_of_worker) == []
        uninstrument(pool)
        await pool.submit(traced.trace_here)
        assert len(await pool.submit(traced.spans_of_worker)) == 1
    assert spans.tree() == []


async def test_the_sampler_decides() -> None:
    class OneOfTwo(StaticSampler):
        asked = 0

        def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
            self.asked += 1
            sampler = ALWAYS_ON if self.asked % 2 else ALWAYS_OFF
            return sampler.should_sample(*args, **kwargs)

    sampler = OneOfTwo(Decision.DROP)
    spans = Spans(ParentBased(sampler))
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        for number in range(4):
            await pool.submit(jobs.square, number)
    told = [about(span)["job.id"] for span in spans.ended()]
    assert told == [1, 1, 3, 3]
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


async def test_a_worker_without_opentelemetry_does_not_import_it() -> None:
    spans = Spans()
    async with patience(), Pool(1) as pool:
        instrument(pool, tracer_provider=spans.provider)
        assert not [
            name for name in await pool.submit(jobs.modules) if "opentelemetry" in name
        ]


async def test_two_pools_have_spans_of_their_own() -> None:
    spans, figures = Spans(), Figures()
    async with patience(), Pool(1, name="one") as one, Pool(1, name="two") as two:
        for pool in (one, two):
            instrument(
                pool, tracer_provider=spans.provider, meter_provider=figures.provider
            )
        with spans.tracer.start_as_current_span("request"):
            await one.submit(jobs.square, 1)
            await two.submit(jobs.divide, 1, 1)
        assert figures.values("asyncpool.job.submitted", **{"pool.name": "one"}) == 1
        assert figures.values("asyncpool.job.submitted", **{"pool.name": "two"}) == 1
    assert spans.tree() == [
        "request",
        "  submit square",
        "    process square #1 ok",
        "  submit divide",
        "    process divide #1 ok",
    ]
    names = [about(span).get("pool.name") for span in spans.ended()]
    assert names == ["one", "one", "two", "two", None]


async def test_a_worker_that_gives_a_job_back() -> None:
    spans = Spans()
    async with patience(), Gate() as gate, Pool(2) as pool:
        instrument(pool, tracer_provider=spans.provider, max_traced=None)
        # Short jobs are sent ahead, and given back when the one before them is long.
        await asyncio.gather(*(pool.submit(jobs.pass_by, gate.path) for _ in range(50)))
        await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(500)))
        await idle(pool)
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


async def test_uninstrument_ends_what_is_open() -> None:
    spans, figures = Spans(), Figures()
    async with patience(), Gate() as gate, Pool(1, name="images") as pool:
        instrument(
            pool, tracer_provider=spans.provider, meter_provider=figures.provider
        )
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        uninstrument(pool)
        visitor.release()
        await job
        await pool.submit(jobs.square, 1)
        assert spans.tree() == ["submit wait_at", "  process wait_at #1"]
        assert figures.points() == {}
        instrument(pool, tracer_provider=spans.provider)
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
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken(SpanProcessor):
        def on_start(self, *_: object, **__: object) -> NoReturn:
            raise LookupError("no")

    spans = Spans()
    spans.provider.add_span_processor(Broken())
    async with patience(), Pool(1, name="images") as pool:
        instrument(pool, tracer_provider=spans.provider)
        with caplog.at_level(logging.ERROR, "asyncpool"):
            found = await asyncio.gather(*(pool.submit(jobs.square, n) for n in (1, 2)))
    assert found == [1, 4]
    [record] = caplog.records
    assert record.getMessage() == "the spans of pool images are incomplete"


async def test_without_an_sdk_jobs_run_as_ever() -> None:
    async with patience(), Pool(1) as pool:
        instrument(pool)
        assert await pool.submit(jobs.square, 3) == 9
        with pytest.raises(ZeroDivisionError):
            await pool.submit(jobs.divide, 1, 0)
        assert await pool.map(jobs.square, range(3)) == [0, 1, 4]
        uninstrument(pool)


async def test_metrics_alone_follow_no_job() -> None:
    figures = Figures()
    async with patience(), Pool(1, name="images") as pool:
        instrument(pool, meter_provider=figures.provider, spans=False)
        await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
        await kill_worker(pool)
        await idle(pool)
        points = figures.points()
        [ended] = points["asyncpool.job.ended"].values()
    assert ended.value == 20
    crashes = points["asyncpool.worker.crashes"]
    assert [p.value for p in crashes.values() if p.attributes["error.type"] == "crash"]
    assert sum(point.value for point in crashes.values()) == 1


async def test_the_last_figures_of_a_pool_are_collected_when_it_is_gone() -> None:
    figures = Figures()
    async with patience():
        pool = Pool(1, name="images")
        instrument(pool, meter_provider=figures.provider, spans=False)
        async with pool:
            await pool.submit(jobs.square, 3)
        del pool
        gc.collect()
        await asyncio.sleep(0)
        points = figures.points()
        [ended] = points["asyncpool.job.ended"].values()
    assert ended.value == 1
    assert "asyncpool.job.ended" not in figures.points()
