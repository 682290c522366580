"""Maps: many calls, in the shapes that they have in plain Python, and items that go wrong."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import operator
import os
import resource
import sqlite3
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from tqdm.asyncio import tqdm

from asyncpool import Crash, Outcome, Pool
from asyncpool.errors import (
    JobNotPicklableError,
    JobTimeoutError,
    PoolClosedError,
    PoolFullError,
    WorkerCrashedError,
)
from tests.helpers import faults, jobs, large, scribbles
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import CHUNK_SIZE, read_notes_by
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import assert_serves, case, closing, collect
from tests.helpers.signing import Item, signing

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
    factor = 3
    async with patience(), Pool(2) as pool:
        assert await pool.map(jobs.square, range(MANY)) == [n * n for n in range(MANY)]
        # Most of it has travelled together.
        assert pool.stats().submitted < MANY / 10
        assert await pool.map(jobs.square, []) == []
        assert await pool.map(operator.add, range(5), [10, 20, 30]) == [10, 21, 32]
        assert await pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
        assert await pool.map(lambda n: n * factor, range(100)) == [*range(0, 300, 3)]
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


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_endless_inputs_are_drawn_only_as_results_are_taken(
    pair: Pool, kind: str
) -> None:
    seen: list[int] = []
    drawn: Any = watched(itertools.count(), seen)
    inputs = drawn if kind == "sync" else arriving(drawn)
    results = pair.map(jobs.square, inputs, buffersize=50)
    assert seen == [], "nothing is drawn before the first result is asked for"
    for n in range(1000):
        assert await anext(results) == n * n
        assert n < len(seen) <= n + 50
    await results.aclose()
    if kind == "async":
        with pytest.raises(StopAsyncIteration):
            await anext(inputs)  # it was closed
        mixed = pair.map(jobs.pair, arriving(iter("abc")), range(10))
        assert await mixed == [("a", 0), ("b", 1), ("c", 2)]
    left = len(seen)
    await assert_serves(pair)
    assert len(seen) == left


@pytest.mark.parametrize("others", [(), (range(10),)])
@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError, "sync"),
        (GeneratorExit, "sync"),
        (asyncio.CancelledError, "sync"),
        (OSError, "async"),
        (asyncio.CancelledError, "async"),
    ],
)
async def test_what_inputs_raise_comes_after_what_was_drawn_before(
    pair: Pool, error: type[BaseException], kind: str, others: tuple[Any, ...]
) -> None:
    """Also what would end a loop does not pass for the end of the inputs."""

    def plain() -> Iterator[int]:
        yield from range(3)
        raise error("no more")

    async def later() -> AsyncIterator[int]:
        for n in range(3):
            yield n
        raise error("no more")

    inputs: Any = plain if kind == "sync" else later
    function: Any = jobs.pair if others else jobs.square
    found: list[Any] = []
    with pytest.raises(error, match="no more"):
        await collect(pair.map(function, inputs(), *others), found)
    assert found == ([(0, 0), (1, 1), (2, 2)] if others else [0, 1, 4])
    with pytest.raises(error, match="no more"):
        await pair.map(function, inputs(), *others)
    await assert_serves(pair)


@pytest.mark.parametrize(
    ("function", "most"), [(jobs.take, 32), (jobs.call_or_return, 16)]
)
async def test_the_more_bytes_items_have_the_fewer_are_drawn_ahead(
    faced: Faced, function: Callable[[Any], Any], most: int
) -> None:
    """By default 64 MiB, of calls and results together."""
    data, seen = bytes(2 << 20), list[large.Block]()
    blocks = (large.Block(data) for _ in range(100))
    async with patience(), faced(2) as (caller, _):
        taken = 0
        async for _ in caller.map(function, watched(blocks, seen)):
            taken += 1
            assert len(seen) - taken <= most
    assert taken == 100


def reluctant(count: int) -> Iterator[int]:
    """Yield numbers, each so late that the loop should not have to wait for it."""
    for n in range(count):
        threading.Event().wait(0.02)
        yield n


async def test_a_slow_input_does_not_hold_up_the_loop(pair: Pool) -> None:
    loop, answer = asyncio.get_running_loop(), threading.Event()
    spot: ContextVar[str] = ContextVar("spot")

    def inputs() -> Iterator[int]:
        spot.set("here")
        yield from reluctant(3)
        loop.call_soon_threadsafe(answer.set)
        assert answer.wait(PATIENCE), "the loop waits for this"
        assert spot.get() == "here"
        yield 3
        raise LookupError("no more")

    found: list[int] = []
    with pytest.raises(LookupError, match="no more") as caught:
        await collect(pair.map(jobs.square, inputs()), found)
    assert found == [0, 1, 4, 9]
    [note] = caught.value.__notes__
    assert note.endswith("make the input an async generator.")


async def test_a_slow_input_of_sqlite_stays_in_its_thread(pair: Pool) -> None:
    rows = "WITH RECURSIVE n(i) AS (VALUES (0) UNION SELECT i + 1 FROM n LIMIT 5) SELECT * FROM n"
    with contextlib.closing(sqlite3.connect(":memory:")) as database:

        def inputs() -> Iterator[int]:
            for (n,) in database.execute(rows):
                threading.Event().wait(0.02)
                yield n

        assert await pair.map(jobs.square, inputs()) == [0, 1, 4, 9, 16]
        both = pair.map(jobs.pair, inputs(), reluctant(4))
        assert await both == [(n, n) for n in range(4)]


async def test_leaving_a_map_does_not_wait_for_a_slow_input(pool: Pool) -> None:
    loop, stuck = asyncio.get_running_loop(), asyncio.Event()
    may_end, closed = threading.Event(), asyncio.Queue[str]()

    def inputs() -> Iterator[int]:
        try:
            yield from reluctant(3)
            loop.call_soon_threadsafe(stuck.set)
            may_end.wait(PATIENCE)
        finally:
            loop.call_soon_threadsafe(closed.put_nowait, "closed")

    results = pool.map(jobs.square, inputs())
    async with aclosing(results):
        assert [await anext(results) for _ in range(3)] == [0, 1, 4]
        await stuck.wait()
    assert closed.empty()
    may_end.set()
    assert await closed.get() == "closed"


async def test_async_inputs_are_closed_by_the_task_that_draws_them(pool: Pool) -> None:
    tasks: list[asyncio.Task[Any] | None] = []

    async def inputs(error: type[Exception] | None = None) -> AsyncIterator[int]:
        tasks.append(asyncio.current_task())
        try:
            for n in itertools.count():
                yield n
        finally:
            tasks.append(asyncio.current_task())
            if error:
                raise error("not closed")

    some = pool.map(jobs.pair, inputs(), inputs())
    assert await anext(some) == (0, 0)
    await some.aclose()
    assert len(tasks) == 4
    assert len(set(tasks)) == 1
    failing = pool.map(jobs.square, inputs(OSError))
    assert await anext(failing) == 0
    with pytest.raises(OSError, match="not closed"):
        await failing.aclose()
    await assert_serves(pool)


@pytest.mark.parametrize("how", ["break", "error", "cancel"])
async def test_who_leaves_early_leaves_nothing_behind(
    pair: Pool, gate: Gate, how: str
) -> None:
    items = itertools.chain([("return", 1)], itertools.repeat(("wait", gate.path)))
    before = pair.stats().cancelled

    async def take() -> None:
        async with aclosing(pair.map(jobs.choose, items, chunksize=1)) as results:
            async for result in results:
                assert result == 1
                if how == "break":
                    break
                if how == "error":
                    raise ArithmeticError("mine")

    task = asyncio.create_task(take())
    if how == "cancel":
        await gate.visitor()
        task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is (how == "cancel")
    if how != "cancel":
        assert isinstance(task.exception(), ArithmeticError) is (how == "error")
    await at_rest(pair)
    assert pair.stats().cancelled > before
    await assert_serves(pair)


async def test_an_item_whose_own_code_says_that_a_pool_is_full_fails(
    pool: Pool,
) -> None:
    class Item:
        def __iter__(self) -> Iterator[int]:
            raise PoolFullError(waiting=1, max_queued=1)

    items: list[Any] = [Item(), (3,)]
    async with patience():
        one, other = await pool.starmap(jobs.square, items).outcomes()
    assert [type(one.error), other.result()] == [PoolFullError, 9]


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


@pytest.mark.parametrize("chunk", [1, 7])
async def test_what_cannot_cross_is_the_error_of_its_item(
    faced: Faced, chunk: int
) -> None:
    large = functools.partial(bytearray, 3 << 20)
    lock = threading.Lock()
    items = [1, jobs.Poison(), lambda: 3, lock, jobs.make_lock, large, 4]
    async with patience(), faced() as (caller, _):
        values = caller.map(jobs.call_or_return, items, chunksize=chunk, buffersize=28)
        found = await values.outcomes()
    assert [one.ok for one in found] == [True, False, True, False, False, True, True]
    assert [found[n].result() for n in (0, 2, 6)] == [1, 3, 4]
    assert len(found[5].result()) == 3 << 20
    with pytest.raises(LookupError, match="poison"):
        found[1].result()
    for n, direction in ((3, "arguments"), (4, "result")):
        error = found[n].error
        assert isinstance(error, JobNotPicklableError)
        assert error.direction == direction


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
    pair: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Else it leaves a thread behind, and a semaphore.
    monkeypatch.setattr(tqdm, "monitor_interval", 0)
    monkeypatch.setattr(tqdm, "_lock", threading.RLock(), raising=False)
    results = pair.map(jobs.square, range(30))
    assert (len(results), operator.length_hint(results)) == (30, 30)
    bar = tqdm(results, ncols=60)
    assert [result async for result in bar] == [n * n for n in range(30)]
    assert bar.total == 30
    capsys.readouterr()
    endless = pair.map(jobs.square, itertools.count())
    with pytest.raises(TypeError, match="it has no length"):
        len(endless)
    assert operator.length_hint(endless, 7) == 7
    shorter = pair.map(operator.add, range(9), range(4))
    assert len(shorter) == 4
    guessed = pair.map(operator.add, range(9), iter([1]))
    with pytest.raises(TypeError, match="it has no length"):
        len(guessed)
    assert operator.length_hint(guessed) == 1
    for unused in endless, shorter, guessed:
        await unused.aclose()


async def test_a_map_is_run_once(pool: Pool) -> None:
    results = pool.map(jobs.square, range(3))
    assert await results == [0, 1, 4]
    with pytest.raises(RuntimeError, match="only once"):
        await results
    begun = pool.map(jobs.square, range(4))
    assert await anext(begun) == 0
    # A loop goes on with it.
    assert [result async for result in begun] == [1, 4, 9]
    for it in results, begun:
        with pytest.raises(RuntimeError, match="only once"):
            aiter(it)


async def test_a_map_that_nobody_runs_is_warned_of(pool: Pool) -> None:
    text = r"^a map of tests\.helpers\.jobs\.square was never awaited or iterated over$"
    with pytest.warns(RuntimeWarning, match=text) as found:
        pool.map(jobs.square, [1]).unordered().outcomes()
    assert [it.filename for it in found] == [__file__]
    with warnings.catch_warnings(action="error"):
        await pool.map(jobs.square, [1]).aclose()
        await pool.map(jobs.square, [1]).outcomes()
        async for _ in pool.map(jobs.square, [1]).unordered():
            pass


async def test_wrong_arguments_are_named(pool: Pool) -> None:
    wrong: Any = 3
    job: Any = pool.submit(jobs.square, 3)
    bare: Any = pool.map
    calls: dict[str, Callable[[], Any]] = {
        r"map\(\) takes a callable first, not 3": lambda: pool.map(wrong, [1]),
        r"map\(\) takes iterables, not 3": lambda: pool.map(abs, wrong),
        r"map\(\) takes iterables, not <.*square": lambda: pool.map(abs, job),
        r"starmap\(\) takes a callable first": lambda: pool.starmap(wrong, [(1,)]),
        r"starmap\(\) takes iterables, not 3": lambda: pool.starmap(abs, wrong),
        ".*at least one iterable": lambda: bare(abs),
        "buffersize must be at least 1, not 0": lambda: bare(abs, [1], buffersize=0),
        "chunksize must be at least 1, not -1": lambda: bare(abs, [1], chunksize=-1),
    }
    for text, call in calls.items():
        error = ValueError if "must be" in text else TypeError
        with case(text), pytest.raises(error, match=f"^{text}"):
            call()
    await job


# Items that travel together, and one of them kills, hangs or takes long.


def signed(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


async def test_a_crash_costs_one_item_and_none_is_run_twice(
    tmp_path: Path, faced: Faced
) -> None:
    crashes: list[Crash] = []
    async with patience(), faced(on_crash=crashes.append) as (caller, _):
        for number, at in enumerate((0, 1, 5, 9), 1):
            path = tmp_path / f"log {at}"
            items = signing(path, 10)
            items[at] = ("die", None)
            choices = caller.map(jobs.choose, items, chunksize=10, buffersize=40)
            found = await choices.outcomes()
            assert await caller.submit(jobs.square, 3) == 9
            assert [one.index for one in found if not one.ok] == [at]
            error = found[at].error
            assert type(error) is WorkerCrashedError
            assert (error.delivery, len(crashes)) == ("started", number)
            others = [n for n in range(10) if n != at]
            assert [one.result() for one in found if one.ok] == others
            assert signed(path) == others


async def test_no_more_go_together_than_can_be_noted() -> None:
    count = CHUNK_SIZE + 1000
    async with patience(), Pool(1, initializer=jobs.fill_state) as pool:
        items = [()] * count
        found = await pool.starmap(
            jobs.count_state, items, chunksize=count, buffersize=4 * count
        )
    # Nobody has run it in between: those that are run twice would leave out numbers.
    assert sorted(found) == list(range(1, count + 1))


async def test_what_a_dying_worker_has_scribbled_is_lost_and_the_pool_goes_on(
    faced: Faced,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with patience(), faced() as (caller, pool):
        for number, name in enumerate(scribbles.SCRIBBLES, 1):
            with case(name):
                items: list[Any] = ["a", None, name, "after", [1]]
                pid = await caller.submit(os.getpid)
                echoes = caller.map(
                    scribbles.echo_or_scribble, items, chunksize=5, buffersize=20
                )
                found = await echoes.outcomes()
                assert await caller.submit(jobs.square, 3) == 9
                assert pool.stats().crashes == number
                # On a busy machine the first ones may have gone ahead of it.
                first = [one.result() for one in found[:2] if one.ok]
                assert first in ([], ["a"], ["a", None])
                for one in found[:3]:
                    assert one.ok or type(one.error) is WorkerCrashedError
                assert type(found[2].error) is WorkerCrashedError
                assert (found[2].error.delivery, found[2].error.pid) == ("started", pid)
                assert [one.result() for one in found[3:]] == ["after", [1]]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 100_000, "kilobytes"


async def test_what_is_scribbled_over_numbers_is_no_result() -> None:
    async with patience(), Pool(1) as pool:
        for name in ("ones", "noise"):
            items = [*range(300), name, *range(300)]
            await pool.submit(os.getpid)
            echoes = pool.map(scribbles.echo_or_scribble, items, buffersize=601)
            found = await echoes.outcomes()
            await assert_serves(pool)
            assert isinstance(found[300].error, WorkerCrashedError)
            # A few may have gone ahead of it, and come back.
            for one in found:
                if one.ok:
                    assert one.result() == items[one.index]
                else:
                    assert isinstance(one.error, WorkerCrashedError)


async def test_who_cannot_read_the_notes_of_the_dead_begins_none_of_it_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    read_notes_by(monkeypatch, fail)
    path = tmp_path / "log"
    items = signing(path, 5)
    items[2] = ("die", None)
    async with patience(), Pool(1) as pool:
        found = await pool.map(
            jobs.choose, items, chunksize=5, buffersize=20
        ).outcomes()
        await assert_serves(pool)
    assert type(found[2].error) is WorkerCrashedError
    run = signed(path)
    assert run[:2] == [0, 1]
    assert len(set(run)) == len(run), "none is begun again"
    assert {one.index for one in found if one.ok} <= set(run)
    assert "the notes of a worker cannot be read" in caplog.messages


async def test_only_the_item_that_was_lost_is_tried_again(
    tmp_path: Path, faced: Faced
) -> None:
    path = tmp_path / "log"
    items = [*signing(path, 4), ("die", None), *[("attempt", None)] * 2]
    async with patience(), faced() as (caller, pool):
        view = caller.options(max_attempts=3)
        choices = view.map(jobs.choose, items, chunksize=7, buffersize=28)
        found = await choices.outcomes()
        assert pool.stats().crashes == 3
        if caller is pool:
            assert pool.stats().takeovers == 1, "alone it was taken over once more"
    error = found[4].error
    assert type(error) is WorkerCrashedError
    assert len(error.crashes) == 2, "in the two attempts that it had alone"
    assert [one.result() for one in found[5:]] == [1, 1]
    assert signed(path) == [0, 1, 2, 3]


async def test_what_was_raised_is_tried_again_alone(pool: Pool) -> None:
    view = pool.options(max_attempts=3, retry_on=[LookupError])
    items = [1, 2, 3]
    found = await view.map(
        jobs.fail_before_attempt_3, items, chunksize=3, buffersize=12
    )
    assert found == [(1, 3), (2, 3), (3, 3)]


async def test_items_behind_one_that_takes_long_go_on_elsewhere(
    pair: Pool, gate: Gate
) -> None:
    items: list[Item] = [("pid", None), ("wait", gate.path), *[("pid", None)] * 6]
    running = pair.map(jobs.choose, items, chunksize=8, buffersize=64).outcomes()
    outcomes: list[Any] = []
    results = asyncio.create_task(collect(running.unordered(), outcomes))
    visitor = await gate.visitor()
    # The batch is not complete, but all others of it are done.
    while pair.stats().busy > 1 or pair.stats().queued:  # noqa: ASYNC110
        await asyncio.sleep(0)
    visitor.release()
    await results
    found = {one.index: one.result() for one in outcomes}
    assert (found[0], found[1], len(found)) == (visitor.pid, "go", 8)


@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
async def test_the_timeout_is_for_each_item(
    tmp_path: Path, faced: Faced, on_cancel: Any
) -> None:
    path = tmp_path / "log"
    items = [*signing(path, 5), ("sleep", 3600.0), *signing(path, 3)]
    async with patience(), faced() as (caller, _):
        view = caller.options(timeout=1.0, on_cancel=on_cancel)
        choices = view.map(jobs.choose, items, chunksize=9, buffersize=36)
        found = await choices.outcomes()
        assert await caller.submit(jobs.square, 3) == 9
    assert [one.index for one in found if not one.ok] == [5]
    error = found[5].error
    assert isinstance(error, JobTimeoutError)
    assert (error.limit, error.seconds) == ("timeout", 1.0)
    assert "choose" in error.stack
    assert signed(path) == [0, 1, 2, 3, 4, 0, 1, 2]


async def test_items_may_take_longer_together_than_each_may(pool: Pool) -> None:
    items: list[Item] = [("sleep", 0.02)] * 20
    view = pool.options(timeout=0.35)
    assert (
        await view.map(jobs.choose, items, chunksize=20, buffersize=80) == [None] * 20
    )


async def test_more_results_than_the_log_holds(pair: Pool) -> None:
    items: list[Item] = [("make", 3000)] * 500
    found = await pair.map(jobs.choose, items, chunksize=100, buffersize=1000)
    assert [len(one) for one in found] == [3000] * 500


async def test_a_worker_that_dies_of_what_it_unpickles_costs_that_item() -> None:
    async with patience(), Pool(1) as pool:
        items = [1, faults.Trap("exit 3"), 3]
        found = await pool.map(
            jobs.call_or_return, items, chunksize=3, buffersize=12
        ).outcomes()
    assert [one.ok for one in found] == [True, False, True]
    assert isinstance(found[1].error, WorkerCrashedError)


async def test_a_flood_of_deaths_while_a_map_runs() -> None:
    async with patience(), Pool(2) as pool:
        results = pool.map(jobs.square, range(50_000)).unordered()
        hostile = []
        found = []
        async for result in results:
            found.append(result)
            if len(found) % 5000 == 1:
                hostile.append(pool.submit(faults.commit, "SIGKILL"))
        deaths = await asyncio.gather(*hostile, return_exceptions=True)
    assert sorted(found) == [n * n for n in range(50_000)]
    assert {type(death) for death in deaths} == {WorkerCrashedError}
