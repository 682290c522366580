"""The calls of a pool over Ray, on one node."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import pytest

from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    JobTimeoutError,
    NoWorkerError,
    WorkerCrashedError,
)
from asyncpool.events import Crashed
from asyncpool.ray import Pool
from tests.helpers.gate import Gate
from tests.helpers.jobs import attempt, square, wait_at
from tests.helpers.patience import patience

pytestmark = pytest.mark.asyncio


def fail(text: str) -> None:
    raise LookupError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def count_to(number: int) -> Iterator[int]:
    yield from range(number)


async def test_jobs_run_on_a_node(pool: Pool) -> None:
    assert await pool.submit(square, 4) == 16
    jobs = [pool.submit(square, number) for number in range(3000)]
    assert await asyncio.gather(*jobs) == [n * n for n in range(3000)]
    with pytest.raises(LookupError, match="of mine"):
        await pool.submit(fail, "of mine")
    assert await pool.options(key="a", priority=-1).submit(lambda: 5) == 5
    with pytest.raises(JobNotPicklableError):
        await pool.submit(id, threading.Lock())


async def test_maps_and_streams(pool: Pool) -> None:
    assert await pool.map(square, range(100)) == [n * n for n in range(100)]
    stream = pool.options(prefetch=2).stream(count_to, 50)
    assert [item async for item in stream] == [*range(50)]


async def test_large_arguments_and_results(pool: Pool) -> None:
    data = os.urandom(9 << 20)
    assert await pool.submit(bytes, data) == data
    assert await pool.submit(len, [data, bytearray(data)]) == 2


async def test_cancelling_a_job_that_runs_ends_it(pool: Pool) -> None:
    async with Gate() as gate, patience():
        job = pool.submit(wait_at, gate.path, "here")
        visitor = await gate.visitor("here")
        job.cancel()
        await visitor.gone()
        with pytest.raises(asyncio.CancelledError):
            await job


async def test_a_crash_costs_one_job(pool: Pool) -> None:
    jobs = [pool.submit(square, number) for number in range(20)]
    with pytest.raises(WorkerCrashedError) as caught:
        await pool.submit(die)
    assert caught.value.crashes[0].signal == "SIGKILL"
    assert await asyncio.gather(*jobs) == [n * n for n in range(20)]


async def test_time_limits(pool: Pool) -> None:
    async with Gate() as gate, patience():
        with pytest.raises(JobTimeoutError):
            await pool.options(timeout=0.01).submit(wait_at, gate.path)
        holders = [pool.submit(wait_at, gate.path, "holds") for _ in range(2)]
        visitors = [await gate.visitor("holds", nth) for nth in (1, 2)]
        with pytest.raises(JobTimeoutError):
            await pool.options(queue_timeout=0.01).submit(attempt)
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*holders) == ["go", "go"]


async def test_the_pool_as_a_whole(pool: Pool) -> None:
    pids = await pool.broadcast(os.getpid)
    assert sorted(pids) == [0, 1]
    with pytest.raises(BroadcastError) as caught:
        await pool.broadcast(fail, "everywhere")
    assert sorted(caught.value.errors) == [0, 1]
    await pool.kill(0)
    with pytest.raises(NoWorkerError, match="slot 10000"):
        await pool.kill(10_000)
    await pool.resize(3)
    async with patience():
        while len(await pool.broadcast(os.getpid)) < 3:
            pass
    roll = await pool.roll()
    assert roll.ok
    stats = await pool.stats()
    assert stats.workers == 3
    assert len(await pool.nodes()) == 1


async def test_a_session_has_a_worker_to_itself(pool: Pool) -> None:
    async with pool.worker() as worker:
        pid = await worker.submit(os.getpid)
        assert pid == worker.pid
        assert await worker.submit(os.getpid) == pid


async def test_events_of_the_nodes_are_heard(pool: Pool) -> None:
    events = pool.events()
    with pytest.raises(WorkerCrashedError):
        await pool.submit(die)
    async with patience():
        async for event in events:
            if isinstance(event, Crashed):
                break


async def test_what_a_node_cannot_import_fails_with_the_text_of_its_worker(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = types.ModuleType("only_here")
    exec("def found(): return 1", vars(module))
    monkeypatch.setitem(sys.modules, "only_here", module)
    with pytest.raises(ModuleNotFoundError, match="No module named 'only_here'"):
        await pool.submit(module.found)


async def test_a_reference_is_refused_and_its_value_is_taken(pool: Pool) -> None:
    import ray

    reference: Any = ray.put([1, 2])
    with pytest.raises(TypeError, match="an ObjectRef is no argument of a job"):
        pool.submit(len, reference)
    with pytest.raises(TypeError, match="pass 'await ref'"):
        pool.submit(square, number=reference)
    assert await pool.submit(len, await reference) == 2
