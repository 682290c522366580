"""What is known of a stream before anything is done with its first item."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from asyncpool import (
    JobNotPicklableError,
    JobTimeoutError,
    Pool,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from tests.helpers import jobs, streams, values
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, until

pytestmark = ONE_LOOP


async def test_it_has_begun_when_its_first_item_is_there(
    pool: Pool, gate: Gate
) -> None:
    stream = pool.stream(streams.silent_at, gate.path, 1)
    assert not stream.job
    await stream.started()
    assert stream.job is not None
    assert stream.job.state == "running"
    (await gate.visitor()).release()
    await stream.started()  # as often as one likes
    assert [item async for item in stream] == [0]
    await stream.started()


async def test_one_without_items_has_begun_when_it_has_ended(pool: Pool) -> None:
    stream = pool.stream(streams.numbers, 0)
    await stream.started()
    assert stream.job is not None
    assert stream.job.done()
    assert [item async for item in stream] == []


async def test_a_full_queue_is_told_and_may_be_asked_again() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=0) as pool:
        running = pool.submit(jobs.wait_at, gate.path)
        stream = pool.stream(streams.numbers, 3)
        for _ in range(2):
            with pytest.raises(PoolFullError):
                await stream.started()
        assert stream.job is None
        (await gate.visitor()).release()
        await running
        await stream.started()
        assert [item async for item in stream] == [0, 1, 2]


async def test_a_closed_pool_is_told() -> None:
    async with patience(), Pool(1) as pool:
        stream = pool.stream(streams.numbers, 3)
        await pool.close()
        with pytest.raises(PoolClosedError):
            await stream.started()


async def test_a_queue_timeout_is_told(pool: Pool, gate: Gate) -> None:
    running = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    stream = pool.options(queue_timeout=0.05).stream(streams.numbers, 3)
    with pytest.raises(JobTimeoutError) as caught:
        await stream.started()
    assert caught.value.limit == "queue_timeout"
    visitor.release()
    await running


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ((streams.dying, 0), WorkerCrashedError),
        ((streams.values, [], LookupError("none")), LookupError),
        ((streams.unpicklable_after, 0), JobNotPicklableError),
        ((streams.values, [values.Unpicklable()]), JobNotPicklableError),
        ((jobs.square, 3), TypeError),
    ],
    ids=["crash", "raises", "item", "argument", "no iterator"],
)
async def test_what_fails_before_the_first_item_is_told(
    call: tuple[Any, ...], kind: type[Exception]
) -> None:
    async with patience(), Pool(1) as pool:
        stream = pool.stream(*call)
        for _ in range(2):
            with pytest.raises(kind):
                await stream.started()
        await assert_serves(pool)


async def test_what_fails_later_is_told_by_the_iteration(pool: Pool) -> None:
    stream = pool.stream(streams.values, [1], LookupError("later"))
    await stream.started()
    assert await anext(stream) == 1
    with pytest.raises(LookupError, match="later"):
        await anext(stream)


async def test_another_attempt_begins_unnoticed(tmp_path: Path) -> None:
    async with patience(), Pool(1) as pool:
        view = pool.options(max_attempts=2)
        stream = view.stream(streams.dying_at_first, str(tmp_path / "token"), 3)
        await stream.started()
        assert [item async for item in stream] == [(0, 2), (1, 2), (2, 2)]


async def test_any_number_may_wait_for_it() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        stream = pool.stream(streams.beginning_at, gate.path)
        first = asyncio.create_task(stream.started())
        visitor = await gate.visitor()
        others = [asyncio.create_task(stream.started()) for _ in range(3)]
        await asyncio.sleep(0)
        others[0].cancel()
        await asyncio.wait(others[:1])
        visitor.release()
        await asyncio.gather(first, *others[1:])
        assert [item async for item in stream] == ["begun"]


async def test_whoever_stops_waiting_for_it_gives_it_up() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        stream = pool.stream(streams.beginning_at, gate.path)
        waiting = asyncio.create_task(stream.started())
        await gate.visitor()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert stream.job is not None
        assert stream.job.cancelled()
        await assert_serves(pool)


@pytest.mark.parametrize("way", ["closed", "dropped"])
async def test_one_that_nobody_iterates_over_ends(way: str) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        stream = pool.stream(streams.closed_at, gate.path)
        await stream.started()
        if way == "closed":
            await stream.aclose()
        del stream
        gc.collect()
        (await gate.visitor("GeneratorExit")).release()
        await until(pool, lambda stats: stats.cancelled == 1)
        await assert_serves(pool)


async def test_it_is_for_before_the_iteration(pool: Pool) -> None:
    stream = pool.stream(streams.numbers, 3)
    items = aiter(stream)
    with pytest.raises(RuntimeError, match="for before the iteration"):
        await stream.started()
    assert [item async for item in items] == [0, 1, 2]


async def test_a_web_framework_answers_503_before_it_has_sent_anything() -> None:
    async def report(_: Request) -> Response:
        stream = pool.stream(streams.values, ["a\n", "b\n"])
        await stream.started()
        return StreamingResponse(stream)

    async def explain(_: Request, error: Exception) -> Response:
        return PlainTextResponse(str(error), 503)

    app = Starlette(
        routes=[Route("/", report)], exception_handlers={PoolFullError: explain}
    )
    transport = httpx.ASGITransport(app)
    async with (
        patience(),
        Gate() as gate,
        Pool(1, max_queued=0) as pool,
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        assert (await client.get("/")).status_code == 503
        visitor.release()
        await running
        answer = await client.get("/")
        assert (answer.status_code, answer.text) == (200, "a\nb\n")
