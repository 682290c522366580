"""Hooks around jobs, and jobs that tell what a hook has done."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from asyncpool import CurrentJob, current_job, worker_state
from asyncpool.errors import JobCancelled
from tests.helpers.jobs import wait_at

NOBODY = (0, 0, "")

mark: ContextVar[tuple[int, int, str]] = ContextVar("mark", default=NOBODY)


def seen() -> list[Any]:
    """Return what the hook of this worker has noted, and forget it."""
    notes: list[Any] = vars(worker_state()).setdefault("notes", [])
    found = notes.copy()
    notes.clear()
    return found


def write(*note: Any) -> None:
    vars(worker_state()).setdefault("notes", []).append(note)


@contextmanager
def noting(job: CurrentJob) -> Iterator[None]:
    """Note begin and end, and set a context variable meanwhile."""
    assert mark.get() == NOBODY  # no other job's
    assert current_job() == job
    me = job.id, job.attempt, job.function.rpartition(".")[2]
    token = mark.set(me)
    if me[2] != "seen":
        write("enter", *me)
    end = "returned"
    try:
        yield
    except BaseException as error:
        end = type(error).__name__
        raise
    finally:
        assert mark.get() == me
        mark.reset(token)  # fails in another context
        if me[2] != "seen":
            write("exit", *me, end)


class Silent:
    """Suppresses every exception."""

    def __init__(self, job: CurrentJob) -> None:
        assert job.id

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, *_: object) -> bool:
        return True


def nothing(_: CurrentJob) -> AbstractContextManager[None]:
    return nullcontext()


class Failing:
    """Fails, or waits at a gate, where :func:`give` has said so."""

    def __init__(self, job: CurrentJob) -> None:
        quiet = job.function.endswith((".give", ".seen"))
        self._orders = {} if quiet else orders()
        self._obey("call")

    def _obey(self, stage: str) -> None:
        order = self._orders.pop(stage, None)
        if isinstance(order, str):
            try:
                wait_at(order, stage)
            except JobCancelled:
                write("cancelled", stage)
                raise
        elif order is not None:
            raise order

    def __enter__(self) -> None:
        self._obey("enter")

    def __exit__(self, *_: object) -> None:
        self._obey("exit")


def orders() -> dict[str, Any]:
    """Return what the hook of this worker is to do next."""
    found: dict[str, Any] = vars(worker_state()).setdefault("orders", {})
    return found


def give(**found: Any) -> None:
    """Tell the hook of this worker what it is to do around the next job."""
    orders().update(found)


def told() -> tuple[int, int, str]:
    return mark.get()


async def told_later() -> tuple[int, int, str]:
    """Return what the hook has set, as seen after others could run."""
    before = mark.get()
    for _ in range(5):
        await asyncio.sleep(0)
        assert mark.get() == before
    assert before == await asyncio.create_task(told_soon())
    return before


async def told_soon() -> tuple[int, int, str]:
    return mark.get()


def fail(*_: object) -> None:
    raise KeyError("job")


async def fail_later(*_: object) -> None:
    await asyncio.sleep(0)
    raise KeyError("job")


def fail_odd(number: int) -> int:
    if number % 2:
        raise KeyError(number)
    return number


async def fail_odd_later(number: int) -> int:
    await asyncio.sleep(0)
    assert mark.get() != NOBODY
    return fail_odd(number)


def each(count: int) -> Iterator[tuple[int, int, str]]:
    for _ in range(count):
        yield mark.get()


async def each_later(count: int) -> AsyncIterator[tuple[int, int, str]]:
    for _ in range(count):
        await asyncio.sleep(0)
        yield mark.get()


def name() -> str:
    return current_job().function


NO_FUNCTION = 3


@contextmanager
def sleepless(job: CurrentJob) -> Iterator[None]:
    if not job.id:
        yield


async def asynchronous(_: CurrentJob) -> None:
    """Be no context manager."""


def named(_: object) -> str:
    return current_job().function


def same(number: int) -> int:
    return number


async def same_later(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def wait_at_later(gate: str) -> None:
    reader, writer = await asyncio.open_unix_connection(gate)
    try:
        writer.write(f" {os.getpid()}\n".encode())
        await reader.read()
    finally:
        writer.close()
        await writer.wait_closed()  # so the gate hears of it while the loop runs


def fork() -> int:
    """Return in a copy of the worker too, and in the worker when that has ended."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
    return pid


async def fork_later() -> int:
    """Do the same in the event loop."""
    await asyncio.sleep(0)
    return fork()
