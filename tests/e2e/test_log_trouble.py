"""What is logged when something beside a pool goes wrong: callbacks, executors, clients."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Awaitable
from typing import Any, cast

import pytest

from asyncpool import Pool, PoolClosedError, ProcessPoolExecutor, WorkerCrashedError
from asyncpool.cluster._servers.transports import connect
from asyncpool.events import Crash
from tests.helpers import jobs
from tests.helpers.inside import (
    break_threads_of_executors,
    shorten_grace_of_callbacks,
)
from tests.helpers.patience import PATIENCE, patience


@pytest.mark.logs("callback-failed")
def test_a_callback_that_ends_the_thread_of_an_executor() -> None:
    called = threading.Event()

    def leave(_: object) -> None:
        called.set()
        raise SystemExit(1)

    with ProcessPoolExecutor(1) as executor:
        future = executor.submit(jobs.square, 3)
        future.add_done_callback(leave)
        assert future.result() == 9
        assert called.wait(PATIENCE)
        assert executor.submit(jobs.square, 2).result() == 4


@pytest.mark.logs("executor-failed")
def test_the_thread_of_an_executor_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    break_threads_of_executors(monkeypatch, LookupError("a bug"))
    with (
        ProcessPoolExecutor(1) as executor,
        pytest.raises(PoolClosedError, match="the executor failed: LookupError"),
    ):
        executor.submit(jobs.square, 2).result()


@pytest.mark.asyncio
@pytest.mark.logs("on-crash-is-slow")
async def test_a_callback_that_does_not_return(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_grace_of_callbacks(monkeypatch, 0.01)
    over = asyncio.Event()

    async def on_crash(_: Crash) -> None:
        while not over.is_set():
            try:
                await over.wait()
            except asyncio.CancelledError:
                continue

    async with patience():
        async with Pool(1, on_crash=on_crash) as pool:
            with pytest.raises(WorkerCrashedError):
                await pool.options(max_attempts=1).submit(os._exit, 3)
        over.set()
        await asyncio.sleep(0)


class Accepted:
    """A worker with one connection, of which nothing is left."""

    def __init__(self) -> None:
        self.socket = self

    async def connections(self) -> Any:
        yield self

    def detach(self) -> Any:
        raise ConnectionResetError("the client is gone")

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.asyncio
@pytest.mark.logs("connection-failed")
async def test_a_client_that_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "asyncpool")
    worker: Any = Accepted()
    connecting: Awaitable[None] = connect(worker, cast("Any", asyncio.Protocol))
    await connecting
    assert caplog.messages[-1] == "a connection failed: the client is gone"
