"""Maps and streams whose loop is left, while the program goes on holding them."""

from __future__ import annotations

import asyncio
import gc
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast
from weakref import ref

import pytest

from asyncpool import Pool
from tests.helpers import jobs
from tests.helpers.gate import Gate, Visitor
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import look_again, patience
from tests.helpers.pools import assert_serves

pytestmark = ONE_LOOP

# Their items have no end, so the pool can only close if they are ended.
KINDS: dict[str, Callable[[Pool], Any]] = {
    "map": lambda pool: pool.map(jobs.square, itertools.count()),
    "unordered": lambda pool: pool.map(jobs.square, itertools.count()).unordered(),
    "outcomes": lambda pool: pool.map(jobs.square, itertools.count()).outcomes(),
    "stream": lambda pool: pool.stream(itertools.count),
}
ONLY_ONCE = r"^a (map|stream) can be iterated over,? .*only once"
CANCEL_THE_TASK = r"^aclose\(\) while a task waits .*: cancel the task that waits"
CUT_SHORT = "^the iteration has ended, since a wait for an item was cancelled"
EACH = pytest.mark.parametrize("kind", KINDS)


async def leave(items: Any, how: str) -> None:
    """Take some items, and leave the loop."""
    taking = asyncio.Event()

    async def take() -> None:
        async for _ in items:
            if how == "break":
                break
            if how == "error":
                raise ArithmeticError("mine")
            taking.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(take())
    if how == "cancel":
        await taking.wait()
        task.cancel()
    [error] = await asyncio.gather(task, return_exceptions=True)
    expected = {
        "break": type(None),
        "error": ArithmeticError,
        "cancel": asyncio.CancelledError,
    }
    assert isinstance(error, expected[how])


@EACH
async def test_who_leaves_the_loop_ends_it(kind: str) -> None:
    async with patience():
        async with Pool(1) as pool:
            every = {how: KINDS[kind](pool) for how in ("break", "error", "cancel")}
            for how, items in every.items():
                await leave(items, how)
                await assert_serves(pool)
        assert pool.stats().crashes == 0
        for items in every.values():
            with pytest.raises(RuntimeError, match=ONLY_ONCE):
                await anext(items)
            with pytest.raises(RuntimeError, match=ONLY_ONCE):
                aiter(items)


@EACH
async def test_who_holds_the_iterator_goes_on(pool: Pool, kind: str) -> None:
    async with aclosing(KINDS[kind](pool)) as items:
        first = await anext(items)  # the map, or stream, has it in hand
        iterator = aiter(items)
        found = []
        async for item in iterator:
            found.append(item)
            break
        found = [first, *found, await anext(iterator), await anext(items)]
        if kind == "outcomes":
            found = [it.result() for it in found]
        expected = [0, 1, 2, 3] if kind == "stream" else [0, 1, 4, 9]
        assert found == expected
        with pytest.raises(RuntimeError, match=ONLY_ONCE):
            aiter(items)


async def numbers(end: Callable[[], Awaitable[None]]) -> AsyncIterator[int]:
    """Yield numbers without end; await *end* when this is closed."""
    try:
        for n in itertools.count():
            yield n
    finally:
        await end()


async def test_closing_waits_for_the_end_of_what_a_loop_has_left() -> None:
    ended = []

    async def end() -> None:
        ended.append("map")

    async with patience(), Pool(2) as pool:
        async with aclosing(pool.map(jobs.square, numbers(end))) as results:
            async for _ in results:
                break
        assert ended == ["map"]
        async with aclosing(pool.stream(itertools.count)) as stream:
            async for _ in stream:
                break
        assert stream.job is not None
        assert stream.job.cancelled()


@pytest.mark.parametrize("at", ["once", "the end"])
async def test_closing_raises_what_the_input_does(pool: Pool, at: str) -> None:
    ended = asyncio.Event()

    async def end() -> None:
        ended.set()
        raise OSError("not closed")

    results = pool.map(jobs.square, numbers(end))
    async for _ in results:
        break
    if at == "the end":
        await ended.wait()
    with pytest.raises(OSError, match=r"^not closed$"):
        await results.aclose()
    await results.aclose()
    await assert_serves(pool)


async def test_a_close_that_was_cancelled_is_waited_for_again(pool: Pool) -> None:
    closing, may_end = asyncio.Event(), asyncio.Event()

    async def end() -> None:
        closing.set()
        await may_end.wait()

    results = pool.map(jobs.square, numbers(end))
    async for _ in results:
        break
    await closing.wait()
    first, *others = (asyncio.create_task(results.aclose()) for _ in range(3))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not any(each.done() for each in others)
    may_end.set()
    await asyncio.gather(*others)
    await results.aclose()


@EACH
async def test_whoever_asks_for_the_first_item_only_gets_it(
    pool: Pool, kind: str
) -> None:
    items = KINDS[kind](pool)
    # The iterator is dropped before its generator begins.
    found = await asyncio.create_task(_first(anext(aiter(items))))
    assert (found.result() if kind == "outcomes" else found) == 0
    # A wait that is cancelled before it begins takes nothing.
    iterator = aiter(KINDS[kind](pool))
    for _ in range(2):
        early = asyncio.ensure_future(anext(iterator))
        early.cancel()
        with pytest.raises(asyncio.CancelledError):
            await early
    found = await anext(iterator)
    assert (found.result() if kind == "outcomes" else found) == 0
    del iterator


async def _first(item: Awaitable[Any]) -> Any:
    return await item


async def test_an_iterator_may_be_made_while_the_loop_does_not_run() -> None:
    def begin_between_runs() -> None:
        with asyncio.Runner() as runner:
            pool = Pool(1)
            runner.run(pool.start())
            results = pool.map(jobs.square, itertools.count())
            iterator = aiter(results)
            assert runner.run(_first(anext(iterator))) == 0
            del iterator
            runner.run(pool.close())

    async with patience():
        await asyncio.to_thread(begin_between_runs)


async def test_an_iterator_is_dropped_while_somebody_waits_for_an_item(
    pool: Pool,
) -> None:
    async with Gate() as gate:
        results = pool.map(
            jobs.choose, itertools.repeat(("wait", gate.path)), chunksize=1
        )
        iterator = aiter(results)
        first = asyncio.ensure_future(anext(iterator))
        visitor = await gate.visitor()
        del iterator
        await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match=CANCEL_THE_TASK):
            await results.aclose()
        visitor.release()
        assert await first == "go"
    assert pool.stats().crashes == 0


@asynccontextmanager
async def waiting_for_an_item(
    pool: Pool, kind: str
) -> AsyncIterator[tuple[AsyncGenerator[Any, None], asyncio.Task[Any], Visitor]]:
    """Yield an iterator, a task that waits for its first item, and the job of that."""
    async with patience(), Gate() as gate:
        if kind == "stream":
            items: Any = pool.stream(map, jobs.wait_at, [gate.path] * 2)
        else:
            items = pool.map(jobs.wait_at, [gate.path] * 2)
        iterator = cast("AsyncGenerator[Any, None]", aiter(items))
        first = asyncio.ensure_future(anext(iterator))
        yield iterator, first, await gate.visitor()
        await assert_serves(pool)


@pytest.mark.parametrize("kind", ["map", "stream"])
async def test_a_wait_that_is_cut_short_is_not_taken_for_the_end(
    pool: Pool, kind: str
) -> None:
    async with waiting_for_an_item(pool, kind) as (iterator, first, _):
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        for _ in range(2):
            with pytest.raises(RuntimeError, match=CUT_SHORT):
                await anext(iterator, None)
        await iterator.aclose()
    async with waiting_for_an_item(pool, kind) as (iterator, first, visitor):
        visitor.release("first")
        assert await first == "first"
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await anext(iterator)
        with pytest.raises(RuntimeError, match=CUT_SHORT):
            await anext(iterator)


@pytest.mark.parametrize("kind", ["map", "stream"])
async def test_a_task_that_waits_may_be_waited_for_again(pool: Pool, kind: str) -> None:
    async with waiting_for_an_item(pool, kind) as (iterator, first, visitor):
        assert await asyncio.wait([first], timeout=0.01) == (set(), {first})
        # What somebody waits for is not closed.
        with pytest.raises(RuntimeError, match=CANCEL_THE_TASK):
            await iterator.aclose()
        visitor.release("first")
        await asyncio.wait([first])
        assert first.result() == "first"
        await iterator.aclose()
        assert await anext(iterator, None) is None


async def test_the_cancellation_of_a_job_cuts_no_wait_short(
    pool: Pool, gate: Gate
) -> None:
    stream = pool.stream(map, jobs.wait_at, [gate.path] * 2)
    iterator = aiter(stream)
    first = asyncio.ensure_future(anext(iterator))
    await gate.visitor()
    assert stream.job is not None
    stream.job.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert await anext(iterator, None) is None


async def test_what_is_closed_before_it_begins_never_does(pool: Pool) -> None:
    before = pool.stats().submitted
    for kind, make in KINDS.items():
        items = make(pool)
        await items.aclose()
        assert [item async for item in items] == [], kind
        await items.aclose()
        assert pool.stats().submitted == before, kind
    # A map cannot be awaited any more, and a stream not started.
    results = pool.map(jobs.square, [1, 2])
    await results.aclose()
    with pytest.raises(RuntimeError, match=r"only once, and not after aclose\(\)$"):
        await results
    stream = pool.stream(itertools.count)
    await stream.aclose()
    text = r"^started\(\) is for before the iteration$"
    with pytest.raises(RuntimeError, match=text):
        await stream.started()


async def test_an_iterator_that_its_own_input_refers_to_is_collected() -> None:
    class Reader:
        def __init__(self, pool: Pool) -> None:
            self.results = aiter(pool.map(jobs.square, self.numbers()))

        def numbers(self) -> Any:
            yield from itertools.count()

    async with patience(), Pool(1) as pool:  # which closes once the map has ended
        reader = Reader(pool)
        assert await anext(reader.results) == 0
        alive = ref(reader)
        del reader
        while alive() is not None:  # jobs that are under way refer to it
            gc.collect()
            await look_again()
