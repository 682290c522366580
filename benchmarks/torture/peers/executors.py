"""The peers whose ``submit`` gives a :class:`concurrent.futures.Future`."""

import asyncio
import concurrent.futures
import inspect
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import anyio.to_thread

from benchmarks.torture.peers.base import Initializer, Peer


class ExecutorPeer(Peer):
    """An executor in a ``with`` block of the coroutine that uses it."""

    pool: Any
    results: Iterator[Any]

    @abstractmethod
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        """Construct the executor."""

    @asynccontextmanager
    async def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        with self.build(workers, initializer) as self.pool:
            yield

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self.pool.submit(fn, *args)

    def stop(self, future: Any) -> None:
        """Do more than ``Future.cancel``, which ``wrap_future`` has called."""

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        future = self.submit(fn, *args)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self.stop(future)
            raise

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return iter(self.pool.map(fn, items))

    async def first_of_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Any:
        def first() -> Any:
            self.results = self.map(fn, items)
            return next(self.results)

        return await anyio.to_thread.run_sync(first, abandon_on_cancel=True)


class Standard(ExecutorPeer):
    """``ProcessPoolExecutor``, with ``buffersize`` where this Python has it."""

    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        return concurrent.futures.ProcessPoolExecutor(workers, initializer=initializer)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        known = inspect.signature(self.pool.map).parameters
        options = {"buffersize": 1_000} if "buffersize" in known else {}
        return iter(self.pool.map(fn, items, **options))


class Loky(ExecutorPeer):
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        import loky

        pool: AbstractContextManager[Any] = loky.ProcessPoolExecutor(
            workers, initializer=initializer
        )
        return pool


class Pebble(ExecutorPeer):
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        import pebble

        pool: AbstractContextManager[Any] = pebble.ProcessPool(
            workers, initializer=initializer
        )
        return pool

    def submit(self, fn: Callable[..., Any], *args: Any) -> Any:
        return self.pool.schedule(fn, args=args)

    def map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        results: Iterator[Any] = self.pool.map(fn, items).result()
        return results


class Deadpool(ExecutorPeer):
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        import deadpool

        pool: AbstractContextManager[Any] = deadpool.Deadpool(
            workers, initializer=initializer
        )
        return pool

    def stop(self, future: Any) -> None:
        future.cancel_and_kill_if_running()
