"""Each step in the life of a pool, a worker or a server is one record, with its data."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from asyncpool import Pool, ProcessPoolExecutor, RestartPolicy, WorkerLimits
from asyncpool.cluster._servers.targets import connect
from asyncpool.errors import (
    JobTimeoutError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.events import Crash, Exited, Recovered
from tests.helpers import jobs, serves
from tests.helpers.clusters import Client, all_ready, cluster_of
from tests.helpers.gate import Gate
from tests.helpers.inside import break_threads_of_executors, shorten_grace_of_callbacks
from tests.helpers.logs import Kept, handled_by
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import idle, next_of

pytestmark = BOTH_LOOPS


@asynccontextmanager
async def logged(level: int = logging.INFO) -> AsyncIterator[Kept]:
    """Keep the records of asyncpool of this level and above, with a bound on the time."""
    kept = Kept()
    async with patience():
        with handled_by(kept, "asyncpool", level):
            yield kept


def ids(kept: Kept) -> list[str]:
    return [vars(record)["message_id"] for record in kept.records]


def the(kept: Kept, name: str) -> logging.LogRecord:
    """Return the only record of this id."""
    [found] = [it for it in kept.records if vars(it)["message_id"] == name]
    return found


async def until(kept: Kept, name: str) -> logging.LogRecord:
    """Wait for a record, and return it."""
    await kept.until(lambda _: name in ids(kept))
    return the(kept, name)


@pytest.mark.logs(
    "pool-started", "worker-started", "worker-ready", "pool-closing", "pool-closed"
)
async def test_a_quiet_life() -> None:
    async with logged(logging.DEBUG) as kept, Pool(1, name="shop") as pool:
        pid = await pool.submit(jobs.pid)
        await pool.close(timeout=60)
    assert ids(kept) == [
        "worker-started",
        "worker-ready",
        "pool-started",
        "pool-closing",
        "worker-ended",
        "pool-closed",
    ]
    ready = the(kept, "worker-ready")
    data = vars(ready)
    assert (data["pool"], data["slot"], data["generation"]) == ("shop", 0, 1)
    assert data["pid"] == pid
    text = f"pool shop: worker {pid} in slot 0 is ready after {data['seconds']:.2f} s"
    assert ready.getMessage() == text
    assert vars(the(kept, "worker-ended"))["reason"] == "close"
    assert kept.messages[-1] == (
        "pool shop is closed: 0 jobs finished meanwhile, 0 failed, 0 workers were killed"
    )
    assert kept.messages[3] == "pool shop closes: 0 jobs are open, and have 60 s"


@pytest.mark.logs("worker-retiring", "worker-ended", "roll-begun", "rolled")
async def test_a_worker_is_replaced_and_why() -> None:
    limits = WorkerLimits(max_jobs=1, jitter=0.0)
    async with logged() as kept:
        async with Pool(1, name="shop", worker_limits=limits) as pool:
            pid = await pool.submit(jobs.pid)
            ended = await until(kept, "worker-ended")
            assert (await pool.roll()).ok
        retiring = [r for r in kept.records if "takes no more jobs" in r.getMessage()]
    assert retiring[0].getMessage() == (
        f"pool shop: worker {pid} in slot 0 takes no more jobs: it has had as many jobs as it "
        "may (max_jobs)"
    )
    assert vars(retiring[0])["reason"] == "max_jobs"
    assert (vars(ended)["pid"], vars(ended)["reason"]) == (pid, "max_jobs")
    assert vars(retiring[-1])["reason"] == "roll"
    assert "pool shop: rolled: 1 worker is new" in kept.messages
    assert vars(the(kept, "rolled"))["replaced"] == 1


@pytest.mark.logs("worker-retiring")
async def test_what_a_worker_is_retired_for_by_its_job() -> None:
    async with logged() as kept, Pool(1) as pool:
        with pytest.raises(ZeroDivisionError):
            await pool.options(retire_on=[ArithmeticError]).submit(jobs.divide, 1, 0)
        retiring = await until(kept, "worker-retiring")
    why = "takes no more jobs: by retire_on, after builtins.ArithmeticError"
    assert retiring.getMessage().endswith(why)


@pytest.mark.logs("resized", "size-changed")
async def test_a_resize() -> None:
    async with logged(logging.DEBUG) as kept, Pool(1, name="shop") as pool:
        await pool.submit(jobs.pid)
        await pool.roll()
        await pool.resize((2, 3))
        resized = await until(kept, "resized")
    assert resized.getMessage() == "pool shop is resized: 2 to 3 workers"
    assert vars(the(kept, "size-changed"))["workers"] == 2
    assert max(it.levelno for it in kept.records) < logging.WARNING, "all is well"


@pytest.mark.logs("roll-failed")
async def test_a_roll_that_fails(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    initializer: Any = jobs.fail_if_there
    pool = Pool(1, initializer=initializer, initargs=(str(flag),))
    async with logged() as kept, pool:
        flag.touch()
        assert not (await pool.roll()).ok
        failed = await until(kept, "roll-failed")
        assert vars(failed)["reason"] != ""


@pytest.mark.logs("killed-for-timeout")
async def test_a_worker_that_is_killed_for_a_timeout() -> None:
    async with logged() as kept, Gate() as gate, Pool(1, name="shop") as pool:
        await pool.submit(jobs.pid)  # else it might be killed while it imports
        options = pool.options(timeout=0.5, on_cancel="kill")
        job = options.submit(jobs.wait_at, gate.path, "here")
        with pytest.raises(JobTimeoutError):
            await job
        record = await until(kept, "killed-for-timeout")
        data = vars(record)
        assert record.getMessage() == (
            f"pool shop: worker {data['pid']} in slot 0 was killed, since job {job.id} "
            "(tests.helpers.jobs.wait_at) ran longer than its timeout of 0.5 s"
        )
        assert (data["job_id"], data["attempt"]) == (job.id, 1)
        assert data["limit"] == "timeout"
        assert data["function"] == "tests.helpers.jobs.wait_at"
        assert data["signal"] == "SIGKILL"
        assert "in wait_at" in (record.stack_info or "")
    assert "worker-crashed" not in ids(kept)
    ended = [vars(r)["pid"] for r in kept.records if "has ended" in r.getMessage()]
    assert data["pid"] not in ended, "one end is one record"


@pytest.mark.logs("killed-for-cancellation")
async def test_a_worker_that_is_killed_for_a_cancellation() -> None:
    async with logged() as kept, Gate() as gate, Pool(1, name="shop") as pool:
        job = pool.options(on_cancel="kill").submit(jobs.wait_at, gate.path, "here")
        await gate.visitor("here")
        job.cancel()
        record = await until(kept, "killed-for-cancellation")
        assert record.getMessage() == (
            f"pool shop: worker {vars(record)['pid']} in slot 0 was killed, since job {job.id} "
            "(tests.helpers.jobs.wait_at) was cancelled and did not end"
        )
        assert vars(record)["attempt"] == 1


async def test_an_initializer_that_raises_is_one_record_for_each_start() -> None:
    policy = RestartPolicy(initial_delay=0.001, max_failed_starts=2)
    initializer: Any = jobs.divide
    async with logged() as kept:
        pool = Pool(1, initializer=initializer, initargs=(1, 0), restart_policy=policy)
        with pytest.raises(PoolBrokenError):
            await pool.start()
    assert ids(kept) == ["worker-crashed", "worker-crashed", "pool-broken"] or ids(
        kept
    ) == ["worker-crashed", "pool-broken", "worker-crashed"]
    assert "return one / other" in (kept.records[0].exc_text or "")


@pytest.mark.logs("line", "error-line")
async def test_lines_that_a_worker_prints() -> None:
    async with logged() as kept, Pool(1, name="shop") as pool:
        await pool.submit(jobs.say, "out\n", "Fatal Python error: not really")
        pid = await pool.submit(jobs.pid)
    for name, level, stream in (
        ("line", logging.INFO, "stdout"),
        ("error-line", logging.WARNING, "stderr"),
    ):
        record = the(kept, name)
        data = vars(record)
        assert (record.name, record.levelno) == ("asyncpool.worker", level)
        assert (data["pool"], data["slot"], data["pid"]) == ("shop", 0, pid)
        assert data["stream"] == stream
    text = f"worker {pid} in slot 0: Fatal Python error: not really"
    assert the(kept, "error-line").getMessage() == text


@pytest.mark.logs("pool-broken", "pool-recovered")
async def test_a_pool_that_breaks_and_recovers(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    policy = RestartPolicy(initial_delay=0.01, max_delay=0.02, max_failed_starts=1)
    initializer: Any = jobs.fail_if_there
    pool = Pool(
        1, initializer=initializer, initargs=(str(flag),), restart_policy=policy
    )
    async with logged() as kept, pool:
        events = pool.events()
        flag.touch()
        [slot] = (await idle(pool)).slots
        assert slot.pid is not None
        os.kill(slot.pid, signal.SIGKILL)
        broken = await kept_broken(kept)
        assert broken.levelno == logging.ERROR
        flag.unlink()
        await next_of(events, Recovered)
        assert vars(the(kept, "pool-recovered"))["slot"] == 0


async def kept_broken(kept: Kept) -> logging.LogRecord:
    """Wait until the pool is broken; it may be told of again."""
    await kept.until(lambda _: "pool-broken" in ids(kept))
    return next(r for r in kept.records if vars(r)["message_id"] == "pool-broken")


# Servers.


@pytest.mark.logs("server-ready", "server-ended", "rolled", "worker-retiring")
async def test_the_life_of_a_server() -> None:
    async with logged() as kept, cluster_of(workers=1, name="app") as cluster:
        [address] = cluster.addresses
        assert (await cluster.reload()).ok
        await all_ready(cluster)
        await cluster.close()
    ready = the(kept, "server-ready")
    assert vars(ready)["pid"] == os.getpid()
    assert ready.getMessage().endswith(f" s: process {os.getpid()}, {address}")
    assert "cluster app: reloaded: 1 worker is new" in kept.messages
    assert kept.messages[-1] == (
        "cluster app: has ended: 0 connections finished meanwhile, 0 were cut off, 0 workers "
        "killed"
    )
    assert "pool-started" not in ids(kept)


@pytest.mark.logs("retire-called", "replacement-called")
async def test_workers_that_ask_for_their_end() -> None:
    async with logged() as kept, cluster_of(workers=1, name="app") as cluster:
        for word, name in (
            ("replace", "replacement-called"),
            ("retire", "retire-called"),
        ):
            events = cluster.events()
            async with Client(cluster) as client:
                await client.ask(f"{word} worn")
            record = await until(kept, name)
            await next_of(events, Exited)
            await all_ready(cluster)
            data = vars(record)
            assert (data["reason"], data["pool"]) == ("worn", "app")
            assert data["pid"] == record.process


@pytest.mark.logs("serve-cancelled")
async def test_a_serve_that_is_cancelled() -> None:
    cluster = cluster_of(serves.never_end, bind=(), workers=1, drain_timeout=0.05)
    async with logged() as kept, cluster:
        await cluster.close()
        assert vars(the(kept, "serve-cancelled"))["seconds"] == 0.05


@pytest.mark.logs("value-unreadable")
async def test_a_message_that_a_worker_cannot_read() -> None:
    cluster = cluster_of(serves.answer_messages, bind=(), workers=1)
    async with logged() as kept, cluster:
        await cluster.send(0, serves.Unreadable())
        record = await until(kept, "value-unreadable")
        assert "ValueError: invalid literal" in (record.exc_text or "")


@pytest.mark.logs("not-accepted")
async def test_a_worker_that_has_no_descriptors_left() -> None:
    cluster = cluster_of(workers=1, spread="shared")
    async with logged() as kept, cluster, Client(cluster) as client:
        assert await client.ask("hog") == "full"
        async with Client(cluster) as other:
            await until(kept, "not-accepted")
            assert await client.ask("release") == "empty"
            assert (await other.ask("who")).startswith("0 1 ")


# Beside a pool: callbacks, executors, clients.
@pytest.mark.logs("executor-failed")
async def test_the_thread_of_an_executor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    break_threads_of_executors(monkeypatch, LookupError("a bug"))
    with (
        ProcessPoolExecutor(1) as executor,
        pytest.raises(PoolClosedError, match="the executor failed: LookupError"),
    ):
        executor.submit(jobs.square, 2).result()


@pytest.mark.logs("on-crash-is-slow")
async def test_a_callback_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_grace_of_callbacks(monkeypatch, 0.01)
    over = asyncio.Event()

    async def on_crash(_: Crash) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with patience():
        async with Pool(1, on_crash=on_crash) as pool:
            with pytest.raises(WorkerCrashedError):
                await pool.options(max_attempts=1).submit(os._exit, 3)
        over.set()
        await asyncio.sleep(0)


class Accepted:
    """A worker with one connection, of which nothing is left."""

    def __init__(self) -> None:
        self.socket = self

    async def connections(self) -> Any:
        yield self

    def detach(self) -> Any:
        raise ConnectionResetError("the client is gone")

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.logs("connection-failed")
async def test_a_client_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "asyncpool")
    worker: Any = Accepted()
    connecting: Awaitable[None] = connect(worker, cast("Any", asyncio.Protocol))
    await connecting
    assert caplog.messages[-1] == "a connection failed: the client is gone"
