"""Short jobs that wait inside a worker: what they gain, and what it must not cost."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import select
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Crash, Job, Pool
from asyncpool.enums import CrashKind
from asyncpool.errors import PoolClosedError, PoolFullError, WorkerCrashedError
from asyncpool.events import Crashed, Event, JobEvent, JobQueued, TakenOver
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    LEAST_COST,
    MAX_FREE_RETURNS,
    cost_of,
    in_hand,
    look_for_stalls_never,
    return_no_more,
    spy_on_sends,
)
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import closing, idle, stop, until

pytestmark = ONE_LOOP


async def learn(
    pool: Pool, function: Callable[..., Any], *args: Any, under: float = 2 * LEAST_COST
) -> None:
    """Let the pool find out that a call of *function* takes so few microseconds."""
    await idle(pool)
    while cost_of(pool, function) >= under:
        await pool.submit(function, *args)


async def test_short_jobs_travel_ahead_and_unknown_ones_do_not() -> None:
    async with patience(), Pool(1) as pool:
        unknown = [pool.submit(jobs.square, n) for n in range(5)]
        assert in_hand(pool) == 1
        assert await asyncio.gather(*unknown) == [0, 1, 4, 9, 16]
        await learn(pool, jobs.square, 2)
        short = [pool.submit(jobs.square, n) for n in range(5)]
        assert in_hand(pool) == 5
        assert [job.state for job in short] == ["running", *["queued"] * 4]
        assert pool.stats().queued == 4
        assert await asyncio.gather(*short) == [0, 1, 4, 9, 16]


async def test_one_worker_begins_its_jobs_in_their_order_also_behind_long_ones(
    pool: Pool,
) -> None:
    # Long enough to be asked back, and short enough to be sent ahead again and again.
    stays = await asyncio.gather(*(pool.submit(jobs.stay, 0.005) for _ in range(150)))
    begins = [begun for begun, _ in stays]
    assert begins == sorted(begins)


@pytest.mark.parametrize("how", ["kill", "exit"])
async def test_a_death_is_blamed_on_the_job_that_was_running(how: str) -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        await learn(pool, jobs.perhaps_die, 1)
        before = [pool.submit(jobs.perhaps_die, n) for n in range(3)]
        culprit = pool.submit(jobs.perhaps_die, 3, how=how)
        behind = [pool.submit(jobs.perhaps_die, n) for n in range(4, 9)]
        assert in_hand(pool) == 9
        with pytest.raises(WorkerCrashedError) as caught:
            await culprit
        assert caught.value.delivery == "started"
        assert await asyncio.gather(*before, *behind) == [0, 1, 2, 4, 5, 6, 7, 8]
        assert [job.attempt for job in (*before, *behind)] == [1] * 8
        stats = pool.stats()
    assert [crash.job_id for crash in crashes] == [culprit.id]
    assert (stats.crashes, stats.takeovers, stats.failed) == (1, 0, 1)


@pytest.mark.parametrize("kind", [Crashed, TakenOver, JobQueued])
async def test_listeners_may_submit_too(kind: type[Event | JobEvent]) -> None:
    late: list[Job[int]] = []
    heard: list[Event | JobEvent] = []

    def submit_more(event: Event | JobEvent) -> None:
        if isinstance(event, kind) and not heard:
            heard.append(event)
            late.extend(pool.submit(jobs.perhaps_die, n) for n in range(100, 105))

    async with patience(), Pool(2, ready="all") as pool:
        await learn(pool, jobs.perhaps_die, 1)
        twice = pool.options(max_attempts=2)
        culprit = twice.submit(jobs.perhaps_die, 0, how="kill")
        pool.add_job_listener(submit_more)
        with pytest.raises(WorkerCrashedError) as caught:
            await culprit
        assert await asyncio.gather(*late) == list(range(100, 105))
        stats = pool.stats()
    assert len(caught.value.crashes) == 2
    assert stats.crash_kinds == {CrashKind.CRASH: 2}


async def test_a_short_job_does_not_wait_behind_one_that_turns_out_to_be_long(
    pair: Pool, gate: Gate
) -> None:
    await learn(pair, jobs.perhaps_wait)
    long = pair.submit(jobs.perhaps_wait, gate.path)
    short = [pair.submit(jobs.perhaps_wait) for _ in range(20)]
    assert in_hand(pair, 0) > 1
    assert in_hand(pair, 1) > 1
    visitor = await gate.visitor()
    elsewhere = await asyncio.gather(*short)
    assert not long.done()
    visitor.release()
    here = await long
    assert here not in elsewhere[-10:]


async def test_jobs_behind_a_long_one_run_in_their_order_when_nobody_else_is_there(
    pool: Pool, gate: Gate, tmp_path: Path
) -> None:
    path = str(tmp_path / "log")
    await learn(pool, jobs.perhaps_wait)
    await learn(pool, jobs.sign, str(tmp_path / "other"), 1, under=300.0)
    long = pool.submit(jobs.perhaps_wait, gate.path)
    short = [pool.submit(jobs.sign, path, n) for n in range(10)]
    assert in_hand(pool) > 1
    visitor = await gate.visitor()
    # Until they are back in the queue.
    while in_hand(pool) > 1:  # noqa: ASYNC110 - nobody is told of that
        await asyncio.sleep(0)
    assert {job.attempt for job in short} == {0}
    visitor.release()
    await long
    assert await asyncio.gather(*short) == list(range(10))
    assert Path(path).read_text().split() == [str(n) for n in range(10)]


async def test_cancelling_a_job_that_waits_in_a_worker_costs_nothing(
    tmp_path: Path,
) -> None:
    path = str(tmp_path / "log")
    async with patience(), Gate() as gate, Pool(1) as pool:
        await learn(pool, jobs.perhaps_wait)
        await learn(pool, jobs.sign, str(tmp_path / "other"), 1, under=300.0)
        first = pool.submit(jobs.perhaps_wait, gate.path)
        behind = [pool.submit(jobs.sign, path, n) for n in range(4)]
        assert in_hand(pool) > 1
        assert behind[0].cancel()
        # The first one runs, so the worker can only give this one back.
        visitor = await gate.visitor()
        while in_hand(pool, 0, behind[0]):  # noqa: ASYNC110 - nobody is told of that
            await asyncio.sleep(0)
        visitor.release()
        assert await asyncio.gather(first, *behind[1:]) == [await first, 1, 2, 3]
        await until(pool, lambda stats: stats.idle == 1)
        stats = pool.stats()
        assert (stats.cancelled, stats.spawned, stats.crashes) == (1, 1, 0)
    assert Path(path).read_text().split() == ["1", "2", "3"]


async def test_a_revoke_may_meet_a_start_at_any_moment(tmp_path: Path) -> None:
    """Each job runs once, or was cancelled; whatever is not cancelled does run."""
    path = str(tmp_path / "log")
    dice = random.Random(7)
    async with patience(), Pool(2) as pool:
        await learn(pool, jobs.sign, str(tmp_path / "other"), 1, under=300.0)
        submitted: list[Job[int]] = []
        for number in range(600):
            submitted.append(pool.submit(jobs.sign, path, number))
            if dice.random() < 0.2:
                dice.choice(submitted[-20:]).cancel()
            if dice.random() < 0.1:
                await asyncio.sleep(0)
        results = await asyncio.gather(*submitted, return_exceptions=True)
        assert pool.stats().crashes == 0
    ran = [int(line) for line in Path(path).read_text().split()]
    done = {result for result in results if isinstance(result, int)}
    assert len(ran) == len(set(ran)), "a job ran twice"
    assert done <= set(ran)
    assert len(done) > 300
    cancelled = sum(isinstance(r, asyncio.CancelledError) for r in results)
    assert cancelled + len(done) == 600
    assert cancelled > 50


async def test_jobs_that_wait_in_a_worker_count_as_pending() -> None:
    async with patience(), Gate() as gate, Pool(1, max_queued=3) as pool:
        await learn(pool, jobs.perhaps_wait)
        long = pool.submit(jobs.perhaps_wait, gate.path)
        short = [pool.submit(jobs.perhaps_wait) for _ in range(3)]
        with pytest.raises(PoolFullError) as caught:
            pool.submit(jobs.perhaps_wait)
        assert (caught.value.waiting, caught.value.max_queued) == (3, 3)
        (await gate.visitor()).release()
        await asyncio.gather(long, *short)


async def test_an_idle_worker_takes_a_job_whatever_waits_inside_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_for_stalls_never(monkeypatch)  # or those are moved to it
    async with patience(), Gate() as gate, Pool(2, max_queued=2) as pool:
        await learn(pool, jobs.perhaps_wait)
        alone = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        first = pool.submit(jobs.perhaps_wait, gate.path)
        behind = [pool.submit(jobs.perhaps_wait) for _ in range(2)]
        with pytest.raises(PoolFullError):
            pool.submit(jobs.perhaps_wait)
        visitor.release()
        assert await alone == "go"
        assert pool.stats().queued == 2
        assert await pool.submit(jobs.square, 3) == 9
        (await gate.visitor(nth=2)).release()
        await asyncio.gather(first, *behind)


async def test_a_close_lets_what_is_in_hand_finish_or_fails_it() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1)
        await pool.start()
        await learn(pool, jobs.perhaps_wait)
        long = pool.submit(jobs.perhaps_wait, gate.path)
        behind = [pool.submit(jobs.perhaps_wait) for _ in range(5)]
        visitor = await gate.visitor()
        close = await closing(pool, finish="running")
        # Those that have not begun are taken back from behind it, and fail.
        results = await asyncio.gather(*behind, return_exceptions=True)
        assert [type(result) for result in results] == [PoolClosedError] * 5
        visitor.release()
        assert isinstance(await long, int)
        summary = await close
    assert (summary.finished, summary.failed, summary.killed) == (1, 5, 0)


async def test_what_is_submitted_in_one_turn_takes_two_system_calls() -> None:
    """The first job for a worker that does nothing goes out at once, the others together."""
    async with patience(), Pool(1) as pool:
        await learn(pool, jobs.square, 2)
        sent = spy_on_sends(pool)
        first = pool.submit(jobs.square, 0)
        assert len(sent) == 1
        others = [pool.submit(jobs.square, n) for n in range(1, 10)]
        assert in_hand(pool) == 10
        assert len(sent) == 1
        assert await asyncio.gather(first, *others) == [n * n for n in range(10)]
        assert len(sent) == 2
        assert sent[1] == 9 * sent[0]


@pytest.mark.parametrize("new", ["context", "function"])
async def test_what_was_sent_counts_as_sent_whatever_was_to_follow(new: str) -> None:
    async with patience(), Pool(1) as pool:
        await learn(pool, jobs.square, 2)
        await learn(pool, operator.neg, 2)
        view = pool.options(timeout=1000) if new == "context" else pool
        if new == "function":
            # The pool knows how long it takes, and its next worker does not know it.
            with pytest.raises(WorkerCrashedError):
                await pool.submit(jobs.perhaps_die, 1, how="kill")
            await idle(pool)
        pid = await pool.submit(jobs.pid)
        dead = os.pidfd_open(pid)
        await stop(pid)
        sent = pool.submit(jobs.square, 3)
        return_no_more(sent, MAX_FREE_RETURNS)  # or else it would be sent again
        os.kill(pid, signal.SIGKILL)
        # Nothing here hears of its death before the next one is put behind that.
        select.select([dead], [], [])
        os.close(dead)
        behind = view.submit(operator.neg, 3)
        assert in_hand(pool) == 2
        with pytest.raises(WorkerCrashedError) as caught:
            await sent
        assert caught.value.delivery == "sent"
        assert await behind == -3
