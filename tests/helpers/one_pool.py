"""One pool for those tests of a module that neither kill, close nor count its workers.

The tests of such a module share an event loop, of each kind, and take the pool as an argument:
``pool`` has one worker, and ``pair`` two.  Each test leaves it whole and idle, or fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import pytest_asyncio

from asyncpool import Pool
from tests.helpers.gate import Gate
from tests.helpers.inside import listeners_of, registry_of, sessions_of, start_threads
from tests.helpers.loops import LOOP_NAMES
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.reports import quiet

__all__ = [
    "ONE_LOOP",
    "gate",
    "one_loop",
    "one_loop_each_test",
    "one_pair",
    "one_pool",
    "pair",
    "pool",
]

_LARGE = bytes(12_000_000)

# With it, these pools share their launcher with none that a test makes.
_OWN = ["tests.helpers.jobs", "tests.helpers.patience"]

# A module's ``pytestmark``, in place of ``BOTH_LOOPS``.
ONE_LOOP = [
    pytest.mark.asyncio(loop_factories=LOOP_NAMES, loop_scope="module"),
    pytest.mark.timeout(5 * PATIENCE),
    pytest.mark.usefixtures("one_loop", "one_loop_each_test"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_loop() -> None:
    """Have the loop there before the guards of the first test look around."""
    async with Gate():  # with the first stream libuv opens what it keeps for more
        pass


@pytest_asyncio.fixture(loop_scope="module")
async def one_loop_each_test() -> AsyncIterator[None]:
    """Fail the test whose loop had something to report, or which leaves a task in it."""
    loop = asyncio.get_running_loop()
    async with quiet():
        with ThreadPoolExecutor() as threads:  # no test leaves a thread to the next one
            loop.set_default_executor(threads)
            yield


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_pool() -> AsyncIterator[Pool]:
    async with Pool(1, preload=_OWN) as pool:
        await warm_up(pool)
        yield pool


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one_pair() -> AsyncIterator[Pool]:
    async with Pool(2, preload=_OWN) as pool:
        await warm_up(pool)
        yield pool


@pytest_asyncio.fixture(loop_scope="module")
async def pool(one_pool: Pool) -> AsyncIterator[Pool]:
    """Lend the module's pool of one worker."""
    pids = await ready(one_pool)
    yield one_pool
    await check(one_pool, pids)


@pytest_asyncio.fixture(loop_scope="module")
async def pair(one_pair: Pool) -> AsyncIterator[Pool]:
    """Lend the module's pool of two workers."""
    pids = await ready(one_pair)
    yield one_pair
    await check(one_pair, pids)


@pytest_asyncio.fixture(loop_scope="module")
async def gate() -> AsyncIterator[Gate]:
    """Open a gate for the jobs of a test; those that still wait go on at its end."""
    async with Gate() as gate:
        yield gate


async def warm_up(pool: Pool) -> None:
    """Have *pool* start and open what it keeps: its threads, and memory for large values."""
    await ready(pool)
    async with patience():
        await start_threads(pool)
        await asyncio.gather(*(pool.submit(bytearray, _LARGE) for _ in range(4)))


async def ready(pool: Pool) -> list[int | None]:
    """Wait until every worker of *pool* is idle, and return their pids."""
    async with patience():
        while (stats := pool.stats()).idle < stats.workers:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0)
    return [slot.pid for slot in stats.slots]


async def check(pool: Pool, pids: list[int | None]) -> None:
    """Check that *pool* is as it was: whole, with these workers, and idle."""
    assert not registry_of(pool).jobs, "the test left jobs"
    assert not sessions_of(pool), "the test left a session"
    assert not listeners_of(pool), "the test left a listener"
    # What was cancelled may still be on its way out.
    assert await ready(pool) == pids, "the test changed the workers"
    assert pool.stats().idle == len(pids)
