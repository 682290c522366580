"""What it costs a pool to be watched: no-op jobs a second, and the time of one call.

    python -m benchmarks.watched [--rounds 5] [--seconds 1] [--only nobody stats trace]

Two equal pools differ by more than what is to be seen here.  So each pool of two workers is
measured by turns, watched and not, and the table has the medians of how much the two differ.
``nobody`` is not watched in either turn, which shows how exact this is.  A trace is for the whole
life of a pool: there the two turns are those of two pools, as they are with ``another pool``,
which nobody watches.  Whoever watches from a process of his own takes his part of the cores too;
that counts, since it is so wherever a service runs.  What the pool's figures themselves cost,
although nobody reads them, is part of what ``nobody`` has.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    contextmanager,
)
from functools import partial
from typing import NamedTuple

import asyncpool
from benchmarks.base import rate_of, workers_of
from benchmarks.work import noop

_EVERY = 1.0  # s between two looks of those that look now and then
_READ = "import sys, urllib.request as r\nfor _ in r.urlopen(sys.argv[1]): pass"


@asynccontextmanager
async def nobody(_: asyncpool.Pool) -> AsyncGenerator[None]:
    """Do not watch."""
    yield


@asynccontextmanager
async def repeated(look: Callable[[], object]) -> AsyncGenerator[None]:
    """Call *look* in the loop, once a second."""

    async def go_on() -> None:
        while True:
            look()
            await asyncio.sleep(_EVERY)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        task.cancel()


def stats(pool: asyncpool.Pool) -> AbstractAsyncContextManager[None]:
    """Call ``pool.stats()`` once a second."""
    return repeated(pool.stats)


def prometheus(pool: asyncpool.Pool) -> AbstractAsyncContextManager[None]:
    """Scrape once a second, which is fifteen times as often as usual."""
    from prometheus_client import CollectorRegistry, generate_latest

    from asyncpool.prometheus import register

    registry = CollectorRegistry()
    register(pool, registry)
    return repeated(partial(generate_latest, registry))


def opentelemetry(pool: asyncpool.Pool) -> AbstractAsyncContextManager[None]:
    """Read the metrics once a second; the sampler refuses each job that it is asked about."""
    return instrumented(pool, sampled=False)


def sampled(pool: asyncpool.Pool) -> AbstractAsyncContextManager[None]:
    """Read the metrics once a second; the sampler wants each job that it is asked about."""
    return instrumented(pool, sampled=True)


@asynccontextmanager
async def instrumented(pool: asyncpool.Pool, *, sampled: bool) -> AsyncGenerator[None]:
    """Have metrics and spans; nobody exports these."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

    from asyncpool.opentelemetry import instrument, uninstrument

    reader = InMemoryMetricReader()
    instrument(
        pool,
        tracer_provider=TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF),
        meter_provider=MeterProvider([reader]),
    )
    try:
        async with repeated(reader.get_metrics_data):
            yield
    finally:
        uninstrument(pool)


@contextmanager
def command(*args: str) -> Generator[subprocess.Popen[str]]:
    """Run ``asyncpool`` with *args*."""
    line = [sys.executable, "-m", "asyncpool", *args]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@asynccontextmanager
async def status_watch(pool: asyncpool.Pool) -> AsyncGenerator[None]:
    """Have ``asyncpool status --watch`` look twice a second."""
    with command("status", pool.name, "--watch", "--every", "0.5") as process:
        assert process.stdout is not None
        await asyncio.to_thread(process.stdout.readline)  # it is connected
        with reading(process.stdout.fileno()):
            yield


@asynccontextmanager
async def dashboard(pool: asyncpool.Pool) -> AsyncGenerator[None]:
    """Have a page of ``asyncpool dashboard`` open that shows the pool."""
    with command("dashboard", "--bind", "127.0.0.1:0") as process:
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        address = line.split()[-1]
        url = f"{address}events?program={pool.name}"
        page = subprocess.Popen([sys.executable, "-c", _READ, url])
        try:
            yield
        finally:
            page.kill()
            page.wait()


@contextmanager
def reading(fd: int) -> Generator[None]:
    """Read what comes, so that nobody waits for us."""
    loop = asyncio.get_running_loop()
    loop.add_reader(fd, os.read, fd, 65_536)
    try:
        yield
    finally:
        loop.remove_reader(fd)


@asynccontextmanager
async def every_job(pool: asyncpool.Pool) -> AsyncGenerator[None]:
    """Hear of every job when it begins and ends."""

    def listener(_: object) -> None:
        """Do nothing."""

    pool.add_job_listener(listener)
    try:
        yield
    finally:
        pool.remove_listener(listener)


WATCHERS: dict[str, Callable[[asyncpool.Pool], AbstractAsyncContextManager[None]]] = {
    "nobody": nobody,
    "another pool": nobody,
    "stats": stats,
    "prometheus": prometheus,
    "opentelemetry": opentelemetry,
    "the same, sampled": sampled,
    "status --watch": status_watch,
    "dashboard": dashboard,
    "every job": every_job,
    "trace": nobody,
}


class Turn(NamedTuple):
    """What a pool did in a while.

    Attributes:
        rate: Its no-op jobs a second.
        cpu: The seconds of CPU time of one of them, in this process.
        call: The seconds of a call when nothing else is in flight; the median.
    """

    rate: float
    cpu: float
    call: float


# Who has a pool of its own, beside another one that nobody watches.
_OWN_POOL = ("another pool", "trace")

_TURNS = 4  # of each kind with the same pool


async def measure(name: str, seconds: float) -> list[tuple[Turn, Turn]]:
    """Return pairs of turns: nobody watches in the first of each, and *name* in the second."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/trace.json" if name == "trace" else None
        async with AsyncExitStack() as stack:
            plain = await stack.enter_async_context(asyncpool.Pool(2, control=True))
            watched = plain
            if name in _OWN_POOL:
                pool = asyncpool.Pool(2, control=True, trace=path)
                watched = await stack.enter_async_context(pool)
            for pool in {plain, watched}:
                await workers_of(pool.submit, 2)
                await rate_of(pool.submit, in_flight=1000, seconds=seconds)
            pairs: list[tuple[Turn, Turn]] = []
            for _ in range(_TURNS):
                unwatched = await turn(plain, seconds)
                async with WATCHERS[name](watched):
                    pairs.append((unwatched, await turn(watched, seconds)))
    return pairs


async def turn(pool: asyncpool.Pool, seconds: float) -> Turn:
    """Let *pool* do no-op jobs for some *seconds*."""
    before, cpu = pool.stats().completed, time.process_time()
    rate = await rate_of(pool.submit, in_flight=1000, seconds=seconds)
    used = time.process_time() - cpu
    used /= pool.stats().completed - before
    calls = [await one_call(pool) for _ in range(round(1000 * seconds))]
    return Turn(rate, used, statistics.median(calls))


async def one_call(pool: asyncpool.Pool) -> float:
    """Return the seconds that a call takes if nothing else is in flight."""
    began = time.perf_counter()
    await pool.submit(noop)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--only", nargs="+", choices=WATCHERS, default=[*WATCHERS])
    options = parser.parse_args()
    found: dict[str, list[tuple[Turn, Turn]]] = {name: [] for name in options.only}
    for number in range(options.rounds):
        first = number % len(found)
        for name in [*found][first:] + [*found][:first]:
            found[name] += asyncio.run(measure(name, options.seconds))
    print(f"{'':>17}  jobs/s          CPU of one       one call")
    for name, pairs in found.items():
        turns = zip(*(watched for _, watched in pairs), strict=True)
        rate, cpu, call = (statistics.median(each) for each in turns)
        more = [
            statistics.median(on[n] / off[n] - 1 for off, on in pairs) for n in range(3)
        ]
        print(
            f"{name:>17}  {rate:7,.0f} {more[0]:+6.1%}  "
            f"{cpu * 1e6:5.2f} us {more[1]:+6.1%}  {call * 1e6:5.0f} us {more[2]:+6.1%}"
        )


if __name__ == "__main__":
    main()
