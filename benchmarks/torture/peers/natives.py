"""The peers with an asynchronous interface of their own."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import anyio.to_process

from benchmarks.torture import jobs
from benchmarks.torture.peers.base import Initializer, Peer


class AsyncPool(Peer):
    """Ours."""

    pool: Any
    codec: Any = None

    def distrust(self) -> None:
        self.codec = "json"

    @property
    def has_map(self) -> bool:  # type: ignore[override] # follows the package
        import asyncpool

        return hasattr(asyncpool.Pool, "map")

    @asynccontextmanager
    async def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        import asyncpool

        opened = asyncpool.Pool(workers, initializer=initializer, codec=self.codec)
        async with opened as self.pool:
            yield

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await self.pool.submit(fn, *args)

    async def first_of_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Any:
        self.results = aiter(self.pool.map(fn, items))
        return await anext(self.results)


class AnyIO(Peer):
    """``anyio.to_process``: workers belong to the event loop, there is no pool."""

    takes_initializer = False
    has_map = False

    @asynccontextmanager
    async def open(
        self,
        workers: int,
        initializer: Initializer | None = None,  # noqa: ARG002 - has none
    ) -> AsyncIterator[None]:
        self.limiter = anyio.CapacityLimiter(workers)
        yield

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await anyio.to_process.run_sync(
            fn, *args, cancellable=True, limiter=self.limiter
        )


class TrioParallel(Peer):
    backend = "trio"
    has_map = False
    context: Any

    @asynccontextmanager
    async def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        import trio
        import trio_parallel

        self.limiter = trio.CapacityLimiter(workers)
        options = {} if initializer is None else {"init": initializer}
        async with trio_parallel.open_worker_context(**options) as self.context:
            yield

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await self.context.run_sync(
            fn, *args, kill_on_cancel=True, limiter=self.limiter
        )


class Aiomisc(Peer):
    has_map = False
    pool: Any

    @asynccontextmanager
    async def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        import aiomisc

        async with aiomisc.WorkerPool(workers, initializer=initializer) as self.pool:
            yield

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await self.pool.create_task(fn, *args)


class Aiomultiprocess(Peer):
    pool: Any

    @asynccontextmanager
    async def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AsyncIterator[None]:
        import aiomultiprocess

        # The jobs block: several at once in a worker would wait behind each other.
        async with aiomultiprocess.Pool(
            workers, initializer=initializer, childconcurrency=1
        ) as self.pool:
            yield

    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        return await self.pool.apply(jobs.as_coroutine, (fn, *args))

    async def first_of_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Any:
        self.results = aiter(
            self.pool.starmap(jobs.as_coroutine, ((fn, item) for item in items))
        )
        return await anext(self.results)
