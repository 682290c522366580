"""Streams: what a generator yields in a worker, taken here."""

from __future__ import annotations

import asyncio
import gc
import os
import random
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, Pool, Stream
from asyncpool.errors import (
    JobNotPicklableError,
    JobTimeoutError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
    WorkerHungError,
)
from tests.helpers import beats, jobs, large, streams, values
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, case, closing, collect, until

pytestmark = ONE_LOOP

SYNC_AND_ASYNC = pytest.mark.parametrize("kind", ["sync", "async"])


def of_kind(kind: str, name: str) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(streams, name if kind == "sync" else f"a{name}")
    return found


async def lines(path: Path, count: int) -> None:
    """Wait until there are so many lines."""
    while not path.exists() or len(path.read_text().split()) < count:  # noqa: ASYNC110
        await asyncio.sleep(0)


@SYNC_AND_ASYNC
@pytest.mark.parametrize("count", [0, 1, 16, 1000])
async def test_items_come_in_order(pool: Pool, kind: str, count: int) -> None:
    numbers = of_kind(kind, "numbers")
    found = [item async for item in pool.stream(numbers, count)]
    assert found == list(range(count))
    await assert_serves(pool)


async def test_whatever_returns_an_iterator_is_a_stream(pool: Pool) -> None:
    assert [n async for n in pool.stream(range, 3, 6)] == [3, 4, 5]
    assert [n async for n in pool.stream(map, str, [1, 2])] == ["1", "2"]
    assert [n async for n in pool.stream(lambda: iter("ab"))] == ["a", "b"]


@pytest.mark.parametrize("seed", range(4))
async def test_items_of_every_size_come_as_they_were(pool: Pool, seed: int) -> None:
    view = pool.options(prefetch=1 + seed * 3)
    found = [item async for item in view.stream(streams.mixed, seed, 60)]
    assert found == list(streams.mixed(seed, 60))


async def test_large_items_are_shared_and_their_memory_is_used_again() -> None:
    block = large.Block(large.pattern(1 << 20))
    async with patience(), Pool(1) as pool:
        stream = pool.options(prefetch=2).stream(streams.values, [block] * 50)
        async for item in stream:
            assert item == block
            del item
            gc.collect()
            assert len(large.numbers(pool)) <= 6
        assert large.numbers(pool)


async def test_it_has_a_job_and_is_for_one_iteration() -> None:
    async with patience(), Pool(1) as pool:
        aiter(pool.stream(streams.numbers, 3))
        await pool.stream(streams.numbers, 3).aclose()
        stream = pool.stream(streams.values, "abc", then="done")
        assert not stream.job
        gc.collect()
        assert not pool.stats().submitted, "nobody has asked for an item"
        assert await anext(stream) == "a"
        job = stream.job
        assert isinstance(job, Job)
        assert (job.attempt, job.state) in {(1, "running"), (1, "done")}
        assert [item async for item in stream] == ["b", "c"]
        assert await job == "done"
        with pytest.raises(RuntimeError, match="can be iterated over only once"):
            aiter(stream)
        assert pool.stats().submitted == 1


@SYNC_AND_ASYNC
@pytest.mark.parametrize("buffer", [1, 2, 16])
async def test_no_more_is_made_than_may_wait(
    pool: Pool, kind: str, buffer: int, tmp_path: Path
) -> None:
    path = tmp_path / "made"
    view = pool.options(prefetch=buffer)
    stream = view.stream(of_kind(kind, "signed"), str(path), 60)
    taken = 0
    async for item in stream:
        assert item == taken
        taken += 1
        # As much as is certain, and then no more.
        await lines(path, min(60, taken + buffer - 1 - buffer // 2))
        assert len(path.read_text().split()) <= taken + buffer
    assert taken == 60


@SYNC_AND_ASYNC
async def test_what_is_left_early_is_closed(kind: str) -> None:
    closed_at, word = of_kind(kind, "closed_at"), "GeneratorExit"
    async with patience(), Gate() as gate, Pool(1) as pool:
        worker = await pool.submit(jobs.pid)
        async for item in pool.stream(closed_at, gate.path):
            if item == 40:
                break
        (await gate.visitor(word)).release()
        async with aclosing(pool.stream(closed_at, gate.path)) as stream:
            assert await anext(stream) == 0
        (await gate.visitor(word, nth=2)).release()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        assert await pool.submit(jobs.pid) == worker
    assert (pool.stats().cancelled, pool.stats().crashes) == (2, 0)


@pytest.mark.parametrize("how", ["closed", "cancelled"])
@pytest.mark.parametrize(
    "function", [streams.closed_while_running, streams.closed_while_waiting]
)
async def test_a_generator_that_computes_or_waits_is_ended_too(
    pool: Pool, gate: Gate, function: Any, how: str
) -> None:
    worker = await pool.submit(jobs.pid)
    stream = pool.stream(function, gate.path)
    assert await anext(stream) == 0
    task = asyncio.create_task(collect(stream, [])) if how == "cancelled" else None
    await gate.visitor("running")
    if task:
        task.cancel()
        await asyncio.wait([task])
    else:
        await stream.aclose()
    await gate.visitor("closed")
    assert await pool.submit(jobs.pid) == worker


async def test_who_leaves_while_an_item_is_sent_breaks_nothing() -> None:
    block = large.Block(large.pattern(4 << 20))
    async with patience(), Pool(1, max_shared_memory=0) as pool:
        worker = await pool.submit(jobs.pid)
        for _ in range(20):
            # They do not fit into the channel, so the worker is about to send.
            async with aclosing(pool.stream(streams.values, [block] * 5)) as stream:
                assert await anext(stream) == block
        assert await pool.submit(jobs.pid) == worker
    assert pool.stats().crashes == 0


async def test_one_that_refuses_to_end_is_killed() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        worker = await pool.submit(jobs.pid)
        view = pool.options(cancel_grace=0.1)
        async with aclosing(view.stream(streams.refusing_to_end, gate.path)) as stream:
            await anext(stream)
            await gate.visitor("running")
        assert await pool.submit(jobs.pid) != worker


@SYNC_AND_ASYNC
async def test_an_error_comes_where_it_was_raised(pool: Pool, kind: str) -> None:
    values = of_kind(kind, "values")
    source = random.Random(1)
    for count in [0, 1, *(source.randrange(100) for _ in range(10))]:
        found: list[Any] = []
        stream = pool.stream(values, range(count), ValueError("at the end"))
        with pytest.raises(ValueError, match="at the end") as caught:
            await collect(stream, found)
        assert found == list(range(count))
        remote = str(caught.value.__cause__)
        assert f"in {values.__name__}" in remote
        assert "asyncpool/_worker" not in remote
    await assert_serves(pool)


async def test_what_cannot_cross_is_named() -> None:
    async with patience(), Pool(1, max_message_size=100_000) as pool:
        found: list[Any] = []
        with pytest.raises(JobNotPicklableError, match="lock") as caught:
            await collect(pool.stream(streams.unpicklable_after, 3), found)
        assert found == [0, 1, 2]
        assert "It is item 3 of a stream." in str(caught.value.__cause__)
        text = "has 200.* bytes when pickled, and max_message_size is 100000"
        with pytest.raises(JobNotPicklableError, match=text):
            await anext(pool.stream(repeated, 200_000))
        with pytest.raises(JobNotPicklableError, match=r"args\[0\] cannot be pickled"):
            await anext(pool.stream(streams.values, (n for n in "ab")))
        await assert_serves(pool)


def repeated(size: int) -> list[bytes]:
    return [bytes(size)]


async def test_what_cannot_be_unpickled_here_ends_it(pool: Pool) -> None:
    stream = pool.stream(streams.values, [1, BadHere(), 3])
    assert await anext(stream) == 1
    with pytest.raises(JobNotPicklableError, match="not here") as caught:
        await anext(stream)
    assert stream.job is not None
    assert (caught.value.job_id, caught.value.attempt) == (stream.job.id, 1)
    await assert_serves(pool)


class BadHere:
    """What can be pickled, and unpickled in any process but the one that made this."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        if self.home == os.getpid():
            raise ValueError("not here")


@pytest.mark.parametrize("result", [None, 3, ValueError])
async def test_what_yields_nothing_is_no_stream(pool: Pool, result: Any) -> None:
    text = r"stream\(\) takes a function that returns an iterator or an async iterator"
    with pytest.raises(TypeError, match=text):
        await anext(pool.stream(jobs.call, returning, result))
    with pytest.raises(TypeError, match=r"stream\(\) takes a callable first, not 3"):
        pool.stream(3)  # type: ignore[arg-type]


async def test_an_async_function_may_return_what_is_iterated_over(pool: Pool) -> None:
    stream: Stream[Any] = pool.stream(streams.opened, 3)  # type: ignore[arg-type]
    assert [item async for item in stream] == [0, 1, 2]


async def test_what_was_called_instead_of_passed_is_told(pool: Pool) -> None:
    called: Any = streams.anumbers(3)
    with pytest.raises(TypeError, match="pass the function, and its arguments"):
        pool.stream(called)
    waiting: Any = streams.double(3)
    with pytest.raises(TypeError, match="behind it"):
        pool.submit(waiting)
    waiting.close()
    hint = r"generator.*; stream\(\) yields what it yields"
    for function in (streams.numbers, streams.anumbers):
        with pytest.raises(JobNotPicklableError, match=hint):
            await pool.submit(function, 3)


def returning(value: Any) -> Any:
    return value


async def test_there_is_another_attempt_if_nothing_was_taken(
    tmp_path: Path, faced: Faced
) -> None:
    async with patience(), faced() as (caller, _):
        view = caller.options(max_attempts=2, retry_on=("crash", OSError))
        for number, function in enumerate((streams.dying_once, streams.failing_once)):
            token = str(tmp_path / f"token {number}")
            stream = view.stream(function, token, 0)
            assert [item async for item in stream] == []
            assert stream.job is not None
            assert stream.job.attempt == 2


async def test_who_has_taken_something_gets_the_crash_behind_it(tmp_path: Path) -> None:
    token = str(tmp_path / "token")
    async with patience(), Pool(1) as pool:
        stream = pool.options(max_attempts=2).stream(streams.dying_once, token, 40)
        found: list[Any] = []
        with pytest.raises(WorkerCrashedError) as caught:
            await collect(stream, found)
        assert found == [(number, 1) for number in range(40)]
        assert caught.value.attempt == 1
        await assert_serves(pool)


async def test_its_timeout_is_for_all_of_it(pool: Pool, gate: Gate) -> None:
    stream = pool.options(timeout=1.0).stream(streams.silent_at, gate.path, 3)
    found: list[Any] = []
    with pytest.raises(JobTimeoutError) as caught:
        await collect(stream, found)
    assert found == [0, 1, 2]
    assert "in silent_at" in (caught.value.stack or "")
    await assert_serves(pool)


async def test_items_are_signs_of_life_and_silence_is_not() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        view = pool.options(heartbeat_timeout=0.3)
        with pytest.raises(WorkerHungError):
            await collect(view.stream(streams.silent_at, gate.path, 3), [])
        await assert_serves(pool)


async def test_who_waits_for_a_slow_caller_is_not_silent() -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        view = pool.options(heartbeat_timeout=0.5, prefetch=1)
        stream = view.stream(streams.numbers, 3)
        found = []
        async for item in stream:
            found.append(item)
            # Until somebody who has begun later was silent for too long.
            with pytest.raises(WorkerHungError):
                await view.submit(jobs.wait_at, gate.path)
        assert found == [0, 1, 2]
    assert pool.stats().crashes == 3


async def test_it_waits_for_a_worker_and_then_has_it_alone(
    pool: Pool, gate: Gate
) -> None:
    first = pool.submit(jobs.wait_at, gate.path)
    stream = pool.stream(streams.numbers, 100)
    task = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)  # it is submitted when it is first asked
    second = pool.submit(jobs.pid)
    visitor = await gate.visitor()
    assert not task.done()
    visitor.release()
    await first
    assert await task == 0
    assert not second.done()
    assert len([n async for n in stream]) == 99
    await second


async def test_a_pool_that_closes_waits_for_who_takes_the_items() -> None:
    async with patience():
        pool = Pool(1)
        await pool.start()
        stream = pool.stream(streams.numbers, 100)
        assert await anext(stream) == 0
        close = await closing(pool)
        assert [n async for n in stream] == list(range(1, 100))
        summary = await close
        assert (summary.finished, summary.failed, summary.killed) == (1, 0, 0)
        with pytest.raises(PoolClosedError):
            await anext(pool.stream(streams.numbers, 3))


async def test_one_that_is_closed_at_once_fails_it_behind_what_has_come() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1)
        await pool.start()
        stream = pool.stream(streams.silent_at, gate.path, 3)
        assert await anext(stream) == 0
        await gate.visitor()
        await pool.close(finish="none")
        found: list[Any] = []
        with pytest.raises(PoolClosedError) as caught:
            await collect(stream, found)
        assert found == [1, 2]
        assert caught.value.delivery == "started"


async def test_a_worker_that_sends_more_than_it_may_is_not_trusted() -> None:
    async with patience(), Pool(1) as pool:
        with pytest.raises(WorkerCrashedError, match="more than 16 items") as caught:
            await collect(pool.stream(streams.more_than_allowed, 17), [])
        assert caught.value.kind == "protocol"
        await assert_serves(pool)


async def test_a_map_takes_the_items_of_a_stream(pair: Pool) -> None:
    numbers = pair.stream(streams.numbers, 1000)
    assert await pair.map(jobs.square, numbers) == [n * n for n in range(1000)]


async def test_beats_come_beside_the_items(pool: Pool) -> None:
    stream = pool.stream(beats_and_items, 5)
    assert [n async for n in stream] == list(range(5))
    assert stream.job is not None
    assert [details async for details in stream.job.progress()][-1:] == [4]


def beats_and_items(stop: int) -> Any:
    for number in range(stop):
        beats.beat_value(number)
        yield number


# What is known of it before anything is done with its first item.


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


async def test_a_queue_timeout_is_told(pool: Pool, gate: Gate) -> None:
    running = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    stream = pool.options(queue_timeout=0.05).stream(streams.numbers, 3)
    with pytest.raises(JobTimeoutError) as caught:
        await stream.started()
    assert caught.value.limit == "queue_timeout"
    visitor.release()
    await running


async def test_what_fails_before_the_first_item_is_told() -> None:
    failing: dict[str, tuple[type[Exception], tuple[Any, ...]]] = {
        "crash": (WorkerCrashedError, (streams.dying, 0)),
        "raises": (LookupError, (streams.values, [], LookupError("none"))),
        "item": (JobNotPicklableError, (streams.unpicklable_after, 0)),
        "argument": (JobNotPicklableError, (streams.values, [values.Unpicklable()])),
        "no iterator": (TypeError, (jobs.square, 3)),
    }
    async with patience(), Pool(1) as pool:
        for name, (kind, call) in failing.items():
            stream: Stream[Any] = pool.stream(*call)
            for _ in range(2):
                with case(name), pytest.raises(kind):
                    await stream.started()
            await assert_serves(pool)
        stream = pool.stream(streams.numbers, 3)
    with pytest.raises(PoolClosedError):
        await stream.started()


async def test_what_fails_later_is_told_by_the_iteration(pool: Pool) -> None:
    stream = pool.stream(streams.values, [1], LookupError("later"))
    await stream.started()
    assert await anext(stream) == 1
    with pytest.raises(LookupError, match="later"):
        await anext(stream)


async def test_any_number_may_wait_for_it(pool: Pool, gate: Gate) -> None:
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


async def test_whoever_stops_waiting_for_it_gives_it_up(pool: Pool, gate: Gate) -> None:
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
