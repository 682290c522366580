"""Nothing is kept of a job that is done, on either side, and nothing is left to collect."""

from __future__ import annotations

import asyncio
import gc
import itertools
import weakref
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest

from asyncpool import Pool
from tests.helpers import garbage
from tests.helpers.garbage import Thing
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import case, idle

pytestmark = BOTH_LOOPS

one_or_several = pytest.mark.parametrize("concurrency", [1, 4], ids=["one", "several"])


WATCHED: dict[Callable[[Thing], Any], int] = {
    garbage.give: 3,
    garbage.fail: 2,
    garbage.lock: 1,
    garbage.give_later: 3,
    garbage.fail_later: 2,
}


@one_or_several
async def test_nothing_is_kept_in_the_worker(concurrency: int) -> None:
    async with patience(), Pool(1, concurrency=concurrency) as pool:
        for function, watched in WATCHED.items():
            with suppress(Exception):
                await pool.submit(function, Thing())
            await pool.submit(garbage.stop_collector)
            for _ in range(3):
                with suppress(Exception):
                    await pool.submit(function, Thing())
            with case(function):
                assert await pool.submit(garbage.count) == (3 * watched, 0)
                assert await pool.submit(garbage.collect) == 0
        # Nor an outcome that was sent.
        assert await pool.submit(bytes, 50_000) == bytes(50_000)
        assert concurrency > 1 or await pool.submit(garbage.largest_in_hand) < 1000


@one_or_several
@pytest.mark.parametrize("function", [garbage.wait, garbage.wait_later])
async def test_nothing_is_kept_of_what_was_cancelled(
    function: Callable[..., Any], concurrency: int
) -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=concurrency) as pool:
        for nth in range(1, 5):
            job = pool.submit(function, Thing(), gate.path)
            visitor = await gate.visitor("waiting", nth)
            assert job.cancel()
            await visitor.gone()
            if nth == 1:  # has imported what is needed
                await pool.submit(garbage.stop_collector)
        assert await pool.submit(garbage.count) == (6, 0)
        assert await pool.submit(garbage.collect) == 0
        assert pool.stats().spawned == 1


@pytest.mark.usefixtures("no_collector")
@one_or_several
async def test_nothing_is_kept_of_a_stream(concurrency: int) -> None:
    async def consume(function: Callable[..., Any], most: int) -> None:
        async with aclosing(pool.stream(function, Thing(), most)) as items:
            taken = 0
            async for _ in items:
                taken += 1
                if taken == 3 and most > 3:
                    break

    functions = garbage.count_up, garbage.count_up_later
    async with patience(), Pool(1, concurrency=concurrency) as pool:
        for what in itertools.product(
            functions, (3, 1000)
        ):  # to its end, or left early
            with case(what):
                await consume(*what)
                await pool.submit(garbage.stop_collector)
                gc.collect()
                for _ in range(3):
                    await consume(*what)
                await idle(pool)
                assert gc.collect() == 0
                watched, alive = await pool.submit(garbage.count)
                assert watched >= 3 * (2 + 3)
                assert alive == 0
                assert await pool.submit(garbage.collect) == 0
        assert pool.stats().spawned == 1


@pytest.mark.usefixtures("no_collector")
@one_or_several
async def test_nothing_is_kept_of_a_map(concurrency: int) -> None:
    async def go() -> None:
        items = [(number, Thing()) for number in range(100)]
        results = pool.map(garbage.fail_for_odd, items).outcomes()
        failed = [outcome.error async for outcome in results if not outcome.ok]
        assert len(failed) == 50

    async with patience(), Pool(1, concurrency=concurrency) as pool:
        await go()
        await pool.submit(garbage.stop_collector)
        gc.collect()
        await go()
        assert gc.collect() == 0
        assert await pool.submit(garbage.count) == (100 + 3 * 50, 0)
        assert await pool.submit(garbage.collect) == 0


# In the pool's own process.


@pytest.mark.usefixtures("no_collector")
@one_or_several
async def test_a_thousand_jobs_leave_no_garbage(concurrency: int) -> None:
    refs: list[weakref.ref[Any]] = []

    async def go(function: Callable[[Thing], Any]) -> None:
        many = []
        for _ in range(1000):
            thing = Thing()
            many.append(pool.submit(function, thing))
            refs.extend((weakref.ref(thing), weakref.ref(many[-1])))
            del thing
        await asyncio.wait(many)
        for job in many:
            error = job.exception()
            refs.append(weakref.ref(error.args[0] if error else job.result()))

    async with patience(), Pool(2, concurrency=concurrency) as pool:
        for function in (garbage.give, garbage.fail, garbage.give_later):
            await go(function)  # imports, and opens, what it takes
            await idle(pool)
            gc.collect()
            refs.clear()
            for _ in range(2):
                await pool.broadcast(garbage.stop_collector)
            await go(function)
            await idle(pool)
            with case(function):
                assert (len(refs), sum(ref() is not None for ref in refs)) == (3000, 0)
                assert gc.collect() == 0
                found = await pool.broadcast(garbage.collect)
                assert list(found.values()) == [0, 0]
