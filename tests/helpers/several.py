"""What jobs do that run beside others in one worker."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextvars import ContextVar
from typing import Any

from asyncpool import current_job, heartbeat, retire_worker, worker_state
from tests.helpers import jobs

colour: ContextVar[str] = ContextVar("colour", default="none")


async def at(gate: str, word: str = "") -> str:
    """Say *word* at a gate, and return what is said there, while others go on."""
    reader, writer = await asyncio.open_unix_connection(gate)
    try:
        writer.write(f"{word} {os.getpid()}\n".encode())
        return (await reader.read(64)).decode()
    finally:
        writer.close()


async def count_at(gate: str) -> tuple[int, str]:
    """Return how many are at the gate, this one included, when it comes there."""
    state = worker_state()
    state.count = getattr(state, "count", 0) + 1
    count: int = state.count
    try:
        return count, await at(gate)
    finally:
        state.count -= 1


async def die_at(gate: str, word: str = "dying") -> None:
    await at(gate, word)
    os._exit(3)


async def end_when_told(gate: str) -> str:
    worker_state().event = asyncio.Event()
    await at(gate, "ready")
    await worker_state().event.wait()
    return "done"


async def tell_and_die(gate: str) -> None:
    """Die in the turn of the loop in which another one has ended."""
    await at(gate, "dying")
    worker_state().event.set()
    await asyncio.sleep(0)
    os._exit(3)


async def attempt_at(gate: str, word: str) -> int:
    """Wait at the gate in the first attempt only."""
    number = current_job().attempt
    if number == 1:
        await at(gate, word)
    return number


async def refuse_to_end(gate: str) -> None:
    """Wait, and whoever wants it to end has to wait too."""
    await at(gate, "deaf")
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await at(gate, "still there")


async def block(gate: str) -> None:
    """Block all that run beside."""
    jobs.wait_at(gate, "blocking")


async def silent(gate: str) -> None:
    heartbeat("once")
    await at(gate, "silent")


async def beat_at(gate: str, word: str) -> str:
    """Beat with *word* before and after it waits."""
    heartbeat((word, 1))
    await at(gate, word)
    heartbeat((word, 2))
    return word


async def who(gate: str) -> tuple[int, int, str]:
    """Return what the job is, and its own value of a variable, after others had a turn."""
    job = current_job()
    colour.set(f"{colour.get()} {job.id}")
    await at(gate)
    later = current_job()
    assert (later.id, later.attempt) == (job.id, job.attempt)
    return job.id, job.attempt, colour.get()


async def retire_at(gate: str) -> int:
    retire_worker()
    await at(gate, "retired")
    return os.getpid()


async def double_at(item: tuple[str, int]) -> int:
    gate, number = item
    await at(gate, f"item {number}")
    return 2 * number


async def stream_at(gate: str, name: str, count: int) -> AsyncIterator[tuple[str, int]]:
    for number in range(count):
        yield name, number
    await at(gate, name)


def plain_stream(count: int) -> Iterator[int]:
    yield from range(count)


async def noop(number: int) -> int:
    await asyncio.sleep(0)
    return number


async def large(size: int) -> bytes:
    await asyncio.sleep(0)
    return os.urandom(1) * size


async def note(value: Any) -> None:
    worker_state().noted = value


async def noted() -> Any:
    await asyncio.sleep(0)
    return getattr(worker_state(), "noted", None)


async def fork_and_return(gate: str) -> int:
    """Have a copy of this process go on as if it were the worker."""
    if os.fork() == 0:
        return -1
    await at(gate, "forked")
    return os.getpid()


async def fork_and_go_on(gate: str) -> int:
    """Return the status of a copy of this process that goes on in its loop."""
    copy = os.fork()
    if copy == 0:
        await at(gate, "copy")
    _, status = await asyncio.to_thread(os.waitpid, copy, 0)
    return status


async def log_at(gate: str, text: str) -> None:
    await at(gate)
    current_job().logger.warning(text)


async def grow(size: int) -> bytearray | int:
    """Return *size*, or so many bytes if they are many, in a turn with others."""
    await asyncio.sleep(0)
    return size if size < 1000 else bytearray(size)
