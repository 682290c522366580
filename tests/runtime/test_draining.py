"""What a closing pool says, on a clock that jumps."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.supervision.closing import Finish
from asyncpool._runtime.job.chunk_job import ChunkJob
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.stream_job import StreamJob
from asyncpool._runtime.state.draining import MapHold
from asyncpool.errors import PoolClosedError
from tests.helpers import virtual_time
from tests.helpers.functions import known_function
from tests.helpers.owner import Owner
from tests.runtime.pool_parts import parts_of, queue_jobs


class Pool:
    """Of a pool, what closes, and says what it waits for."""

    def __init__(self) -> None:
        parts, self._notebook = parts_of()
        self.state, self.draining = parts.state, parts.draining
        self.registry = parts.state.registry

    @property
    def released(self) -> int:
        """How often somebody let go."""
        assert not any(self._notebook.performed), "nothing comes of it"
        return len(self._notebook.performed)

    def close(self) -> None:
        self.state.core.close(Finish.ALL, None, 0.0)

    def add(self, kind: type[Job[Any]], name: str) -> Job[Any]:
        loop, function = asyncio.get_running_loop(), known_function(name)
        job = kind(self.registry.next_id(), function, JobOptions(), Owner(), loop)
        self.registry.enter(job)
        return job


async def pass_by(seconds: float) -> None:
    """Let virtual time pass."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


@pytest.mark.logs("close-is-slow")
def test_every_ten_seconds_it_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        pool = Pool()
        hold = MapHold("app.each")
        hold.under_way = 12
        pool.draining.hold(hold)
        pool.add(Job, "app.work")
        pool.add(ChunkJob, "app.each")
        pool.add(StreamJob, "app.read")
        queue_jobs(pool.state, 2)
        await pass_by(30)
        assert caplog.messages == []
        pool.draining.begin()
        pool.draining.begin()
        await pass_by(15)
        pool.registry.jobs.clear()
        hold.release()
        await pass_by(10)
        pool.draining.stop()
        await pass_by(30)

    virtual_time.run(main())
    assert caplog.messages == [
        (
            "pool x has been closing for 10 s: waiting for 3 jobs, 2 of them in the queue "
            "(1 x app.work, 1 x app.each, 1 x app.read (a stream)); "
            "a map of app.each, 12 items under way"
        ),
        "pool x has been closing for 20 s: waiting for its workers to end",
    ]
    levels = [(name, level) for name, level, _ in caplog.record_tuples]
    assert levels == [("asyncpool", logging.WARNING)] * 2


def test_a_stream_that_nobody_reads_is_told_from_the_others() -> None:
    async def main() -> None:
        job = Pool().add(StreamJob, "app.read")
        assert isinstance(job, StreamJob)
        assert job._title == "app.read (a stream)"
        job._credit = 0
        assert job._title == "app.read (a stream that nobody reads)"

    virtual_time.run(main())


@pytest.mark.logs("jobs-unheard")
def test_jobs_that_end_with_the_pool_are_told_of_if_nobody_waits_for_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        pool = Pool()
        jobs = [pool.add(Job, name) for name in ("f", "f", "g", "g", "h")]
        jobs[0].add_done_callback(lambda _: None)
        pool.registry.fail(jobs[4], ZeroDivisionError())
        assert isinstance(jobs[4].exception(), ZeroDivisionError)
        pool.registry.fail_all(PoolClosedError())
        pool.draining.stop()

    virtual_time.run(main())
    [message] = caplog.messages
    assert message == (
        "pool x was closed before 3 of its jobs were done, and nobody waited for them "
        "(2 x g, 1 x f)"
    )


class TestHold:
    def test_it_lasts_until_all_is_drawn_and_done(self) -> None:
        async def main() -> None:
            pool, hold = Pool(), MapHold("app.each")
            pool.draining.hold(hold)
            hold.begin()
            hold.done()
            assert hold.held, "there may be more to come"
            hold.begin()
            hold.drawn()
            assert (hold.held, pool.released) == (True, 0)
            hold.done()
            assert (hold.held, pool.released) == (False, 1)
            hold.release()
            assert pool.released == 1

        virtual_time.run(main())

    def test_a_pool_that_closes_is_held_open_by_nobody_else(self) -> None:
        async def main() -> None:
            pool, hold = Pool(), MapHold("app.each")
            pool.close()
            pool.draining.hold(hold)
            assert not hold.held
            hold.release()
            assert pool.released == 0

        virtual_time.run(main())
