"""When a dead worker is replaced, when the pool gives up, and which jobs survive their worker."""

from __future__ import annotations

import asyncio
import multiprocessing.spawn
import os
import signal
from pathlib import Path
from typing import Any, NoReturn

import pytest

import asyncpool
from asyncpool import Crash, Pool, RestartPolicy
from asyncpool.enums import Delivery
from asyncpool.errors import (
    JobRaisedError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
    WorkerStartError,
)
from asyncpool.events import (
    Broken,
    Event,
    JobEvent,
    JobQueued,
    Parked,
    Recovered,
    Restarting,
    TakenOver,
)
from tests.helpers import faults, jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import MAX_FREE_RETURNS, CrashKindText, die_before_jobs
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    broken_by,
    by_events,
    case,
    crash_of,
    idle,
    until,
)

pytestmark = ONE_LOOP

HASTY = RestartPolicy(initial_delay=0.01, max_delay=0.04, max_failed_starts=3)


def fail_and_count(log: str) -> None:
    with open(log, "a") as starts:
        starts.write("x")
    raise ConnectionError("no licence server")


def fail_but_first(token: str, flag: str) -> None:
    if not faults.first(token):
        jobs.fail_if_there(flag)


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


def fail_by_itself() -> NoReturn:
    error = ValueError("no such setting")
    raise error from error


async def test_an_error_that_is_its_own_cause_ends_a_start_at_once() -> None:
    async with patience():
        with pytest.raises(PoolBrokenError, match="no such setting"):
            await Pool(1, initializer=fail_by_itself).start()


async def test_everyone_who_waits_hears_that_the_pool_is_broken(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    async with patience(), Pool(2, restart_policy=HASTY, **broken_by(flag)) as pool:
        await idle(pool)
        events = pool.events()
        flag.touch()
        culprits = [pool.submit(faults.commit, "SIGKILL") for _ in range(2)]
        queued = [pool.submit(jobs.square, n) for n in range(50)]
        outcomes = await asyncio.gather(*culprits, *queued, return_exceptions=True)
        kinds = [type(outcome) for outcome in outcomes]
        assert kinds == [WorkerCrashedError] * 2 + [PoolBrokenError] * 50
        for outcome in outcomes[2:]:
            assert isinstance(outcome, PoolBrokenError)
            assert f"LookupError: {flag}" in str(outcome)
            assert isinstance(outcome.__cause__, WorkerStartError)
            assert outcome.__cause__.kind == "failed start"
            assert outcome.retry_after is not None
            assert 0 < outcome.retry_after <= 0.04, "the backoff goes on"
        # It says so at once, instead of queueing into the void.
        with pytest.raises(PoolBrokenError, match="LookupError"):
            pool.submit(jobs.square, 1)
        assert pool.stats().state == "broken"
    assert len([event async for event in by_events(events, Broken)]) == 1


async def test_a_broken_pool_finds_out_that_it_can_work_again(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    policy = RestartPolicy(initial_delay=0.01, max_delay=0.05, max_failed_starts=2)
    async with patience(), Pool(2, restart_policy=policy, **broken_by(flag)) as pool:
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
    async with patience(), Pool(1, restart_policy=policy, **broken_by(flag)) as pool:
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


@pytest.mark.parametrize("workers", [1, 4])
async def test_an_honest_job_behind_crashing_ones_waits_for_no_timer(
    workers: int,
) -> None:
    async with patience(), Pool(workers) as pool:
        events = pool.events(buffer=10_000)
        hostile = [pool.submit(faults.commit, "exit 3") for _ in range(40)]
        assert await pool.submit(jobs.square, 3) == 9
        outcomes = await asyncio.gather(*hostile, return_exceptions=True)
        await assert_serves(pool)
        stats = pool.stats()
    assert {type(outcome) for outcome in outcomes} == {WorkerCrashedError}
    assert stats.crashes == stats.restarts == 40
    delays = [event.delay async for event in by_events(events, Restarting)]
    assert delays == [0.0] * 40


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
    async with patience(), Pool(2, restart_policy=policy, **broken_by(flag)) as pool:
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


# Jobs that survive their worker: attempts, their order, and what is retried.


@pytest.mark.parametrize("attempts", [1, 3])
async def test_a_job_whose_workers_die_before_they_begin_it_is_given_up(
    attempts: int,
) -> None:
    crashes: list[Crash] = []
    pool = Pool(1, initializer=die_before_jobs, on_crash=crashes.append)
    queued: list[int] = []

    def note(event: Event | JobEvent) -> None:
        if isinstance(event, JobQueued):
            queued.append(event.attempts)

    async with patience(), pool:
        pool.add_job_listener(note)
        job = pool.options(max_attempts=attempts).submit(jobs.square, 3)
        with pytest.raises(WorkerCrashedError) as caught:
            await job
        assert caught.value.delivery is Delivery.SENT
        # Three times for nothing, and then each costs an attempt.
        assert len(caught.value.crashes) == MAX_FREE_RETURNS + attempts
        assert job.attempt == attempts
        assert pool.stats().takeovers == MAX_FREE_RETURNS + attempts - 1
    assert len(crashes) == MAX_FREE_RETURNS + attempts
    # Once at first and once for each death, with the attempts that it has lost by then.
    assert queued == [0] * (MAX_FREE_RETURNS + 1) + [*range(1, attempts + 1)]


async def test_the_next_worker_takes_a_job_over() -> None:
    crashes: list[Crash] = []
    async with patience(), Gate() as gate, Pool(2, on_crash=crashes.append) as pool:
        events = pool.events()
        job = pool.options(max_attempts=3).submit(jobs.wait_in_every_attempt, gate.path)
        assert (job.attempt, job.state) == (1, "running")
        pids = []
        for attempt, answer in ((1, "die"), (2, "die"), (3, "done")):
            visitor = await gate.visitor(f"attempt {attempt}")
            assert (job.attempt, job.worker_pid) == (attempt, visitor.pid)
            pids.append(visitor.pid)
            visitor.release(answer)
        assert await job == "done"
        assert (job.attempt, job.state, job.worker_pid) == (3, "done", None)
        await assert_serves(pool)
        stats = pool.stats()
    assert [(crash.attempt, crash.job_id) for crash in crashes] == [
        (1, job.id),
        (2, job.id),
    ]
    assert len(set(pids)) == 3
    assert (stats.takeovers, stats.crashes, stats.failed) == (2, 2, 0)
    assert [event async for event in by_events(events, TakenOver)] == [
        TakenOver(job.id, 1),
        TakenOver(job.id, 2),
    ]


async def test_beyond_the_bound_the_caller_gets_every_crash() -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(2, on_crash=crashes.append) as pool:
        kill = faults.by_name("SIGKILL")
        job = pool.options(max_attempts=3).submit(faults.commit, kill.name)
        await crash_of(job, kill, attempts=3)
        await assert_serves(pool)
    error = job.exception()
    assert isinstance(error, WorkerCrashedError)
    assert list(error.crashes) == crashes
    assert [crash.attempt for crash in crashes] == [1, 2, 3]
    assert len({crash.pid for crash in crashes}) == 3


async def test_a_job_that_is_taken_over_goes_first() -> None:
    order: list[str] = []
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.options(max_attempts=2).submit(jobs.wait_in_every_attempt, gate.path)
        queued = [pool.submit(jobs.square, n) for n in range(3)]
        job.add_done_callback(lambda _: order.append("taken over"))
        for other in queued:
            other.add_done_callback(lambda _: order.append("queued"))
        (await gate.visitor("attempt 1")).release("die")
        (await gate.visitor("attempt 2")).release()
        await queued[-1]
    assert order == ["taken over", "queued", "queued", "queued"]


RETRIES: list[tuple[str, tuple[CrashKindText, ...], int]] = [
    ("SIGKILL", ("crash",), 2),
    ("SIGKILL", ("protocol",), 1),
    ("SIGKILL", (), 1),
    ("exit 0", ("hung", "crash"), 2),
    ("garbage", ("crash",), 1),
    ("garbage", ("protocol",), 2),
]


async def test_only_the_kinds_that_are_named_are_retried() -> None:
    async with patience(), Pool(1) as pool:
        for fault, retry_on, attempts in RETRIES:
            with case(fault, retry_on):
                view = pool.options(max_attempts=2).options(retry_on=retry_on)
                job = view.submit(faults.commit, fault)
                await crash_of(job, faults.by_name(fault), attempts=attempts)


async def test_exceptions_of_the_job_are_retried_if_they_are_named(pair: Pool) -> None:
    thrice = pair.options(max_attempts=3, retry_on=[LookupError])
    assert await thrice.submit(fail_until, 3, KeyError("x")) == 3
    with pytest.raises(KeyError) as caught:
        await thrice.submit(fail_until, 4, KeyError("x"))
    assert caught.value.args == ("x",)
    other = thrice.submit(fail_until, 2, ValueError("y"))
    with pytest.raises(ValueError, match="y"):
        await other
    assert other.attempt == 1
    last = pair.options(max_attempts=2, retry_on=[SystemExit])
    assert await last.submit(fail_until, 2, SystemExit(1)) == 2
    with pytest.raises(JobRaisedError):
        await last.submit(fail_until, 3, SystemExit(1))
    assert pair.stats().crashes == 0


def fail_until(attempt: int, error: BaseException) -> int:
    if asyncpool.current_job().attempt < attempt:
        raise error
    return asyncpool.current_job().attempt


async def test_a_job_knows_itself(pool: Pool) -> None:
    first, second = pool.submit(jobs.attempt), pool.submit(jobs.attempt)
    assert await first == (first.id, 1)
    assert await second == (second.id, 1)
    assert first.id != second.id
    with pytest.raises(RuntimeError, match="outside a job"):
        asyncpool.current_job()


async def test_a_job_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, initializer=jobs.wait_at, initargs=(gate.path, "start"))
        start = asyncio.create_task(pool.start())
        (await gate.visitor("start")).release()
        await start
        twice = pool.options(max_attempts=2)
        job = twice.submit(jobs.wait_in_every_attempt, gate.path)
        (await gate.visitor("attempt 1")).release("die")
        second = await gate.visitor("start", nth=2)
        assert (job.state, job.worker_pid, job.attempt) == ("queued", None, 1)
        assert job.cancel()
        second.release()
        assert await pool.submit(jobs.square, 5) == 25
        await pool.close()
        stats = pool.stats()
        assert gate.visits("attempt 2") == 0
    assert (stats.cancelled, stats.crashes, stats.spawned) == (1, 1, 2)


async def test_a_job_that_no_worker_began_loses_no_attempt() -> None:
    quick = RestartPolicy(initial_delay=0.01, max_delay=0.02)
    async with patience(), Pool(1, restart_policy=quick) as pool:
        events = pool.events()
        for _ in range(3):
            pid = (await idle(pool)).slots[0].pid
            assert pid is not None
            os.kill(pid, signal.SIGSTOP)
            job = pool.submit(jobs.attempt)
            os.kill(pid, signal.SIGKILL)
            # With one attempt and no more, it still runs.
            assert await job == (job.id, 1)
            assert job.attempt == 1
    lost = [event.attempt async for event in by_events(events, TakenOver)]
    assert lost == [0, 0, 0]


async def test_nobody_takes_over_from_the_last_worker_of_a_broken_pool() -> None:
    once = RestartPolicy.limited(1, period=60)
    async with patience(), Pool(1, restart_policy=once) as pool:
        events = pool.events()
        with pytest.raises(WorkerCrashedError):
            await pool.submit(os._exit, 3)
        pid = await pool.submit(jobs.pid)
        os.kill(pid, signal.SIGSTOP)
        job = pool.submit(jobs.attempt)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(PoolBrokenError) as caught:
            await job
        stats = pool.stats()
    assert caught.value.crashes[-1].pid == pid
    assert (stats.takeovers, stats.failed) == (0, 2)
    assert not [event async for event in by_events(events, TakenOver)]
