"""A pool that has nothing to do does nothing: neither do its workers, nor their launcher."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from asyncpool import Pool
from tests.helpers import jobs
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import idle, launcher_of

pytestmark = BOTH_LOOPS


def rests(pids: Iterable[int]) -> dict[Path, int]:
    """Return how often each thread of these processes has gone to rest or was made to.

    Those that run, or that wait for a processor, are left out.
    """
    found = {}
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            lines = (task / "status").read_text().splitlines()
            parts = (line.partition(":") for line in lines)
            fields = {name: value.split() for name, _, value in parts}
            if fields["State"][0] == "S":
                found[task] = sum(
                    int(value[0])
                    for name, value in fields.items()
                    if name.endswith("_ctxt_switches")
                )
    return found


async def work(pool: Pool, count: int) -> None:
    """Have time pass, in which the pool's own process and others have something to do."""
    for number in range(count):
        assert await pool.submit(jobs.square, number) == number * number


@pytest.mark.parametrize("concurrency", [1, 4], ids=["one", "several"])
@pytest.mark.parametrize("used", [False, True], ids=["new", "used"])
async def test_nobody_wakes_up(*, used: bool, concurrency: int) -> None:
    async with (
        patience(),
        Pool(1, launcher="spawn") as other,  # which has a launcher of its own
        Pool(4, concurrency=concurrency, ping_timeout=None) as pool,
    ):
        stats = await idle(pool)
        if used:  # an event loop, and what it keeps
            await pool.broadcast(jobs.greet, "everybody")
        workers = [slot.pid for slot in stats.slots if slot.pid is not None]
        assert len(workers) == 4
        pids = [*workers, await launcher_of(pool)]
        # Until all have come to rest: a worker has two threads, the others have one.
        before: dict[Path, int] = {}
        while len(before) < 2 * 4 + 1 or rests(pids) != before:
            before = rests(pids)
            await work(other, 100)
        await work(other, 3000)
        assert rests(pids) == before
        # And it is counted.
        assert await pool.submit(jobs.square, 7) == 49
        assert rests(pids) != before
