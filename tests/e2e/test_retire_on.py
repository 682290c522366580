"""``retire_on``: a job that raises one of these exceptions is the last one of its worker."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from asyncpool import Pool, current_job, heartbeat
from asyncpool.errors import BroadcastError, JobCancelled, JobRaisedError
from asyncpool.events import Retiring
from tests.helpers import jobs
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import next_of

pytestmark = BOTH_LOOPS


class DeviceError(Exception):
    """The worker has lost its device."""


class DeviceLostError(DeviceError):
    """A kind of these."""


# Of these items at least two are not at the end of a chunk.
LAST = 204, 205, 206

LOST = "by retire_on, after tests.e2e.test_retire_on.DeviceError"


def note(number: int, path: str, error: type[BaseException] | None = None) -> int:
    """Note that it has run, in a file; return the pid."""
    with open(path, "a") as file:
        file.write(f"{number} {os.getpid()}\n")
    if error is not None:
        raise error(number)
    return os.getpid()


def note_item(number: int, path: str) -> int:
    return note(number, path, DeviceLostError if number in LAST else None)


def fail_once(error: type[BaseException]) -> tuple[int, int]:
    """Raise it in the first attempt; return the pid of that one, and of this."""
    details = current_job().last_details
    if details is None:
        heartbeat(os.getpid())
        raise error
    return details, os.getpid()


def seen_in(path: Path) -> dict[int, int]:
    """Return who has run each number, after checking that each has run once."""
    seen: dict[int, int] = {}
    for line in path.read_text().splitlines():
        number, pid = map(int, line.split())
        assert number not in seen
        seen[number] = pid
    return seen


async def test_what_was_sent_ahead_runs_elsewhere_and_once(
    faced: Faced, tmp_path: Path
) -> None:
    path = tmp_path / "seen"
    async with patience(), faced(1) as (caller, pool):
        view = caller.options(retire_on=[DeviceError])
        events = pool.events()
        warm = [view.submit(note, n, str(path)) for n in range(10)]
        [old] = {*await asyncio.gather(*warm)}
        before = [view.submit(note, n, str(path)) for n in range(10, 13)]
        lost = view.submit(note, 13, str(path), DeviceLostError)
        behind = [view.submit(note, n, str(path)) for n in range(14, 40)]
        with pytest.raises(DeviceLostError):
            await lost
        assert {*await asyncio.gather(*before)} == {old}
        assert old not in await asyncio.gather(*behind)
        assert (await next_of(events, Retiring)).reason == f"retire_worker(): {LOST}"
        stats = pool.stats()
    seen = seen_in(path)
    assert {number for number, pid in seen.items() if pid == old} == {*range(14)}
    assert seen.keys() == {*range(40)}
    assert (stats.crashes, stats.takeovers) == (0, 0)


@pytest.mark.parametrize(
    ("retire_on", "error", "retires"),
    [
        ((DeviceError,), DeviceError, True),
        ((DeviceError,), DeviceLostError, True),
        ((LookupError, DeviceError), KeyError, True),
        ((DeviceLostError,), DeviceError, False),
        ((), DeviceError, False),
        ((Exception,), SystemExit, False),
        ((SystemExit,), SystemExit, True),
    ],
)
async def test_which_exceptions_retire_the_worker(
    tmp_path: Path,
    retire_on: tuple[type[BaseException], ...],
    error: type[BaseException],
    retires: bool,  # noqa: FBT001
) -> None:
    path = str(tmp_path / "seen")
    async with patience(), Pool(1) as pool:
        old = await pool.submit(jobs.pid)
        with pytest.raises((error, JobRaisedError)):
            await pool.options(retire_on=retire_on).submit(note, 1, path, error)
        assert (await pool.submit(jobs.pid) != old) is retires


async def test_of_the_items_of_a_chunk_the_rest_runs_elsewhere(
    faced: Faced, tmp_path: Path
) -> None:
    path = tmp_path / "seen"
    async with patience(), faced(1) as (caller, _):
        view = caller.options(retire_on=[DeviceError])
        items = view.map(note_item, range(400), [str(path)] * 400, chunksize=20)
        found = await items.outcomes()
    assert tuple(n for n, one in enumerate(found) if not one.ok) == LAST
    seen = seen_in(path)
    assert seen.keys() == {*range(400)}
    # Younger items may have begun before, but not in the same worker.
    for last in LAST:
        *_, newest = (number for number, pid in seen.items() if pid == seen[last])
        assert newest == last


async def test_another_attempt_runs_in_another_worker(faced: Faced) -> None:
    async with patience(), faced(1) as (caller, _):
        again = caller.options(max_attempts=2, retry_on=[DeviceError])
        view = again.options(retire_on=[DeviceError])
        first, second = await view.submit(fail_once, DeviceLostError)
    assert first != second


async def test_a_job_that_is_made_to_end_raises_too() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        job = pool.options(retire_on=[JobCancelled]).submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        job.cancel()
        assert await pool.submit(jobs.pid) != visitor.pid
        await visitor.gone()
        assert pool.stats().crashes == 0


async def test_a_broadcast_replaces_each_worker(faced: Faced, tmp_path: Path) -> None:
    path = tmp_path / "seen"
    async with patience(), faced(1) as (caller, pool):
        old = await caller.submit(jobs.pid)
        events = pool.events()
        view = caller.options(retire_on=[DeviceError])
        with pytest.raises(BroadcastError):
            await view.broadcast(note, 1, str(path), DeviceError)
        assert (await next_of(events, Retiring)).reason == f"retire_worker(): {LOST}"
        assert await caller.submit(jobs.pid) != old
