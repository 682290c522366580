"""Every pool behind the same two verbs, each by its own documented fast path.

:meth:`Peer.open` returns a *call*: ``call(fn, *args)`` sends one job at once and
returns something to await.  Whatever a peer imports is imported when its adapter
is made, so that no figure contains an import.  A peer's knobs stay at their
defaults, but for the number of workers.
"""

import asyncio
import importlib
import itertools
import multiprocessing
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import BrokenExecutor, Executor
from functools import partial
from typing import Any

from benchmarks import work

Call = Callable[..., Awaitable[Any]]


class Peer(ABC):
    """One way to run a function in another process.

    *package* is what is imported, and *names* is what of it is used; *fast* says that a
    million jobs are no matter.
    """

    package: str
    names: str
    fast = False

    @abstractmethod
    async def open(self, workers: int) -> Call:
        """Make a pool and return what sends it a job."""

    @abstractmethod
    async def close(self) -> None:
        """Close the pool gracefully."""

    def executor(self, workers: int) -> Executor:
        """Make what it has in the way of ``concurrent.futures``."""
        raise NotImplementedError

    def timed(self, seconds: float) -> Call:
        """Return what sends the open pool a job that may run for so long."""
        raise NotImplementedError

    async def watched(self) -> tuple[Call, Call] | None:
        """Return what sends jobs to a pool that watches them, and to one that does not.

        ``None`` if that cannot be switched on and off.
        """
        return None

    async def sweep(
        self, fn: Callable[[int], Any], count: int, chunk: int, *, listed: bool
    ) -> None:
        """Call *fn* with each of *count* numbers, and take the results in order.

        They are iterated over, or, if *listed*, put into a list.  *chunk* is how many of
        them go together; 0 for what the pool finds best.
        """
        raise NotImplementedError

    async def take(self, count: int, size: int) -> None:
        """Take *count* items that are made in one worker after the other."""
        raise NotImplementedError

    def coroutines(self) -> Call:
        """Return what sends a coroutine function to the open pool."""
        raise NotImplementedError


class AsyncPool(Peer):
    package = "asyncpool"
    names = "from asyncpool import Pool"
    fast = True

    def __init__(self, *preload: str, **options: Any) -> None:
        from asyncpool import Pool

        self._launcher = options.get("launcher", "forkserver")
        # As the documentation has it; who forks the service inherits as much.
        self._make = partial(Pool, preload=("benchmarks.work", *preload), **options)

    async def open(self, workers: int) -> Call:
        self._workers = workers
        self._pool = self._make(workers=workers)
        await self._pool.start()
        submit: Call = self._pool.submit
        return submit

    async def close(self) -> None:
        await self._pool.close()

    def executor(self, workers: int) -> Executor:
        from asyncpool import ProcessPoolExecutor

        context = multiprocessing.get_context(self._launcher)
        return ProcessPoolExecutor(workers, mp_context=context)

    def timed(self, seconds: float) -> Call:
        # As pebble does it, which does not ask first.
        view = self._pool.options(timeout=seconds, on_cancel="kill")
        submit: Call = view.submit
        return submit

    async def watched(self) -> tuple[Call, Call]:
        # Pings a hundred times as often as they are by default.
        long = 3600.0
        pools = (
            self._make(
                workers=self._workers,
                ping_timeout=0.3,
                timeout=long,
                heartbeat_timeout=long,
            ),
            self._make(workers=self._workers, ping_timeout=None),
        )
        for pool in pools:
            await pool.start()
        with_all, without = (pool.submit for pool in pools)
        return with_all, without

    async def sweep(
        self, fn: Callable[[int], Any], count: int, chunk: int, *, listed: bool
    ) -> None:
        results = self._pool.map(fn, range(count), chunksize=chunk or None)
        if listed:
            await results
            return
        async for _ in results:
            pass

    async def take(self, count: int, size: int) -> None:
        async for _ in self._pool.stream(work.items, count, size):
            pass

    def coroutines(self) -> Call:
        submit: Call = self._pool.submit
        return submit


class ProcessPool(Peer):
    """``ProcessPoolExecutor`` through ``run_in_executor``."""

    package = "concurrent.futures"
    names = "from concurrent.futures import ProcessPoolExecutor"

    def __init__(self, method: str) -> None:
        from concurrent.futures import ProcessPoolExecutor

        context = multiprocessing.get_context(method)
        if method == "forkserver":
            context.set_forkserver_preload(["benchmarks.work"])
        self._make = partial(ProcessPoolExecutor, mp_context=context)

    async def open(self, workers: int) -> Call:
        self._pool: Executor = self._make(workers)
        return partial(asyncio.get_running_loop().run_in_executor, self._pool)

    def executor(self, workers: int) -> Executor:
        executor: Executor = self._make(workers)
        return executor

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    async def sweep(
        self, fn: Callable[[int], Any], count: int, chunk: int, *, listed: bool
    ) -> None:
        _exhaust(self._pool.map(fn, range(count), chunksize=chunk), listed=listed)


class Loky(Peer):
    """Its reusable executor, asked for again whenever it is found broken."""

    package = "loky"
    names = "from loky import get_reusable_executor"

    def __init__(self) -> None:
        from loky import get_reusable_executor

        self._get = get_reusable_executor

    async def open(self, workers: int) -> Call:
        loop = asyncio.get_running_loop()
        self._pool = self._get(max_workers=workers)

        def call(fn: Callable[..., Any], *args: object) -> Awaitable[Any]:
            try:
                return loop.run_in_executor(self._pool, fn, *args)
            except BrokenExecutor:
                self._pool = self._get(max_workers=workers)
                return loop.run_in_executor(self._pool, fn, *args)

        return call

    def executor(self, workers: int) -> Executor:
        executor: Executor = self._get(max_workers=workers)
        return executor

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)


class Pebble(Peer):
    package = "pebble"
    names = "from pebble import ProcessPool"

    def __init__(self) -> None:
        from pebble import ProcessPool

        self._make = ProcessPool

    async def open(self, workers: int) -> Call:
        self._pool = self._make(max_workers=workers)

        def call(fn: Callable[..., Any], *args: object) -> Awaitable[Any]:
            return asyncio.wrap_future(self._pool.schedule(fn, args=args))

        return call

    def timed(self, seconds: float) -> Call:
        def call(fn: Callable[..., Any], *args: object) -> Awaitable[Any]:
            job = self._pool.schedule(fn, args=args, timeout=seconds)
            return asyncio.wrap_future(job)

        return call

    async def close(self) -> None:
        self._pool.close()
        await asyncio.to_thread(self._pool.join)


class AioMultiprocess(Peer):
    package = "aiomultiprocess"
    names = "from aiomultiprocess import Pool"

    def __init__(self) -> None:
        from aiomultiprocess import Pool

        self._make = Pool

    async def open(self, workers: int) -> Call:
        self._pool = self._make(processes=workers)

        def call(fn: Callable[..., Any], *args: object) -> Awaitable[Any]:
            job: Awaitable[Any] = self._pool.apply(work.as_coroutine, (fn, *args))
            return job

        return call

    def coroutines(self) -> Call:
        def call(fn: Callable[..., Any], *args: object) -> Awaitable[Any]:
            job: Awaitable[Any] = self._pool.apply(fn, args)
            return job

        return call

    async def close(self) -> None:
        self._pool.close()
        await self._pool.join()


class AnyioToProcess(Peer):
    """Its pool belongs to the event loop and is closed with it."""

    package = "anyio"
    names = "from anyio import to_process; import anyio._backends._asyncio"

    def __init__(self) -> None:
        from anyio import CapacityLimiter, to_process

        # anyio imports its side of asyncio at the first call.
        importlib.import_module("anyio._backends._asyncio")
        self._limiter, self._run = CapacityLimiter, to_process.run_sync

    async def open(self, workers: int) -> Call:
        return partial(self._run, limiter=self._limiter(workers))

    async def close(self) -> None:
        pass


class MultiprocessingPool(Peer):
    """``multiprocessing.Pool`` with its callbacks handed to the loop."""

    package = "multiprocessing"
    names = "from multiprocessing.pool import Pool"

    def __init__(self) -> None:
        from multiprocessing.pool import Pool

        self._make = Pool

    async def open(self, workers: int) -> Call:
        loop = asyncio.get_running_loop()
        settle = loop.call_soon_threadsafe
        self._pool = self._make(workers)

        def call(fn: Callable[..., Any], *args: object) -> Awaitable[Any]:
            future: asyncio.Future[Any] = loop.create_future()
            self._pool.apply_async(
                fn,
                args,
                callback=lambda value: settle(future.set_result, value),
                error_callback=lambda error: settle(future.set_exception, error),
            )
            return future

        return call

    async def close(self) -> None:
        self._pool.close()
        await asyncio.to_thread(self._pool.join)

    async def sweep(
        self, fn: Callable[[int], Any], count: int, chunk: int, *, listed: bool
    ) -> None:
        _exhaust(self._pool.imap(fn, range(count), chunksize=chunk), listed=listed)

    async def take(self, count: int, size: int) -> None:
        for _ in self._pool.imap(work.item, itertools.repeat(size, count)):
            pass


class OneAtATime(AsyncPool):
    """asyncpool, but no job waits inside a worker: to see what pipelining costs."""

    def __init__(self) -> None:
        super().__init__()
        from asyncpool._core import dispatcher

        dispatcher.BUDGET = 0.0  # type: ignore[attr-defined] # it is not its own


BASELINE = "ppe-fork"


def _exhaust(results: Iterable[object], *, listed: bool) -> None:
    deque(list(results) if listed else results, maxlen=0)


PEERS: dict[str, Callable[[], Peer]] = {
    "asyncpool": AsyncPool,
    "asyncpool-spawn": partial(AsyncPool, launcher="spawn"),
    "asyncpool-single": OneAtATime,
    "asyncpool-32": partial(AsyncPool, concurrency=32),
    "asyncpool-numpy": partial(AsyncPool, "numpy"),
    "ppe-fork": partial(ProcessPool, "fork"),
    "ppe-spawn": partial(ProcessPool, "spawn"),
    "ppe-forkserver": partial(ProcessPool, "forkserver"),
    "mp-pool": MultiprocessingPool,
    "loky": Loky,
    "pebble": Pebble,
    "aiomultiprocess": AioMultiprocess,
    "anyio": AnyioToProcess,
    "asyncpool-msgspec": partial(AsyncPool, codec="msgspec"),
    "asyncpool-json": partial(AsyncPool, codec="json"),
}
LABELS = {
    "asyncpool": "asyncpool",
    "asyncpool-spawn": "asyncpool (spawn)",
    "asyncpool-single": "asyncpool, without pipelining",
    "asyncpool-32": "asyncpool, 32 at once in each worker",
    "asyncpool-numpy": "asyncpool, NumPy preloaded",
    "ppe-fork": "ProcessPoolExecutor (fork)",
    "ppe-spawn": "ProcessPoolExecutor (spawn)",
    "ppe-forkserver": "ProcessPoolExecutor (forkserver)",
    "mp-pool": "multiprocessing.Pool",
    "loky": "loky",
    "pebble": "pebble",
    "aiomultiprocess": "aiomultiprocess",
    "anyio": "anyio.to_process",
    "asyncpool-msgspec": "asyncpool, data only (msgspec)",
    "asyncpool-json": "asyncpool, data only (JSON)",
}
DISTRIBUTIONS = ("anyio", "aiomultiprocess", "loky", "numpy", "pebble", "uvloop")
# What is compared unless told otherwise; "+uvloop" works behind any name.
ROWS = ("asyncpool", "asyncpool+uvloop", *list(PEERS)[5:13])
# When there are two minutes.
QUICK_ROWS = ("asyncpool", "asyncpool+uvloop", "ppe-fork", "mp-pool", "anyio")


def label(row: str) -> str:
    """Name *row* as the tables and plots do."""
    name, _, loop = row.partition("+")
    return f"{LABELS[name]}, {loop}" if loop else LABELS[name]
