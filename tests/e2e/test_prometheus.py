"""A scrape over HTTP has what happened in a real pool, whatever state the pool is in."""

from __future__ import annotations

import asyncio
import gc
import os
import signal

import pytest
from prometheus_client import CollectorRegistry

from asyncpool import JobTimeoutError, Pool, WorkerCrashedError
from asyncpool.prometheus import register
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, kill_worker
from tests.helpers.scraping import Figures, Page, exported

pytestmark = pytest.mark.asyncio

HERE = "tests.helpers.jobs"


async def scrape(page: Page) -> Figures:
    """Scrape in a thread, as the event loop goes on."""
    return await asyncio.to_thread(page.scrape)


def is_alive() -> bool:
    """Tell whether a pool has a task."""
    return any(task.get_name().startswith("asyncpool") for task in asyncio.all_tasks())


async def test_a_scrape_has_what_happened() -> None:
    registry = CollectorRegistry()
    async with patience(), Pool(2, name="images") as pool:
        with exported(registry) as page:
            register(pool, registry)
            await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
            with pytest.raises(ZeroDivisionError):
                await pool.submit(jobs.divide, 1, 0)
            with pytest.raises(WorkerCrashedError):
                await pool.submit(os._exit, 3)
            with pytest.raises(JobTimeoutError):
                await pool.options(timeout=0.05).submit(jobs.stay, 60.0)
            await pool.map(jobs.pid_for, range(100), chunksize=10)
            await idle(pool)
            found = await scrape(page)
    square = {"pool": "images", "function": f"{HERE}.square"}
    assert found.get("jobs_total", outcome="ok", via="submit", **square) == 20
    assert found.get("jobs_total", outcome="raised", via="submit", **square) == 0
    mapped = f"{HERE}.pid_for"
    # The first items of a map may travel alone, as calls do, if a worker is idle then.
    alone = sum(found.all("jobs_total", function=mapped, via="submit", outcome="ok"))
    assert found.get("map_items_total", function=mapped) == 100 - alone
    divide, stay = f"{HERE}.divide", f"{HERE}.stay"
    assert found.get("jobs_total", function=divide, outcome="raised") == 1
    assert found.get("jobs_total", function="posix._exit", outcome="crashed") == 1
    assert found.get("jobs_total", function=stay, outcome="timeout") == 1
    assert found.get("job_timeouts_total") == 1
    assert found.get("job_run_seconds_count", function=divide) == 1
    assert found.get("job_run_seconds_bucket", function=divide, le="+Inf") == 1
    assert found.get("job_wait_seconds_count", via="submit", **square) == 20
    assert found.get("worker_crashes_total", kind="crash") == 1
    assert found.get("worker_starts_total") == 3
    assert found.get("worker_start_seconds_count") == 3
    assert found.get("workers", state="idle") == found.get("workers_wanted") == 2
    assert found.get("pool_state", state="running") == 1
    assert found.get("worker_memory_bytes", slot="0") > 1 << 20


async def test_what_dead_workers_have_done_stays_counted() -> None:
    registry = CollectorRegistry()
    async with patience(), Pool(1) as pool:
        with exported(registry) as page:
            register(pool, registry)
            await pool.submit(sum, range(5_000_000))
            before = await scrape(page)
            await kill_worker(pool)
            after = await scrape(page)
    cpu = [figures.get("worker_cpu_seconds_total") for figures in (before, after)]
    assert 0 < cpu[0] <= cpu[1]
    for figures in (before, after):
        assert figures.get("jobs_total", function="builtins.sum", outcome="ok") == 1
        assert figures.get("job_run_seconds_count", function="builtins.sum") == 1


async def test_what_waits_and_what_runs() -> None:
    registry = CollectorRegistry()
    async with patience(), Gate() as gate, Pool(1) as pool:
        with exported(registry) as page:
            register(pool, registry)
            running = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            waiting = [pool.submit(jobs.square, n) for n in range(5)]
            while (await scrape(page)).get("queue_oldest_seconds") < 0.01:
                pass
            found = await scrape(page)
            visitor.release()
            await asyncio.gather(running, *waiting)
            await idle(pool)
            later = await scrape(page)
    assert (found.get("jobs_running"), found.get("jobs_queued")) == (1, 5)
    assert found.get("jobs_longest_running_seconds") >= 0.01
    assert found.get("workers", state="busy") == 1
    assert (later.get("jobs_running"), later.get("jobs_queued")) == (0, 0)
    assert later.get("queue_oldest_seconds") == 0


async def test_an_event_loop_that_is_blocked_holds_up_no_scrape() -> None:
    registry = CollectorRegistry()
    async with patience(), Pool(1) as pool:
        with exported(registry) as page:
            register(pool, registry)
            await pool.submit(jobs.square, 2)
            found = page.scrape()  # which blocks this loop until it is answered
    assert found.get("jobs_total", outcome="ok") == 1


async def test_the_life_of_a_pool() -> None:
    registry = CollectorRegistry()

    async def state() -> set[str]:
        found = await scrape(page)
        return {each for each in states if found.get("pool_state", state=each)}

    states = ("new", "running", "broken", "closing", "closed")
    async with patience(), Gate() as gate:
        pool = Pool(1)
        with exported(registry) as page:
            register(pool, registry)
            assert await state() == {"new"}
            starting = asyncio.create_task(pool.start())
            await asyncio.sleep(0)
            assert await state() == {"running"}
            await starting
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            ending = await closing(pool)
            assert await state() == {"closing"}
            visitor.release()
            await asyncio.gather(job, ending)
            assert await state() == {"closed"}
            found = await scrape(page)
            assert found.get("jobs_total", outcome="ok") == 1
            assert "asyncpool_worker_memory_bytes" not in found.names
            del pool, job, ending, starting
            gc.collect()
            assert (await scrape(page)).labels("pool") == set()


async def test_a_pool_that_is_dropped_while_it_works_drops_out() -> None:
    registry = CollectorRegistry()
    async with patience(), Gate() as gate:
        with exported(registry) as page:
            pool = Pool(1)
            register(pool, registry)
            await pool.start()
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            with pytest.warns(
                ResourceWarning, match="was dropped without being closed"
            ):
                del pool
            assert (await scrape(page)).labels("pool") == set()
            visitor.release()
            assert await job == "go"
            await visitor.gone()
            while is_alive():  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0)


async def test_scrapes_beside_a_pool_that_loses_its_workers() -> None:
    """Each figure that only grows does, while workers are killed and jobs flow."""
    registry = CollectorRegistry()
    over = asyncio.Event()
    growing = (
        "worker_cpu_seconds_total",
        "jobs_submitted_total",
        "worker_starts_total",
    )
    seen: list[list[float]] = []

    async def watch() -> None:
        while not over.is_set():
            found = await scrape(page)
            seen.append([found.get(name) for name in growing])

    async with patience(), Pool(2) as pool:
        with exported(registry) as page:
            register(pool, registry)
            watching = asyncio.create_task(watch())
            view = pool.options(max_attempts=10)
            for _ in range(5):
                work = [view.submit(sum, range(20_000)) for _ in range(200)]
                for slot in pool.stats().slots:
                    if slot.pid is not None:
                        os.kill(slot.pid, signal.SIGKILL)
                await asyncio.gather(*work)
                await idle(pool)
            over.set()
            await watching
            found = await scrape(page)
    for column in zip(*seen, strict=True):
        assert list(column) == sorted(column)
    assert found.get("jobs_total", outcome="ok") == 1000
    assert found.get("job_takeovers_total") > 0
    assert found.get("worker_crashes_total", kind="crash") >= 5
