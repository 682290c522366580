"""A pool that clients in this and other processes use by a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from asyncpool.enums import RunState
from asyncpool.errors import (
    JobNotPicklableError,
    JobTimeoutError,
    NodeLostError,
    PoolClosedError,
    ProtocolError,
    WorkerCrashedError,
)
from asyncpool.pool import Pool
from asyncpool.prometheus import register
from asyncpool.sharedpool import PoolServer, connect
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.shared_pools import pool_and_client, server, shared

pytestmark = BOTH_LOOPS


def double(number: int) -> int:
    return 2 * number


def fail(text: str) -> None:
    raise LookupError(text)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_once(path: str) -> str:
    mark = Path(path)
    if mark.exists():
        return "alive"
    mark.touch()
    die()
    return "never"


def begin_and_wait(path: str) -> None:
    Path(path).write_bytes(b"begun")
    signal.pause()


def big(size: int) -> bytearray:
    return bytearray(size)


def by_its_name(member: enum.Enum, _protocol: int) -> tuple[Any, ...]:
    """Pickle a member of an enum as Python 3.11.2 does."""
    return getattr, (type(member), member.name)


async def opened(path: Path) -> None:
    """Wait until a job has written to a pipe."""
    await asyncio.to_thread(path.read_bytes)


async def test_jobs_of_a_client_run_in_the_shared_workers(tmp_path: Path) -> None:
    async with shared(tmp_path) as pool:
        assert await pool.submit(double, 4) == 8
        jobs = [pool.submit(double, number) for number in range(3000)]
        assert await asyncio.gather(*jobs) == [2 * n for n in range(3000)]
        assert await pool.map(double, range(100)) == [2 * n for n in range(100)]
        with pytest.raises(LookupError, match="of mine"):
            await pool.submit(fail, "of mine")
        assert await pool.options(key="a", priority=-1).submit(lambda: 5) == 5
        assert await pool.submit(len, bytes(3 << 20)) == 3 << 20
        large = await pool.submit(big, 3 << 20)
        assert len(large) == 3 << 20
        large[0] = 1  # it is the caller's own
        with pytest.raises(JobNotPicklableError):
            await pool.submit(id, threading.Lock())
        stats = await pool.stats()
        assert stats.workers == 2
        assert stats.completed >= 3000


async def test_jobs_run_on_when_a_python_pickles_enums_in_its_own_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 3.11.0 to 3.11.3 do, where figures of a pool ended the jobs that ran."""
    monkeypatch.setattr(enum.Enum, "__reduce_ex__", by_its_name)
    async with patience(), Gate() as gate, shared(tmp_path) as pool:
        running = pool.submit(jobs.wait_at, gate.path, "me")
        visitor = await gate.visitor("me")
        assert (await pool.stats()).state is RunState.RUNNING
        with pytest.raises(WorkerCrashedError):
            await pool.submit(die)
        visitor.release()
        await running


async def test_a_crash_costs_an_attempt_and_the_client_decides_about_the_next(
    tmp_path: Path,
) -> None:
    async with shared(tmp_path, workers=1) as pool:
        with pytest.raises(WorkerCrashedError) as crashed:
            await pool.submit(die)
        assert crashed.value.signal == "SIGKILL"
        again = pool.options(max_attempts=2).submit(die_once, str(tmp_path / "mark"))
        assert await again == "alive"
        assert again.attempt == 2
        retried = pool.options(max_attempts=3, retry_on=[LookupError]).submit(fail, "x")
        with pytest.raises(LookupError):
            await retried
        assert retried.attempt == 3


async def test_time_limits_and_cancelling_hold_through_the_agent(
    tmp_path: Path,
) -> None:
    async with shared(tmp_path, workers=1) as pool:
        mark = tmp_path / "began"
        os.mkfifo(mark)
        job = pool.options(cancel_grace=0).submit(begin_and_wait, str(mark))
        late = pool.options(queue_timeout=0.05).submit(double, 1)
        with pytest.raises(JobTimeoutError, match="queue_timeout"):
            await late
        await opened(mark)
        queued = pool.submit(double, 2)
        queued.cancel()
        job.cancel()
        assert await pool.submit(double, 3) == 6
        with pytest.raises(JobTimeoutError, match=r"timeout of 0\.05 s") as timeout:
            await pool.options(timeout=0.05).submit(signal.pause)
        assert timeout.value.attempt == 1
        await pool.resize(2)
        assert (await pool.stats()).workers == 2
        with pytest.raises(ValueError, match="workers"):
            await pool.resize(0)
        with pytest.raises(ValueError, match="at most 4096, not 1000000000"):
            await pool.resize(1_000_000_000)


@pytest.mark.logs("node-lost")
async def test_a_killed_server_costs_what_had_begun_and_nothing_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, mark = tmp_path / "pool.sock", tmp_path / "began"
    os.mkfifo(mark)
    with server(path) as process, contextlib.suppress(PoolClosedError):
        async with connect(f"unix:{path}") as pool:
            began = pool.submit(begin_and_wait, str(mark))
            await opened(mark)
            process.kill()
            with pytest.raises(NodeLostError) as lost:
                await began
            assert lost.value.delivery == "started"
            assert lost.value.silence >= 0
            assert str(process.pid) in lost.value.node
            with pytest.raises(PoolClosedError):
                pool.submit(double, 1)
            with pytest.raises(PoolClosedError):
                await pool.stats()
            name, registry = {"pool": pool.name}, CollectorRegistry()
            register(pool, registry)
            assert registry.get_sample_value("asyncpool_nodes_lost_total", name) == 1
            [record] = [vars(it) for it in caplog.records if "node" in vars(it)]
            assert record["node"] == lost.value.node
            assert (record["jobs"], record["begun"]) == (1, 1)
    with server(path) as process:  # the old file is replaced
        async with connect(f"unix:{path}") as pool:
            assert await pool.submit(len, "abc") == 3


async def test_a_client_that_is_gone_costs_its_own_jobs_only(tmp_path: Path) -> None:
    path, mark = tmp_path / "pool.sock", tmp_path / "began"
    os.mkfifo(mark)
    async with Pool(1) as pool, PoolServer(pool, path), connect(f"unix:{path}") as one:
        other = connect(f"unix:{path}")
        await other.__aenter__()
        lost = other.options(cancel_grace=0).submit(begin_and_wait, str(mark))
        await opened(mark)
        waits = one.submit(double, 1)
        await other.__aexit__(ValueError, ValueError(), None)  # as if by an error
        with pytest.raises(PoolClosedError):
            await lost
        assert await waits == 2


async def test_a_client_that_floods_does_not_hold_up_another(tmp_path: Path) -> None:
    path = tmp_path / "pool.sock"
    async with (
        Pool(1) as pool,
        PoolServer(pool, path),
        connect(f"unix:{path}") as one,
        connect(f"unix:{path}") as two,
    ):
        order: list[str] = []
        flood = [one.submit(double, number) for number in range(5000)]
        for job in flood:
            job.add_done_callback(lambda _: order.append("flood"))
        other = two.submit(double, 1)
        other.add_done_callback(lambda _: order.append("other"))
        assert await other == 2
        assert await flood[-1] == 9998
        assert order.index("other") < 2500


async def test_what_short_jobs_have_shown_says_nothing_of_long_ones(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, pool_and_client(tmp_path) as (pool, one):
        await asyncio.gather(*(one.submit(jobs.square, n) for n in range(1000)))
        flood = [one.submit(jobs.wait_at, gate.path) for _ in range(100)]
        await gate.visitor("", 2)
        await one.stats()  # the agent has them all
        stats = pool.stats()
        assert (stats.busy, stats.queued) == (2, 2)
        for job in flood:
            job.cancel()
        assert await one.submit(jobs.square, 3) == 9


async def test_what_is_for_pools_with_a_codec_is_refused_without_one() -> None:
    with pytest.raises(ValueError, match="functions is for pools with a codec"):
        connect("unix:pool.sock", functions=[double])
    with pytest.raises(ValueError, match="errors is for pools with a codec"):
        connect("unix:pool.sock", errors=[ValueError])


async def test_what_cannot_work_together_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.sock"
    async with (
        Pool(1, codec="json", functions=[double]) as pool,
        PoolServer(pool, path),
    ):
        with pytest.raises(
            ProtocolError, match="has the codec json, and the client pickle"
        ):
            await connect(f"unix:{path}").__aenter__()
        async with connect(f"unix:{path}", codec="json", functions=[double]) as client:
            assert await client.submit(double, 4) == 8
        monkeypatch.setattr("asyncpool.sharedpool._client.__version__", "0.0")
        with pytest.raises(
            ProtocolError, match=r"has asyncpool .*, and the client 0\.0"
        ):
            await connect(f"unix:{path}", codec="json").__aenter__()
    with pytest.raises(OSError, match="no process shares a pool there"):
        await connect(f"unix:{path}").__aenter__()
