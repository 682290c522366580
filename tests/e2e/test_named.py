"""Names: of the function of a job that ends badly, and of the tasks and processes of a pool."""

from __future__ import annotations

import asyncio
import functools
import sys
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import psutil
import pytest

from asyncpool import Job, Pool, ProcessPoolExecutor
from asyncpool.errors import AsyncPoolError, WorkerCrashedError, WorkerHungError
from tests.helpers import faults, jobs, streams, values
from tests.helpers.clusters import Client, all_ready, cluster_of
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience
from tests.helpers.pools import idle, launcher_of

WAIT = "tests.helpers.jobs.wait_at"
DIE = "tests.helpers.faults.commit"


async def error_of(job: Job[Any]) -> Any:
    with pytest.raises(AsyncPoolError) as caught:
        await job
    return caught.value


@BOTH_LOOPS
async def test_what_a_job_ends_by_names_its_function() -> None:
    crashes: list[Any] = []
    async with patience(), Gate() as gate, Pool(1, on_crash=crashes.append) as pool:
        job: Job[Any] = pool.submit(faults.commit, "exit 3")
        error = await error_of(job)
        assert (error.function, crashes[0].function) == (DIE, DIE)
        assert f"of job {job.id} ({DIE}); the job had started" in str(error)

        job = pool.options(timeout=0.05).submit(jobs.wait_at, gate.path)
        assert str(await error_of(job)).startswith(
            f"job {job.id} ({WAIT}) ran longer than its timeout of 0.05 s, in attempt 1"
        )
        job = pool.options(heartbeat_timeout=0.05).submit(jobs.wait_at, gate.path)
        error = await error_of(job)
        assert type(error) is WorkerHungError
        assert f"of job {job.id} ({WAIT});" in str(error)

        refused: list[tuple[Any, tuple[Any, ...]]] = [
            (jobs.take, (values.Unpicklable(),)),
            (values.make_lock, ()),
            (jobs.throw, (SystemExit(3),)),
        ]
        for function, args in refused:
            job = pool.submit(function, *args)
            error = await error_of(job)
            name = f"{function.__module__}.{function.__name__}"
            assert error.function == name
            assert error.__notes__ == [f"It is the error of job {job.id} ({name})."]
        for one in await pool.map(
            faults.commit, ["exit 3"] * 2, chunksize=2
        ).outcomes():
            assert isinstance(one.error, WorkerCrashedError)
            assert one.error.function == DIE

        job = pool.submit(jobs.wait_at, gate.path, "last")
        queued = pool.submit(functools.partial(jobs.wait_at, gate.path))
        await gate.visitor("last")
        assert repr(job) == f"<Job {job.id} {WAIT} running attempt 1>"
        assert repr(queued) == f"<Job {queued.id} {WAIT} queued>"
        await pool.close(finish="none")
        for it in job, queued:
            error = await error_of(it)
            assert error.function == WAIT
            text = f"the pool was closed before job {it.id} ({WAIT}) was done"
            assert str(error) == text


@BOTH_LOOPS
async def test_those_that_died_beside_have_their_own() -> None:
    async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
        job = pool.submit(streams.wait_for_ever, gate.path)
        await gate.visitor("waiting")
        killer = pool.submit(faults.commit, "exit 3")
        waits = "tests.helpers.streams.wait_for_ever"
        for one, name in ((job, waits), (killer, DIE)):
            error = await error_of(one)
            [crash] = error.crashes
            assert (crash.job_id, crash.function) == (one.id, name)
            assert error.function == name


@pytest.mark.parametrize("limit", [None, 5])
def test_an_executor_names_what_was_submitted(limit: int | None) -> None:
    with ProcessPoolExecutor(1, max_tasks_per_child=limit) as executor:
        error = executor.submit(faults.commit, "exit 3").exception(PATIENCE)
        assert isinstance(error, WorkerCrashedError)
        assert isinstance(error, BrokenProcessPool)
        assert error.function == DIE
        with pytest.raises(WorkerCrashedError) as caught:
            list(executor.map(faults.commit, ["exit 3"], chunksize=2))
        assert caught.value.function == DIE


def names_since(before: set[asyncio.Task[Any]]) -> set[str]:
    """Return the names of the tasks that have come since."""
    return {task.get_name() for task in asyncio.all_tasks() - before}


@BOTH_LOOPS
async def test_task_names_of_a_pool() -> None:
    async with patience():
        before = set(asyncio.all_tasks())
        async with Gate() as gate, Pool(1, name="shop") as pool:
            job = pool.submit(jobs.wait_at, gate.path)
            visitor = await gate.visitor()
            before |= {t for t in asyncio.all_tasks() if "Gate" in repr(t.get_coro())}
            names = names_since(before)
            visitor.release()
            await job
    assert {
        "asyncpool supervisor of shop",
        "asyncpool worker in slot 0 of shop",
    } <= names
    assert [name for name in names if not name.startswith("asyncpool ")] == []


@BOTH_LOOPS
async def test_task_names_of_a_cluster() -> None:
    async with patience():
        before = set(asyncio.all_tasks())
        async with cluster_of(name="app") as cluster, Client(cluster) as client:
            await all_ready(cluster)
            await client.ask("who")
            names = names_since(before)
    assert "asyncpool supervisor of app" in names
    assert [name for name in names if not name.startswith("asyncpool ")] == []


only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="nothing else has such names"
)
# In place of the extra: it tells what it was asked for.
FAKE = """
import os

def setproctitle(title):
    with open(os.path.join(os.path.dirname(__file__), "titles"), "a") as file:
        file.write(f"{os.getpid()} {title}\\n")
"""


@BOTH_LOOPS
@only_linux
async def test_each_process_has_a_name_of_its_own() -> None:
    async with patience(), Pool(2, name="shop") as pool:
        await idle(pool)
        names = [psutil.Process(await launcher_of(pool)).name()]
        workers = {it.slot: it.pid for it in pool.stats().slots}
        names += [psutil.Process(workers[slot]).name() for slot in (0, 1)]
    assert names == ["pool-launcher", "pool-worker-0", "pool-worker-1"]


@BOTH_LOOPS
@only_linux
@pytest.mark.parametrize("launcher", ["forkserver", "spawn"])
async def test_with_the_extra_a_title_names_the_pool(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setproctitle.py").write_text(FAKE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with patience(), Pool(1, name="shop", launcher=launcher) as pool:  # type: ignore[arg-type]
        pid, parent = await pool.submit(jobs.pid), await launcher_of(pool)
        assert psutil.Process(pid).name() == "pool-worker-0", "the short name stays"
    told = (tmp_path / "titles").read_text().splitlines()
    assert f"{parent} asyncpool: launcher" in told
    assert f"{pid} asyncpool: worker 0 of shop" in told


@BOTH_LOOPS
async def test_an_extra_that_fails_hurts_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "setproctitle.py").write_text("raise RuntimeError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    async with patience(), Pool(1) as pool:
        assert await pool.submit(jobs.square, 3) == 9
