"""Who is to blame, when a dead worker is replaced, and when the pool gives up."""

from __future__ import annotations

import asyncio
import multiprocessing.spawn
import os
import signal
from pathlib import Path
from typing import Any

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
from asyncpool.events import Broken, Parked, Recovered, Restarting
from tests.helpers import faults, jobs
from tests.helpers.inside import BURST
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, by_events, idle, until

pytestmark = BOTH_LOOPS

HASTY = RestartPolicy(initial_delay=0.01, max_failed_starts=3)


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
        restart_policy=HASTY,
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
    first, place, *_, last = crashes[0].stack.splitlines()
    assert (first, last) == (
        "Traceback (most recent call last):",
        "ConnectionError: no licence server",
    )
    assert place.startswith(f'  File "{__file__}", line '), "and none of ours"
    # The first ones overlap, and count once; from then on one slot tries for both.
    assert 3 <= len(log.read_text()) <= 4
    with pytest.raises(PoolClosedError):
        pool.submit(jobs.square, 1)


async def test_the_default_policy_tells_after_five_failed_starts(
    tmp_path: Path,
) -> None:
    log = tmp_path / "starts"
    async with patience():
        with pytest.raises(PoolBrokenError, match="5 starts failed in a row"):
            await Pool(2, initializer=fail_and_count, initargs=(str(log),)).start()
    assert 5 <= len(log.read_text()) <= 6


async def test_everyone_who_waits_hears_that_the_pool_is_broken(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    async with (
        patience(),
        Pool(
            2, restart_policy=HASTY, initializer=fail_while, initargs=(str(flag),)
        ) as pool,
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
            assert outcome.retry_after is not None
            assert 0 < outcome.retry_after <= 0.04, "the backoff goes on"
        # It says so at once, instead of queueing into the void.
        with pytest.raises(PoolBrokenError, match="no licence server"):
            pool.submit(jobs.square, 1)
        assert pool.stats().state == "broken"
    assert len([event async for event in by_events(events, Broken)]) == 1


async def test_a_broken_pool_finds_out_that_it_can_work_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    policy = RestartPolicy(initial_delay=0.01, max_delay=0.05, max_failed_starts=2)
    async with (
        patience(),
        Pool(
            2, restart_policy=policy, initializer=fail_while, initargs=(str(flag),)
        ) as pool,
    ):
        await idle(pool)
        events = pool.events()
        flag.touch()
        await kill_idle(pool)
        await kill_idle(pool)
        broken = await until(pool, lambda stats: stats.state == "broken")
        # A few tries fail, one at a time.
        await until(pool, lambda stats: stats.crashes >= broken.crashes + 3)
        with pytest.raises(PoolBrokenError) as caught:
            pool.submit(jobs.square, 1)
        assert caught.value.retry_after is not None
        assert caught.value.retry_after <= 0.05
        flag.unlink()
        await until(pool, lambda stats: stats.state == "running")
        await until(pool, lambda stats: stats.idle == 2)
        await assert_serves(pool)
    seen = [type(event) async for event in events]
    assert (seen.count(Broken), seen.count(Recovered)) == (1, 1)


async def test_somebody_who_wants_a_broken_pool_does_not_wait_for_its_backoff(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    policy = RestartPolicy(initial_delay=3600, max_delay=3600, max_failed_starts=1)
    async with (
        patience(),
        Pool(
            1, restart_policy=policy, initializer=fail_while, initargs=(str(flag),)
        ) as pool,
    ):
        await idle(pool)
        flag.touch()
        await kill_idle(pool)
        await until(pool, lambda stats: stats.state == "broken")
        flag.unlink()
        with pytest.raises(PoolBrokenError) as caught:
            pool.submit(jobs.square, 1)
        assert caught.value.retry_after is not None
        assert caught.value.retry_after <= 1.0
        await until(pool, lambda stats: stats.state == "running")
        await assert_serves(pool)


async def test_a_slot_that_cannot_start_is_parked_and_the_others_serve(
    tmp_path: Path,
) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    policy = RestartPolicy(initial_delay=0.01, max_delay=0.05, max_failed_starts=3)
    initargs = (str(tmp_path / "token"), str(flag))
    async with (
        patience(),
        Pool(
            2, restart_policy=policy, initializer=fail_but_first, initargs=initargs
        ) as pool,
    ):
        events = pool.events()
        await until(pool, lambda stats: stats.crashes >= 5)
        assert pool.stats().state == "running"
        assert await pool.submit(jobs.square, 3) == 9
        flag.unlink()
        await until(pool, lambda stats: stats.idle == 2)
        await assert_serves(pool)
        stats = pool.stats()
    seen = [event async for event in events]
    parked = next(event for event in seen if isinstance(event, Parked))
    assert parked.reason.endswith("failed in a row") or parked.reason == (
        "the start failed"
    )
    assert parked.probe_in is not None
    assert parked.probe_in <= 0.05
    assert Recovered(parked.slot) in seen
    assert stats.crashes >= 3


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_an_honest_job_behind_crashing_ones_waits_for_no_timer(
    workers: int,
) -> None:
    async with patience(), Pool(workers) as pool:
        events = pool.events(buffer=10_000)
        hostile = [pool.submit(faults.commit, "exit 3") for _ in range(100)]
        assert await pool.submit(jobs.square, 3) == 9
        outcomes = await asyncio.gather(*hostile, return_exceptions=True)
        await assert_serves(pool)
        stats = pool.stats()
    assert {type(outcome) for outcome in outcomes} == {WorkerCrashedError}
    assert stats.crashes == stats.restarts == 100
    delays = [event.delay async for event in by_events(events, Restarting)]
    assert delays == [0.0] * 100


async def test_every_job_between_kills_of_all_idle_workers_succeeds() -> None:
    async with patience(), Pool(2) as pool:
        events = pool.events(buffer=10_000)
        for number in range(7):
            for slot in (await idle(pool)).slots:
                if slot.pid is not None:
                    os.kill(slot.pid, signal.SIGKILL)
            assert await pool.submit(jobs.square, number) == number**2
        assert pool.stats().state == "running"
    delays = [event.delay async for event in by_events(events, Restarting)]
    assert len(delays) >= 12, "the last ones are not looked for"
    assert delays[: 2 * BURST] == [0.0] * (2 * BURST)
    assert max(delays) <= 1.0


async def test_a_flood_of_hostile_jobs_slows_nobody_down() -> None:
    crashes: list[Crash] = []
    async with patience(4), Pool(2, on_crash=crashes.append) as pool:
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


async def test_a_limited_restart_counts_every_crash() -> None:
    crashes: list[Crash] = []
    limited = RestartPolicy.limited(3, period=60)
    async with (
        patience(),
        Pool(2, restart_policy=limited, on_crash=crashes.append) as pool,
    ):
        for _ in range(3):
            with pytest.raises(WorkerCrashedError):
                await pool.submit(faults.commit, "exit 3")
            await assert_serves(pool)
        last = pool.submit(faults.commit, "exit 3")
        with pytest.raises(WorkerCrashedError):
            await last
        with pytest.raises(PoolBrokenError, match="4 workers died") as caught:
            pool.submit(jobs.square, 1)
    assert caught.value.crashes == tuple(crashes)
    assert [crash.next_step_text for crash in crashes[:3]] == ["restarting at once"] * 3
    assert crashes[3].next_step_text.startswith("giving up: 4 workers died")


async def test_a_pool_that_never_was_up_tries_no_more_and_does_not_say_it_would(
    caplog: pytest.LogCaptureFixture,
) -> None:
    crashes: list[Crash] = []
    fails: dict[str, Any] = {"initializer": jobs.fail, "initargs": (OSError("no"),)}
    pool = Pool(1, restart_policy=HASTY, on_crash=crashes.append, **fails)
    events = pool.events()
    async with patience():
        with pytest.raises(PoolBrokenError, match="3 starts failed in a row") as caught:
            await pool.start()
    assert caught.value.retry_after is None
    steps = [crash.next_step_text for crash in crashes]
    assert "next try in" in steps[1]
    assert steps[2] == "giving up: 3 starts failed in a row"
    parked = [event.probe_in async for event in by_events(events, Parked)]
    assert parked[2] is None
    [broken] = [text for text in caplog.messages if "is broken" in text]
    assert broken.endswith("3 starts failed in a row; giving up")


async def test_a_start_that_would_fail_again_is_given_up_by_all_slots(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(PoolBrokenError):
        async with patience(), Pool(2, preload=["ap_no_such_module"]):
            pass
    # What is said once it gives up, or all of it, has no next try.
    [broken] = [at for at, text in enumerate(caplog.messages) if "is broken" in text]
    assert caplog.messages[broken].endswith(
        "is broken: the start failed, and is likely to fail again; giving up"
    )
    assert not [text for text in caplog.messages[broken:] if "next try" in text]


async def test_an_interpreter_that_cannot_be_started_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crashes: list[Crash] = []
    monkeypatch.setattr("sys.executable", "/nowhere/python")
    monkeypatch.setattr(multiprocessing.spawn, "_python_exe", b"/nowhere/python")
    async with patience():
        with pytest.raises(PoolBrokenError, match="/nowhere/python"):
            await Pool(2, restart_policy=HASTY, on_crash=crashes.append).start()
    assert {crash.kind for crash in crashes} == {"failed start"}
    assert {crash.pid for crash in crashes} == {None}


async def test_a_running_job_outlives_the_pools_hope(tmp_path: Path) -> None:
    """A broken pool lets the jobs finish that its last workers run."""
    flag = tmp_path / "flag"
    policy = RestartPolicy.limited(2, period=60)
    async with (
        patience(),
        Pool(
            2, restart_policy=policy, initializer=fail_while, initargs=(str(flag),)
        ) as pool,
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
