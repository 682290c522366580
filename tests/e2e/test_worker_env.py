"""Workers that differ: an environment and a number for each."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from asyncpool import Pool, ProcessPoolExecutor, RestartPolicy, Sandbox
from asyncpool.errors import PoolBrokenError
from tests.helpers import jobs, probed
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience
from tests.helpers.pools import until
from tests.helpers.sandboxes import needs_sandbox

LAUNCHERS = ["forkserver", "spawn"]
PRELOAD = ["tests.helpers.probed"]
ONCE = RestartPolicy(max_failed_starts=1)


def own(slot: int) -> Mapping[str, str]:
    return {"PROBED": f"of {slot}"}


async def of_all(pool: Pool) -> list[Any]:
    return sorted((await pool.broadcast(probed.seen)).values())


@BOTH_LOOPS
@pytest.mark.parametrize(
    "options",
    [
        {"launcher": "forkserver"},
        {"launcher": "spawn"},
        pytest.param({"sandbox": Sandbox()}, marks=needs_sandbox),
    ],
)
async def test_each_worker_has_its_own_variables_before_it_imports(
    options: dict[str, Any],
) -> None:
    pool = Pool(2, preload=PRELOAD, worker_env=own, ready="all", **options)
    async with patience(), pool:
        assert await of_all(pool) == [(0, "of 0", "of 0"), (1, "of 1", "of 1")]
    assert "PROBED" not in os.environ


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.asyncio
async def test_variables_for_all_workers_hold_for_what_the_launcher_imports(
    launcher: Any,
) -> None:
    env = {"PROBED": "all", "PYTHONDONTWRITEBYTECODE": "1"}
    async with (
        patience(),
        Pool(1, launcher=launcher, preload=PRELOAD, worker_env=env) as pool,
        Pool(1, launcher=launcher, preload=PRELOAD) as other,
    ):
        assert await pool.submit(probed.seen) == (0, "all", "all")
        assert await pool.submit(probed.flags)
        # They share no launcher, although all else is the same.
        assert await other.submit(probed.seen) == (0, None, None)


@pytest.mark.asyncio
async def test_what_an_interpreter_reads_at_its_start_is_for_fresh_ones_alone() -> None:
    def fresh(_: int) -> dict[str, str]:
        return {"PYTHONDONTWRITEBYTECODE": "1"}

    async with patience():
        async with Pool(1, launcher="spawn", worker_env=fresh) as pool:
            assert await pool.submit(probed.flags)
        text = (
            "worker_env(0) sets PYTHONDONTWRITEBYTECODE, which takes effect only as a process "
            'starts, and a forked worker has started before: use launcher="spawn", or a '
            "mapping if the value is the same for all workers"
        )
        with pytest.raises(PoolBrokenError, match=re.escape(text)):
            await Pool(
                1, launcher="forkserver", worker_env=fresh, restart_policy=ONCE
            ).start()


@pytest.mark.asyncio
async def test_a_time_zone_counts_in_a_forked_worker() -> None:
    pool = Pool(1, launcher="forkserver", worker_env=lambda _: {"TZ": "EAST-3"})
    async with patience(), pool:
        assert await pool.submit(probed.hour) == 3


def fail(slot: int) -> Mapping[str, str]:
    raise LookupError(f"no device {slot}")


WRONG: dict[str, Callable[[int], Any]] = {
    " raised LookupError: no device 0": fail,
    ": the value of 'PROBED' must be a str, not 0": lambda slot: {"PROBED": slot},
    " has 9006 characters, and 8192 is the most: name a file instead": (
        lambda _: {"PROBED": "x" * 9000}
    ),
}


@pytest.mark.parametrize("text", WRONG)
@pytest.mark.asyncio
async def test_a_worker_without_its_variables_does_not_start(text: str) -> None:
    pool = Pool(1, worker_env=WRONG[text], restart_policy=ONCE)
    async with patience():
        with pytest.raises(PoolBrokenError, match=re.escape(f"worker_env(0){text}")):
            await pool.start()


@BOTH_LOOPS
async def test_workers_that_follow_have_the_numbers_of_those_before() -> None:
    async with (
        patience(),
        Pool(2, preload=PRELOAD, worker_env=own, ready="all") as pool,
    ):
        for pid in (await pool.broadcast(jobs.pid)).values():
            os.kill(pid, signal.SIGKILL)
        await until(pool, lambda stats: stats.restarts >= 2 and stats.idle == 2)
        assert await of_all(pool) == [(0, "of 0", "of 0"), (1, "of 1", "of 1")]
        for _ in range(3):  # each time in other slots, of which there are three
            await pool.roll()
            assert await of_all(pool) == [(0, "of 0", "of 0"), (1, "of 1", "of 1")]


def test_an_executor_passes_it_on() -> None:
    with ProcessPoolExecutor(1, worker_env=own) as executor:
        assert executor.submit(probed.seen).result() == (0, "of 0", "of 0")


def test_the_environment_of_all_workers_in_a_sandbox_is_the_sandboxs() -> None:
    text = (
        "worker_env is a mapping, and the sandbox says the whole environment: name the "
        "variables in Sandbox(env=...)"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        Pool(1, sandbox=Sandbox(strict=False), worker_env={"PROBED": "all"})
