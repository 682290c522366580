"""An executor whose pool was given to it: a shared one, or one with other options."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Generator
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from asyncpool import Pool, ProcessPoolExecutor, connect
from tests.helpers import jobs
from tests.helpers.patience import PATIENCE
from tests.helpers.shared_pools import server
from tests.helpers.waiting_room import WaitingRoom


@pytest.fixture
def path(tmp_path: Path) -> Generator[Path]:
    path = tmp_path / "pool.sock"
    with server(path, workers=2):
        yield path


def test_calls_of_two_executors_run_in_the_same_workers(path: Path) -> None:
    with (
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as one,
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as two,
    ):
        pids = {*one.map(jobs.pid_for, range(50)), *two.map(jobs.pid_for, range(50))}
        assert len(pids) <= 2
        assert os.getpid() not in pids
        assert [*one.map(jobs.square, range(500), chunksize=7)] == [
            n * n for n in range(500)
        ]
        with pytest.raises(ZeroDivisionError):
            two.submit(divmod, 1, 0).result(PATIENCE)
        with pytest.raises(BrokenProcessPool):
            one.submit(signal.raise_signal, signal.SIGKILL).result(PATIENCE)
        assert one.submit(jobs.square, 3).result(PATIENCE) == 9
        one.shutdown()
        assert two.submit(jobs.square, 4).result(PATIENCE) == 16


@pytest.mark.parametrize("is_after_short_ones", [False, True])
def test_a_call_that_cannot_begin_soon_can_be_cancelled(
    path: Path, *, is_after_short_ones: bool
) -> None:
    with WaitingRoom() as room:
        executor = ProcessPoolExecutor(pool=connect(f"unix:{path}"))
        if is_after_short_ones:
            list(executor.map(jobs.square, range(1000)))
        calls = [executor.submit(jobs.wait_at, room.path) for _ in range(300)]
        room.admit()
        room.admit()
        executor.shutdown(wait=False, cancel_futures=True)
        running = [call for call in calls if not call.cancelled()]
        # For each of two workers: one that runs, one that is next there, one that is here.
        assert 2 <= len(running) <= 6
        for _ in running[2:]:
            room.release()
            room.admit()
        room.release()
        assert {call.result(PATIENCE) for call in running} == {"go"}


async def _in_a_loop(executor: ProcessPoolExecutor) -> list[int]:
    loop = asyncio.get_running_loop()
    calls = (loop.run_in_executor(executor, jobs.square, n) for n in range(20))
    return await asyncio.gather(*calls)


def _begin_and_wait(path: str) -> None:
    Path(path).write_text("begun")
    signal.pause()


def test_it_ends_its_own_calls_only(path: Path, tmp_path: Path) -> None:
    with (
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as one,
        ProcessPoolExecutor(pool=connect(f"unix:{path}")) as two,
    ):
        assert asyncio.run(_in_a_loop(two)) == [n * n for n in range(20)]
        assert one.submit(jobs.square, 2).result(PATIENCE) == 4
        os.mkfifo(begun := tmp_path / "begun")
        hangs = one.submit(_begin_and_wait, str(begun))
        assert begun.read_text() == "begun"
        one.kill_workers()
        with pytest.raises(BrokenProcessPool):
            hangs.result(PATIENCE)
        one.shutdown()
        assert two.submit(jobs.square, 5).result(PATIENCE) == 25


def test_where_nobody_shares_a_pool_the_first_result_says_so(tmp_path: Path) -> None:
    with ProcessPoolExecutor(pool=connect(f"unix:{tmp_path}/none")) as executor:
        with pytest.raises(
            BrokenProcessPool, match="no process shares a pool there"
        ) as broken:
            executor.submit(jobs.square, 1).result(PATIENCE)
        assert isinstance(broken.value.__cause__, FileNotFoundError)
        with pytest.raises(BrokenProcessPool, match="could not be started"):
            executor.submit(jobs.square, 1)


def test_a_local_pool_brings_its_options() -> None:
    pool = Pool(1, worker_env={"ASYNCPOOL_TEST": "given"}, name="mine")
    with ProcessPoolExecutor(pool=pool) as executor:
        assert executor.submit(os.getenv, "ASYNCPOOL_TEST").result(PATIENCE) == "given"
        assert "mine" in repr(executor)


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"pool": 5}, TypeError, r"pool must be an asyncpool\.Pool, or what"),
        ({"pool": Thread()}, TypeError, r"pool must be an asyncpool\.Pool, or what"),
        (
            {"pool": Pool(1).options(timeout=3.0)},
            TypeError,
            r"pool must be an asyncpool\.Pool, or what",
        ),
        ({"pool": Pool(1), "max_workers": 2}, ValueError, "max_workers must not be"),
        ({"pool": Pool(1), "initargs": (1,)}, ValueError, "initargs must not be"),
    ],
)
def test_what_the_pool_decides_is_not_asked_for_twice(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        ProcessPoolExecutor(**options)


@pytest.mark.asyncio
async def test_a_pool_that_has_been_started_is_refused(path: Path) -> None:
    async with Pool(1) as local, connect(f"unix:{path}") as shared:
        pools: list[Any] = [local, shared]
        for pool in pools:
            with pytest.raises(ValueError, match="pool has been started: the executor"):
                ProcessPoolExecutor(pool=pool)
            assert await pool.submit(jobs.square, 3) == 9
    for pool in pools:  # and when it is over
        with pytest.raises(ValueError, match="pool has been started: the executor"):
            ProcessPoolExecutor(pool=pool)
