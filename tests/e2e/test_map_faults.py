"""Items that travel together, and one of them kills, hangs or takes long."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
from pathlib import Path
from typing import Any

import pytest

from asyncpool import (
    Crash,
    JobTimeoutError,
    Pool,
    WorkerCrashedError,
    WorkerOutOfMemoryError,
)
from tests.helpers import faults, jobs, scribbles
from tests.helpers.faces import Faced
from tests.helpers.gate import Gate
from tests.helpers.inside import CHUNK_SIZE, read_notes_by
from tests.helpers.one_pool import ONE_LOOP
from tests.helpers.patience import patience
from tests.helpers.pools import assert_serves, case
from tests.helpers.signing import Item, signing

pytestmark = ONE_LOOP


def signed(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split()]


async def test_a_crash_costs_one_item_and_none_is_run_twice(
    tmp_path: Path, faced: Faced
) -> None:
    crashes: list[Crash] = []
    async with patience(), faced(on_crash=crashes.append) as (caller, _):
        for number, at in enumerate((0, 1, 5, 9), 1):
            path = tmp_path / f"log {at}"
            items = signing(path, 10)
            items[at] = ("die", None)
            choices = caller.map(jobs.choose, items, chunksize=10, buffersize=40)
            found = await choices.outcomes()
            assert await caller.submit(jobs.square, 3) == 9
            assert [one.index for one in found if not one.ok] == [at]
            error = found[at].error
            assert type(error) is WorkerCrashedError
            assert (error.delivery, len(crashes)) == ("started", number)
            others = [n for n in range(10) if n != at]
            assert [one.result() for one in found if one.ok] == others
            assert signed(path) == others


async def test_no_more_go_together_than_can_be_noted() -> None:
    count = CHUNK_SIZE + 1000
    async with patience(), Pool(1, initializer=jobs.fill_state) as pool:
        items = [()] * count
        found = await pool.starmap(
            jobs.count_state, items, chunksize=count, buffersize=4 * count
        )
    # Nobody has run it in between: those that are run twice would leave out numbers.
    assert sorted(found) == list(range(1, count + 1))


async def test_results_of_any_kind_survive_the_worker() -> None:
    values: list[Any] = [
        None,
        True,
        3,
        -(2**70),
        2.5,
        "ä",
        b"\0",
        [1, [2]],
        {"a": (1,)},
    ]
    items: list[Item] = [("return", value) for value in values]
    items += [("raise", LookupError("kept")), ("die", None), ("return", "after")]
    async with patience(), Pool(1) as pool:
        found = await pool.map(
            jobs.choose, items, chunksize=12, buffersize=48
        ).outcomes()
    assert [one.result() for one in found[:9]] == values
    assert repr(found[9].error) == "LookupError('kept')"
    assert isinstance(found[10].error, WorkerCrashedError)
    assert found[11].result() == "after"


async def test_what_a_dying_worker_has_scribbled_is_lost_and_the_pool_goes_on(
    faced: Faced,
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with patience(), faced() as (caller, pool):
        for number, name in enumerate(scribbles.SCRIBBLES, 1):
            with case(name):
                items: list[Any] = ["a", None, name, "after", [1]]
                pid = await caller.submit(os.getpid)
                echoes = caller.map(
                    scribbles.echo_or_scribble, items, chunksize=5, buffersize=20
                )
                found = await echoes.outcomes()
                assert await caller.submit(jobs.square, 3) == 9
                assert pool.stats().crashes == number
                # On a busy machine the first ones may have gone ahead of it.
                first = [one.result() for one in found[:2] if one.ok]
                assert first in ([], ["a"], ["a", None])
                for one in found[:3]:
                    assert one.ok or type(one.error) is WorkerCrashedError
                assert type(found[2].error) is WorkerCrashedError
                assert (found[2].error.delivery, found[2].error.pid) == ("started", pid)
                assert [one.result() for one in found[3:]] == ["after", [1]]
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert after - before < 100_000, "kilobytes"


@pytest.mark.parametrize("name", ["ones", "noise"])
async def test_what_is_scribbled_over_numbers_is_no_result(name: str) -> None:
    items = [*range(300), name, *range(300)]
    async with patience(), Pool(1) as pool:
        await pool.submit(os.getpid)
        echoes = pool.map(scribbles.echo_or_scribble, items, buffersize=601)
        found = await echoes.outcomes()
        await assert_serves(pool)
    assert isinstance(found[300].error, WorkerCrashedError)
    # A few may have gone ahead of it, and come back.
    good = [one for one in found if one.ok]
    assert [one.result() for one in good] == [items[one.index] for one in good]
    assert all(isinstance(one.error, WorkerCrashedError) for one in found if not one.ok)


async def test_who_cannot_read_the_notes_of_the_dead_begins_none_of_it_again(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    read_notes_by(monkeypatch, fail)
    path = tmp_path / "log"
    items = signing(path, 5)
    items[2] = ("die", None)
    async with patience(), Pool(1) as pool:
        found = await pool.map(
            jobs.choose, items, chunksize=5, buffersize=20
        ).outcomes()
        await assert_serves(pool)
    assert type(found[2].error) is WorkerCrashedError
    run = signed(path)
    assert run[:2] == [0, 1]
    assert len(set(run)) == len(run), "none is begun again"
    assert {one.index for one in found if one.ok} <= set(run)
    assert "the notes of a worker cannot be read" in caplog.messages


async def test_many_crashes_cost_as_many_items(tmp_path: Path) -> None:
    path = tmp_path / "log"
    items = signing(path, 300)
    killers = set(range(7, 300, 31))
    for n in killers:
        items[n] = ("die", None)
    async with patience(), Pool(2) as pool:
        found = await pool.map(
            jobs.choose, items, chunksize=20, buffersize=200
        ).outcomes()
    assert {one.index for one in found if not one.ok} == killers
    assert sorted(signed(path)) == [n for n in range(300) if n not in killers]


async def test_only_the_item_that_was_lost_is_tried_again(
    tmp_path: Path, faced: Faced
) -> None:
    path = tmp_path / "log"
    items = [*signing(path, 4), ("die", None), *[("attempt", None)] * 2]
    async with patience(), faced() as (caller, pool):
        view = caller.options(max_attempts=3)
        choices = view.map(jobs.choose, items, chunksize=7, buffersize=28)
        found = await choices.outcomes()
        assert pool.stats().crashes == 3
        if caller is pool:
            assert pool.stats().takeovers == 1, "alone it was taken over once more"
    error = found[4].error
    assert type(error) is WorkerCrashedError
    assert len(error.crashes) == 2, "in the two attempts that it had alone"
    assert [one.result() for one in found[5:]] == [1, 1]
    assert signed(path) == [0, 1, 2, 3]


async def test_what_was_raised_is_tried_again_alone(pool: Pool) -> None:
    view = pool.options(max_attempts=3, retry_on=[LookupError])
    items = [1, 2, 3]
    found = await view.map(
        jobs.fail_before_attempt_3, items, chunksize=3, buffersize=12
    )
    assert found == [(1, 3), (2, 3), (3, 3)]


async def test_items_behind_one_that_takes_long_go_on_elsewhere(
    pair: Pool, gate: Gate
) -> None:
    items: list[Item] = [("pid", None), ("wait", gate.path), *[("pid", None)] * 6]
    running = pair.map(jobs.choose, items, chunksize=8, buffersize=64).outcomes()
    results = asyncio.ensure_future(collect(running.unordered()))
    visitor = await gate.visitor()
    # The batch is not complete, but all others of it are done.
    while pair.stats().busy > 1 or pair.stats().queued:  # noqa: ASYNC110
        await asyncio.sleep(0)
    visitor.release()
    found = {one.index: one.result() for one in await results}
    assert found[1] == "go"
    assert found[0] == visitor.pid
    assert len(found) == 8


async def collect(results: Any) -> list[Any]:
    return [result async for result in results]


@pytest.mark.parametrize("on_cancel", ["interrupt", "kill"])
async def test_the_timeout_is_for_each_item(
    tmp_path: Path, faced: Faced, on_cancel: Any
) -> None:
    path = tmp_path / "log"
    items = [*signing(path, 5), ("sleep", 3600.0), *signing(path, 3)]
    async with patience(), faced() as (caller, _):
        view = caller.options(timeout=1.0, on_cancel=on_cancel)
        choices = view.map(jobs.choose, items, chunksize=9, buffersize=36)
        found = await choices.outcomes()
        assert await caller.submit(jobs.square, 3) == 9
    assert [one.index for one in found if not one.ok] == [5]
    error = found[5].error
    assert isinstance(error, JobTimeoutError)
    assert (error.limit, error.seconds) == ("timeout", 1.0)
    assert "choose" in error.stack
    assert signed(path) == [0, 1, 2, 3, 4, 0, 1, 2]


async def test_items_may_take_longer_together_than_each_may(pool: Pool) -> None:
    items: list[Item] = [("sleep", 0.02)] * 20
    view = pool.options(timeout=0.35)
    assert (
        await view.map(jobs.choose, items, chunksize=20, buffersize=80) == [None] * 20
    )


async def test_memory_that_is_bounded_is_each_items_own(pool: Pool) -> None:
    items: list[Item] = [("return", 1), ("exhaust", None), ("return", 2)]
    found = await pool.map(jobs.choose, items, chunksize=3, buffersize=12).outcomes()
    assert [one.ok for one in found] == [True, False, True]
    assert isinstance(found[1].error, MemoryError)
    assert not isinstance(found[1].error, WorkerOutOfMemoryError)


async def test_more_results_than_the_log_holds(pair: Pool) -> None:
    items: list[Item] = [("make", 3000)] * 500
    found = await pair.map(jobs.choose, items, chunksize=100, buffersize=1000)
    assert [len(one) for one in found] == [3000] * 500


async def test_a_worker_that_dies_of_what_it_unpickles_costs_that_item() -> None:
    async with patience(), Pool(1) as pool:
        items = [1, faults.Trap("exit 3"), 3]
        found = await pool.map(
            jobs.call_or_return, items, chunksize=3, buffersize=12
        ).outcomes()
    assert [one.ok for one in found] == [True, False, True]
    assert isinstance(found[1].error, WorkerCrashedError)


async def test_a_flood_of_deaths_while_a_map_runs() -> None:
    async with patience(), Pool(2) as pool:
        results = pool.map(jobs.square, range(50_000)).unordered()
        hostile = []
        found = []
        async for result in results:
            found.append(result)
            if len(found) % 5000 == 1:
                hostile.append(pool.submit(faults.commit, "SIGKILL"))
        deaths = await asyncio.gather(*hostile, return_exceptions=True)
    assert sorted(found) == [n * n for n in range(50_000)]
    assert {type(death) for death in deaths} == {WorkerCrashedError}


async def test_endless_errors_do_not_slow_it_down(pair: Pool) -> None:
    items = itertools.islice(
        itertools.cycle([("return", 1), ("raise", ValueError("no"))]), 4000
    )
    found = await pair.map(jobs.choose, items).outcomes()
    assert [one.ok for one in found] == [True, False] * 2000
