"""The spans of jobs whose workers belong to agents: those of a local pool, with the node."""

from __future__ import annotations

import asyncio
import gc
import weakref
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan

from asyncpool import PoolClosedError
from asyncpool.errors import NodeLostError
from asyncpool.opentelemetry import instrument, uninstrument
from asyncpool.sharedpool import connect
from tests.helpers import jobs, spans as traced
from tests.helpers.gate import Gate
from tests.helpers.inside import trace_no_more
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import two_nodes
from tests.helpers.patience import patience
from tests.helpers.shared_pools import shared
from tests.helpers.spans import Figures, Spans, about, context_of

pytestmark = BOTH_LOOPS


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
    async with (
        patience(),
        Gate() as gate,
        two_nodes() as (pool, _, _),
    ):
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
    async with (
        patience(),
        Gate() as gate,
        two_nodes() as (pool, one, two),
    ):
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
