"""Every fault with other jobs in the same worker: five before it and five behind.

In each cell the running job alone is blamed.  Those before it have their results, those
behind it run in another worker and lose no attempt, and nobody runs twice.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from asyncpool import CloseSummary, Crash, Job, Pool, WorkerLimits
from asyncpool._core.endings import Endings
from asyncpool.errors import JobNotPicklableError, WorkerOutOfMemoryError
from tests.helpers import faults
from tests.helpers.faults import DEATHS, FAULTS, HANGS, Fault
from tests.helpers.inside import crashes_of, in_hand, traits_of
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    case,
    closing,
    crash_of,
    idle,
    started,
    timeout_of,
)

pytestmark = BOTH_LOOPS

# Eleven jobs of so many microseconds go to one worker together.
COST = 1000.0
BEFORE, CULPRIT, BEHIND = range(5), 5, range(6, 11)

# Long enough for a job to begin on a machine under load.
SHORT = 0.5


@pytest.fixture(autouse=True)
def nobody_is_revoked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have those behind still be there when it happens, however long that takes."""
    monkeypatch.setattr(Endings, "check_for_stalls", lambda _: None)


@dataclass
class Scene:
    """Eleven jobs in the hands of one worker, each of which signs when it runs.

    Attributes:
        before: Those before the culprit.
        culprit: The one that something happens to.
        behind: Those behind it.
        path: Where they sign.
    """

    before: list[Job[int]]
    culprit: Job[Any]
    behind: list[Job[int]]
    path: Path

    async def assert_all_but_one_are_served(self) -> None:
        """Check that all others have their results, by one attempt each."""
        others = [*self.before, *self.behind]
        assert await asyncio.gather(*others) == [*BEFORE, *BEHIND]
        assert [job.attempt for job in others] == [1] * 10

    def workers(self) -> dict[int, int]:
        """Return who has run which job; nobody may have run twice."""
        signed = [line.split() for line in self.path.read_text().splitlines()]
        numbers = [int(number) for number, _ in signed]
        assert len(numbers) == len({*numbers}), "a job ran twice"
        return {int(number): int(pid) for number, pid in signed}

    def assert_moved(self, pid: int | None) -> None:
        """Check that *pid* had it and those before, and another one all those behind."""
        workers = self.workers()
        [successor] = {workers.pop(number) for number in BEHIND}
        assert successor != pid
        assert workers.pop(CULPRIT, pid) == pid  # it may not have come to its code
        assert workers == dict.fromkeys(BEFORE, pid)


async def meet(
    pool: Pool, folder: Path, function: Callable[..., Any], *args: Any, **options: Any
) -> Scene:
    """Have the only worker of *pool* get a job that calls *function* among ten others."""
    path = folder / "signatures"
    await idle(pool)
    traits_of(pool, faults.sign).cost = COST
    before = [pool.submit(faults.sign, str(path), n) for n in BEFORE]
    view = pool.options(**options)
    culprit = view.submit(faults.sign, str(path), CULPRIT, function, *args)
    behind = [pool.submit(faults.sign, str(path), n) for n in BEHIND]
    assert in_hand(pool) == 11
    return Scene(before, culprit, behind, path)


async def assert_it_alone_is_blamed(
    found: Sequence[Fault], tmp_path: Path, call: Callable[[str], tuple[Any, ...]]
) -> None:
    """Have each fault hit the only worker of a pool, in a call that is made of its name."""
    crashes: list[Crash] = []
    async with patience(3), Pool(1, on_crash=crashes.append) as pool:
        for number, fault in enumerate(found, 1):
            with case(fault.name):
                folder = tmp_path / f"{number}"
                folder.mkdir()
                scene = await meet(pool, folder, *call(fault.name))
                crash = await crash_of(scene.culprit, fault)
                await scene.assert_all_but_one_are_served()
                await assert_serves(pool)
                stats = pool.stats()
                scene.assert_moved(crash.pid)
                assert (crashes[-1], len(crashes)) == (crash, number)
                assert crash.job_id == scene.culprit.id
                assert crash.concurrent_jobs == ()
                others = [*scene.before, *scene.behind]
                assert [crashes_of(job) for job in others] == [()] * 10
                counts = stats.crashes, stats.restarts, stats.failed
                assert counts == (number,) * 3
                assert (stats.spawned, stats.takeovers) == (number + 1, 0)


async def test_while_running(tmp_path: Path) -> None:
    await assert_it_alone_is_blamed(FAULTS, tmp_path, lambda it: (faults.commit, it))


async def test_while_unpickling_an_argument(tmp_path: Path) -> None:
    await assert_it_alone_is_blamed(
        DEATHS[::2], tmp_path, lambda it: (len, faults.Trap(it))
    )


async def test_while_pickling_the_result(tmp_path: Path) -> None:
    await assert_it_alone_is_blamed(
        DEATHS[::2], tmp_path, lambda it: (faults.make_bomb, it)
    )


@pytest.mark.parametrize("size", [40, 120_000], ids=["small", "large"])
async def test_while_writing_the_result(size: int, tmp_path: Path) -> None:
    await assert_it_alone_is_blamed(
        DEATHS[::2], tmp_path, lambda it: (faults.commit_in_result, it, size)
    )


@pytest.mark.parametrize("fault", FAULTS[::3], ids=lambda fault: fault.name)
async def test_while_draining(fault: Fault, tmp_path: Path) -> None:
    crashes: list[Crash] = []
    async with patience():
        pool = await started(1, on_crash=crashes.append)
        scene = await meet(pool, tmp_path, faults.commit, fault.name)
        close = await closing(pool)
        early = sum(job.done() for job in scene.before)  # perhaps before it began
        crash = await crash_of(scene.culprit, fault)
        await scene.assert_all_but_one_are_served()
        summary = await close
        assert summary == CloseSummary(finished=summary.finished, failed=1, killed=0)
        assert 10 - early <= summary.finished <= 10
    scene.assert_moved(crash.pid)
    assert crashes == [crash]
    assert pool.stats().spawned == 2


async def test_each_attempt_is_counted(tmp_path: Path) -> None:
    attempts, fault = 3, faults.by_name("SIGKILL")
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        scene = await meet(
            pool, tmp_path, faults.commit, fault.name, max_attempts=attempts
        )
        crash = await crash_of(scene.culprit, fault, attempts=attempts)
        await scene.assert_all_but_one_are_served()
        stats = pool.stats()
    assert [other.job_id for other in crashes] == [scene.culprit.id] * attempts
    assert [other.attempt for other in crashes] == [*range(1, attempts + 1)]
    assert crashes[-1] == crash
    assert (stats.crashes, stats.failed) == (attempts, 1)
    signed = [int(line.split()[0]) for line in scene.path.read_text().splitlines()]
    # It comes back to the head of the queue, before those that were behind it.
    assert signed == [*BEFORE, *[CULPRIT] * attempts, *BEHIND]


@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
async def test_while_running_longer_than_it_may(on_cancel: Any, tmp_path: Path) -> None:
    crashes: list[Crash] = []
    async with patience(2), Pool(1, on_crash=crashes.append) as pool:
        spawned = 1
        for hang in HANGS:
            # What Python can interrupt costs no worker.
            deaf = hang.name in {"held gil", "stopped"}
            survives = on_cancel == "interrupt" and not deaf
            options: dict[str, Any] = {
                "cancel_grace": 3600 if survives else 0.1,
                "timeout": SHORT,
                "on_cancel": on_cancel,
            }
            folder = tmp_path / hang.name
            folder.mkdir()
            with case(hang.name):
                call = faults.commit, hang.name
                scene = await meet(pool, folder, *call, **options)
                error = await timeout_of(scene.culprit)
                assert (error.limit, error.attempt) == ("timeout", 1)
                await scene.assert_all_but_one_are_served()
                workers = scene.workers()
                [pid] = {workers.pop(number) for number in (*BEFORE, CULPRIT)}
                [successor] = {*workers.values()}
                assert (successor == pid) is survives
                spawned += not survives
                await assert_serves(pool)
                assert pool.stats().spawned == spawned
        stats = pool.stats()
    assert (crashes, stats.crashes) == ([], 0), "it is no crash"


async def test_a_result_that_cannot_be_pickled_costs_nobody_anything(
    tmp_path: Path,
) -> None:
    async with patience(), Pool(1) as pool:
        scene = await meet(pool, tmp_path, threading.Lock)
        with pytest.raises(JobNotPicklableError) as caught:
            await scene.culprit
        assert (caught.value.direction, caught.value.job_id) == (
            "result",
            scene.culprit.id,
        )
        assert scene.culprit.attempt == 1
        await scene.assert_all_but_one_are_served()
        stats = pool.stats()
    assert len({*scene.workers().values()}) == 1
    assert (stats.crashes, stats.spawned, stats.completed) == (0, 1, 11)


async def test_too_much_memory(tmp_path: Path) -> None:
    crashes: list[Crash] = []
    pool = Pool(
        1, worker_limits=WorkerLimits(kill_memory=64_000_000), on_crash=crashes.append
    )
    async with patience(), pool:
        scene = await meet(pool, tmp_path, faults.grow, 100_000_000)
        with pytest.raises(WorkerOutOfMemoryError) as caught:
            await scene.culprit
        await scene.assert_all_but_one_are_served()
        await assert_serves(pool)
        stats = pool.stats()
    [crash] = crashes
    assert caught.value.crashes == (crash,)
    assert (crash.kind, crash.attempt) == ("out of memory", 1)
    assert crash.job_id == scene.culprit.id
    scene.assert_moved(crash.pid)
    assert (stats.crashes, stats.failed, stats.takeovers) == (1, 1, 0)


@pytest.mark.parametrize("moment", faults.MOMENTS)
async def test_between_an_outcome_and_the_next_job(moment: str, tmp_path: Path) -> None:
    fault = faults.by_name("exit 3")
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        scene = await meet(pool, tmp_path, faults.die_between, moment)
        assert await scene.culprit == "answered"
        first, *others = scene.behind
        if moment == "behind its note":
            # It is noted that it has begun: nobody can tell that none of it ran.
            crash = await crash_of(first, fault)
            assert (first.attempt, crash.job_id) == (1, first.id)
        else:
            assert await first == BEHIND[0]
            assert (first.attempt, len(crashes_of(first))) == (1, 1)
        rest = [*scene.before, *others]
        assert await asyncio.gather(*rest) == [*BEFORE, *BEHIND[1:]]
        assert [(job.attempt, crashes_of(job)) for job in rest] == [(1, ())] * 9
        stats = pool.stats()
    [crash] = crashes
    blamed = first.id if moment == "behind its note" else None
    assert (crash.job_id, crash.exit_code) == (blamed, 3)
    assert (stats.crashes, stats.failed) == (1, int(blamed is not None))
    assert stats.takeovers == int(blamed is None)
    workers = scene.workers()
    assert (BEHIND[0] in workers) is (blamed is None)
    assert {workers.pop(number) for number in (*BEFORE, CULPRIT)} == {crash.pid}
    assert crash.pid not in workers.values()
