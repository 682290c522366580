"""``submit``, and the job that it returns."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from typing import Any, assert_type

import asyncpool
from asyncpool import Job, Pool
from asyncpool.enums import JobState
from tests.typing.jobs import add, fetch, join


class Document:
    def __init__(self, text: str) -> None:
        self.text = text

    def words(self, least: int = 1) -> list[str]:
        return [word for word in self.text.split() if len(word) >= least]

    @staticmethod
    def parse(raw: bytes) -> Document:
        return Document(raw.decode())


async def accepted(pool: Pool, document: Document) -> None:
    assert_type(pool.submit(len, "a"), Job[int])
    assert_type(await pool.submit(len, "a"), int)
    assert_type(await pool.submit(add, 1, right=2, carry=True), int)
    assert_type(await pool.submit(join, "a", 1, tail=b""), str)
    assert_type(await pool.submit(document.words, 3), list[str])
    assert_type(await pool.submit(Document, "text"), Document)
    assert_type(await pool.submit(Document.parse, b""), Document)
    assert_type(await pool.submit(functools.partial(add, 1), 2), int)
    assert_type(await pool.submit(lambda: 3), int)
    assert_type(await pool.submit(print, 1, 2, sep=""), None)


async def a_job_is_a_future(pool: Pool) -> None:
    job = pool.submit(add, 1)
    future: asyncio.Future[int] = job
    awaitable: Awaitable[float] = job
    found = await asyncio.gather(job, pool.submit(str, 1))
    assert_type(found, tuple[int, str])
    assert_type(await asyncio.shield(job), int)
    assert_type(job.result(), int)
    assert_type(job.exception(), BaseException | None)
    assert_type(job.cancel(), bool)
    done, _ = await asyncio.wait([job, pool.submit(len, "a")])
    assert_type(done, set[Job[int]])
    job.add_done_callback(lambda done: print(done.result() + 1))
    await asyncio.wait([future])
    await awaitable


def what_a_job_tells(job: Job[int]) -> None:
    assert_type(job.id, int)
    assert_type(job.attempt, int)
    assert_type(job.worker_pid, int | None)
    assert_type(job.state, JobState)


async def through_functions(
    pool: Pool, fn: Callable[[str], list[int]], anything: Callable[..., Any]
) -> None:
    assert_type(await pool.submit(fn, "a"), list[int])
    assert_type(await pool.submit(anything, 1, "a", x=3), Any)


async def coroutines(
    pool: Pool, fn: Callable[[int], Coroutine[Any, Any, list[str]]]
) -> None:
    assert_type(pool.submit(fetch, "a", retries=3), Job[bytes])
    assert_type(await pool.submit(fn, 1), list[str])
    assert_type(pool.options(timeout=1).submit(fetch, "a"), Job[bytes])
    assert_type(pool.submit_threadsafe(fetch, "a"), Future[bytes])
    assert_type(pool.options().submit_threadsafe(len, "a"), Future[int])


async def rejected(pool: Pool, job: Job[int]) -> None:
    pool.submit(fetch, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.submit(fetch("a"))  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.submit(len, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.submit(len)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    pool.submit(len, "a", "b")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    pool.submit(add, "a")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.submit(add, 1, wrong=2)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    pool.submit(add, 1, timeout=2)  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]
    pool.submit(add(1))  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    pool.submit_threadsafe(len, 3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    pool.submit(fn=add, left=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    text: str = await pool.submit(len, "a")  # type: ignore[call-overload]  # pyright: ignore[reportAssignmentType]
    future: asyncio.Future[str] = job  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(text, future)
    print(job.state is JobState.FINISHED)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
    job.state = JobState.DONE  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]
    asyncpool.Job()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    asyncpool.submit(add, 1)  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
