"""A cluster without workers: what its operation asks for is noted, and done when told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncpool._runtime.base.pool_hub import EventStream
from asyncpool.cluster._stats import ClusterStats, WorkerStats
from asyncpool.enums import RunState
from asyncpool.errors import PoolBrokenError, PoolClosedError
from asyncpool.events import CloseSummary, Event, RollResult

__all__ = ["FakeCluster"]


class FakeCluster:
    """What :class:`asyncpool.cluster._run.Operated` describes.

    Attributes:
        done: What was asked for, oldest first.
        news: Set at each.
        start_error: What the start raises.
        up: Set by the test to let the start return.
        drained: Set by the test when a close may return.
        reloaded: Set by the test when a reload may return.
        result: What the reload returns.
        listeners: Who listens to events.
    """

    def __init__(self, name: str = "app") -> None:
        self.name = name
        self.done: list[str] = []
        self.news = asyncio.Condition()
        self.start_error: Exception | None = None
        self.up = asyncio.Event()
        self.drained = asyncio.Event()
        self.reloaded = asyncio.Event()
        self.result = RollResult(replaced=2, reason="", crash=None)
        self.state: RunState = RunState.NEW
        self.workers = 2
        self.listeners: list[Callable[[Event], object]] = []
        self._over: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def start(self) -> FakeCluster:
        await self._note("start")
        waiting: asyncio.Future[Any] = asyncio.create_task(self.up.wait())
        await asyncio.wait({waiting, self._over}, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if self._over.done():
            raise PoolClosedError
        if self.start_error is not None:
            raise self.start_error
        self.state = RunState.RUNNING
        return self

    async def wait(self) -> None:
        await self._over

    def break_down(self) -> None:
        """Give up."""
        self._over.set_exception(
            PoolBrokenError(reason="too many", crashes=(), retry_after=None)
        )

    async def close(self, timeout: float | None = None) -> CloseSummary:  # noqa: ASYNC109
        await self._note("close" if timeout is None else f"close {timeout:g}")
        self.state = RunState.CLOSING
        if timeout == 0:
            self.drained.set()
        await self.drained.wait()
        self.state = RunState.CLOSED
        if not self._over.done():
            self._over.set_result(None)
        return CloseSummary(finished=0, failed=0, killed=0)

    async def reload(self) -> RollResult:
        await self._note("reload")
        await self.reloaded.wait()
        return self.result

    async def resize(self, workers: int) -> None:
        self.workers = workers
        await self._note(f"resize {workers}")

    async def stacks(self) -> dict[int, str]:
        await self._note("stacks")
        return {1: "one\n", 0: "zero\n"}

    def kill(self, slot: int) -> None:
        self.done.append(f"kill {slot}")

    def retire(self, slot: int) -> None:
        self.done.append(f"retire {slot}")

    def events(self) -> EventStream[Event]:
        stream: EventStream[Event] = EventStream(10)
        stream.end()
        return stream

    def add_listener(self, listener: Callable[[Event], object]) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Callable[[Event], object]) -> int:
        self.listeners.remove(listener)
        return 1

    def stats(self) -> ClusterStats:
        ready = self.state is RunState.RUNNING
        worker = WorkerStats(
            slot=0,
            generation=1,
            pid=1,
            state="idle",
            ready=ready,
            connections=1,
            handed=3,
            uptime=1.0,
            memory=1,
        )
        return ClusterStats(
            state=self.state,
            workers=self.workers,
            spread="handoff",
            addresses=("tcp://127.0.0.1:1",),
            handed=3,
            refused=0,
            lost=0,
            crashes=0,
            restarts=0,
            spawned=1,
            slots=(worker,),
        )

    async def asked_for(self, *actions: str) -> None:
        """Wait until these were asked for, and no others."""
        async with self.news:
            await self.news.wait_for(lambda: len(self.done) >= len(actions))
        assert self.done == list(actions)

    async def _note(self, action: str) -> None:
        self.done.append(action)
        async with self.news:
            self.news.notify_all()
