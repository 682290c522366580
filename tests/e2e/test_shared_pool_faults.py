"""A shared pool whose processes die, stop and go on: each job's fate is accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncGenerator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import pytest

from asyncpool import ProcessPoolExecutor
from asyncpool.enums import Delivery
from asyncpool.errors import NodeLostError, PoolClosedError, WorkerCrashedError
from asyncpool.events import (
    Crashed,
    Exited,
    JobEnded,
    JobEvent,
    JobQueued,
    JobStarted,
    TakenOver,
)
from asyncpool.pool import Pool
from asyncpool.sharedpool import PoolServer, SharedPool, connect
from tests.helpers import jobs, several, streams
from tests.helpers.gate import Gate
from tests.helpers.inside import CREDITS
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import next_of, stop
from tests.helpers.shared_pools import client, pool_and_client, served, server
from tests.helpers.signing import numbers_in

pytestmark = ONE_LOOP

COUNT = 4000


async def test_each_job_is_accounted_for_when_the_agent_is_killed_under_load(
    tmp_path: Path,
) -> None:
    signed = tmp_path / "signed"
    signed.touch()
    async with patience(2), served(tmp_path, workers=2) as (process, pool):
        view = pool.options(max_attempts=3)
        submitted = [view.submit(jobs.sign, str(signed), n) for n in range(COUNT)]
        await submitted[100]
        process.kill()
        results = await asyncio.gather(*submitted, return_exceptions=True)
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
    began = numbers_in(signed)
    assert set(began.values()) == {1}  # nothing twice
    fates = Counter[str]()
    for number, (job, result) in enumerate(zip(submitted, results, strict=True)):
        if not isinstance(result, NodeLostError):
            assert number in began
            assert job.attempt == 1
            fates["done"] += 1
        elif result.delivery in {Delivery.STARTED, Delivery.UNKNOWN}:
            assert job.attempt == 1
            fates["lost"] += 1
        else:
            assert number not in began
            assert job.attempt == 0
            fates["never begun"] += 1
    assert fates.total() == COUNT
    assert fates["done"] > 50
    assert fates["never begun"]
    assert fates["lost"] <= CREDITS  # those that the agent may have


@pytest.mark.parametrize("count", [2, 40])
async def test_an_executor_ends_whose_agent_was_killed(
    tmp_path: Path, count: int
) -> None:
    address = f"unix:{tmp_path}/pool.sock"
    with server(tmp_path / "pool.sock", workers=2) as process:
        async with patience(), Gate() as gate:
            executor = ProcessPoolExecutor(pool=connect(address))
            try:
                calls = [executor.submit(jobs.wait_at, gate.path) for _ in range(count)]
                await gate.visitor(nth=2)  # both workers have one
                process.kill()
                fates: Counter[type] = Counter()
                for call in calls:
                    with pytest.raises(BrokenProcessPool) as broken:
                        await asyncio.wrap_future(call)
                    fates[type(broken.value).__base__ or object] += 1
                # Those that the agent had; the pool was closed before the others had their turn.
                assert fates[NodeLostError] >= 2
                assert fates.total() == fates[NodeLostError] + fates[PoolClosedError]
                with pytest.raises(PoolClosedError):
                    await asyncio.wrap_future(executor.submit(abs, -2))
            finally:
                await asyncio.to_thread(executor.shutdown)


async def test_an_agent_that_is_stopped_for_a_moment_costs_nothing(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, served(tmp_path) as (process, pool):
        begun = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        await stop(process.pid)
        waiting = [pool.submit(jobs.square, n) for n in range(50)]
        visitor.release()
        os.kill(process.pid, signal.SIGCONT)
        assert await begun == "go"
        assert await asyncio.gather(*waiting) == [n * n for n in range(50)]


@pytest.mark.logs("node-lost")
async def test_a_client_that_reconnects_goes_on_when_its_agent_is_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pool.sock"
    pool = connect(f"unix:{path}", reconnect=60.0)
    async with patience(2), Gate() as gate:
        with server(path) as process:
            await pool.start()
            begun = pool.submit(jobs.wait_at, gate.path)
            await gate.visitor()
            sent = [pool.submit(jobs.square, n) for n in range(5)]
            await pool.stats()  # the agent has told that all but the first wait there
            process.kill()
            with pytest.raises(NodeLostError) as lost:
                await begun
            assert lost.value.delivery is Delivery.STARTED
            waits = pool.submit(jobs.square, 7)
            with pytest.raises(PoolClosedError, match="its agent is gone"):
                await pool.stats()
        with server(path):
            assert await asyncio.gather(*sent[1:], waits) == [1, 4, 9, 16, 49]
            assert {job.attempt for job in (*sent, waits)} == {1}
            with pytest.raises(NodeLostError):
                await sent[0]  # it waited in the pool
            assert (await pool.stats()).slots[0].slot == 10_000
            await pool.close()
    with pytest.raises(PoolClosedError):
        pool.submit(jobs.square, 1)


async def asked_until_it_is_gone(pool: SharedPool) -> None:
    while True:
        await pool.stats()


@pytest.mark.logs("node-lost")
async def test_a_client_waits_for_another_agent_as_long_as_it_was_told_to(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pool.sock"
    with pytest.raises(ValueError, match="reconnect must be > 0"):
        connect(f"unix:{path}", reconnect=0)
    async with patience(), Pool(1) as shared_one:
        sharing = PoolServer(shared_one, path)
        await sharing.__aenter__()
        async with connect(f"unix:{path}", reconnect=0.3) as pool:
            assert await pool.submit(jobs.square, 3) == 9
            await sharing.__aexit__(None, None, None)
            with pytest.raises(PoolClosedError):
                await asked_until_it_is_gone(pool)
            with pytest.raises(PoolClosedError, match=r"for 0\.3 s \(reconnect\)"):
                await pool.submit(jobs.square, 4)
            with pytest.raises(PoolClosedError):
                pool.submit(jobs.square, 5)


@contextlib.asynccontextmanager
async def server_and_client(
    tmp_path: Path,
) -> AsyncGenerator[tuple[PoolServer, SharedPool]]:
    """Yield the server of a pool with one worker, which the test is to leave, and a client."""
    path = tmp_path / "pool.sock"
    async with Pool(1) as pool:
        sharing = PoolServer(pool, path)
        await sharing.__aenter__()
        async with connect(f"unix:{path}") as shared:
            yield sharing, shared


async def test_an_agent_that_closes_finishes_what_it_has(tmp_path: Path) -> None:
    async with (
        patience(),
        Gate() as gate,
        server_and_client(tmp_path) as (sharing, shared),
    ):
        begun = shared.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        sent = shared.submit(jobs.square, 3)
        queued = [shared.submit(jobs.square, 1) for _ in range(1500)][-1]
        closing = asyncio.create_task(sharing.__aexit__(None, None, None))
        with pytest.raises(PoolClosedError, match="closed"):
            await queued
        with pytest.raises(PoolClosedError):
            shared.submit(jobs.square, 1)
        visitor.release()
        assert (await begun, await sent) == ("go", 9)
        await closing
        with pytest.raises(OSError, match="no process shares a pool there"):
            await connect(f"unix:{tmp_path}/pool.sock").start()


async def test_a_job_has_no_further_attempt_at_an_agent_that_closes(
    tmp_path: Path,
) -> None:
    async with (
        patience(),
        Gate() as gate,
        server_and_client(tmp_path) as (sharing, shared),
    ):
        view = shared.options(max_attempts=3)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        visitor = await gate.visitor("attempt 1")
        queued = [shared.submit(jobs.square, 1) for _ in range(1500)][-1]
        closing = asyncio.create_task(sharing.__aexit__(None, None, None))
        with pytest.raises(PoolClosedError):
            await queued
        visitor.release("die")
        with pytest.raises(PoolClosedError) as caught:
            await job
        assert isinstance(caught.value.__cause__, WorkerCrashedError)
        assert caught.value.__cause__.job_id == job.id
        assert job.attempt == 1
        await closing


async def test_an_agent_that_is_left_by_an_error_ends_what_it_has(
    tmp_path: Path,
) -> None:
    async with (
        patience(),
        Gate() as gate,
        server_and_client(tmp_path) as (sharing, shared),
    ):
        stream = shared.stream(streams.numbers, 10**6)
        assert await anext(stream) == 0
        begun = shared.submit(jobs.wait_at, gate.path)
        asked = asyncio.create_task(shared.broadcast(jobs.configure, 1, gate.path))
        await asyncio.sleep(0)
        await sharing.__aexit__(ValueError, ValueError(), None)
        with pytest.raises(NodeLostError):
            await begun
        with pytest.raises(NodeLostError):
            async for _ in stream:
                pass
        with pytest.raises(PoolClosedError, match="gone"):
            await asked


@pytest.mark.logs("client-lost")
async def test_the_jobs_of_a_client_that_is_gone_end_and_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.sock"
    async with (
        patience(2),
        Gate() as gate,
        Pool(2) as pool,
        PoolServer(pool, path),
        connect(f"unix:{path}") as mine,
    ):
        with client(path, gate.path) as other:
            visitor = await gate.visitor("of the other")
            own = mine.submit(jobs.wait_at, gate.path, "mine")
            other.kill()
            await visitor.gone()
            (await gate.visitor("mine")).release()
            assert await own == "go"
        assert await mine.submit(jobs.square, 5) == 25
        assert pool.stats().lost_clients == 1
    [record] = [vars(it) for it in caplog.records if "jobs" in vars(it)]
    assert (record["pool"], record["pid"]) == (pool.name, other.pid)
    # Its first job may have ended by then, or not.
    assert "1 x tests.helpers.jobs.wait_at" in record["functions"]
    assert record["reason"] == "its process has ended, or it has left"


async def test_a_program_that_blocks_its_loop_for_long_loses_nothing(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "pool.sock"
    async with (
        patience(),
        Gate() as gate,
        PoolServer(pool, path),
        connect(f"unix:{path}") as client,
    ):
        job = client.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        until = time.monotonic() + 0.7
        while time.monotonic() < until:  # as a program does that computes in its loop
            pass
        visitor.release()
        assert await job == "go"
        assert await client.submit(jobs.square, 5) == 25


async def test_two_clients_that_flood_get_the_workers_in_turn(
    pool: Pool, tmp_path: Path
) -> None:
    path = tmp_path / "pool.sock"
    order: list[str] = []
    async with (
        patience(),
        PoolServer(pool, path),
        connect(f"unix:{path}") as one,
        connect(f"unix:{path}") as two,
    ):
        done: list[asyncio.Future[Any]] = []
        for name, of in (("one", one), ("two", two)):

            def note(_: object, name: str = name) -> None:
                order.append(name)

            for number in range(900):
                done.append(of.submit(jobs.square, number))
                done[-1].add_done_callback(note)
        await asyncio.gather(*done)
    # The first half of the outcomes has about as many of each.
    assert 300 < Counter(order[:900])["two"] < 600


async def test_a_crash_names_the_job_as_its_client_knows_it_and_no_job_of_others(
    tmp_path: Path,
) -> None:
    address = f"unix:{tmp_path}/pool.sock"
    async with (
        patience(),
        Gate() as gate,
        Pool(1, concurrency=3) as pool,
        PoolServer(pool, tmp_path / "pool.sock"),
        connect(address) as client,
        connect(address) as other,
    ):
        for _ in range(3):  # so that its numbers are not those of its clients
            await client.submit(jobs.square, 2)
        events, of_other = client.events(), other.events()
        found = [
            one.submit(several.at, gate.path, name)
            for one, name in ((client, "one"), (client, "two"), (other, "three"))
        ]
        for name in ("one", "two", "three"):
            await gate.visitor(name)
        os.kill(pool.stats().slots[0].pid or 0, signal.SIGKILL)
        for job in found:
            with pytest.raises(WorkerCrashedError) as caught:
                await job
            [crash] = caught.value.crashes
            assert (crash.job_id, crash.attempt) == (job.id, 1)
            assert crash.function == "tests.helpers.several.at"
            assert crash.concurrent_jobs == ()
            assert ", beside which it ran 2 other jobs" in str(caught.value)
        # Each hears of the same crash: it was during some of its jobs.
        for stream, own in ((events, found[:2]), (of_other, found[2:])):
            told = (await next_of(stream, Crashed)).crash
            named = {told.job_id, *told.concurrent_jobs} - {None}
            assert named == {job.id for job in own}
            assert len(told.concurrent_jobs) + told.other_jobs == 2, told


async def test_an_exit_names_no_job_by_the_number_that_the_agent_has_for_it(
    tmp_path: Path,
) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=1) as (pool, client),
    ):
        for _ in range(3):
            await pool.submit(jobs.square, 2)
        events = client.events()
        job = client.options(on_cancel="kill").submit(jobs.wait_at, gate.path)
        await gate.visitor()
        job.cancel()
        exited = await next_of(events, Exited)
        assert exited.detail == "killed since a job did not end"
        assert exited.reason == "cancellation"


async def test_whoever_listens_hears_which_attempts_were_lost(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, pool_and_client(tmp_path) as (pool, client):
        for _ in range(3):  # so that its numbers are not those of the client
            await pool.submit(jobs.square, 2)
        events = client.events()
        view = client.options(max_attempts=3)
        job = view.submit(jobs.wait_in_every_attempt, gate.path)
        for attempt, answer in ((1, "die"), (2, "die"), (3, "done")):
            (await gate.visitor(f"attempt {attempt}")).release(answer)
        assert await job == "done"
        for attempt in (1, 2):
            crash = (await next_of(events, Crashed)).crash
            assert (crash.job_id, crash.attempt) == (job.id, attempt)
            assert await next_of(events, TakenOver) == TakenOver(job.id, attempt)


async def test_whoever_listens_hears_of_no_attempt_that_no_agent_can_make(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, served(tmp_path) as (process, pool):
        heard = pool.job_events()
        job = pool.options(max_attempts=3).submit(jobs.wait_at, gate.path)
        await gate.visitor()
        process.kill()
        with pytest.raises(NodeLostError) as lost:
            await job
        assert (lost.value.delivery, job.attempt) == (Delivery.STARTED, 1)
    events = [event async for event in heard]
    kinds = [type(event) for event in events if isinstance(event, JobEvent)]
    # The agent may have been killed before it told that the job had begun.
    assert [kind for kind in kinds if kind is not JobStarted] == [JobQueued, JobEnded]
