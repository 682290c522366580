"""Large objects when something goes wrong: deaths, cancellations, hostile workers."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
import random
import re
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from asyncpool import CloseSummary, Crash, Job, LeaseKeeper, Pool, RestartPolicy
from asyncpool._core.functions import LEAST_COST
from asyncpool._wire import memory as _memory
from asyncpool.errors import (
    JobError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.events import TakenOver
from tests.helpers import forks, jobs, large
from tests.helpers.faults import Fault
from tests.helpers.gate import Gate
from tests.helpers.inside import (
    block_until_answers,
    cost_of,
    crashes_of,
    deciding,
    in_hand,
    loading,
    pickle_one_at_a_time,
)
from tests.helpers.large import (
    Block,
    Passenger,
    Stop,
    all_free,
    checksum,
    crowd,
    filler,
    freed,
    pattern,
)
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import (
    assert_serves,
    by_events,
    case,
    closing,
    crash_of,
    idle,
    started,
    until,
)

pytestmark = ONE_LOOP

KIB, MIB = 1 << 10, 1 << 20

QUICK = RestartPolicy(initial_delay=0.01, max_delay=0.02)
KILLED = Fault("killed", lambda: None, signal="SIGKILL")


def notes_passing(name: str, way: str) -> Any:
    """Return a fixture: whoever calls this of shared memory is noted, and stopped, on that way."""

    @pytest.fixture
    def passes_by(monkeypatch: pytest.MonkeyPatch) -> None:
        home: Any = _memory.Memory if name == "fill" else _memory
        made = getattr(home, name)

        def pass_by(*args: Any) -> Any:
            large.pass_by(way)
            return made(*args)

        monkeypatch.setattr(home, name, pass_by)

    return passes_by


fill_passes_by = notes_passing("fill", "filled")
create_passes_by = notes_passing("create", "created")


async def assert_in_step(pool: Pool) -> None:
    """Check that every worker knows which job is which, and large ones too."""
    before = large.in_use(pool)
    small = [pool.submit(jobs.square, n) for n in range(50)]
    block, plain = Block(pattern(2 * MIB, 9)), filler(MIB)
    blocks = [pool.submit(large.same, block) for _ in range(4)]
    plains = [pool.submit(large.same, plain) for _ in range(4)]
    assert await asyncio.gather(*small) == [n * n for n in range(50)]
    assert await asyncio.gather(*blocks) == [block] * 4
    assert await asyncio.gather(*plains) == [plain] * 4
    small = [pool.submit(jobs.square, n) for n in range(50)]
    assert await asyncio.gather(*small) == [n * n for n in range(50)]
    del blocks, plains
    await all_free(pool, but=before)


async def assert_places(pool: Pool) -> None:
    """Check that the pool and its worker mean the same job by the same place."""
    async with Gate() as gate:
        # Until it is known to be short, so that others wait behind it.
        while cost_of(pool, jobs.perhaps_wait) >= 2 * LEAST_COST:
            await pool.submit(jobs.perhaps_wait)
        first = pool.submit(jobs.perhaps_wait, gate.path)
        behind = [pool.submit(jobs.perhaps_wait) for _ in range(3)]
        visitor = await gate.visitor()
        if in_hand(pool, job=behind[0]):
            behind[0].cancel()
            while in_hand(pool, job=behind[0]):  # noqa: ASYNC110 - as ever
                await asyncio.sleep(0)
        visitor.release()
        assert await asyncio.gather(first, *behind[1:]) == [visitor.pid] * 3


# Deaths.


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
async def test_the_next_worker_gets_the_argument_as_it_was(memory: int) -> None:
    block = Block(pattern(MIB))
    async with patience(), Pool(2, max_shared_memory=memory) as pool:
        job = pool.options(max_attempts=2).submit(large.die_until, 2, block)
        assert await job == checksum(block)
        assert job.attempt == 2
        job = pool.options(max_attempts=2).submit(large.die_until, 3, block)
        await crash_of(job, KILLED, attempts=2)
        assert pool.stats().takeovers == 2
        dead: Job[Any] = pool.submit(large.die_with, block, Block(pattern(MIB)))
        await crash_of(dead, KILLED)
        del job, dead
        await all_free(pool)
        await assert_in_step(pool)


async def test_results_outlive_their_worker() -> None:
    async with patience(), Pool(1) as pool:
        blocks = [await pool.submit(large.make, MIB, n) for n in range(3)]
        plain = await pool.submit(filler, MIB)
        there_were = large.numbers(pool)
        await crash_of(pool.submit(large.die_with, Block(pattern(MIB))), KILLED)
        await idle(pool)
        assert large.uses(pool) == ["caller"] * 3
        assert large.numbers(pool) < there_were
        await assert_in_step(pool)
        assert blocks == [Block(pattern(MIB, n)) for n in range(3)]
        assert plain == filler(MIB)
        blocks[0].data[:] = bytes(MIB)
        assert blocks[1:] == [Block(pattern(MIB, n)) for n in range(1, 3)]
        del blocks
        await all_free(pool)
        # They belonged to one that is gone, so nobody else has them now.
        assert not large.numbers(pool) & there_were


@pytest.mark.parametrize("lend", [0, 1000])
async def test_a_worker_dies_with_half_an_outcome(lend: int) -> None:
    async with patience(), Pool(1) as pool:
        job: Job[Any] = pool.submit(large.die_granted, lend)
        await crash_of(job, KILLED)
        await freed(pool, left=())
        await assert_in_step(pool)


@pytest.mark.usefixtures("fill_passes_by", "create_passes_by")
@pytest.mark.parametrize("way", ["created", "filled"])
async def test_a_death_while_an_argument_is_loaded_costs_no_attempt(way: str) -> None:
    crashes: list[Crash] = []
    block = Block(pattern(3 * MIB))
    pool = Pool(1, on_crash=crashes.append, restart_policy=QUICK)
    async with patience(), pool:
        events = pool.events()
        with Stop(way, most=1) as stop:
            job = pool.submit(large.checksum, block)
            await stop.reached()
            first = job.worker_pid
            assert first is not None
            assert (job.state, job.attempt) == ("running", 1)
            os.kill(first, signal.SIGKILL)
            # The successor's memory is filled while the other thread is still at it.
            assert await job == checksum(block)
            assert job.attempt == 1
        await assert_in_step(pool)
        stats = pool.stats()
    assert [(crash.pid, crash.job_id, crash.attempt) for crash in crashes] == [
        (first, None, 0)
    ]
    # It was nowhere yet, so nobody takes it over, and it is nobody's fault.
    assert (stats.takeovers, stats.failed, stats.spawned) == (0, 0, 2)
    assert not [event async for event in by_events(events, TakenOver)]
    assert crashes_of(job) == ()


@pytest.mark.usefixtures("fill_passes_by")
async def test_a_job_outlives_any_number_of_workers_that_it_did_not_get_to() -> None:
    block = Block(pattern(3 * MIB))
    async with patience(), Pool(1) as pool:
        with Stop("filled") as stop:
            job = pool.submit(large.checksum, block)
            await _kill_while_loading(pool, job, times=6)
            stop.release()
            assert await job == checksum(block)
        assert job.attempt == 1
        await assert_in_step(pool)


@pytest.mark.usefixtures("fill_passes_by")
async def test_a_job_that_gets_to_no_worker_ends_with_the_pool() -> None:
    policy = RestartPolicy.limited(2, period=60)
    async with patience(), Pool(1, restart_policy=policy) as pool:
        with Stop("filled") as stop:
            job = pool.submit(large.checksum, Block(pattern(3 * MIB)))
            await _kill_while_loading(pool, job, times=3)
            with pytest.raises(PoolBrokenError):
                await job
            stop.release()
        await all_free(pool)


async def _kill_while_loading(pool: Pool, job: Job[Any], times: int) -> None:
    seen: set[int] = set()
    for count in range(1, times + 1):
        await until(pool, lambda stats: stats.busy == 1)
        assert loading(pool)
        pid = job.worker_pid
        assert pid is not None
        assert pid not in seen
        seen.add(pid)
        os.kill(pid, signal.SIGKILL)
        await until(pool, lambda stats, count=count: stats.crashes == count)  # type: ignore[misc]


@pytest.mark.parametrize("size", [10, 2 * MIB])
async def test_a_job_ends_even_if_nobody_can_say_what_it_raised(size: int) -> None:
    async with patience(), Pool(1) as pool:
        with pytest.raises(JobError):
            await pool.submit(large.fail_namelessly, size)
        await assert_in_step(pool)


@pytest.mark.parametrize("kind", ["a buffer", "plain"])
async def test_a_pool_survives_when_there_may_be_no_more_threads(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    value: Any = Block(pattern(MIB)) if kind == "a buffer" else filler(MIB)
    async with patience(), Pool(1, ready="all") as pool:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            # Whatever becomes of this job, it ends, and the pool does not.
            with contextlib.suppress(JobError, RuntimeError):
                assert await pool.submit(large.same, value) == value
            assert pool.stats().state == "running"
            assert pool.stats().queued == 0
            assert await pool.submit(jobs.square, 5) == 25
        assert await pool.submit(large.same, value) == value
        del value
        await assert_in_step(pool)


# The end of the pool.


@pytest.mark.usefixtures("fill_passes_by", "create_passes_by")
@pytest.mark.parametrize("way", ["created", "filled"])
@pytest.mark.parametrize("finish", ["none", "running", "all"])
async def test_a_close_meets_an_argument_that_is_being_loaded(
    finish: str, way: str
) -> None:
    block, before = Block(pattern(3 * MIB)), large.mapped()
    async with patience():
        pool = await started(1)
        with Stop(way) as stop:
            job = pool.submit(large.checksum, block)
            await stop.reached()
            close = await closing(pool, finish=finish)
            if finish == "none":
                with pytest.raises(PoolClosedError) as caught:
                    await job
                name = "tests.helpers.large.checksum"
                text = f"the pool was closed before job {job.id} ({name}) was done"
                assert str(caught.value) == text
                assert caught.value.delivery == "never sent"
            else:
                assert not job.done()
            stop.release()
            summary = await close
        if finish == "none":
            assert summary == CloseSummary(finished=0, failed=1, killed=0)
        else:
            assert job.result() == checksum(block)
            assert summary == CloseSummary(finished=1, failed=0, killed=0)
    assert large.mapped() <= before, "earlier tests may have kept some until now"


@pytest.mark.usefixtures("fill_passes_by")
async def test_what_was_never_sent_when_the_pool_closed_is_not_sent_later(
    tmp_path: Path,
) -> None:
    """Also not to a worker that is still there, since it does not want to go."""
    path = tmp_path / "signed"
    async with patience():
        pool = await started(1)
        await pool.submit(large.ignore_sigterm)
        with Stop("filled") as stop:
            job = pool.submit(large.sign_with, str(path), Block(pattern(3 * MIB)))
            await stop.reached()
            close = await closing(pool, finish="none", timeout=0.2)
            with pytest.raises(PoolClosedError) as caught:
                await job
            assert caught.value.delivery == "never sent"
            stop.release()
            assert await close == CloseSummary(finished=0, failed=1, killed=1)
    assert not path.exists()


# Cancelling.


async def test_cancelling_a_job_that_is_being_pickled_costs_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pickle_one_at_a_time(monkeypatch)
    async with patience(), Pool(1) as pool:
        with Stop("pickled") as stop:
            job = pool.submit(large.same, crowd(MIB))
            queued = [pool.submit(large.same, crowd(MIB)) for _ in range(3)]
            await stop.reached()
            assert job.cancel()
            assert queued[0].cancel()
            assert (job.state, queued[0].state) == ("cancelled", "cancelled")
            assert pool.stats().queued == 2
            stop.release()
            assert await asyncio.gather(*queued[1:]) == [crowd(MIB)] * 2
        # One had begun, one never did.
        assert [way for way, _ in stop.passed].count("pickled") == 3
        await assert_in_step(pool)
        stats = pool.stats()
    assert (stats.cancelled, stats.spawned, stats.crashes) == (2, 1, 0)


async def test_what_is_not_wanted_any_more_is_not_pickled_to_its_end(
    pool: Pool,
) -> None:
    """The passenger is in the middle, and another one at the end."""
    value = [*crowd(MIB), *crowd(MIB)]
    with Stop("pickled", most=1) as stop:
        job = pool.submit(large.same, value)
        await stop.reached()
        job.cancel()
        stop.release()
        await assert_in_step(pool)
    assert [way for way, _ in stop.passed] == ["pickled"]


@pytest.mark.usefixtures("fill_passes_by", "create_passes_by")
@pytest.mark.parametrize("way", ["created", "filled"])
async def test_cancelling_a_job_that_is_being_loaded_costs_nothing(way: str) -> None:
    async with patience(), LeaseKeeper(extend) as keeper, Pool(1) as pool:
        with Stop(way, most=1) as stop:
            view = pool.options(lease=(keeper, "mine"))
            job: Job[Any] = view.submit(large.die_with, Block(pattern(3 * MIB)))
            queued = pool.submit(large.same, Block(pattern(3 * MIB, 1)))
            await stop.reached()
            assert loading(pool)
            assert job.cancel()
            await asyncio.sleep(0)
            assert keeper.stats().leases == 0
            # The worker is there for others at once.
            assert await queued == Block(pattern(3 * MIB, 1))
            small = [pool.submit(jobs.square, n) for n in range(50)]
            assert await asyncio.gather(*small) == [n * n for n in range(50)]
            assert "pool" in large.uses(pool) or way == "created"
            stop.release()
            del queued
            await all_free(pool)
        await assert_in_step(pool)
        stats = pool.stats()
        await assert_places(pool)
    assert (stats.cancelled, stats.spawned, stats.crashes) == (1, 1, 0)


async def extend(_: str) -> None:
    pass


async def test_cancelling_a_job_that_runs_costs_its_worker_and_its_memory() -> None:
    async with patience(), Gate() as gate, Pool(1, on_cancel="kill") as pool:
        events = pool.events()
        block = Block(pattern(MIB))
        result = await pool.submit(large.same, block)
        job = pool.submit(large.wait_with, gate.path, "long", block)
        visitor = await gate.visitor("long")
        assert large.uses(pool).count("worker") == 1
        job.cancel()
        await visitor.gone()
        await assert_in_step(pool)
        assert result == block
        del result
        await all_free(pool)
        stats = pool.stats()
    assert (stats.cancelled, stats.spawned, stats.crashes) == (1, 2, 0)
    assert not [event async for event in by_events(events, TakenOver)]


async def test_cancelling_a_job_whose_value_is_being_unpickled_costs_nothing() -> None:
    async with patience(), Pool(1) as pool:
        with Stop("unpickled", most=1) as stop:
            job = pool.submit(crowd, MIB)
            other = pool.submit(crowd, MIB)
            await stop.reached()
            assert job.cancel()
            stop.release()
            assert await other == crowd(MIB)
        await assert_in_step(pool)
        stats = pool.stats()
    assert (stats.cancelled, stats.spawned, stats.crashes) == (1, 1, 0)


@pytest.mark.parametrize("size", [MIB, 3 * MIB])
async def test_cancelling_what_waits_with_a_large_argument(size: int) -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        assert await pool.submit(large.checksum, Block(pattern(size)))
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        queued = [
            pool.submit(large.checksum, Block(pattern(size, n))) for n in range(6)
        ]
        for job in queued[::2]:
            assert job.cancel()
        visitor.release()
        assert await held == "go"
        expected = [checksum(Block(pattern(size, n))) for n in range(1, 6, 2)]
        assert await asyncio.gather(*queued[1::2]) == expected
        await assert_in_step(pool)
        await assert_places(pool)
        assert pool.stats().spawned == 1


@pytest.mark.parametrize("memory", [1 << 30, 0], ids=["shared", "sent"])
async def test_a_job_is_cancelled_in_the_turn_in_which_it_gets_a_worker(
    memory: int,
) -> None:
    """Unpickling a result cancels a job, between its being given up and its being sent.

    A cancellation in the middle of a decision waits until that is through, and then
    another worker's outcome may come first.
    """
    block = Block(pattern(700_000))
    async with patience(), Pool(2, max_shared_memory=memory, ready="all") as pool:
        # Both have a warm segment.
        await asyncio.gather(*(pool.submit(large.checksum, block) for _ in range(2)))
        with Stop() as stop:
            both = [pool.submit(Passenger) for _ in range(2)]
            small = pool.submit(jobs.square, 3)
            victim = pool.submit(large.checksum, block)
            assert [job.state for job in (small, victim)] == ["queued", "queued"]
            stop.on_pass = victim.cancel
            block_until_answers(pool, slots=2)
            assert await asyncio.gather(*both) == [Passenger(), Passenger()]
            assert await small == 9
        assert victim.cancelled()
        for _ in range(3):
            await assert_in_step(pool)


async def test_cancellations_wait_while_a_large_job_is_sent_at_once(pool: Pool) -> None:
    """A decision within a decision is not the end of the outer one."""
    block = Block(pattern(700_000))
    decided: list[bool] = []
    await pool.submit(large.checksum, block)
    with Stop() as stop:
        stop.on_pass = lambda: decided.append(deciding(pool))
        first = pool.submit(Passenger)
        second = pool.submit(large.checksum, block)
        # The second one is sent before the outcome of the first is looked at.
        assert await first == Passenger()
        assert await second == checksum(block)
    assert decided == [True]


def value_of(dice: random.Random, number: int) -> Any:
    """Return a number, a large buffer or a long list."""
    if dice.random() < 0.3:
        return Block(pattern(dice.randrange(50 * KIB, 2 * MIB), number))
    if dice.random() < 0.2:
        return filler(dice.randrange(50 * KIB, 400 * KIB))
    return number


@pytest.mark.parametrize("seed", range(2))
async def test_a_cancellation_may_come_at_any_moment(seed: int) -> None:
    dice = random.Random(seed)
    submitted: list[tuple[Job[Any], Any]] = []
    async with patience(), Pool(2, max_shared_memory=8 * MIB) as pool:
        for number in range(150):
            value = value_of(dice, number)
            submitted.append((pool.submit(large.same, value), value))
            if dice.random() < 0.25:
                dice.choice(submitted[-10:])[0].cancel()
            if dice.random() < 0.3:
                for _ in range(dice.randrange(30)):
                    await asyncio.sleep(0)
        results = await asyncio.gather(
            *(job for job, _ in submitted), return_exceptions=True
        )
        for (job, value), result in zip(submitted, results, strict=True):
            assert job.cancelled() or result == value
        stats = pool.stats()
        assert (stats.crashes, stats.failed, stats.queued) == (0, 0, 0)
        assert 10 < stats.cancelled < 75
        assert stats.completed + stats.cancelled == 150
        submitted.clear()
        del results, result, job, value
        await assert_in_step(pool)


@pytest.mark.parametrize("seed", range(2))
async def test_a_death_may_come_at_any_moment(seed: int) -> None:
    dice = random.Random(seed)
    policy = RestartPolicy(max_delay=0.1, max_failed_starts=None)
    submitted: list[tuple[Job[Any], Any]] = []
    async with patience(), Pool(2, restart_policy=policy) as pool:
        view = pool.options(max_attempts=100)
        for number in range(60):
            value = value_of(dice, number)
            submitted.append((view.submit(large.same, value), value))
            for _ in range(dice.randrange(30)):
                await asyncio.sleep(0)
            slot = dice.choice(pool.stats().slots)
            if slot.pid is not None and dice.random() < 0.15:
                with contextlib.suppress(ProcessLookupError):  # it is dead already
                    os.kill(slot.pid, signal.SIGKILL)
        results = await asyncio.gather(
            *(job for job, _ in submitted), return_exceptions=True
        )
        for (_, value), result in zip(submitted, results, strict=True):
            # One that no worker ever begins is given up, after the fourth.
            if isinstance(result, WorkerCrashedError):
                assert result.delivery != "started"
            else:
                assert result == value
        submitted.clear()
        del results, result, value
        await idle(pool)
        await assert_in_step(pool)


# Workers that write where they should not.


async def test_a_worker_that_scribbles_hurts_nobody_else() -> None:
    blocks = [Block(pattern(MIB, n)) for n in range(8)]
    async with patience(), Gate() as gate, Pool(2) as pool:
        held = [
            pool.submit(large.wait_with, gate.path, str(n), blocks[n]) for n in range(2)
        ]
        visitors = [await gate.visitor(str(n)) for n in range(2)]
        # The first one gets some memory: of arguments that it keeps, and of results.
        visitors[0].release()
        await held[0]
        await pool.submit(large.keep, blocks[2])
        kept = [await pool.submit(large.make_stamped, MIB, n) for n in (3, 4)]
        assert {pid for pid, _ in kept} == {visitors[0].pid}
        del kept
        await pool.submit(large.checksum, blocks[0])  # so that it has something free
        first = pool.submit(large.wait_with, gate.path, "first")
        visitor = await gate.visitor("first")
        # The other one has results with a caller, an argument that it keeps, and one
        # that it is at.
        visitors[1].release()
        await held[1]
        await pool.submit(large.keep, blocks[5])
        theirs = [await pool.submit(large.make_stamped, MIB, n) for n in (6, 7)]
        second = pool.submit(large.wait_with, gate.path, "second", blocks[0], blocks[1])
        await gate.visitor("second")
        visitor.release()
        await first
        assert await pool.submit(large.scribble) >= 3
        assert [block for _, block in theirs] == blocks[6:]
        assert {pid for pid, _ in theirs} == {visitors[1].pid}
        # Nor does it hurt its own later jobs and their results.
        for block in blocks:
            assert await pool.submit(large.checksum, block) == checksum(block)
            pid, copy = await pool.submit(large.make_stamped, MIB, 11)
            assert (pid, copy) == (visitors[0].pid, Block(pattern(MIB, 11)))
        (await gate.visitor("second")).release()
        assert await second == [checksum(block) for block in blocks[:2]]
        tellers = [pool.submit(large.wait_and_tell, gate.path) for _ in range(2)]
        for nth in (1, 2):
            (await gate.visitor("tell", nth=nth)).release()
        told = dict(await asyncio.gather(*tellers))
        assert told[visitors[1].pid] == [checksum(blocks[5])]
        await assert_in_step(pool)
        assert pool.stats().spawned == 2


async def test_nobody_can_take_shared_memory_away() -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(large.keep_descriptors)
        block = Block(pattern(MIB))
        await pool.submit(large.keep, block)
        result = await pool.submit(large.make, MIB, 1)
        ends = await pool.submit(large.take_away)
        assert len(ends) >= 2 * 5
        assert set(ends) == {"EPERM"}
        assert result == Block(pattern(MIB, 1))
        assert await pool.submit(large.kept) == [checksum(block)]
        await assert_in_step(pool)
        assert pool.stats().crashes == 0


async def test_a_copy_that_a_job_leaves_behind_keeps_its_argument() -> None:
    block = Block(pattern(MIB))
    async with patience(), Gate() as gate, Pool(1) as pool:
        await pool.submit(large.fork_with, gate.path, block)
        copy = await gate.visitor("copy")
        # Later arguments go elsewhere, since the copy sees what is where its own was.
        for n in range(3):
            other = Block(pattern(MIB, n + 1))
            assert await pool.submit(large.checksum, other) == checksum(other)
        copy.release("it has")
        await gate.visitor(f"it has: {checksum(block)}")
        await assert_in_step(pool)
        assert pool.stats().crashes == 0


# Workers that may open no more descriptors.


async def test_a_worker_that_cannot_receive_its_argument_says_so() -> None:
    block = Block(pattern(MIB))
    async with patience(), Pool(1) as pool:
        await pool.submit(large.open_no_more)
        with pytest.raises(OSError, match="Too many open files") as caught:
            await pool.submit(large.checksum, block)
        assert caught.value.errno == errno.EMFILE
        assert str(caught.value) == (
            "[Errno 24] Too many open files: the shared memory of a job cannot be "
            "received"
        )
        assert await pool.submit(jobs.square, 5) == 25
        # The pool knows that this segment is of no use.
        assert large.numbers(pool) == set()
        await pool.submit(large.open_again)
        # A result arrives all the same.
        result = await pool.submit(large.open_no_more_and_make, MIB, 3)
        assert result == Block(pattern(MIB, 3))
        result.data[0] = 1  # it can be changed like any other
        assert await pool.submit(jobs.square, 5) == 25
        assert large.numbers(pool) == set()
        await pool.submit(large.open_again)
        assert await pool.submit(large.make, MIB, 3) == Block(pattern(MIB, 3))
        assert await pool.submit(large.checksum, block) == checksum(block)
        # What a worker has already it need not receive.
        await pool.submit(large.open_no_more)
        assert await pool.submit(large.checksum, block) == checksum(block)
        assert await pool.submit(large.make, MIB) == block
        await pool.submit(large.open_again)
        await assert_in_step(pool)
        stats = pool.stats()
    assert (stats.spawned, stats.crashes) == (1, 0)


# Workers that say what no worker says.

HAS_NOT = "it named segment {}, which it does not have"
OWN = r"\d+"
MAY_NOT = "it asked for {} bytes when it was not allowed to"
EXCEEDS = "an outcome of {} bytes exceeds the limit of 1048576"
DETAILS = {
    "lends what there is not": HAS_NOT.format(999),
    "lends what it was lent": HAS_NOT.format(OWN),
    "lends what another has": HAS_NOT.format(OWN),
    "lends more than there is": "it put 114689 bytes into a segment of 114688",
    "lends more than there is, in sum": "it put 114689 bytes into a segment of 114688",
    "lends beyond all bounds": EXCEEDS.format(1 << 63),
    "lends beyond all bounds, in sum": EXCEEDS.format(1 << 64),
    "lends half a size": "a list of numbers cannot be read",
    "lends twice": HAS_NOT.format(OWN),
    "sends too many areas": EXCEEDS.format(1_100_000),
    "sends an area that is too large": (
        "a payload of 1048577 bytes exceeds the limit of 1048576"
    ),
    "lends and sends too much": EXCEEDS.format(1_100_000),
    "wants nothing": MAY_NOT.format(0),
    "wants too much": MAY_NOT.format(2_097_153),
    "wants twice at once": MAY_NOT.format(100_000),
    "wants more than it was granted": MAY_NOT.format(100_000),
    "returns twice": HAS_NOT.format(OWN),
    "returns what there is not": HAS_NOT.format(999),
    "returns what another has": HAS_NOT.format(OWN),
    "loses what there is not": HAS_NOT.format(999),
    "loses what it has returned": HAS_NOT.format(OWN),
}


async def test_a_worker_that_says_what_no_worker_says_is_killed() -> None:
    crashes: list[Crash] = []
    block, other = Block(pattern(100 * KIB)), Block(pattern(100 * KIB, 1))
    pool = Pool(2, max_message_size=MIB, on_crash=crashes.append, ready="all")
    async with patience(2), Gate() as gate, pool:
        held = pool.submit(large.wait_with, gate.path, "held", other)
        visitor = await gate.visitor("held")
        [theirs] = large.numbers(pool)
        for number, (name, detail) in enumerate(DETAILS.items(), 1):
            with case(name):
                culprit: Job[Any] = pool.submit(large.offend, name, theirs, block)
                with pytest.raises(WorkerCrashedError) as caught:
                    await culprit
                [crash] = caught.value.crashes
                assert re.fullmatch(f"killed since {detail}", crash.detail)
                assert (crash.kind, crash.signal) == ("protocol", "SIGKILL")
                assert crash.pid != visitor.pid
                # All of its memory is gone, and the other one's is not.
                await freed(pool, left=[theirs])
                assert (crashes[-1], len(crashes)) == (crash, number)
                stats = pool.stats()
                assert (stats.crashes, stats.failed) == (number, number)
        result = await pool.submit(large.make, 200 * KIB)
        assert result == Block(pattern(200 * KIB))
        del result
        visitor.release()
        assert await held == [checksum(other)]
        await idle(pool)
        await assert_serves(pool)
        await all_free(pool)
        assert pool.stats().takeovers == 0


# Processes that are copied, and parts that fail.
SIZE = 1 << 20


async def test_what_a_copy_of_a_worker_may_see_is_not_used_again() -> None:
    block = Block(pattern(SIZE))
    async with patience(), Pool(1) as pool:
        assert await pool.submit(forks.only_count, block) == checksum(block)
        kept = pool.stats().shared_memory
        assert kept >= SIZE, "it is warm, and used again"
        assert await pool.submit(forks.fork_and_count, block) == checksum(block)
        assert pool.stats().shared_memory == 0
        assert await pool.submit(forks.only_count, block) == checksum(block)
        assert pool.stats().shared_memory == kept


async def test_a_worker_that_is_deaf_does_not_live_on() -> None:
    async with patience(), Pool(1) as pool:
        await pool.submit(forks.deafen)
        with pytest.raises(WorkerCrashedError) as caught:
            await pool.submit(large.same, Block(pattern(SIZE)))
        assert any(
            "ZeroDivisionError: deaf" in line for line in caught.value.stderr_tail
        )
        await assert_serves(pool)
        block = Block(pattern(SIZE))
        assert await pool.submit(large.same, block) == block


async def test_nobody_can_take_the_page_away() -> None:
    async with patience(), Pool(1) as pool:
        with pytest.raises(PermissionError):
            await pool.submit(forks.truncate_page)
        await assert_serves(pool)
        assert pool.stats().crashes == 0


async def test_others_may_declare_the_same_functions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ctypes.pythonapi is everybody's, and so is what is said of its functions."""
    theirs = ctypes.pythonapi.PyObject_GetBuffer
    block = Block(pattern(SIZE))
    async with patience(), Pool(1) as pool:
        assert await pool.submit(large.same, block) == block
        monkeypatch.setattr(theirs, "argtypes", [ctypes.c_int])
        assert await pool.submit(large.same, block) == block
    assert theirs.argtypes == [ctypes.c_int]
