"""The calls of a pool over Ray, on one node."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
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
from asyncpool.opentelemetry import instrument
from asyncpool.ray import Pool
from tests.helpers.gate import Gate
from tests.helpers.jobs import attempt, square, wait_at
from tests.helpers.patience import patience
from tests.helpers.ray_clusters import LocalNodes
from tests.helpers.spans import Spans

pytestmark = pytest.mark.asyncio


def fail(text: str) -> None:
    raise LookupError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crc(number: int, value: bytes) -> int:
    return zlib.crc32(value, number)


async def later(value: bytes) -> int:
    await asyncio.sleep(0)
    return len(value)


def fail_of(value: list[int]) -> None:
    raise ValueError(f"of {len(value)}")


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


async def test_the_spans_of_a_job_name_its_node(pool: Pool) -> None:
    spans = Spans()
    instrument(pool, tracer_provider=spans.provider, metrics=False)
    assert await pool.submit(square, 3) == 9
    assert await pool.submit(len, bytes(9 << 20)) == 9 << 20
    assert spans.tree() == [
        "submit square",
        "  process square #1 ok",
        "submit builtins.len",
        "  process builtins.len #1 ok",
    ]
    told = spans.named("process builtins.len").attributes or {}
    assert told["asyncpool.node.name"] == next(iter(await pool.nodes()))
    assert told["asyncpool.worker.slot"] in {0, 1}


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
    others = [pool.submit(square, number) for number in range(20)]
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'only_here'"):
        await pool.submit(module.found)
    assert await asyncio.gather(*others) == [n * n for n in range(20)]
    assert await pool.submit(square, 3) == 9


async def test_a_reference_stands_for_its_value_without_its_way_through_the_client(
    pool: Pool,
) -> None:
    import ray

    large = bytes(range(256)) * 200_000
    reference: Any = ray.put(large)
    sums = await asyncio.gather(*(pool.submit(crc, n, reference) for n in range(20)))
    assert sums == [zlib.crc32(large, n) for n in range(20)]
    assert await pool.submit(crc, value=reference, number=3) == zlib.crc32(large, 3)
    assert [n async for n in pool.map(len, [reference, ray.put([1, 2])])] == [
        len(large),
        2,
    ]
    assert await pool.submit(later, reference) == len(large)
    assert [n async for n in pool.stream(count_to, ray.put(3))] == [0, 1, 2]
    with pytest.raises(ValueError, match=r"^of 2$"):
        await pool.submit(fail_of, ray.put([1, 2]))


async def test_an_object_that_is_lost_costs_its_job_alone(pool: Pool) -> None:
    import ray

    @ray.remote  # type: ignore[untyped-decorator]
    def fails() -> None:
        raise LookupError("no such image")

    broken: Any = fails.remote()
    jobs = [pool.submit(len, broken), pool.submit(len, ray.put([1, 2, 3]))]
    with pytest.raises(JobNotPicklableError, match="LookupError: no such image") as why:
        await jobs[0]
    assert why.value.direction == "arguments"
    assert "an argument of builtins.len is in Ray's store" in str(why.value)
    assert await jobs[1] == 3


def comes_late(folder: Path) -> tuple[Path, Any]:
    """Return a pipe, and an object of Ray that is what somebody writes there."""
    import ray

    gate = folder / "gate"
    os.mkfifo(gate)

    @ray.remote  # type: ignore[untyped-decorator]
    def comes(path: str) -> str:
        return Path(path).read_text()

    return gate, comes.options(num_cpus=0).remote(str(gate))


async def test_one_that_is_not_there_yet_holds_up_its_job_alone(
    pool: Pool, tmp_path: Path
) -> None:
    gate, late = comes_late(tmp_path)
    waits, unwanted = pool.submit(len, late), pool.submit(len, late)
    assert await asyncio.gather(*(pool.submit(square, n) for n in range(50))) == [
        n * n for n in range(50)
    ]
    assert unwanted.cancel()
    await asyncio.to_thread(gate.write_text, "four")
    assert await waits == 4


async def test_arguments_that_wait_on_a_node_with_many_workers_hold_up_nothing_else(
    cluster: LocalNodes,
) -> None:
    import ray

    workers = 33  # so many that Ray would make no other call of the agent meanwhile
    options: dict[str, Any] = {"workers_per_node": workers, "resources": {}}
    async with patience(2), Gate() as gate, Pool(cluster.address, **options) as pool:
        busy = [pool.submit(wait_at, gate.path, str(n)) for n in range(workers)]
        visitors = [await gate.visitor(str(n)) for n in range(workers)]
        reference: Any = ray.put(b"three")
        waiting = [pool.submit(len, reference) for _ in range(3 * workers)]
        for _ in range(20):
            await pool.stats()
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*busy) == ["go"] * workers
        assert await asyncio.gather(*waiting) == [5] * (3 * workers)


async def test_limits_hold_and_nothing_is_kept_while_a_value_does_not_come(
    pool: Pool, tmp_path: Path
) -> None:
    gate, late = comes_late(tmp_path)
    loop = asyncio.get_running_loop()
    async with patience():
        with pytest.raises(JobTimeoutError, match="queue_timeout"):
            await pool.options(queue_timeout=0.1).submit(len, late)
        with pytest.raises(JobTimeoutError, match="deadline"):
            await pool.options(deadline=loop.time() + 0.1).submit(len, late)
        unwanted = pool.submit(len, late)
        assert await pool.submit(square, 2) == 4
        unwanted.cancel()
        await asyncio.to_thread(gate.write_text, "four")
        assert await pool.submit(len, late) == 4
