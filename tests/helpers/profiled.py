"""What workers do while a profile is taken, each thing until its gate opens."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn

from asyncpool._wire.frames import FrameKind, header
from tests.helpers.faults import say_to_control
from tests.helpers.jobs import arrive


def outer(gate: str) -> NoReturn:
    """Compute two calls deep."""
    with arrive(gate):
        inner()


def inner() -> NoReturn:
    while True:
        pass


async def wait_for_word(gate: str) -> None:
    """Wait two awaits deep."""
    await wait_inside(gate)


async def wait_inside(gate: str) -> None:
    reader, writer = await asyncio.open_unix_connection(gate)
    writer.write(b"async 0\n")
    await reader.read(1)
    writer.close()
    await writer.wait_closed()


async def compute_in_steps(gate: str) -> None:
    """Compute, and let the other jobs of the worker take their steps, in a task of its own."""
    reader, writer = await asyncio.open_unix_connection(gate)
    writer.write(b"steps 0\n")
    answer = asyncio.create_task(reader.read(1))
    await asyncio.create_task(take_steps(answer))
    writer.close()
    await writer.wait_closed()


async def take_steps(answer: asyncio.Task[bytes]) -> None:
    while not answer.done():
        step()
        await asyncio.sleep(0)


def step() -> None:
    sum(range(200_000))
    for _ in range(200_000):
        pass


def compute_item(gate: str) -> None:
    """Compute as one item of a map."""
    with arrive(gate):
        inner()


def yield_after(gate: str) -> Iterator[int]:
    """Yield once, and then compute."""
    yield 1
    outer(gate)


def compute_in_thread(gate: str) -> None:
    """Wait for a thread that computes, beside one that waits."""
    over = threading.Event()
    threads = [
        threading.Thread(target=compute_until, args=(over,)),
        threading.Thread(target=over.wait),
    ]
    for thread in threads:
        thread.start()
    try:
        with arrive(gate) as sock:
            sock.recv(1)
    finally:
        over.set()
        for thread in threads:
            thread.join()


def compute_until(over: threading.Event) -> None:
    while not over.is_set():
        pass


def hold_the_gil_in_turns(gate: str) -> NoReturn:
    """Make one call after the other in which no other thread runs for some 50 ms."""
    with arrive(gate):
        while True:
            keep_the_gil()


def keep_the_gil() -> None:
    pow(3, 1_000_000)


def send_samples(gate: str, payload: bytes) -> None:
    """Send the pool what no sampler sends, as the samples of its first profile."""
    with arrive(gate) as sock:
        sock.recv(1)
    say_to_control(header(FrameKind.SAMPLES, len(payload), 1) + payload)


def count_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def is_imported() -> bool:
    return any(name.startswith("asyncpool._worker.profile") for name in sys.modules)
