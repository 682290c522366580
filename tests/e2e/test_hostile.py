"""Workers that hostile input has taken over: whatever they send, they hurt only themselves."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Crash, Pool, Sandbox
from asyncpool.enums import CrashKind
from asyncpool.errors import JobNotPicklableError, RemoteError, WorkerCrashedError
from tests.helpers import data_jobs, hostile, jobs
from tests.helpers.gate import Gate
from tests.helpers.guards import open_fds
from tests.helpers.inside import (
    begins_frame,
    block_until_answers,
    handle_of,
    jobs_channel_of,
    unfinished_for_long,
)
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.sandboxes import needs_sandbox

pytestmark = BOTH_LOOPS

ROOT = Path(__file__).parents[2]

# What the job of a hostile worker may come to.
FAILED = WorkerCrashedError, JobNotPicklableError, RemoteError

# A hundred lies, and more, take their time: each costs a worker.
PARTS = 8


class Neighbourhood:
    """A data-only pool of two workers, one of which has a job that waits.

    Attributes:
        pool: The pool.
        crashes: What became of its workers.
        victim: The job that waits, in a worker of its own.
    """

    def __init__(self, pool: Pool, crashes: list[Crash], victim: Any) -> None:
        self.pool = pool
        self.crashes = crashes
        self.victim = victim

    async def suffer(self, name: str, *, kind: CrashKind | None, path: str = "") -> str:
        """Have a worker do what *name* says; return what the pool says of it."""
        self.crashes.clear()
        with pytest.raises(FAILED) as caught:
            await self.pool.submit(hostile.attack, name, self.victim.id, path)
        # The next job is done, by whichever worker, before anybody looks at the crash.
        assert await self.pool.submit(data_jobs.echo, (name,)) == (name,)
        assert not self.victim.done(), name
        assert [crash.kind for crash in self.crashes] == [kind], name
        crash = self.crashes[0]
        assert crash.signal == "SIGKILL" or kind is CrashKind.CRASH, name
        if isinstance(caught.value, WorkerCrashedError):
            assert caught.value.kind == kind, name
        return crash.detail or ""


@asynccontextmanager
async def neighbourhood(**options: Any) -> AsyncIterator[Neighbourhood]:
    crashes: list[Crash] = []
    options = {
        "codec": "msgspec",
        "preload": ["tests.helpers.hostile"],
        "ready": "all",
        **options,
    }
    pool = Pool(2, on_crash=crashes.append, **options)
    async with patience(6), Gate() as gate, pool:
        victim = pool.submit(jobs.wait_at, gate.path, "victim")
        visitor = await gate.visitor("victim")
        worker = victim.worker_pid
        yield Neighbourhood(pool, crashes, victim)
        assert victim.worker_pid == worker
        visitor.release("unharmed")
        assert await victim == "unharmed"


@pytest.mark.parametrize("part", range(PARTS))
async def test_who_lies_or_floods_is_killed_and_nobody_else_is_harmed(
    part: int,
) -> None:
    wrong = {**hostile.LIES, **hostile.FLOODS}
    async with neighbourhood() as there:
        for name, (_, detail) in list(wrong.items())[part::PARTS]:
            told = await there.suffer(name, kind=CrashKind.PROTOCOL)
            assert told, name
            assert detail in told, name


async def test_no_descriptor_that_a_worker_sends_stays_here() -> None:
    async with neighbourhood() as there:
        await there.suffer("descriptors", kind=CrashKind.PROTOCOL)
        before = open_fds()
        for _ in range(3):
            await there.suffer("descriptors", kind=CrashKind.PROTOCOL)
        assert len(open_fds()) == len(before)


async def test_no_pickle_is_read_in_a_pool_with_a_codec(tmp_path: Path) -> None:
    made = tmp_path / "made"
    async with neighbourhood() as there:
        for name in hostile.PICKLES:
            log = name == "in the log of a chunk"
            kind = CrashKind.CRASH if log else CrashKind.PROTOCOL
            await there.suffer(name, kind=kind, path=str(made))
            assert not made.exists(), name
        with pytest.raises((WorkerCrashedError, JobNotPicklableError)):
            async for _ in there.pool.stream(hostile.attack_stream, str(made)):
                pass
        assert not made.exists()


async def test_without_a_codec_the_same_pickle_runs_here(tmp_path: Path) -> None:
    """It shows that the test above can fail."""
    made = tmp_path / "made"
    async with patience(), Pool(1) as pool:
        fd: Any = pool.submit(hostile.attack, "as a value", 0, str(made))
        os.close(await fd)
    assert made.exists()


@pytest.mark.parametrize("name", hostile.CUT_SHORT)
async def test_who_begins_a_frame_and_falls_silent_is_killed(name: str) -> None:
    crashes: list[Crash] = []
    async with patience(), Pool(1, on_crash=crashes.append) as pool:
        job = pool.submit(hostile.attack, name)
        await begins_frame(jobs_channel_of(pool))
        unfinished_for_long(jobs_channel_of(pool))
        with pytest.raises(WorkerCrashedError) as caught:
            await job
        assert caught.value.kind is CrashKind.PROTOCOL
        assert await pool.submit(data_jobs.echo, 1) == 1
    [crash] = crashes
    size = 11 if name == "half a header" else 24
    told = f"it began a frame, sent {size} bytes of it, and then nothing for 60 s"
    assert told in (crash.detail or "")


async def test_nothing_that_a_liar_has_sent_counts_once_the_lie_is_known() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(jobs.wait_at, gate.path, "job")
        visitor = await gate.visitor("job")
        visitor.release("sent in time")
        block_until_answers(pool, 1)
        handle_of(pool).distrust("it lied")
        with pytest.raises(WorkerCrashedError) as caught:
            await job
        assert caught.value.kind is CrashKind.PROTOCOL
        assert await pool.submit(data_jobs.echo, (1,)) == (1,)


async def test_what_a_liar_has_run_is_not_run_again(tmp_path: Path) -> None:
    path = tmp_path / "signed"
    numbers = [str(number) for number in range(8)]
    async with patience(), Pool(1) as pool:
        for _ in range(60):  # they are known to be short, so several are sent at once
            await pool.submit(jobs.sign, os.devnull, 0)
        signing = [pool.submit(jobs.sign, str(path), number) for number in range(8)]
        await asyncio.sleep(0)  # they are sent at the end of this iteration
        while not path.exists() or path.read_text().split() != numbers:
            pass  # the loop stands still
        handle_of(pool).distrust("it lied")
        found = await asyncio.gather(*signing, return_exceptions=True)
    assert path.read_text().split() == numbers
    assert {type(it) for it in found} <= {WorkerCrashedError, int}
    assert isinstance(found[-1], WorkerCrashedError)


async def test_outcomes_noted_for_jobs_of_other_workers_count_for_nothing() -> None:
    async with neighbourhood(concurrency=2) as there:
        with pytest.raises(WorkerCrashedError):
            await there.pool.submit(hostile.forge_from_lane, there.victim.id)
        assert not there.victim.done()


@pytest.mark.parametrize(
    ("options", "shared", "letter"),
    [
        pytest.param({"sandbox": Sandbox(read=[ROOT])}, 0, "A", marks=needs_sandbox),
        ({"codec": "msgspec"}, 1, "A"),  # they are copies
        ({}, 1, "Z"),  # it shows that this test can fail
    ],
    ids=["sandbox", "codec", "trusted"],
)
async def test_who_is_not_trusted_changes_no_result_that_was_delivered(
    options: dict[str, Any], shared: int, letter: str
) -> None:
    pytest.importorskip("numpy")
    async with patience(), Pool(1, **options) as pool:
        found = [await pool.submit(hostile.give, 300_000) for _ in range(2)]
        if shared:
            del found[1]
        assert await pool.submit(hostile.overwrite) >= shared
        assert all((each == ord(letter)).all() for each in found)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"sandbox": Sandbox(read=[ROOT])}, marks=needs_sandbox),
        {"codec": "json"},
    ],
    ids=["sandbox", "codec"],
)
async def test_who_is_not_trusted_gets_no_resource_tracker(
    options: dict[str, Any],
) -> None:
    async with patience(), Pool(1, **options) as pool:
        with pytest.raises(WorkerCrashedError) as caught:
            await pool.submit(hostile.ask_for_tracker)
    assert "it asked for a resource tracker that it cannot have" in str(caught.value)
