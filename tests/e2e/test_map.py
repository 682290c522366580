"""Maps: many calls, in the shapes that they have in plain Python."""

from __future__ import annotations

import asyncio
import io
import itertools
import operator
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress
from tqdm.asyncio import tqdm

from asyncpool import (
    JobNotPicklableError,
    Outcome,
    Pool,
    PoolClosedError,
)
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import registry_of
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, closing, collect, idle

pytestmark = ONE_LOOP

MANY = 20_000


async def arriving(items: Iterator[Any]) -> AsyncIterator[Any]:
    for item in items:
        await asyncio.sleep(0)
        yield item


def watched(items: Iterator[Any], seen: list[Any]) -> Iterator[Any]:
    """Yield *items*, and note which were drawn."""
    for item in items:
        seen.append(item)
        yield item


async def at_rest(pool: Pool) -> None:
    """Wait until nothing is to be done."""
    while pool.stats().idle < pool.stats().workers:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0)
    assert not pool.stats().queued


async def test_a_map_that_is_awaited_is_a_list() -> None:
    async with patience(), Pool(2) as pool:
        assert await pool.map(jobs.square, range(MANY)) == [n * n for n in range(MANY)]
        assert await pool.map(jobs.square, []) == []
        assert await pool.map(operator.add, range(5), [10, 20, 30]) == [10, 21, 32]
        assert await pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
        # Most of it has travelled together.
        assert pool.stats().submitted < MANY / 10
        await assert_serves(pool)


async def test_results_come_in_order_or_as_they_come(pair: Pool, gate: Gate) -> None:
    items = [("wait", gate.path), *(("return", n) for n in range(5))]
    ordered = pair.map(jobs.choose, items, chunksize=1)
    first = asyncio.ensure_future(anext(ordered))
    visitor = await gate.visitor()
    assert not first.done()
    visitor.release()
    assert await first == "go"
    assert [item async for item in ordered] == [0, 1, 2, 3, 4]

    unordered = pair.map(jobs.choose, items, chunksize=1).unordered()
    found = [await anext(unordered) for _ in range(5)]
    assert sorted(found) == [0, 1, 2, 3, 4]
    (await gate.visitor(nth=2)).release()
    assert await anext(unordered) == "go"
    with pytest.raises(StopAsyncIteration):
        await anext(unordered)


@pytest.mark.parametrize("chunk", [None, 1, 4])
async def test_an_error_is_raised_where_its_result_would_be(
    pair: Pool, chunk: int | None
) -> None:
    items = [("return", 0), ("return", 1), ("raise", ValueError("two")), ("return", 3)]
    found: list[int] = []
    results = pair.map(jobs.choose, items, chunksize=chunk, buffersize=100)
    with pytest.raises(ValueError, match="two") as caught:
        await collect(results, found)
    assert found == [0, 1]
    assert caught.value.__notes__ == ["It is the error of item 2 of a map."]
    assert "in choose" in str(caught.value.__cause__)
    with pytest.raises(ValueError, match="two"):
        await pair.map(jobs.choose, items, chunksize=chunk)
    await assert_serves(pair)


@pytest.mark.parametrize("chunk", [None, 1, 4])
async def test_outcomes_tell_errors_from_results(pair: Pool, chunk: int | None) -> None:
    items = [
        ("return", 0),
        ("raise", KeyError("a")),
        ("return", [2]),
        ("unpicklable", 3),
    ]
    outcomes = await pair.map(
        jobs.choose, items, chunksize=chunk, buffersize=100
    ).outcomes()
    assert all(type(outcome) is Outcome for outcome in outcomes)
    assert [outcome.index for outcome in outcomes] == [0, 1, 2, 3]
    assert [outcome.item for outcome in outcomes] == items
    assert [outcome.ok for outcome in outcomes] == [True, False, True, False]
    assert outcomes[2].result() == [2]
    with pytest.raises(KeyError, match="a"):
        outcomes[1].result()
    error = outcomes[3].error
    assert isinstance(error, JobNotPicklableError)
    assert error.direction == "result"
    later = pair.map(jobs.choose, items, chunksize=chunk).outcomes().unordered()
    assert sorted([one.index async for one in later]) == [0, 1, 2, 3]


async def test_endless_inputs_are_drawn_only_as_results_are_taken(pair: Pool) -> None:
    seen: list[int] = []
    results = pair.map(jobs.square, watched(itertools.count(), seen), buffersize=50)
    assert seen == [], "nothing is drawn before the first result is asked for"
    for n in range(2000):
        assert await anext(results) == n * n
        assert n < len(seen) <= n + 50
    await results.aclose()
    drawn = len(seen)
    await assert_serves(pair)
    assert len(seen) == drawn


async def test_async_inputs_are_drawn_only_as_results_are_taken() -> None:
    seen: list[int] = []
    async with patience(), Pool(2) as pool:
        inputs = arriving(watched(itertools.count(), seen))
        async with aclosing(pool.map(jobs.square, inputs, buffersize=50)) as results:
            for n in range(500):
                assert await anext(results) == n * n
                assert n < len(seen) <= n + 50
        with pytest.raises(StopAsyncIteration):
            await anext(inputs)  # it was closed
        mixed = pool.map(jobs.pair, arriving(iter("abc")), range(10))
        assert await mixed == [("a", 0), ("b", 1), ("c", 2)]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_what_inputs_raise_comes_after_what_was_drawn_before(
    pair: Pool, kind: str
) -> None:
    def failing() -> Iterator[int]:
        yield from range(5)
        raise OSError("no more")

    inputs: Any = failing() if kind == "sync" else arriving(failing())
    found: list[int] = []
    with pytest.raises(OSError, match="no more"):
        await collect(pair.map(jobs.square, inputs), found)
    assert found == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("others", [(), (range(10),)])
async def test_inputs_that_end_in_a_cancellation_are_not_complete(
    pool: Pool, others: tuple[Any, ...]
) -> None:
    async def cancelled() -> AsyncIterator[int]:
        yield 1
        yield 2
        raise asyncio.CancelledError("no more")

    function: Any = jobs.pair if others else jobs.square
    found: list[Any] = []
    with pytest.raises(asyncio.CancelledError, match="no more"):
        await collect(pool.map(function, cancelled(), *others), found)
    assert found == ([(1, 0), (2, 1)] if others else [1, 4])
    with pytest.raises(asyncio.CancelledError, match="no more"):
        await pool.map(function, cancelled(), *others)
    await assert_serves(pool)


@pytest.mark.parametrize("kind", [GeneratorExit, asyncio.CancelledError])
async def test_any_error_of_plain_inputs_comes_after_what_was_before(
    pool: Pool, kind: type[BaseException]
) -> None:
    def inputs() -> Iterator[int]:
        yield 1
        yield 2
        raise kind("no more")

    found: list[int] = []
    with pytest.raises(kind, match="no more"):
        await collect(pool.map(jobs.square, inputs()), found)
    assert found == [1, 4]
    await assert_serves(pool)


async def test_async_inputs_are_closed_by_the_task_that_draws_them(pool: Pool) -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    async def inputs() -> AsyncIterator[int]:
        tasks.append(asyncio.current_task())
        try:
            for n in itertools.count():
                yield n
        finally:
            tasks.append(asyncio.current_task())

    some = pool.map(jobs.pair, inputs(), inputs())
    assert await anext(some) == (0, 0)
    await some.aclose()
    assert len(tasks) == 4
    assert len(set(tasks)) == 1
    await assert_serves(pool)


async def test_what_inputs_raise_when_they_are_closed_is_raised(pool: Pool) -> None:
    async def inputs() -> AsyncIterator[int]:
        try:
            for n in itertools.count():
                yield n
        finally:
            raise OSError("not closed")

    some = pool.map(jobs.square, inputs())
    assert await anext(some) == 0
    with pytest.raises(OSError, match="not closed"):
        await some.aclose()
    await assert_serves(pool)


async def test_who_leaves_early_leaves_nothing_behind(pair: Pool, gate: Gate) -> None:
    items = itertools.chain([("return", 1)], itertools.repeat(("wait", gate.path)))
    async for result in pair.map(jobs.choose, items, chunksize=1):
        assert result == 1
        break
    await at_rest(pair)
    assert pair.stats().cancelled > 0
    await assert_serves(pair)


@pytest.mark.parametrize("how", ["error", "cancel"])
async def test_an_error_or_a_cancellation_leaves_nothing_behind(how: str) -> None:
    async with patience(), Gate() as gate, Pool(2) as pool:
        items = itertools.repeat(("wait", gate.path))

        async def take() -> None:
            some = pool.map(jobs.choose, items, chunksize=1).unordered()
            async with aclosing(some) as results:
                async for _ in results:
                    raise ArithmeticError("mine")

        task = asyncio.create_task(take())
        visitor = await gate.visitor()
        if how == "cancel":
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        else:
            visitor.release()
            with pytest.raises(ArithmeticError, match="mine"):
                await task
        await at_rest(pool)
        await assert_serves(pool)


async def test_items_that_travel_together_share_nothing(pool: Pool) -> None:
    one, other = await pool.map(
        jobs.choose, [("shared", 0)] * 2, chunksize=2, buffersize=8
    )
    assert one == other == []
    assert one is not other
    found = await pool.map(jobs.choose, [("swap", 1)] * 4, chunksize=4, buffersize=8)
    assert found == [0, 0, 0, 0]
    large = await pool.map(
        jobs.choose, [("make", 200_000)] * 6, chunksize=3, buffersize=12
    )
    assert [len(one) for one in large] == [200_000] * 6
    assert len({id(one) for one in large}) == 6


@pytest.mark.parametrize("chunk", [1, 4])
async def test_what_cannot_cross_is_the_error_of_its_item(
    pool: Pool, chunk: int
) -> None:
    items = [1, jobs.Poison(), lambda: 3, 4]
    found = await pool.map(
        jobs.call_or_return, items, chunksize=chunk, buffersize=8
    ).outcomes()
    assert [outcome.ok for outcome in found] == [True, False, True, True]
    with pytest.raises(LookupError, match="poison"):
        found[1].result()
    assert [found[n].result() for n in (0, 2, 3)] == [1, 3, 4]


async def test_functions_that_travel_by_value_do_so_once(pair: Pool) -> None:
    factor = 3
    found = await pair.map(lambda n: n * factor, range(5000))
    assert found == [3 * n for n in range(5000)]


async def test_a_full_queue_makes_a_map_wait() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=2) as pool:
        others = [pool.submit(jobs.wait_at, gate.path) for _ in range(3)]
        results = asyncio.ensure_future(pool.map(jobs.square, range(100), chunksize=1))
        for nth in range(1, 4):
            (await gate.visitor(nth=nth)).release()
        assert await asyncio.gather(*others) == ["go"] * 3
        assert await results == [n * n for n in range(100)]


async def test_a_map_ends_with_its_pool() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1)
        with pytest.raises(PoolClosedError, match="was not started"):
            pool.map(jobs.square, [1])
        await pool.start()
        items = [("wait", gate.path), *[("return", 1)] * 10]
        results = asyncio.ensure_future(pool.map(jobs.choose, items))
        await gate.visitor()
        close = await closing(pool, finish="none")
        with pytest.raises(PoolClosedError):
            await results
        await close
        late = pool.map(jobs.square, [1])
        with pytest.raises(PoolClosedError):
            await late


async def test_lengths_and_progress_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Else it leaves a thread behind, and a semaphore.
    monkeypatch.setattr(tqdm, "monitor_interval", 0)
    monkeypatch.setattr(tqdm, "_lock", threading.RLock(), raising=False)
    async with patience(), Pool(2) as pool:
        results = pool.map(jobs.square, range(30))
        assert (len(results), operator.length_hint(results)) == (30, 30)
        bar = tqdm(results, ncols=60)
        assert [result async for result in bar] == [n * n for n in range(30)]
        assert bar.total == 30
        capsys.readouterr()
        endless = pool.map(jobs.square, itertools.count())
        with pytest.raises(TypeError, match="it has no length"):
            len(endless)
        assert operator.length_hint(endless, 7) == 7
        assert len(pool.map(operator.add, range(9), range(4))) == 4
        guessed = pool.map(operator.add, range(9), iter([1]))
        with pytest.raises(TypeError, match="it has no length"):
            len(guessed)
        assert operator.length_hint(guessed) == 1


async def test_rich_shows_how_far_a_map_is() -> None:
    screen = io.StringIO()
    shown = Progress(console=Console(file=screen, width=60), auto_refresh=False)
    async with patience(), Pool(2) as pool:
        results = pool.map(jobs.square, range(30))
        with shown:
            task = shown.add_task("squares", total=len(results))
            async for result in results:
                shown.advance(task)
                assert result == (shown.tasks[task].completed - 1) ** 2
        assert (shown.finished, shown.tasks[task].total) == (True, 30)
        assert "squares" in screen.getvalue()
        assert "100%" in screen.getvalue()
        # Without a length there may be a hint, as rich asks for one itself in track().
        guessed = pool.map(jobs.square, iter(range(9)))
        task = shown.add_task("guessed", total=operator.length_hint(guessed) or None)
        assert shown.tasks[task].total == 9
        endless = pool.map(jobs.square, itertools.count())
        task = shown.add_task("endless", total=operator.length_hint(endless) or None)
        assert shown.tasks[task].total is None


async def test_a_loop_goes_on_with_what_was_begun_before_it(pool: Pool) -> None:
    results = pool.map(jobs.square, range(4))
    assert await anext(results) == 0
    assert [result async for result in results] == [1, 4, 9]
    with pytest.raises(RuntimeError, match="only once"):
        aiter(results)


async def test_a_map_is_run_once(pool: Pool) -> None:
    results = pool.map(jobs.square, range(3))
    assert await results == [0, 1, 4]
    with pytest.raises(RuntimeError, match="only once"):
        await results
    with pytest.raises(RuntimeError, match="only once"):
        async for _ in results:
            pass


async def test_wrong_arguments_are_named() -> None:
    async with patience(), Pool(1) as pool:
        wrong: Any = 3
        with pytest.raises(TypeError, match=r"map\(\) takes a callable first, not 3"):
            pool.map(wrong, [1])
        with pytest.raises(TypeError, match=r"map\(\) takes iterables, not 3"):
            pool.map(jobs.square, wrong)
        with pytest.raises(TypeError, match=r"^starmap\(\) takes iterables, not 3"):
            pool.starmap(jobs.square, wrong)
        with pytest.raises(TypeError, match=r"^starmap\(\) takes a callable first"):
            pool.starmap(wrong, [(1,)])
        job: Any = pool.submit(jobs.square, 3)
        with pytest.raises(TypeError, match=r"^map\(\) takes iterables, not <.*square"):
            pool.map(jobs.square, job)
        with pytest.raises(TypeError, match="at least one iterable"):
            pool.map(jobs.square)  # type: ignore[call-overload]
        with pytest.raises(ValueError, match="buffersize must be at least 1, not 0"):
            pool.map(jobs.square, [1], buffersize=0)
        with pytest.raises(ValueError, match="chunksize must be at least 1, not -1"):
            pool.map(jobs.square, [1], chunksize=-1)


async def test_nothing_is_kept_of_a_map_that_is_done(pool: Pool) -> None:
    await idle(pool)
    await pool.map(jobs.choose, [("make", 10)] * 100)
    assert registry_of(pool).jobs == {}
