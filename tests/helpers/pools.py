"""Wait for what a pool does, and check what it says about it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from asyncpool import CloseSummary, Crash, EventStream, Job, Pool, PoolStats
from asyncpool.enums import CrashKind, Delivery
from asyncpool.errors import JobTimeoutError, WorkerCrashedError
from asyncpool.events import Crashed, Event
from tests.helpers import jobs
from tests.helpers.faults import Fault

E = TypeVar("E")


@contextmanager
def case(*what: object) -> Iterator[None]:
    """Have what fails here say in which case, of those that a test goes through."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case of {what}")
        raise


def broken_by(poison: Path) -> dict[str, Any]:
    """Return the options of a pool whose workers do not start while the file *poison* exists."""
    return {"initializer": jobs.fail_if_there, "initargs": (str(poison),)}


async def started(workers: int, **options: Any) -> Pool:
    """Return a pool whose workers are all ready; whoever has it closes it."""
    pool = Pool(workers, ready="all", **options)
    await pool.start()
    return pool


async def until(pool: Pool, predicate: Callable[[PoolStats], bool]) -> PoolStats:
    """Wait for events of *pool* until *predicate* holds for its figures."""
    events = pool.events()
    while not predicate(pool.stats()):
        await anext(events)
    return pool.stats()


async def idle(pool: Pool) -> PoolStats:
    """Wait until every worker is ready, and idle unless it has got a job."""
    return await until(pool, lambda stats: stats.idle + stats.busy == stats.workers)


async def collect(items: AsyncIterable[Any], found: list[Any]) -> None:
    """Put *items* into *found*, also those before an error."""
    async for item in items:
        found.append(item)  # noqa: PERF401 - what comes before an error counts


async def launcher_of(pool: Pool) -> int:
    """Return the pid of the launcher that an idle worker of *pool* has come from."""
    return await pool.submit(os.getppid)


async def closing(pool: Pool, **options: Any) -> asyncio.Task[CloseSummary]:
    """Return a task that has begun to close *pool*."""
    task = asyncio.create_task(pool.close(**options))
    await asyncio.sleep(0)
    assert pool.stats().state in {"closing", "closed"}
    return task


async def kill_worker(pool: Pool) -> None:
    """Kill the only worker of *pool*, and wait until there is another one."""
    events, stats = pool.events(), await idle(pool)
    [slot] = stats.slots
    assert slot.pid is not None
    os.kill(slot.pid, signal.SIGKILL)
    await next_of(events, Crashed)
    await idle(pool)


async def end_of(pid: int) -> None:
    """Wait until the process *pid* is gone, or has no more than its status to give."""
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        # Its first thread may be a zombie while the others still have its sockets.
        while process.status() != "zombie" or process.num_threads() > 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)


async def assert_serves(pool: Pool) -> None:
    """Check that *pool* has recovered: all of its workers run jobs."""
    await idle(pool)
    results = await asyncio.gather(*(pool.submit(jobs.square, n) for n in range(20)))
    assert results == [n * n for n in range(20)]


async def stop(pid: int) -> None:
    """Stop a process, as Ctrl-Z does, and wait until the last of its threads has heard it."""
    os.kill(pid, signal.SIGSTOP)
    # Each thread stops by itself, and another one may answer meanwhile.
    stats = [path / "stat" for path in Path(f"/proc/{pid}/task").iterdir()]
    while any(stat.read_text().rpartition(") ")[2][0] != "T" for stat in stats):  # noqa: ASYNC110 - the kernel tells nobody
        await asyncio.sleep(0)


async def timeout_of(job: Job[Any]) -> JobTimeoutError:
    """Wait for the end of a job whose time is over, and return the error."""
    with pytest.raises(TimeoutError) as caught:
        await job
    assert type(caught.value) is JobTimeoutError
    return caught.value


def assert_told(crash: Crash, fault: Fault, *, kind: CrashKind | None = None) -> None:
    """Check that *crash* is the report of *fault*."""
    assert crash.kind == (kind or fault.kind)
    assert crash.signal == fault.signal
    assert crash.exit_code == fault.exit_code
    assert fault.detail in crash.detail
    assert fault.tail in "\n".join(crash.stderr_tail)
    assert crash.pid is not None
    assert crash.uptime >= 0


async def crash_of(
    job: asyncio.Future[Any],
    fault: Fault,
    *,
    delivery: Delivery = Delivery.STARTED,
    attempts: int = 1,
) -> Crash:
    """Check that *job* ended by *fault*, and return the crash."""
    with pytest.raises(WorkerCrashedError) as caught:
        await job
    error = caught.value
    assert type(error) is WorkerCrashedError
    assert error.delivery == delivery
    assert len(error.crashes) == attempts
    crash = error.crashes[-1]
    assert_told(crash, fault)
    assert (error.kind, error.signal, error.exit_code, error.stderr_tail) == (
        crash.kind,
        crash.signal,
        crash.exit_code,
        crash.stderr_tail,
    )
    assert (error.slot, error.pid) == (crash.slot, crash.pid)
    assert error.generation == crash.generation
    assert error.job_id == crash.job_id
    assert error.attempt == crash.attempt == attempts
    return crash


async def next_of(events: EventStream[Event], kind: type[E]) -> E:
    """Return the next event of a kind."""
    async for event in events:
        if isinstance(event, kind):
            return event
    raise AssertionError("the pool has ended")


async def by_events(events: EventStream[Event], kind: type[E]) -> AsyncIterator[E]:
    """Yield the events of a kind, up to the end of the pool."""
    async for event in events:
        if isinstance(event, kind):
            yield event
