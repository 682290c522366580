"""Where jobs are while they go on: plain ones, async ones, several in one worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Job, Pool
from asyncpool.errors import NoWorkerError, PoolClosedError, WorkerCrashedError
from tests.helpers import jobs, several
from tests.helpers.gate import Gate
from tests.helpers.inside import shorten_where
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import idle, stop

pytestmark = ONE_LOOP

JOBS = Path(jobs.__file__)


def head(text: str) -> str:
    return text.partition("\n")[0]


def functions(text: str) -> list[str]:
    """Return the functions in a stack, the innermost first."""
    return [line.rpartition(" in ")[2] for line in text.splitlines() if " in " in line]


async def test_a_job_goes_on_whatever_it_does(pool: Pool, gate: Gate) -> None:
    job: Job[Any] = pool.submit(jobs.compute, gate.path, "")
    visitor = await gate.visitor()
    texts = [await job.stack() for _ in range(3)]

    async def ask_twice() -> list[str]:
        return [await job.stack(), await job.stack()]

    # Each asks again in the turn in which the other one gets the answer, too.
    for asked in await asyncio.gather(ask_twice(), ask_twice()):
        texts += asked
    assert pool.stats().slots[0].pid == visitor.pid
    job.cancel()
    await asyncio.wait([job])
    for text in texts:
        assert head(text) == f"Job {job.id}, attempt 1 (most recent call first):"
        assert functions(text)[-1] == "compute"
        assert str(JOBS) in text
        assert "/asyncpool/_worker/" not in text
    # In a call.  It may have moved on meanwhile, from the one by which it says that it is there.
    job = pool.submit(jobs.wait_at, gate.path, "call")
    visitor = await gate.visitor("call")
    [stack] = (await pool.stacks()).values()
    for text in (await job.stack(), stack):
        assert head(text) == f"Job {job.id}, attempt 1 (most recent call first):"
        assert functions(text)[-1] == "wait_at"
    visitor.release()
    assert await job == "go"
    job = pool.submit(several.at, gate.path, "async")
    visitor = await gate.visitor("async")
    text = await job.stack()
    visitor.release()
    await job
    assert functions(text)[-1] == "at"
    assert not {"select", "run_until_complete"} & set(functions(text))
    # A thread that a job has started.
    await pool.submit(jobs.start_thread, gate.path, "thread")
    visitor = await gate.visitor("thread")
    [text] = (await pool.stacks()).values()
    visitor.release()
    assert text.startswith("Thread Thread-1")
    assert "wait_at" in functions(text)


async def stack_at_rest(job: Job[Any]) -> str:
    """Return the stack of a job when it waits for the gate, which knows of it some lines before."""
    while "_wait_for_data" not in (text := await job.stack()):  # noqa: ASYNC110 - there is no event
        await asyncio.sleep(0)
    return text


async def test_each_of_several_jobs_has_its_own() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=3) as pool:
        waiting = pool.submit(several.at, gate.path, "waiting")
        counting = pool.submit(several.count_at, gate.path)
        visitors = [await gate.visitor("waiting"), await gate.visitor("")]
        alone = [await stack_at_rest(waiting), await stack_at_rest(counting)]
        computing: Job[Any] = pool.submit(jobs.compute, gate.path, "computing")
        await gate.visitor("computing")
        text = await computing.stack()
        (together,) = (await pool.stacks()).values()
        computing.cancel()
        for visitor in visitors:
            visitor.release()
        await asyncio.gather(waiting, counting)
        await asyncio.wait([computing])
    assert functions(alone[0])[-1] == "at"
    assert functions(alone[1])[-1] == "count_at"
    assert functions(text)[-1] == "compute"
    assert alone[0] in together
    assert alone[1] in together
    assert f"Job {computing.id}, attempt 1" in together


async def test_what_does_not_run_has_none() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        running = pool.submit(jobs.wait_at, gate.path)
        queued = [pool.submit(jobs.square, n) for n in range(100)]
        visitor = await gate.visitor()
        assert [await queued[0].stack(), await queued[-1].stack()] == ["", ""]
        visitor.release()
        await asyncio.gather(*queued, running)
        assert await running.stack() == ""
        assert await pool.stacks() == {0: ""}
    assert await pool.stacks() == {}


async def test_a_start_that_hangs() -> None:
    async with patience(), Gate() as gate:
        pool = Pool(1, initializer=jobs.wait_at, initargs=(gate.path,))
        with pytest.raises(PoolClosedError):
            await pool.stacks()
        starting = asyncio.create_task(pool.start())
        visitor = await gate.visitor()
        (text,) = (await pool.stacks()).values()
        visitor.release()
        await starting
        await pool.close()
    assert head(text) == "Main thread (most recent call first):"
    assert functions(text)[-1] == "wait_at"


async def test_who_holds_the_gil_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_where(monkeypatch)
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.submit(jobs.hold_the_gil, gate.path, "")
        visitor = await gate.visitor()
        text = await job.stack()
        while "in knock" in text:  # it says that it comes, and holds nothing yet
            text = await job.stack()
        pool.kill(0)
        with pytest.raises(WorkerCrashedError):
            await job
    assert text == (
        f"The process {visitor.pid} has not said for 0.2 s where it is: C code holds its GIL, "
        "or it gets no CPU."
    )


async def test_who_is_stopped_cannot_say(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_where(monkeypatch)
    async with patience(), Gate() as gate, Pool(2) as pool:
        job = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        await idle(pool)
        await stop(visitor.pid)
        texts = list(await asyncio.gather(job.stack(), job.stack()))
        stacks = await pool.stacks()
        os.kill(visitor.pid, signal.SIGCONT)
        # A late answer disturbs nobody.
        later = await job.stack()
        visitor.release()
        assert await job == "go"
        # One that dies meanwhile has none.
        lost = pool.submit(jobs.wait_at, gate.path, "lost")
        dying = await gate.visitor("lost")
        [slot] = [it.slot for it in pool.stats().slots if it.pid == dying.pid]
        await stop(dying.pid)
        asking = asyncio.create_task(lost.stack())
        await asyncio.sleep(0)
        pool.kill(slot)
        assert await asking == ""
        with pytest.raises(WorkerCrashedError):
            await lost
    silent = f"The process {visitor.pid} is stopped, and cannot say where it is."
    assert texts == [silent, silent]
    assert sorted(stacks.values()) == ["", silent]
    assert functions(later)[-1] == "wait_at"


async def test_stacks_of_one_slot(pair: Pool, gate: Gate) -> None:
    await idle(pair)
    job = pair.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    found = [await pair.stacks(slot=slot) for slot in (0, 1)]
    with pytest.raises(
        NoWorkerError,
        match=r"^there is no worker in slot 9 that is ready; slots with one: 0, 1$",
    ):
        await pair.stacks(slot=9)
    with pytest.raises(ValueError, match=r"^slot must be at least 0, not -1$"):
        await pair.stacks(slot=-1)
    visitor.release()
    await job
    assert [list(each) for each in found] == [[0], [1]]
    assert sum(bool(text) for each in found for text in each.values()) == 1
