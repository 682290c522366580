"""Who is to blame, when a dead worker is replaced, and when the pool gives up."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from asyncpool import (
    Crash,
    Pool,
    PoolBrokenError,
    PoolClosedError,
    RestartPolicy,
    WorkerCrashedError,
    WorkerStartError,
)
from asyncpool.events import GaveUp, Parked, Recovered, Restarting
from tests.helpers import faults, jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, by_events, idle, until

pytestmark = BOTH_LOOPS

# Gives up soon, and for good.
HASTY = RestartPolicy(base=0.01, cap=0.02, max_failed_starts=3, probe_after=None)


def fail_and_count(log: str) -> None:
    with open(log, "a") as starts:
        starts.write("x")
    raise ConnectionError("no licence server")


def fail_while(flag: str) -> None:
    if os.path.exists(flag):
        raise ConnectionError("no licence server")


def fail_but_first(token: str, flag: str) -> None:
    if not faults.first(token):
        fail_while(flag)


async def kill_idle(pool: Pool) -> None:
    """Kill an idle worker of *pool*, and wait until that is known."""
    before = await until(pool, lambda stats: stats.idle > 0)
    pid = next(slot.pid for slot in before.slots if slot.state == "idle")
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    await until(pool, lambda stats: stats.crashes > before.crashes)


async def test_an_initializer_that_always_fails_is_heard_of(tmp_path: Path) -> None:
    crashes: list[Crash] = []
    log = tmp_path / "starts"
    pool = Pool(
        2,
        restart=HASTY,
        on_crash=crashes.append,
        initializer=fail_and_count,
        initargs=(str(log),),
    )
    async with patience():
        with pytest.raises(PoolBrokenError) as caught:
            await pool.start()
    error = caught.value
    assert "ConnectionError: no licence server" in str(error)
    assert error.crashes == tuple(crashes)
    assert {crash.kind for crash in crashes} == {"failed start"}
    assert {crash.exit_code for crash in crashes} == {1}
    first, place, *_, last = crashes[0].stderr_tail
    assert (first, last) == (
        "Traceback (most recent call last):",
        "ConnectionError: no licence server",
    )
    assert place.startswith(f'  File "{__file__}", line '), "and none of ours"
    # Three in a row park a slot, six in all break the pool: it does not spin.
    assert 3 <= len(log.read_text()) <= 6
    with pytest.raises(PoolClosedError):
        pool.submit(jobs.square, 1)


async def test_the_default_policy_gives_up_soon(tmp_path: Path) -> None:
    async with patience():
        with pytest.raises(PoolBrokenError, match="within 60 s"):
            await Pool(
                2, initializer=fail_and_count, initargs=(str(tmp_path / "starts"),)
            ).start()
    assert len((tmp_path / "starts").read_text()) == 6


async def test_everyone_who_waits_hears_that_the_pool_is_broken(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    async with (
        patience(),
        Pool(2, restart=HASTY, initializer=fail_while, initargs=(str(flag),)) as pool,
    ):
        await idle(pool)
        events = pool.events()
        flag.touch()
        culprits = [pool.submit(faults.commit, "SIGKILL") for _ in range(2)]
        queued = [pool.submit(jobs.square, n) for n in range(50)]
        outcomes = await asyncio.gather(*culprits, *queued, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [
            *[WorkerCrashedError] * 2,
            *[PoolBrokenError] * 50,
        ]
        for outcome in outcomes[2:]:
            assert isinstance(outcome, PoolBrokenError)
            assert "no licence server" in str(outcome)
            assert isinstance(outcome.__cause__, WorkerStartError)
            assert outcome.__cause__.kind == "failed start"
            assert outcome.retry_after is None
        # It says so at once, instead of queueing into the void.
        with pytest.raises(PoolBrokenError, match="no licence server"):
            pool.submit(jobs.square, 1)
        assert pool.stats().state == "broken"
    assert len([event async for event in by_events(events, GaveUp)]) == 1


async def test_a_broken_pool_finds_out_that_it_can_work_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    policy = RestartPolicy(base=0.01, cap=0.02, max_failed_starts=2, probe_after=0.05)
    async with (
        patience(),
        Pool(2, restart=policy, initializer=fail_while, initargs=(str(flag),)) as pool,
    ):
        await idle(pool)
        flag.touch()
        await kill_idle(pool)
        await kill_idle(pool)
        broken = await until(pool, lambda stats: stats.state == "broken")
        # A few probes fail, one at a time.
        await until(pool, lambda stats: stats.crashes >= broken.crashes + 3)
        with pytest.raises(PoolBrokenError) as caught:
            pool.submit(jobs.square, 1)
        assert caught.value.retry_after == 0.05
        flag.unlink()
        await until(pool, lambda stats: stats.state == "running")
        await assert_serves(pool)


async def test_a_slot_that_cannot_start_is_parked_and_the_others_serve(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    policy = RestartPolicy(base=0.01, cap=0.02, max_failed_starts=3, probe_after=0.1)
    initargs = (str(tmp_path / "token"), str(flag))
    async with (
        patience(),
        Pool(2, restart=policy, initializer=fail_but_first, initargs=initargs) as pool,
    ):
        events = pool.events()
        await until(pool, lambda stats: "parked" in {s.state for s in stats.slots})
        assert await pool.submit(jobs.square, 3) == 9
        flag.unlink()
        await assert_serves(pool)
        stats = pool.stats()
    seen = [event async for event in events]
    parked = next(event for event in seen if isinstance(event, Parked))
    assert parked.reason == "3 starts failed in a row"
    assert parked.probe_in == 0.1
    assert Recovered(parked.slot) in seen
    assert stats.crashes >= 3


async def test_a_flood_of_hostile_jobs_slows_nobody_down() -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        events = pool.events(buffer=10_000)
        hostile, good = [], []
        for n in range(200):
            hostile.append(pool.submit(faults.commit, ("SIGKILL", "exit 0")[n % 2]))
            good += [pool.submit(jobs.square, n + i) for i in range(3)]
        results = await asyncio.gather(*good)
        outcomes = await asyncio.gather(*hostile, return_exceptions=True)
        await assert_serves(pool)
        stats = pool.stats()
    assert results == [(n + i) ** 2 for n in range(200) for i in range(3)]
    assert {type(outcome) for outcome in outcomes} == {WorkerCrashedError}
    assert len(crashes) == stats.crashes == stats.restarts == 200
    delays = [event.delay async for event in by_events(events, Restarting)]
    assert delays == [0.0] * 200


async def test_crashes_that_no_job_is_to_blame_for_back_off() -> None:
    policy = RestartPolicy(base=0.02, cap=0.04)
    async with patience(), Pool(1, restart=policy) as pool:
        events = pool.events()
        for _ in range(4):
            await kill_idle(pool)
        await assert_serves(pool)
    delays = [event.delay async for event in by_events(events, Restarting)]
    # The first one is free, and each is randomised down to its half.
    assert delays[0] == 0.0
    assert 0.01 <= delays[1] <= 0.02
    assert 0.02 <= delays[2] <= 0.04
    assert 0.02 <= delays[3] <= 0.04


async def test_a_slot_that_brings_nothing_about_backs_off_at_last() -> None:
    policy = RestartPolicy(base=0.02, cap=0.04, fruitless_limit=3)
    async with patience(), Pool(1, restart=policy) as pool:
        events = pool.events()
        hostile = [pool.submit(faults.commit, "exit 3") for _ in range(5)]
        outcomes = await asyncio.gather(*hostile, return_exceptions=True)
        await assert_serves(pool)
    assert {type(outcome) for outcome in outcomes} == {WorkerCrashedError}
    delays = [event.delay async for event in by_events(events, Restarting)]
    assert [delay > 0 for delay in delays] == [False, False, True, True, True]


async def test_a_limited_restart_counts_every_crash() -> None:
    crashes: list[Crash] = []
    limited = RestartPolicy.limited(3, during=60)
    async with patience(), Pool(2, restart=limited, on_crash=crashes.append) as pool:
        for _ in range(3):
            with pytest.raises(WorkerCrashedError):
                await pool.submit(faults.commit, "exit 3")
            await assert_serves(pool)
        last = pool.submit(faults.commit, "exit 3")
        with pytest.raises(WorkerCrashedError):
            await last
        with pytest.raises(PoolBrokenError, match="4 workers crashed") as caught:
            pool.submit(jobs.square, 1)
    assert caught.value.crashes == tuple(crashes)
    assert [crash.next_step for crash in crashes[:3]] == ["restarting at once"] * 3
    assert crashes[3].next_step.startswith("giving up: 4 workers crashed")


async def test_an_interpreter_that_cannot_be_started_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crashes: list[Crash] = []
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    async with patience():
        with pytest.raises(PoolBrokenError, match="/nowhere/python"):
            await Pool(2, restart=HASTY, on_crash=crashes.append).start()
    assert {crash.kind for crash in crashes} == {"failed start"}
    assert {crash.pid for crash in crashes} == {None}


async def test_a_running_job_outlives_the_pools_hope(tmp_path: Path) -> None:
    """A broken pool lets the jobs finish that its last workers run."""
    flag = tmp_path / "flag"
    policy = RestartPolicy(base=0.01, cap=0.02, max_crashes=2, probe_after=None)
    async with (
        patience(),
        Pool(2, restart=policy, initializer=fail_while, initargs=(str(flag),)) as pool,
    ):
        await idle(pool)
        pause = tmp_path / "pause"
        os.mkfifo(pause)
        job = pool.submit(Path.read_text, pause)
        flag.touch()
        await kill_idle(pool)
        await until(pool, lambda stats: stats.state == "broken")
        assert job.state == "running"
        pause.write_text("done")
        assert await job == "done"
