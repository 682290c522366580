"""A client of a shared pool has what a local pool has: jobs, streams, sessions, leases, events."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from asyncpool import Job, LeaseKeeper, Map, Pool, ProcessPoolExecutor
from asyncpool.enums import JobOutcome, RunState
from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    JobTimeoutError,
    NodeLostError,
    NoWorkerError,
    PoolClosedError,
    PoolFullError,
    ProtocolError,
    ResizeError,
    WorkerCrashedError,
    WorkerHungError,
)
from asyncpool.events import Exited, JobEnded, JobQueued, JobStarted, Ready
from asyncpool.prometheus import register
from asyncpool.sharedpool import PoolServer, connect
from tests.helpers import beats, data_jobs, jobs, streams
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import check_for_stalls
from tests.helpers.lapses import begun
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.nodes import nodes_pool
from tests.helpers.patience import patience
from tests.helpers.pools import broken_by, collect, next_of
from tests.helpers.shared_pools import pool_and_client, served, server, shared
from tests.helpers.signing import Item, numbers_in, signing

pytestmark = BOTH_LOOPS


def by_its_name(member: enum.Enum, _protocol: int) -> tuple[Any, ...]:
    """Pickle a member of an enum as Python 3.11.2 does."""
    return getattr, (type(member), member.name)


async def test_jobs_of_a_client_run_in_the_shared_workers(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path) as pool:
        squares = [pool.submit(jobs.square, number) for number in range(3000)]
        assert await asyncio.gather(*squares) == [n * n for n in range(3000)]
        with pytest.raises(LookupError, match="of mine"):
            await pool.submit(jobs.throw, LookupError("of mine"))
        assert await pool.options(key="a", priority=-1).submit(lambda: 5) == 5
        assert await pool.submit(len, bytes(3 << 20)) == 3 << 20
        large = await pool.submit(bytearray, 3 << 20)
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
            await pool.submit(os._exit, 3)
        visitor.release()
        await running


async def test_an_attempt_that_fails_costs_one_and_the_client_decides_about_the_next(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        with pytest.raises(WorkerCrashedError) as crashed:
            await pool.submit(signal.raise_signal, signal.SIGKILL)
        assert crashed.value.signal == "SIGKILL"
        again = pool.options(max_attempts=2).submit(
            jobs.wait_in_every_attempt, gate.path
        )
        (await gate.visitor("attempt 1")).release("die")
        (await gate.visitor("attempt 2")).release()
        assert await again == "go"
        assert again.attempt == 2
        view = pool.options(max_attempts=3, retry_on=[LookupError])
        assert await view.submit(jobs.fail_before_attempt_3, 1) == (1, 3)
        view = pool.options(timeout=0.05, max_attempts=2, retry_on=[JobTimeoutError])
        late = view.submit(jobs.wait_at, gate.path)
        with pytest.raises(JobTimeoutError, match=r"timeout of 0\.05 s"):
            await late
        assert gate.visits() == late.attempt == 2


async def test_time_limits_and_cancelling_hold_through_the_agent(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        job = pool.options(cancel_grace=0).submit(jobs.wait_at, gate.path)
        with pytest.raises(JobTimeoutError, match="queue_timeout"):
            await pool.options(queue_timeout=0.05).submit(jobs.square, 1)
        await gate.visitor()
        pool.submit(jobs.square, 2).cancel()
        job.cancel()
        assert await pool.submit(jobs.square, 3) == 9
        deadline = asyncio.get_running_loop().time() + 0.05
        with pytest.raises(JobTimeoutError, match="deadline"):
            await pool.options(deadline=deadline).submit(jobs.wait_at, gate.path)


@pytest.mark.logs("node-lost")
async def test_a_killed_server_costs_what_had_begun_and_nothing_hangs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "pool.sock"
    with server(path) as process, contextlib.suppress(PoolClosedError):
        async with patience(), Gate() as gate, connect(f"unix:{path}") as pool:
            began = pool.submit(jobs.wait_at, gate.path)
            await gate.visitor()
            process.kill()
            with pytest.raises(NodeLostError) as lost:
                await began
            assert lost.value.delivery == "started"
            assert lost.value.silence >= 0
            assert str(process.pid) in lost.value.node
            with pytest.raises(PoolClosedError):
                pool.submit(jobs.square, 1)
            with pytest.raises(PoolClosedError):
                await pool.stats()
            name, registry = {"pool": pool.name}, CollectorRegistry()
            register(pool, registry)
            assert registry.get_sample_value("asyncpool_nodes_lost_total", name) == 1
            [record] = [vars(it) for it in caplog.records if "node" in vars(it)]
            assert record["node"] == lost.value.node
            assert (record["jobs"], record["begun"]) == (1, 1)
            assert "it had 1 jobs (1 x tests.helpers.jobs.wait_at), 1 of" in caplog.text
    with server(path):  # the old file is replaced
        async with patience(), connect(f"unix:{path}") as pool:
            assert await pool.submit(len, "abc") == 3


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


async def test_a_data_only_pool_stays_data_only_and_refuses_others_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pool.sock"
    names = ["tests.helpers.jobs:*", "tests.helpers.data_jobs:*"]
    data: dict[str, Any] = {"codec": "msgspec", "functions": names}
    for name in ("functions", "errors"):
        wrong: dict[str, Any] = {name: [ValueError]}
        with pytest.raises(ValueError, match=f"{name} is for pools with a codec"):
            connect(f"unix:{path}", **wrong)
    async with patience(), Pool(1, **data) as pool, PoolServer(pool, path):
        with pytest.raises(ProtocolError, match="codec msgspec, and the client pickle"):
            await connect(f"unix:{path}").start()
        async with connect(f"unix:{path}", **data) as client:
            squares = [n * n for n in range(20)]
            assert await client.map(jobs.square, range(20)) == squares
            assert await client.broadcast(jobs.square, 2) == {0: 4}
            with pytest.raises(JobNotPicklableError):
                await client.submit(jobs.take, object())
            with pytest.raises(JobNotPicklableError, match="lambda"):
                await client.submit(lambda: 1)
            async with client.worker() as mine:
                await mine.submit(jobs.fill_state)
                assert await mine.submit(jobs.count_state) == 1
            told = "cannot be read, and its worker is at fault: it sent "
            with pytest.raises(JobNotPicklableError, match=f"{told}an item"):
                await anext(client.stream(data_jobs.meet_in_a_stream))
            for payload in (b"\x01\x00", bytes(300_000)):
                with pytest.raises(JobNotPicklableError, match=f"{told}the job's"):
                    await client.submit(data_jobs.send_instead, payload)
        monkeypatch.setattr("asyncpool.sharedpool._remote_pool.__version__", "0.0")
        with pytest.raises(ProtocolError, match=r"asyncpool .*, and the client 0\.0"):
            await connect(f"unix:{path}", codec="msgspec").start()


async def test_a_stream_comes_item_by_item_and_waits_for_its_caller(
    tmp_path: Path,
) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        assert [n async for n in pool.stream(streams.numbers, 500)] == list(range(500))
        assert [n async for n in pool.stream(streams.anumbers, 5)] == list(range(5))
        got: list[int] = []
        with pytest.raises(LookupError):
            await collect(pool.stream(streams.values, [1, 2], LookupError()), got)
        assert got == [1, 2]
        [large] = [it async for it in pool.stream(streams.values, [bytes(3 << 20)])]
        assert len(large) == 3 << 20
        stream = pool.options(prefetch=2).stream(streams.numbers, 1000)
        await stream.started()
        assert stream.job is not None
        assert not stream.job.done()  # nobody reads it, so it waits
        await stream.aclose()
        assert await pool.submit(jobs.square, 3) == 9  # the worker is free again


async def test_a_broadcast_reaches_every_worker_and_later_ones(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path) as pool:
        pids = await pool.broadcast(jobs.configure, "one")
        assert sorted(pids) == [0, 1]
        assert len(set(pids.values())) == 2
        await pool.kill(0)
        await pool.roll()
        # The roll leaves alone what has just taken the killed one's place, and may still start.
        while (await pool.stats()).idle < 2:
            pass
        histories = await pool.broadcast(jobs.history)
        assert len(histories) == 2
        assert {tuple(values) for _, values in histories.values()} == {("one",)}
        with pytest.raises(BroadcastError, match=r"jobs\.throw") as failed:
            await pool.broadcast(jobs.throw, LookupError("of mine"))
        assert [str(it) for it in failed.value.errors.values()] == ["of mine"] * 2
        with pytest.raises(ValueError, match="it has no key"):
            await pool.options(key=1).broadcast(jobs.pid)
        with pytest.raises(TypeError, match="broadcast"):
            await pool.broadcast(5)  # type: ignore[call-overload]


async def test_a_broadcast_that_is_cancelled_is_taken_back(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        task = asyncio.create_task(pool.broadcast(jobs.configure, "no", gate.path))
        visitor = await gate.visitor("configure")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await visitor.gone()
        assert await pool.submit(jobs.square, 4) == 16


async def test_a_session_has_a_worker_to_itself(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=2) as pool:
        async with pool.worker(fresh=False) as mine:
            assert await mine.submit(jobs.pid) == mine.pid
            await mine.submit(jobs.fill_state)
            counts = [mine.submit(jobs.count_state) for _ in range(20)]
            assert await asyncio.gather(*counts) == list(range(1, 21))
            others = {await pool.submit(jobs.pid) for _ in range(5)}
            assert mine.pid not in others
            numbers = [n async for n in mine.stream(streams.numbers, 5)]
            assert numbers == list(range(5))
            async with pool.worker():
                with pytest.raises(TimeoutError, match="no worker"):
                    await pool.worker(timeout=0.01).__aenter__()
        stats = await pool.stats()
        assert stats.workers == 2


async def test_heartbeats_come_through_and_the_next_attempt_knows_the_last(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        view = pool.options(max_attempts=2, retry_on=[LookupError])
        job: Job[Any] = view.submit(beats.count_at, gate.path, 5)
        progress = job.progress()
        assert await anext(progress) == 5
        (await gate.visitor("beat 5")).release("fail")
        second = await gate.visitor("beat 5", nth=2)
        assert job.attempt == 2
        text = await job.stack()
        assert "count_at" in text
        assert "count_at" in (await pool.stacks())[0]
        second.release("kill")
        with pytest.raises(WorkerCrashedError):
            await job
        assert await job.stack() == ""
        hung = pool.options(heartbeat_timeout=0.05).submit(jobs.wait_at, gate.path)
        with pytest.raises(WorkerHungError):
            await hung


async def test_events_of_the_pool_and_of_the_clients_own_jobs(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=1) as pool:
        heard: list[Any] = []
        pool.add_listener(heard.append)
        events, of_jobs = pool.events(), pool.job_events()
        await pool.submit(jobs.square, 2)
        own = [await anext(of_jobs) for _ in range(3)]
        assert [type(event) for event in own] == [JobQueued, JobStarted, JobEnded]
        await pool.kill(0)
        assert (await next_of(events, Exited)).slot == 0
        await next_of(events, Ready)
        assert any(isinstance(event, Ready) for event in heard)
        assert pool.remove_listener(heard.append) == 1


async def test_orders_are_for_the_whole_pool(tmp_path: Path) -> None:
    async with patience(), shared(tmp_path, workers=2) as pool:
        pid = await pool.submit(jobs.pid)
        assert (await pool.roll()).ok
        assert await pool.submit(jobs.pid) != pid
        # The roll begins with the worker that is ready first, and may leave any slot empty.
        slot = next(slot for slot in (await pool.stats()).slots if slot.pid is not None)
        await pool.retire(slot.slot)
        with pytest.raises(NoWorkerError):
            await pool.kill(7)
        with pytest.raises(ValueError, match="slot"):
            await pool.kill(-1)
        await pool.resize((1, 3))
        for wrong in (0, 1_000_000_000):
            with pytest.raises(ValueError, match="workers"):
                await pool.resize(wrong)
        profile = await pool.profile(0.05)
        assert profile.seconds > 0.049  # timers of asyncio may be early by nanoseconds
        with pytest.raises(ValueError, match="rate"):
            await pool.profile(1, rate=0)


async def test_a_resize_tells_of_a_worker_that_does_not_start(tmp_path: Path) -> None:
    poison = tmp_path / "poison"
    async with patience(), shared(tmp_path, workers=1, **broken_by(poison)) as pool:
        poison.touch()
        with pytest.raises(ResizeError, match=f"LookupError: {poison}") as caught:
            await pool.resize(2)
        assert (caught.value.crash.kind, caught.value.crash.slot) == ("failed start", 1)


class Outside:
    """Answers beats."""

    def __init__(self) -> None:
        self.down = False

    async def extend(self, lease: str) -> None:
        del lease
        if self.down:
            raise OSError("down")


async def test_figures_tell_which_client_floods_the_pool(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=1) as (pool, greedy),
        connect(f"unix:{tmp_path / 'pool.sock'}") as modest,
    ):
        register(pool, registry)
        flood = [greedy.submit(jobs.wait_at, gate.path, str(n)) for n in range(10)]
        visitor = await gate.visitor("0")
        one, two = (await modest.stats()).clients
        assert (one.name, one.jobs + one.waiting, one.ended) == (
            f"{os.getpid()}/1",
            10,
            0,
        )
        assert (two.pid, two.jobs + two.waiting, two.ended) == (os.getpid(), 0, 0)
        labels = {"pool": pool.name, "client": one.name}
        found = registry.get_sample_value("asyncpool_client_jobs_waiting", labels)
        assert found == one.waiting > 5
        for job in flood[1:]:
            job.cancel()
        visitor.release()
        await flood[0]
        while pool.stats().clients[0].ended < 10:
            await modest.submit(int)
    assert not pool.stats().clients


async def test_a_lease_is_kept_until_no_worker_has_its_job(tmp_path: Path) -> None:
    outside = Outside()
    keeper = LeaseKeeper(outside.extend, max_rate=100.0, interval=0.1, ttl=60.0)
    hasty = LeaseKeeper(outside.extend, max_rate=100.0, interval=0.1, ttl=1.0)
    async with (
        patience(),
        Gate() as gate,
        keeper,
        hasty,
        shared(tmp_path, workers=1) as pool,
    ):
        view = pool.options(lease=(keeper, "mine"))
        job = view.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        with pytest.raises(ValueError, match="mine"):
            view.submit(jobs.square, 1)
        visitor.release()
        assert await job == "go"
        assert keeper.stats().leases == 0
        # A job that is cancelled has its lease until its worker is rid of it.
        cancelled = pool.options(lease=(keeper, "mine"), on_cancel="wait").submit(
            jobs.wait_at, gate.path, "stays"
        )
        visitor = await gate.visitor("stays")
        cancelled.cancel()
        await pool.stats()  # the agent has heard of it
        assert keeper.stats().leases == 1
        visitor.release()
        await pool.submit(jobs.square, 1)
        assert keeper.stats().leases == 0
        # And the worker ends with a lease that lapses.
        view = pool.options(lease=(hasty, "mine"))
        lapsing, visitor = await begun(
            gate, lambda word: view.submit(jobs.wait_at, gate.path, word)
        )
        outside.down = True
        with pytest.raises(asyncio.CancelledError, match="has lapsed"):
            await lapsing
        await visitor.gone()


async def test_a_client_bounds_its_queue_and_can_be_closed_in_steps(
    tmp_path: Path,
) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1):
        pool = connect(f"unix:{tmp_path}/pool.sock", max_queued=1)
        await pool.start()
        running = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        for _ in range(1023 + 1):  # as many as the agent takes, and one that waits
            pool.submit(jobs.square, 2).add_done_callback(_retrieve)
        with pytest.raises(PoolFullError):
            pool.submit(jobs.square, 2)
        closing = asyncio.create_task(pool.close(finish="running"))
        await asyncio.sleep(0)
        with pytest.raises(PoolClosedError):
            pool.submit(jobs.square, 1)
        visitor.release()
        summary = await closing
        assert await running == "go"
        # The agent may have given its pool one job beside the one that ran, and that counts.
        assert 1 <= summary.finished <= 2
        assert summary.finished + summary.failed == 1025
        with pytest.raises(RuntimeError, match="only once"):
            await pool.start()


async def test_a_close_with_a_timeout_fails_what_is_left(tmp_path: Path) -> None:
    async with patience(), Gate() as gate, shared(tmp_path, workers=1) as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        assert (await pool.close(timeout=0.01)).failed == 1
        with pytest.raises(PoolClosedError):
            await job
        await visitor.gone()  # the agent has made it end


def _retrieve(job: asyncio.Future[Any]) -> None:
    _ = job.cancelled() or job.exception()


async def test_what_a_broadcast_cannot_pickle_names_its_job(faced: Faced) -> None:
    async with patience(), faced() as (caller, _):
        await caller.submit(jobs.pid)
        with pytest.raises(BroadcastError) as caught:
            await caller.broadcast(jobs.make_lock)
        [error] = caught.value.errors.values()
        assert isinstance(error, JobNotPicklableError)
        assert (error.job_id, error.attempt) == (2, 1)
        assert error.function == "tests.helpers.jobs.make_lock"
        assert error.__notes__ == [
            "It is the error of job 2 (tests.helpers.jobs.make_lock)."
        ]


async def test_an_item_that_is_not_several_arguments_costs_itself_alone(
    faced: Faced,
) -> None:
    async with patience(), faced() as (caller, _):
        items: list[Any] = [(1, 2), 3, (2, 3)]
        for timeout in (None, 0.05):  # so short a one lets each item travel alone
            view = caller.options(timeout=timeout)
            found = [one async for one in view.starmap(pow, items).outcomes()]
            assert [type(one.error) for one in found] == [
                type(None),
                TypeError,
                type(None),
            ]
            with pytest.raises(
                TypeError, match="'int' object is not iterable"
            ) as caught:
                await view.starmap(pow, items)
            assert caught.value.__notes__ == ["It is the error of item 1 of a map."]


# Maps: items travel together, and each has its own outcome all the same.


async def test_items_travel_together_and_come_in_order(tmp_path: Path) -> None:
    def executed(path: Path) -> list[int]:
        with ProcessPoolExecutor(pool=connect(f"unix:{path}")) as executor:
            return [*executor.map(jobs.square, range(300), chunksize=100)]

    count = 20_000
    squares = [n * n for n in range(count)]
    async with patience(), shared(tmp_path, workers=2) as pool:
        assert await pool.map(jobs.square, range(count)) == squares
        assert (await pool.stats()).completed < count / 10, "many items make a job"
        sums = pool.starmap(pow, [(n, 2) for n in range(300)], chunksize=100)
        assert await sums == squares[:300]
        first = (await pool.stats()).completed
        some = await asyncio.to_thread(executed, tmp_path / "pool.sock")
        assert some == squares[:300]
        # One more if the first 256 items take longer to be drawn than one turn may.
        assert (await pool.stats()).completed - first in {3, 4}


async def test_slow_items_travel_alone_until_they_are_short_again(
    tmp_path: Path,
) -> None:
    items: list[Item] = [("sleep", 0.003)] * 60 + [("return", 1)] * 20_000
    async with patience(), shared(tmp_path, workers=1) as pool:
        found = await pool.map(jobs.choose, items)
        assert found == [None] * 60 + [1] * 20_000
        ended = {one.via: one for one in (await pool.stats()).functions}
        assert 30 <= ended["submit"].jobs[JobOutcome.OK] < 10_000
        assert ended["map"].jobs[JobOutcome.OK] < 2000


async def test_each_function_has_its_own_figures_at_the_agent(tmp_path: Path) -> None:
    """All chunks are calls of one function, which stands for that of the map."""
    async with patience(), pool_and_client(tmp_path, workers=1) as (pool, client):
        for function in (jobs.square, jobs.pid_for, jobs.square):
            await client.map(function, range(10), chunksize=5, buffersize=20)
        ended = {
            (one.function, one.via)
            for one in pool.stats().functions
            if any(one.jobs.values())
        }
        assert ended == {
            ("tests.helpers.jobs.square", "map"),
            ("tests.helpers.jobs.pid_for", "map"),
        }


async def test_only_the_client_unpickles_what_the_dead_have_noted(
    tmp_path: Path,
) -> None:
    """Both are in this process, so what the agent unpickles would be loaded twice."""
    loads = jobs.LOADS
    items: list[Item] = [
        ("return", jobs.Loaded()),
        ("raise", LookupError("kept")),
        ("die", None),
    ]
    async with patience(), shared(tmp_path, workers=1) as pool:
        loads.clear()
        choices = pool.map(jobs.choose, items, chunksize=3, buffersize=12)
        found = await choices.outcomes()
    assert loads == [os.getpid()]
    assert found[0].ok
    assert repr(found[1].error) == "LookupError('kept')"
    assert type(found[2].error) is WorkerCrashedError


async def test_items_behind_one_that_takes_long_go_in_other_jobs(
    tmp_path: Path,
) -> None:
    async with (
        patience(),
        Gate() as gate,
        pool_and_client(tmp_path, workers=2) as (pool, client),
    ):
        items: list[Item] = [("pid", None), ("wait", gate.path), *[("pid", None)] * 6]
        choices = client.map(jobs.choose, items, chunksize=8, buffersize=64)
        running = asyncio.ensure_future(choices.outcomes())
        visitor = await gate.visitor()
        for _ in range(2):
            check_for_stalls(pool)
        visitor.release()
        assert [one.result() for one in await running][1] == "go"
        assert pool.stats().completed > 1


async def test_each_item_has_a_worker_of_its_own_where_each_job_has(
    tmp_path: Path,
) -> None:
    async with patience(), shared(tmp_path, workers=2, fresh=True) as pool:
        with pytest.raises(ValueError, match="each item has a worker of its own"):
            await pool.map(jobs.pid_for, range(4), chunksize=2)
        assert len(set(await pool.map(jobs.pid_for, range(4)))) == 4


async def test_each_item_is_accounted_for_when_the_agent_is_killed(
    tmp_path: Path,
) -> None:
    path, count = tmp_path / "signed", 4000
    fates, some = Counter[str](), asyncio.Event()

    async def take(choices: Map[Any]) -> None:
        async for one in choices.outcomes():
            if one.ok:
                fates["done"] += 1
            elif isinstance(one.error, NodeLostError):
                fates[one.error.delivery.value] += 1
            else:
                assert isinstance(one.error, PoolClosedError)
                fates["too late"] += 1
            if one.index == 100:
                some.set()

    sharing = served(tmp_path, workers=2)
    async with patience(2), Gate() as gate, sharing as (process, pool):
        items = signing(path, count)
        items[230] = ("wait", gate.path)
        choices = pool.map(jobs.choose, items, chunksize=50)
        taken = asyncio.ensure_future(take(choices))
        await gate.visitor()
        await some.wait()
        process.kill()
        await taken
    assert fates.total() == count
    assert fates["done"] > 100
    may_have = fates["started"] + fates["unknown"]
    assert may_have
    began = numbers_in(path)
    assert set(began.values()) == {1}, "nothing twice"
    # The one at the gate has left no line.
    assert fates["done"] <= len(began) < fates["done"] + may_have


async def test_the_items_of_a_lost_node_go_to_another_one(tmp_path: Path) -> None:
    path, count = tmp_path / "signed", 2000
    async with patience(), Pool(1) as one, Pool(1) as two, nodes_pool(one, two) as pool:
        view = pool.options(max_attempts=2)
        running = view.map(jobs.choose, signing(path, count), chunksize=20)
        found: list[int] = []
        async for number in running:
            found.append(number)
            if len(found) == 100:
                pool.networks[0].parted = True
    assert found == list(range(count))
    assert max(numbers_in(path).values()) <= 2
    assert len(numbers_in(path)) == count
