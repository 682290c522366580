"""The peers that look like ``multiprocessing.Pool``: ``apply_async`` and callbacks."""

import asyncio
import multiprocessing
import signal
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from typing import Any

import anyio.to_thread

from benchmarks.torture.peers.base import Initializer, Peer


class CallbackPeer(Peer):
    """A pool that tells its results to callbacks in a thread of its own."""

    pool: Any
    results: Iterator[Any]

    @abstractmethod
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        """Construct the pool."""

    @asynccontextmanager
    async def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        with self.build(workers, initializer) as self.pool:
            yield

    def apply(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[Any], None],
    ) -> Any:
        return self.pool.apply_async(fn, args, callback=done, error_callback=failed)

    def stop(self, result: Any) -> None:
        """Stop a running call, where the pool has a way to."""

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def settle(method: Callable[[Any], None], value: Any) -> None:
            if not future.done():
                method(value)

        result = self.apply(
            fn,
            args,
            lambda value: tell(loop, settle, future.set_result, value),
            lambda error: tell(loop, settle, future.set_exception, unwrap(error)),
        )
        try:
            return await future
        except asyncio.CancelledError:
            self.stop(result)
            raise

    async def first_of_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Any:
        def first() -> Any:
            self.results = iter(self.pool.imap(fn, items))
            return next(self.results)

        return await anyio.to_thread.run_sync(first, abandon_on_cancel=True)


def tell(loop: asyncio.AbstractEventLoop, *callback: Any) -> None:
    if not loop.is_closed():  # a late result of a pool that is being left
        loop.call_soon_threadsafe(*callback)


def unwrap(error: Any) -> BaseException:
    """Give the exception inside what billiard hands to an error callback."""
    inner = getattr(error, "exception", error)
    return inner if isinstance(inner, BaseException) else RuntimeError(repr(error))


class Multiprocessing(CallbackPeer):
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        return multiprocessing.Pool(workers, initializer)


class Billiard(CallbackPeer):
    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        import billiard

        pool: AbstractContextManager[Any] = billiard.Pool(workers, initializer)
        return pool

    def stop(self, result: Any) -> None:
        for pid in result.worker_pids():
            self.pool.terminate_job(pid, signal.SIGKILL)


class Mpire(CallbackPeer):
    initializer: Initializer | None = None

    def build(
        self, workers: int, initializer: Initializer | None
    ) -> AbstractContextManager[Any]:
        import mpire

        self.initializer = initializer  # mpire takes it with the first call
        pool: AbstractContextManager[Any] = mpire.WorkerPool(workers)
        return pool

    def apply(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        done: Callable[[Any], None],
        failed: Callable[[Any], None],
    ) -> Any:
        return self.pool.apply_async(
            fn,
            args,
            callback=done,
            error_callback=failed,
            worker_init=self.initializer,
        )
