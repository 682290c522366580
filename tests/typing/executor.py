"""Our ``ProcessPoolExecutor``, in place of the standard library's."""

from __future__ import annotations

import asyncio
import concurrent.futures
import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Future
from typing import assert_type

from asyncpool import ProcessPoolExecutor
from tests.typing.jobs import add, repeat


def accepted() -> None:
    ProcessPoolExecutor()
    ProcessPoolExecutor(4, multiprocessing.get_context("spawn"), print, ("hello",))
    ProcessPoolExecutor(
        mp_context=multiprocessing.get_context(), max_tasks_per_child=10
    )
    with ProcessPoolExecutor(max_workers=4) as executor:
        assert_type(executor, ProcessPoolExecutor)
        base: concurrent.futures.Executor = executor
        assert_type(executor.submit(add, 1, carry=True), Future[int])
        assert_type(executor.submit(add, 1).result(timeout=3), int)
        assert_type(executor.map(repeat, ["a"], [1], chunksize=8), Iterator[list[str]])
        assert_type(executor.map(len, "ab", timeout=3, buffersize=4), Iterator[int])
        futures = [executor.submit(len, "a")]
        for future in concurrent.futures.as_completed(futures):
            assert_type(future.result(), int)
        base.shutdown(wait=False)
    assert_type(executor.shutdown(cancel_futures=True), None)
    assert_type(executor.terminate_workers(), None)
    assert_type(executor.kill_workers(), None)


async def in_a_loop(executor: ProcessPoolExecutor) -> None:
    loop = asyncio.get_running_loop()
    assert_type(await loop.run_in_executor(executor, repeat, "a", 3), list[str])
    assert_type(await asyncio.wrap_future(executor.submit(len, "a")), int)


def rejected(executor: ProcessPoolExecutor) -> None:
    ProcessPoolExecutor("4")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ProcessPoolExecutor(mp_context="spawn")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ProcessPoolExecutor(workers=4)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ProcessPoolExecutor(max_tasks_per_child="10")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    executor.submit(len, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    executor.submit(add)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    executor.submit(add, 1, timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    executor.map(len, 3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    executor.map(len, ["a"], chunksize="8")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    text: Future[str] = executor.submit(len, "a")  # type: ignore[arg-type]  # pyright: ignore[reportAssignmentType]
    print(text)
    executor.shutdown(timeout=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
