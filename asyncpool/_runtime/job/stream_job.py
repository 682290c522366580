"""A job whose caller takes what it yields, item by item."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from asyncpool._core.pickling.functions import Function
from asyncpool._core.policies.job_options import AttemptPolicy, JobOptions
from asyncpool._core.wire.frames import Frame
from asyncpool._runtime.job.chunk_job import ChunkJob
from asyncpool._runtime.job.job import Job
from asyncpool.errors import ProtocolError
from asyncpool.events import Via

_ONCE = AttemptPolicy()


class StreamJob(Job[Any]):
    """A job whose caller takes what it yields, item by item.

    An item counts as a heartbeat, and so does waiting for the caller.

    Attributes:
        _credit: How many items the worker may send in all, in this attempt.
    """

    __slots__ = (
        "_first",
        "_heard_at",
        "_items",
        "_news",
        "_prefetch",
        "_received",
        "_taken",
    )

    def __init__(
        self, number: int, function: Function, options: JobOptions, *args: Any
    ) -> None:
        super().__init__(number, function, options, *args)
        self._credit = self._prefetch = options.prefetch
        self._items: deque[Frame] = deque()
        self._received = self._taken = 0
        self._heard_at = 0.0
        self._news: asyncio.Future[None] | None = None
        self._first: asyncio.Future[None] | None = None
        self.add_done_callback(StreamJob._ring)

    def receive(self, frame: Frame) -> None:
        """Take the next item.

        Raises:
            ProtocolError: If the worker has sent more items than it may.
        """
        if self._received >= self._credit:
            raise ProtocolError(f"it sent more than {self._credit} items of {self!r}")
        self._received += 1
        self._heard_at = self.get_loop().time()
        self._items.append(frame)
        self._ring()

    def heard_at(self, now: float) -> float:
        """Return when the stream last showed that it is alive, by an item or by waiting."""
        return now if self._received >= self._credit else self._heard_at

    def begin_again(self) -> None:
        """Drop the items that came: another attempt begins, and the caller has taken none."""
        self._items.clear()
        self._received, self._credit = 0, self._prefetch

    @property
    def _title(self) -> str:
        waits = self._received >= self._credit
        return f"{super()._title} (a stream{' that nobody reads' if waits else ''})"

    async def started(self) -> None:
        """Wait until there is a first item, or the job is done.

        Raises:
            BaseException: The job's error, if there was none before that.

        Cancellation:
            Safe, and any number may wait.
        """
        while not self._received and not self.done():
            if self._first is None:
                self._first = self.get_loop().create_future()
            await asyncio.wait([self._first])
        if not self._received:
            self.result()

    async def take(self) -> Frame | None:
        """Wait for the next item and return it; ``None`` if the job is done.

        Cancellation:
            Safe: nothing is taken.
        """
        while not self._items:
            if self.done():
                return None
            self._news = self.get_loop().create_future()
            await self._news
        # The caller has an item now, and another attempt would yield that item again.
        self._attempt_policy = _ONCE
        self._taken += 1
        frame = self._items.popleft()
        due = self._taken + self._prefetch - self._credit
        if not self.done() and due > self._prefetch // 2:
            self._credit += due
            self._heard_at = self.get_loop().time()
            self._owner.give_credit(self)
        return frame

    async def pass_on(self) -> list[Frame]:
        """Wait for items and take all that are there; none if the job is done.

        They count as taken by whoever they are passed to, which gives the credit.
        """
        while not self._items and not self.done():
            self._news = self.get_loop().create_future()
            await self._news
        items = [*self._items]
        self._items.clear()
        return items

    def allow(self, credit: int) -> None:
        """Let the worker send *credit* items in all."""
        if credit > self._credit and not self.done():
            self._credit = credit
            self._heard_at = self.get_loop().time()
            self._owner.give_credit(self)

    def _ring(self, _: Any = None) -> None:
        news, self._news = self._news, None
        if news is not None and not news.done():
            news.set_result(None)
        first, self._first = self._first, None
        if first is not None:
            first.set_result(None)


# Which class of job there is for each way to call a function.

# Those whose caller is in this process.
JOB_TYPES: dict[Via, type[Job[Any]]] = {
    "submit": Job,
    "map": ChunkJob,
    "stream": StreamJob,
}
