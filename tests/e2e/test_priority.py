"""Who begins first when several wait."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path
from typing import Any

from asyncpool import Job, Pool
from tests.helpers import jobs
from tests.helpers.gate import Gate
from tests.helpers.inside import OLDEST_EVERY, pickled
from tests.helpers.large import crowd
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience

pytestmark = ONE_LOOP


async def order_of(jobs_: dict[str, Job[Any]]) -> list[str]:
    """Return the names in the order in which their jobs are done."""
    done: list[str] = []
    for name, job in jobs_.items():
        job.add_done_callback(
            functools.partial(lambda name, _: done.append(name), name)
        )
    await asyncio.gather(*jobs_.values())
    await asyncio.sleep(0)
    return done


async def test_lower_first_and_first_come_first_served_among_equals(
    pool: Pool, gate: Gate
) -> None:
    held = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    given = [("a", 0), ("b", 5), ("c", -5), ("d", 0), ("e", -5), ("f", 5)]
    waiting: dict[str, Job[Any]] = {
        name: pool.options(priority=priority).submit(jobs.square, 1)
        for name, priority in given
    }
    visitor.release()
    assert "".join(await order_of(waiting)) == "ceadbf"
    await held


async def test_nothing_starves() -> None:
    async with patience(), Gate() as gate, Pool(1) as pool:
        held = pool.submit(jobs.wait_at, gate.path)
        visitor = await gate.visitor()
        waiting: dict[str, Job[Any]] = {"old": pool.submit(jobs.square, 1)}
        urgent = pool.options(priority=-1)
        for number in range(2 * OLDEST_EVERY):
            waiting[str(number)] = urgent.submit(jobs.square, number)
        visitor.release()
        done = await order_of(waiting)
        assert done.index("old") == OLDEST_EVERY - 1
        await held


async def test_what_takes_a_while_to_pickle_has_its_priority_too(
    pool: Pool, gate: Gate, tmp_path: Path
) -> None:
    path = tmp_path / "signed"
    held = pool.submit(jobs.wait_at, gate.path)
    visitor = await gate.visitor()
    light = pool.submit(jobs.sign, str(path), 1)
    urgent = pool.options(priority=-1)
    heavy = urgent.submit(jobs.sign, str(path), 2, crowd(1 << 20))
    while not pickled(heavy):  # noqa: ASYNC110 - it is pickled in a thread
        await asyncio.sleep(0)
    visitor.release()
    await asyncio.gather(held, light, heavy)
    assert path.read_text().split() == ["2", "1"]
