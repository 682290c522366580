"""Generator functions for streams, and coroutine functions: they run in workers."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from contextlib import suppress
from typing import Any, NoReturn

import asyncpool
from asyncpool._wire.frames import FrameKind, header
from asyncpool._wire.pickling import dumps
from tests.helpers.faults import first, say
from tests.helpers.jobs import arrive, sign, wait_at

__all__: list[str] = []


def numbers(stop: int) -> Iterator[int]:
    yield from range(stop)


async def anumbers(stop: int) -> AsyncIterator[int]:
    for number in range(stop):
        await asyncio.sleep(0)
        yield number


def values(items: Iterable[Any], then: Any = None) -> Generator[Any, None, Any]:
    """Yield *items*; at the end, raise *then* or return it."""
    yield from items
    if isinstance(then, BaseException):
        raise then
    return then


async def avalues(items: Iterable[Any], then: Any = None) -> AsyncIterator[Any]:
    for item in items:
        yield item
    if isinstance(then, BaseException):
        raise then


def signed(path: str, stop: int) -> Iterator[int]:
    """Leave a line for each item before it is yielded."""
    for number in range(stop):
        sign(path, number)
        yield number


async def asigned(path: str, stop: int) -> AsyncIterator[int]:
    for number in range(stop):
        sign(path, number)
        yield number


def closed_at(gate: str) -> Iterator[int]:
    """Yield for ever, and say at the gate what was raised at last."""
    number = 0
    try:
        while True:
            yield number
            number += 1
    except BaseException as error:
        wait_at(gate, type(error).__name__)
        raise


async def aclosed_at(gate: str) -> AsyncIterator[int]:
    number = 0
    try:
        while True:
            yield number
            number += 1
    except BaseException as error:
        wait_at(gate, type(error).__name__)
        raise


def closed_while_running(gate: str) -> Iterator[int]:
    yield 0
    try:
        arrive(gate, "running").close()
        while True:
            pass
    except GeneratorExit:
        arrive(gate, "closed").close()
        raise


async def closed_while_waiting(gate: str) -> AsyncIterator[int]:
    yield 0
    try:
        arrive(gate, "running").close()
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        arrive(gate, "closed").close()
        raise


def refusing_to_end(gate: str) -> Iterator[int]:
    yield 0
    with suppress(BaseException):
        arrive(gate, "running").close()
        time.sleep(60)
    time.sleep(60)


def dying(stop: int) -> Iterator[int]:
    yield from range(stop)
    os._exit(3)


def dying_once(token: str, stop: int) -> Iterator[tuple[int, int]]:
    """Yield numbers with the attempt, and die at the end of the first one."""
    attempt = asyncpool.current_job().attempt
    for number in range(stop):
        yield number, attempt
    if first(token):
        os._exit(3)


def beginning_at(gate: str) -> Iterator[str]:
    wait_at(gate)
    yield "begun"


def failing_once(token: str, stop: int) -> Iterator[tuple[int, int]]:
    attempt = asyncpool.current_job().attempt
    for number in range(stop):
        yield number, attempt
    if first(token):
        raise OSError("once")


def silent_at(gate: str, items: int) -> Iterator[int]:
    """Yield some items, then hang."""
    yield from range(items)
    wait_at(gate)


def unpicklable_after(stop: int) -> Iterator[Any]:
    yield from range(stop)
    yield threading.Lock()


def mixed(seed: int, count: int) -> Iterator[Any]:
    """Yield small and large things, the same for each *seed*."""
    source = random.Random(seed)
    for _ in range(count):
        size = source.choice([0, 1, 100, 70_000, 300_000, 2_000_000])
        kind = source.randrange(3)
        if kind == 0:
            yield source.randbytes(size)
        elif kind == 1:
            yield bytearray(source.randbytes(size))
        else:
            yield [source.random() for _ in range(min(size, 50_000))]


def more_than_allowed(count: int) -> Iterator[int]:
    """Send *count* items without asking anybody."""
    job = asyncpool.current_job()
    payload = dumps(0)
    frame = header(FrameKind.ITEM, len(payload), job.id, job.attempt) + payload
    say(frame * count)
    yield from range(3)


# Coroutines.


async def opened(stop: int) -> AsyncIterator[int]:
    await asyncio.sleep(0)
    return anumbers(stop)


async def double(number: int) -> int:
    await asyncio.sleep(0)
    return number * 2


async def loop_kind() -> tuple[str, int]:
    loop = asyncio.get_running_loop()
    return type(loop).__module__.partition(".")[0], id(loop)


async def fail_in_depth(error: BaseException) -> NoReturn:
    await asyncio.sleep(0)
    await _fail(error)


async def _fail(error: BaseException) -> NoReturn:
    await asyncio.sleep(0)
    raise error


async def wait_for_ever(gate: str) -> None:
    arrive(gate, "waiting").close()
    try:
        await _event()
    finally:
        arrive(gate, "left").close()


async def _event() -> None:
    await asyncio.Event().wait()


async def block_for_ever(gate: str) -> NoReturn:
    arrive(gate, "blocking").close()
    while True:
        time.sleep(0.01)  # noqa: ASYNC251 - on purpose


async def block_once(seconds: float) -> str:
    time.sleep(seconds)  # noqa: ASYNC251 - on purpose
    await asyncio.sleep(0)
    return "done"


async def outlive(path: str) -> str:
    """Return, with a task left behind that notes its own end."""
    background.add(asyncio.create_task(_linger(path)))
    await asyncio.sleep(0)
    return "returned"


background: set[asyncio.Task[None]] = set()


async def _linger(path: str) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        sign(path, 1)


async def open_session() -> None:
    asyncpool.worker_state().session = asyncio.get_running_loop().create_future()
    await asyncio.sleep(0)


async def session_is_of_this_loop() -> bool:
    session = asyncpool.worker_state().session
    return session.get_loop() is asyncio.get_running_loop()


async def beat_until_cancelled(gate: str) -> None:
    arrive(gate, "beating").close()
    number = 0
    while True:
        asyncpool.heartbeat(number)
        number += 1
        await asyncio.sleep(0.001)


async def job_in_task() -> tuple[int, int]:
    async def child() -> tuple[int, int]:
        await asyncio.sleep(0)
        job = asyncpool.current_job()
        return job.id, job.attempt

    return await asyncio.create_task(child())


async def perhaps_fail(number: int) -> int:
    await asyncio.sleep(0)
    if number % 10 == 7:
        raise ValueError(number)
    return number


async def perhaps_wait_for_ever(item: tuple[str, int]) -> int:
    gate, number = item
    if number == 5:
        await wait_for_ever(gate)
    arrive(gate, f"passed {number}").close()
    return number


# How each stream of `told` has ended, with the items that it had made by then.
_told: list[tuple[str, int]] = []
_kept: list[Any] = []


def told(stop: int, error: str, loops: bool) -> Any:  # noqa: FBT001 - by position
    """Return what yields numbers, raises *error* behind them, if any, and tells its end."""
    made = _atold(stop, error) if loops else _told_plain(stop, error)
    _kept[:] = [
        made
    ]  # or else it would be closed when it is dropped, whoever forgets that
    return made


def _told_plain(stop: int, error: str) -> Iterator[int]:
    made, end = 0, "left"
    try:
        while made < stop:
            made += 1
            yield made - 1
        end = "raised" if error else "done"
        if error:
            raise LookupError(error)
    finally:
        _told.append((end, made))


async def _atold(stop: int, error: str) -> AsyncIterator[int]:
    made, end = 0, "left"
    try:
        while made < stop:
            made += 1
            yield made - 1
            await asyncio.sleep(0)
        end = "raised" if error else "done"
        if error:
            raise LookupError(error)
    finally:
        _told.append((end, made))


def last_told() -> tuple[str, int]:
    """Return how the only stream since the last call has ended."""
    [found] = _told
    _told.clear()
    return found
