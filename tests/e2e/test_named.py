"""Whatever goes wrong with a job says which function it was."""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import pytest

from asyncpool import (
    JobNotPicklableError,
    JobRaisedError,
    JobTimeoutError,
    Pool,
    PoolClosedError,
    ProcessPoolExecutor,
    WorkerCrashedError,
    WorkerHungError,
)
from tests.helpers import faults, jobs, streams, values
from tests.helpers.gate import Gate
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import PATIENCE, patience

WAIT = "tests.helpers.jobs.wait_at"
DIE = "tests.helpers.faults.commit"


@BOTH_LOOPS
class TestPool:
    async def test_the_text_of_a_job(self) -> None:
        async with patience(), Gate() as gate, Pool(1) as pool:
            job = pool.submit(jobs.wait_at, gate.path)
            queued = pool.submit(functools.partial(jobs.wait_at, gate.path))
            visitor = await gate.visitor()
            assert repr(job) == f"<Job {job.id} {WAIT} running attempt 1>"
            assert repr(queued) == f"<Job {queued.id} {WAIT} queued>"
            visitor.release()
            await job
            (await gate.visitor(nth=2)).release()
            await queued

    async def test_the_tasks_of_the_service(self) -> None:
        async with patience():
            before = asyncio.all_tasks()
            async with Gate() as gate, Pool(2, name="shop") as pool:
                job = pool.submit(jobs.wait_at, gate.path)
                visitor = await gate.visitor()
                names = {task.get_name() for task in asyncio.all_tasks() - before}
                visitor.release()
                await job
        assert {
            "asyncpool supervisor of shop",
            "asyncpool worker in slot 0 of shop",
            "asyncpool worker in slot 1 of shop",
        } <= names

    async def test_a_crash(self) -> None:
        crashes: list[Any] = []
        async with patience(), Pool(1, on_crash=crashes.append) as pool:
            job = pool.submit(faults.commit, "exit 3")
            with pytest.raises(WorkerCrashedError) as caught:
                await job
        assert (caught.value.function, crashes[0].function) == (DIE, DIE)
        assert f"of job {job.id} ({DIE}); the job had started" in str(caught.value)

    async def test_those_that_died_beside_have_their_own(self) -> None:
        async with patience(), Gate() as gate, Pool(1, concurrency=2) as pool:
            job = pool.submit(streams.wait_for_ever, gate.path)
            await gate.visitor("waiting")
            killer = pool.submit(faults.commit, "exit 3")
            for one, name in (
                (job, "tests.helpers.streams.wait_for_ever"),
                (killer, DIE),
            ):
                with pytest.raises(WorkerCrashedError) as caught:
                    await one
                [crash] = caught.value.crashes
                assert (crash.job_id, crash.function) == (one.id, name)
                assert caught.value.function == name

    async def test_a_timeout(self) -> None:
        async with patience(), Gate() as gate, Pool(1) as pool:
            job = pool.options(timeout=0.05).submit(jobs.wait_at, gate.path)
            with pytest.raises(JobTimeoutError) as caught:
                await job
        assert str(caught.value).startswith(
            f"job {job.id} ({WAIT}) ran longer than its timeout of 0.05 s, in attempt 1"
        )

    async def test_a_hang(self) -> None:
        async with patience(), Gate() as gate, Pool(1) as pool:
            job = pool.options(heartbeat_timeout=0.05).submit(jobs.wait_at, gate.path)
            with pytest.raises(WorkerHungError, match=rf"of job {job.id} \({WAIT}\);"):
                await job

    async def test_a_close(self) -> None:
        async with patience(), Gate() as gate:
            async with Pool(1) as pool:
                job = pool.submit(jobs.wait_at, gate.path)
                await gate.visitor()
                await pool.close(finish="none")
            with pytest.raises(PoolClosedError) as caught:
                await job
        assert str(caught.value) == (
            f"the pool was closed before job {job.id} ({WAIT}) was done"
        )
        assert caught.value.function == WAIT

    @pytest.mark.parametrize(
        ("call", "kind", "name"),
        [
            (
                (jobs.take, values.Unpicklable()),
                JobNotPicklableError,
                "tests.helpers.jobs.take",
            ),
            (
                (values.make_lock,),
                JobNotPicklableError,
                "tests.helpers.values.make_lock",
            ),
            (
                (jobs.throw, SystemExit(3)),
                JobRaisedError,
                "tests.helpers.jobs.throw",
            ),
        ],
        ids=["argument", "result", "raised"],
    )
    async def test_what_cannot_cross(
        self, call: tuple[Any, ...], kind: type[Any], name: str
    ) -> None:
        async with patience(), Pool(1) as pool:
            job = pool.submit(*call)
            with pytest.raises(kind) as caught:
                await job
        assert caught.value.function == name
        assert caught.value.__notes__ == [f"It is the error of job {job.id} ({name})."]

    async def test_a_map_whose_items_travel_together(self) -> None:
        async with patience(), Pool(1) as pool:
            found = await pool.map(
                faults.commit, ["exit 3"] * 2, chunksize=2
            ).outcomes()
        for one in found:
            assert isinstance(one.error, WorkerCrashedError)
            assert one.error.function == DIE


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
