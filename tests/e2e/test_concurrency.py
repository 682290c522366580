"""Several async functions at once in each worker."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool, WorkerLimits
from asyncpool.errors import (
    JobTimeoutError,
    PoolClosedError,
    WorkerCrashedError,
    WorkerHungError,
)
from tests.helpers import jobs, several, streams
from tests.helpers.gate import Gate
from tests.helpers.inside import run_out
from tests.helpers.loops import BOTH_LOOPS, EACH_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, closing, started, until

pytestmark = BOTH_LOOPS

KINDS = pytest.mark.parametrize("kind", EACH_LOOP)


# How many run.


@KINDS
@pytest.mark.parametrize("concurrency", [2, 7])
async def test_so_many_run_at_once_and_never_more(kind: Any, concurrency: int) -> None:
    pool = Pool(1, concurrency=concurrency, worker_loop=kind)
    async with patience(), Gate() as gate, pool:
        found = [pool.submit(several.count_at, gate.path) for _ in range(20)]
        for nth in range(20):
            visitor = await gate.visitor(nth=nth + 1)
            if nth + 1 >= concurrency:
                running = [job for job in found if job.state == "running"]
                assert len(running) <= concurrency
                visitor = await gate.visitor(nth=nth + 2 - concurrency)
                visitor.release()
        for nth in range(20 - concurrency, 20):
            (await gate.visitor(nth=nth + 1)).release()
        counts = [count for count, _ in await asyncio.gather(*found)]
        assert max(counts) == concurrency


@pytest.mark.parametrize("memory", [1 << 30, 0])
async def test_a_large_result_gets_its_own_parts(memory: int) -> None:
    """Where they are sent, no other result of the same turn comes in between."""
    sizes = [size for n in range(100) for size in (n, 100_000 + n, n + 1, 200_000 + n)]
    pool = Pool(1, concurrency=8, max_shared_memory=memory)
    async with patience(), pool:
        arguments = [pool.submit(len, os.urandom(2_000_000 + n)) for n in range(6)]
        found = await asyncio.gather(*(pool.submit(several.grow, n) for n in sizes))
        assert await asyncio.gather(*arguments) == [2_000_000 + n for n in range(6)]
    assert [one if isinstance(one, int) else len(one) for one in found] == sizes


async def test_two_workers_have_lanes_each_and_share_a_burst() -> None:
    async with patience(), Gate() as gate, Pool(2, concurrency=3) as pool:
        await until(pool, lambda stats: stats.idle == 2)
        found = [pool.submit(several.at, gate.path) for _ in range(6)]
        visitors = [await gate.visitor(nth=nth + 1) for nth in range(6)]
        pids = [visitor.pid for visitor in visitors]
        assert sorted(pids.count(pid) for pid in set(pids)) == [3, 3]
        stats = pool.stats()
        assert sorted(len(slot.job_ids) for slot in stats.slots) == [3, 3]
        assert (stats.busy, stats.queued) == (2, 0)
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*found) == ["go"] * 6
        # A key has all lanes of its worker.
        view = pool.options(key="one")
        found = [view.submit(several.at, gate.path, "key") for _ in range(3)]
        visitors = [await gate.visitor("key", nth + 1) for nth in range(3)]
        assert len({visitor.pid for visitor in visitors}) == 1
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*found) == ["go"] * 3


async def test_as_many_as_there_may_be() -> None:
    async with patience(), Pool(1, concurrency=1024) as pool:
        found = [pool.submit(several.noop, number) for number in range(2048)]
        assert await asyncio.gather(*found) == list(range(2048))


# Crashes.


@KINDS
async def test_a_crash_costs_all_that_ran_an_attempt_and_the_error_names_them(
    kind: Any,
) -> None:
    crashes: list[Crash] = []
    pool = Pool(1, concurrency=4, worker_loop=kind, on_crash=crashes.append)
    async with patience(), Gate() as gate, pool:
        killer = pool.submit(several.die_at, gate.path)
        other = pool.submit(several.at, gate.path, "other")
        again = pool.options(max_attempts=2)
        twice = [
            again.submit(several.attempt_at, gate.path, f"twice {n}") for n in range(2)
        ]
        behind = pool.submit(several.noop, 5)
        for word in ("other", "twice 0", "twice 1"):
            await gate.visitor(word)
        (await gate.visitor("dying")).release()
        ran: list[Any] = [killer, other, *twice]
        for job in (killer, other):
            lost: Job[Any] = job
            with pytest.raises(WorkerCrashedError) as caught:
                await lost
            error = caught.value
            [crash] = error.crashes
            assert (error.kind, error.delivery) == ("crash", "started")
            assert (crash.job_id, crash.attempt) == (lost.id, 1)
            beside = [one.id for one in ran if one is not lost]
            assert list(crash.concurrent_jobs) == beside
            first, *_, last = beside
            assert f"beside which it ran jobs {first}, " in str(error)
            assert f" and {last}" in str(error)
        assert await asyncio.gather(*twice) == [2, 2]
        assert await behind == 5
        assert behind.attempt == 1
    assert [crash.concurrent_jobs for crash in crashes] == [
        tuple(job.id for job in ran[1:])
    ]
    stats = pool.stats()
    assert (stats.crashes, stats.takeovers) == (1, 2)


async def test_what_was_done_when_its_worker_died_is_not_lost() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=4) as pool:
        killer = pool.submit(several.die_at, gate.path)
        await gate.visitor("dying")
        done = [pool.submit(several.noop, number) for number in range(50)]
        (await gate.visitor("dying")).release()
        with pytest.raises(WorkerCrashedError):
            await killer
        found = await asyncio.gather(*done, return_exceptions=True)
        lost = [one for one in found if isinstance(one, WorkerCrashedError)]
        assert len(lost) <= 3, "no more than ran beside it"
        assert [one for one in found if isinstance(one, int)] == [
            number for number, one in enumerate(found) if isinstance(one, int)
        ]


@KINDS
async def test_what_ended_in_the_turn_of_a_crash_is_found_on_the_page(
    kind: Any,
) -> None:
    pool = Pool(1, concurrency=3, worker_loop=kind)
    async with patience(), Gate() as gate, pool:
        done = pool.submit(several.end_when_told, gate.path)
        killer = pool.submit(several.tell_and_die, gate.path)
        (await gate.visitor("ready")).release()
        dying = await gate.visitor("dying")
        beside = pool.submit(several.at, gate.path, "beside")
        await gate.visitor("beside")
        dying.release()
        assert await done == "done"
        with pytest.raises(WorkerCrashedError) as caught:
            await killer
        assert caught.value.crashes[0].concurrent_jobs == (beside.id,)
        with pytest.raises(WorkerCrashedError):
            await beside


# Cancellation and limits of time.


async def test_all_are_cancelled_at_once() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=5) as pool:
        pid = await pool.submit(jobs.pid)
        found = [pool.submit(streams.wait_for_ever, gate.path) for _ in range(5)]
        for nth in range(5):
            await gate.visitor("waiting", nth + 1)
        for job in found:
            job.cancel()
        for nth in range(5):
            await gate.visitor("left", nth + 1)
        assert await pool.submit(jobs.pid) == pid
        await assert_serves(pool)


async def test_who_does_not_end_takes_the_others_and_they_hear_whose_fault_it_was() -> (
    None
):
    async with patience(), Gate() as gate, Pool(1, concurrency=3) as pool:
        deaf = pool.options(cancel_grace=0.1).submit(several.refuse_to_end, gate.path)
        (await gate.visitor("deaf")).release()
        once = pool.submit(several.at, gate.path, "once")
        twice = pool.options(max_attempts=2).submit(
            several.attempt_at, gate.path, "twice"
        )
        await gate.visitor("once")
        await gate.visitor("twice")
        deaf.cancel()
        with pytest.raises(WorkerCrashedError) as caught:
            await once
        text = f"killed since job {deaf.id}, which it ran too, did not end"
        assert text in str(caught.value)
        assert await twice == 2
    assert pool.stats().crashes == 0, "it was planned"


async def test_one_that_waits_its_turn_is_spared_by_the_kill() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        warm = [pool.submit(several.noop, n) for n in range(50)]
        await asyncio.gather(*warm)
        view = pool.options(on_cancel="kill")
        found = [view.submit(several.at, gate.path, "running") for _ in range(2)]
        behind = [pool.submit(several.noop, n) for n in range(5)]
        await gate.visitor("running", 2)
        found[0].cancel()
        assert await asyncio.gather(*behind) == list(range(5))
        assert {job.attempt for job in behind} == {1}
        with pytest.raises(WorkerCrashedError):
            await found[1]


@KINDS
async def test_all_have_a_timeout_and_each_shows_its_own_stack(kind: Any) -> None:
    pool = Pool(1, concurrency=5, worker_loop=kind)
    async with patience(), Gate() as gate, pool:
        view = pool.options(timeout=3600.0)
        names = ("wait_for_ever", "at") * 2
        functions: list[Any] = [streams.wait_for_ever, several.at] * 2
        found = [view.submit(function, gate.path) for function in functions]
        for word in ("waiting", ""):
            await gate.visitor(word, nth=2)
        # When the loop gets to this one, the others wait; until then, a stack may show one that ran.
        await pool.submit(several.noop, 0)
        for job in found:
            run_out(pool, job)
        errors: Any = await asyncio.gather(*found, return_exceptions=True)
        for error, name in zip(errors, names, strict=True):
            assert isinstance(error, JobTimeoutError)
            stack = f"{error.stack}\n"
            assert [it for it in set(names) if f"in {it}\n" in stack] == [name]
        assert pool.stats().crashes == 0


async def test_a_blocked_loop_is_shown_to_whose_time_is_over() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        view = pool.options(timeout=3600.0, cancel_grace=0.1)
        job = view.submit(several.at, gate.path, "waiting")
        await gate.visitor("waiting")
        blocker = pool.submit(several.block, gate.path)
        await gate.visitor("blocking")
        run_out(pool, job)
        with pytest.raises(JobTimeoutError) as caught:
            await job
        assert "in at" in (caught.value.stack or "")
        assert "in block" in (caught.value.stack or "")
        with pytest.raises(WorkerCrashedError, match=f"since job {job.id}, which it"):
            await blocker


async def test_one_is_silent_and_the_error_shows_where() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        other = pool.options(max_attempts=2).submit(
            several.attempt_at, gate.path, "other"
        )
        await gate.visitor("other")
        job = pool.options(heartbeat_timeout=0.3).submit(several.silent, gate.path)
        with pytest.raises(WorkerHungError) as caught:
            await job
        assert f"no heartbeat of job {job.id} for 0.3 s" in str(caught.value)
        assert "in silent" in caught.value.stack
        assert caught.value.crashes[0].concurrent_jobs == (other.id,)
        assert await other == 2


async def test_each_has_its_own_progress() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=3) as pool:
        words = ["red", "green", "blue"]
        found = [pool.submit(several.beat_at, gate.path, word) for word in words]
        visitors = [await gate.visitor(word) for word in words]

        async def beats(job: Any) -> list[Any]:
            return [details async for details in job.progress()]

        readers = [asyncio.ensure_future(beats(job)) for job in found]
        first = [await anext(job.progress()) for job in found]
        assert first == [(word, 1) for word in words]
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*found) == words
        seen = await asyncio.gather(*readers)
        assert [one[-1] for one in seen] == [(word, 2) for word in words]


# What each one knows.


@KINDS
async def test_each_knows_itself_and_has_its_own_variables(kind: Any) -> None:
    pool = Pool(
        1, concurrency=4, worker_loop=kind, propagate=["tests.helpers.several:colour"]
    )
    async with patience(), Gate() as gate, pool:
        found = []
        for name in ("red", "green", "blue", "grey"):
            several.colour.set(name)
            found.append((name, pool.submit(several.who, gate.path)))
        for nth in range(4):
            (await gate.visitor(nth=nth + 1)).release()
        for name, job in found:
            assert await job == (job.id, 1, f"{name} {job.id}")


async def test_records_of_loggers_say_whose_they_are(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        with caplog.at_level(logging.WARNING):
            found = [
                pool.submit(several.log_at, gate.path, f"text {n}") for n in (0, 1)
            ]
            for nth in (1, 2):
                (await gate.visitor(nth=nth)).release()
            await asyncio.gather(*found)
            await assert_serves(pool)
    records = [one for one in caplog.records if one.name == "asyncpool.job"]
    said = {one.getMessage(): vars(one)["job_id"] for one in records}
    assert said == {f"text {n}": found[n].id for n in (0, 1)}


async def test_one_that_blocks_the_others_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        with caplog.at_level(logging.WARNING):
            other = pool.submit(several.at, gate.path, "other")
            visitor = await gate.visitor("other")
            job = pool.submit(streams.block_once, 0.15)
            assert await job == "done"
            plain = pool.submit(time.sleep, 0.15)
            await plain
            visitor.release()
            await other
            await assert_serves(pool)
    texts = [one.getMessage() for one in caplog.records if one.name == "asyncpool.job"]
    ids = [vars(one)["job_id"] for one in caplog.records if one.name == "asyncpool.job"]
    assert ids == [job.id, plain.id]
    assert "in block_once" in texts[0]
    assert texts[1].endswith("; other jobs there: 1")


# What else a pool does.


@KINDS
async def test_plain_functions_have_their_turn_in_between(kind: Any) -> None:
    async with patience(), Pool(1, concurrency=3, worker_loop=kind) as pool:
        found: list[Any] = []
        for number in range(60):
            function = several.noop if number % 3 else jobs.square
            found.append(pool.submit(function, number))
        assert await asyncio.gather(*found) == [
            number if number % 3 else number * number for number in range(60)
        ]


@KINDS
async def test_one_is_cancelled_while_others_go_on(kind: Any) -> None:
    pool = Pool(1, concurrency=3, worker_loop=kind)
    async with patience(), Gate() as gate, pool:
        other = pool.submit(several.at, gate.path, "other")
        visitor = await gate.visitor("other")
        job = pool.submit(streams.wait_for_ever, gate.path)
        await gate.visitor("waiting")
        job.cancel()
        await gate.visitor("left")
        assert await pool.submit(several.noop, 3) == 3
        plain = pool.submit(jobs.wait_at, gate.path, "plain")
        await gate.visitor("plain")
        plain.cancel()
        visitor.release("fine")
        assert await other == "fine"
        await assert_serves(pool)
    assert pool.stats().crashes == 0


@pytest.mark.parametrize(("finish", "most"), [("all", 4), ("running", 2), ("none", 0)])
async def test_a_close_finishes_what_it_is_told_to(finish: Any, most: int) -> None:
    async with patience(), Gate() as gate:
        pool = await started(1, concurrency=2)
        found = [pool.submit(several.at, gate.path) for _ in range(4)]
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2)]
        close = await closing(pool, finish=finish)
        for job in found[most:]:
            with pytest.raises(PoolClosedError):
                await job
        for nth in range(most):
            (await gate.visitor(nth=nth + 1)).release()
        assert await asyncio.gather(*found[:most]) == ["go"] * most
        assert (await close).finished == most
        for visitor in visitors:
            await visitor.gone()


async def test_items_of_a_map_run_at_once() -> None:
    async with patience(), Gate() as gate, Pool(2, concurrency=16) as pool:
        items = [(gate.path, number) for number in range(32)]
        found = asyncio.ensure_future(_all(pool.map(several.double_at, items)))
        visitors = [await gate.visitor(f"item {number}") for number in range(32)]
        for visitor in visitors[::-1]:
            visitor.release()
        assert await found == [2 * number for number in range(32)]


async def _all(items: Any) -> list[Any]:
    return [item async for item in items]


async def test_maps_await_each_item() -> None:
    async with patience(), Pool(2, concurrency=3) as pool:
        for chunk in (1, 7, None):
            found = await pool.map(streams.double, range(300), chunksize=chunk)
            assert found == [n * 2 for n in range(300)]
            found = await pool.map(jobs.square, range(50), chunksize=chunk)
            assert found == [n * n for n in range(50)]
            outcomes = await pool.map(
                streams.perhaps_fail, range(30), chunksize=chunk
            ).outcomes()
            assert [one.index for one in outcomes if not one.ok] == [7, 17, 27]


async def test_streams_run_side_by_side() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        first = aiter(pool.stream(several.stream_at, gate.path, "first", 3))
        second = aiter(pool.stream(several.stream_at, gate.path, "second", 3))
        found = [[await anext(one) for _ in range(3)] for one in (first, second)]
        assert found == [[(name, n) for n in range(3)] for name in ("first", "second")]
        for name in ("first", "second"):
            (await gate.visitor(name)).release()
        assert await _all(first) == []
        assert await _all(second) == []
        # A plain one that waits for its caller holds up nobody.
        plain = aiter(pool.options(prefetch=2).stream(several.plain_stream, 40))
        assert await anext(plain) == 0
        assert await pool.submit(several.noop, 4) == 4
        assert await pool.submit(jobs.square, 4) == 16
        assert await _all(plain) == list(range(1, 40))
        left = pool.stream(several.stream_at, gate.path, "left", 1000)
        assert await anext(left) == ("left", 0)
        await left.aclose()
        await assert_serves(pool)


async def test_one_that_retires_its_worker_lets_the_others_finish() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        other = pool.submit(several.at, gate.path, "other")
        visitor = await gate.visitor("other")
        job = pool.submit(several.retire_at, gate.path)
        retired = await gate.visitor("retired")
        pid = await pool.submit(jobs.pid)
        assert pid != visitor.pid
        retired.release()
        visitor.release()
        assert (await other, await job) == ("go", visitor.pid)
        # So does a roll.
        found = [pool.submit(several.at, gate.path) for _ in range(2)]
        visitors = [await gate.visitor(nth=nth) for nth in (1, 2)]
        roll = asyncio.ensure_future(pool.roll())
        assert await pool.submit(jobs.pid) != visitors[0].pid
        for visitor in visitors:
            visitor.release()
        assert await asyncio.gather(*found) == ["go"] * 2
        assert (await roll).replaced == 1
    assert pool.stats().crashes == 0


async def test_workers_are_replaced_after_so_many_jobs() -> None:
    limits = WorkerLimits(max_jobs=20)
    async with patience(), Pool(1, concurrency=4, worker_limits=limits) as pool:
        found = [pool.submit(several.noop, n) for n in range(200)]
        assert await asyncio.gather(*found) == list(range(200))
        stats = await until(pool, lambda stats: stats.spawned > 1)
    assert stats.crashes == 0


@KINDS
async def test_a_copy_of_the_worker_does_nothing_for_the_others(kind: Any) -> None:
    pool = Pool(1, concurrency=3, worker_loop=kind)
    async with patience(), Gate() as gate, pool:
        other = pool.submit(several.at, gate.path, "other")
        visitor = await gate.visitor("other")
        job = pool.submit(several.fork_and_return, gate.path)
        (await gate.visitor("forked")).release()
        assert await job == visitor.pid
        # It ends where it awaits something.
        assert await pool.submit(several.fork_and_go_on, gate.path) == 0
        assert gate.visits("copy") == 0
        visitor.release()
        assert await other == "go"
        await assert_serves(pool)
    assert pool.stats().crashes == 0
