"""``worker``: what calls in a worker to oneself return."""

from __future__ import annotations

from typing import assert_type

from asyncpool import Job, Pool, Stream, WorkerSession
from tests.typing.jobs import add, fetch


def numbers(count: int) -> list[int]:
    return [*range(count)]


async def accepted(pool: Pool) -> None:
    assert_type(pool.worker(), WorkerSession)
    session = pool.options(timeout=5).worker(timeout=1, fresh=False)
    async with session as worker:
        assert_type(worker, WorkerSession)
        assert_type(worker.submit(len, "a"), Job[int])
        assert_type(await worker.submit(add, 1, right=2, carry=True), int)
        assert_type(worker.options(timeout=5), WorkerSession)
        assert_type(worker.stream(numbers, 3), Stream[int])
        assert_type((worker.slot, worker.pid), tuple[int, int])
        worker.submit(fetch, "url")


async def refused(pool: Pool) -> None:
    pool.worker(3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    async with pool.worker() as worker:
        worker.submit()  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
