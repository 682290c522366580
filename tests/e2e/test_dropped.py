"""Pools that nobody has any more, and that nobody has closed."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from asyncpool import CloseSummary, Job, Pool
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import Finish, in_another_process, supervisor_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS

TEXT = (
    "^pool {} was dropped without being closed; it finishes its jobs and ends: "
    r"use 'async with' or 'await pool\.close\(\)'$"
)


def collect_in_a_thread() -> None:
    thread = threading.Thread(target=gc.collect)
    thread.start()
    thread.join()


async def test_its_jobs_are_finished_and_nothing_is_left() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(2, name="lost")
        await pool.start()
        supervisor = supervisor_of(pool)
        work = [pool.submit(jobs.wait_at, gate.path) for _ in range(3)]
        visitor = await gate.visitor()
        with pytest.warns(ResourceWarning, match=TEXT.format("lost")):
            del pool
        while not supervisor.closing:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        visitor.release()
        for nth in (2, 3):
            (await gate.visitor(nth=nth)).release()
        assert await asyncio.gather(*work) == ["go"] * 3
        await supervisor.status.ended
        assert supervisor.summary() == CloseSummary(finished=3, failed=0, killed=0)


@pytest.mark.logs("pool-dropped")
async def test_a_cell_that_is_run_again_leaves_one_pool() -> None:
    async with patience():
        pool = Pool(1, name="cell")
        await pool.start()
        for _ in range(2):
            before = supervisor_of(pool)
            with pytest.warns(ResourceWarning, match=TEXT.format("cell")):
                pool = Pool(1, name="cell")
            await pool.start()
            await before.status.ended
        await pool.close()


async def test_the_collector_may_find_it_in_any_thread() -> None:
    async with patience():
        pool = Pool(1, name="lost")
        await pool.start()
        supervisor = supervisor_of(pool)
        pool.knot = pool  # type: ignore[attr-defined]
        del pool
        with pytest.warns(ResourceWarning, match=TEXT.format("lost")):
            collect_in_a_thread()
        await supervisor.status.ended


@pytest.mark.parametrize("what", ["job", "map", "stream", "view"])
async def test_whatever_submits_to_it_keeps_it(what: str) -> None:
    async with patience():
        pool = Pool(1)
        await pool.start()
        supervisor = supervisor_of(pool)
        if what == "map":
            results = pool.map(jobs.square, range(3))
            del pool
            assert [n async for n in results] == [0, 1, 4]
            keeper: object = results
        elif what == "stream":
            stream = pool.stream(range, 3)
            del pool
            assert [n async for n in stream] == [0, 1, 2]
            keeper = stream
        elif what == "view":
            view = pool.options(priority=1)
            del pool
            assert await view.submit(jobs.square, 3) == 9
            keeper = view
        else:
            job: Job[int] = pool.submit(jobs.square, 3)
            with pytest.warns(ResourceWarning, match="was dropped"):
                del pool  # a job does not, and is done all the same
            assert await job == 9
            keeper = None
        assert supervisor.closing == (keeper is None)
        supervisor.close(Finish.ALL, None)
        await supervisor.status.ended


async def test_who_was_closed_or_never_started_is_no_matter() -> None:
    async with patience():
        pool = Pool(1)
        await pool.start()
        await pool.close()
        del pool
        unused = Pool(1)
        del unused
        with pytest.raises(TypeError):
            Pool("x")  # type: ignore[arg-type]


async def test_a_copy_in_a_fork_is_no_matter() -> None:
    async with patience():
        pool = Pool(1)
        await pool.start()
        supervisor = supervisor_of(pool)
        in_another_process(pool)
        del pool
        assert not supervisor.closing
        supervisor.close(Finish.ALL, None)
        await supervisor.status.ended
