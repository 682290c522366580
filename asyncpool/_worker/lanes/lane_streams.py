"""Streams of a worker that runs several jobs at once.  Each waits for its own credit.

The loop takes the items of a plain generator one after the other.  While the generator computes
an item, all other jobs wait.  While the stream waits for credit, they go on.
"""

from __future__ import annotations

from itertools import count
from types import CoroutineType

from asyncpool._worker.job.streams import (
    AwaitedCredit,
    StreamClosed,
    Streams,
    close,
    not_iterable,
)
from asyncpool.errors import JobCancelled

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from asyncio import AbstractEventLoop
    from collections.abc import Coroutine, Iterator
    from typing import Any

    from asyncpool._worker.lanes.lanes import Lane


class LaneCredits:
    """The credit of each running stream."""

    def __init__(self) -> None:
        self.by_job: dict[tuple[int, int], AwaitedCredit] = {}

    def grant(self, job: int, attempt: int, limit: int) -> None:
        """Note how many items a stream may send in all; its job may be over already."""
        credit = self.by_job.get((job, attempt))
        if credit is not None:
            credit.raise_to(limit)


class LaneStreams(Streams):
    """The streams of one worker, which run at once.

    The arguments are those of :class:`Streams`.

    Attributes:
        credits: The credit of each stream.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.credits = LaneCredits()

    def begin(
        self, lane: Lane, source: Any, loop: AbstractEventLoop
    ) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that sends the items of *source*, which the job has returned."""
        from asyncio import Event  # noqa: PLC0415 - few jobs need it

        credit = AwaitedCredit(self.first, loop, Event())
        self.credits.by_job[lane.frame.job, lane.frame.attempt] = credit
        return self._run(lane, source, credit)

    async def _run(self, lane: Lane, source: Any, credit: AwaitedCredit) -> Any:
        try:
            if type(source) is CoroutineType:
                source = await source
            lane.shown = source
            if hasattr(type(source), "__aiter__"):
                return await self.drain(lane.frame, source, credit)
            return await self._pump_in_turns(lane, source, credit)
        finally:
            del self.credits.by_job[lane.frame.job, lane.frame.attempt]

    async def _pump_in_turns(
        self, lane: Lane, source: Any, credit: AwaitedCredit
    ) -> Any:
        """Send the items of a plain iterable; others go on while it waits for credit."""
        try:
            items = iter(source)
        except TypeError:
            raise not_iterable(source) from None
        try:
            for number in count():
                await credit.wait(number)
                try:
                    payload = self._pack(self._next(lane, items), number)
                except StopIteration as end:
                    return end.value
                self._send(lane.frame, payload)
                del payload
        finally:
            close(items)

    def _next(self, lane: Lane, iterator: Iterator[Any]) -> Any:
        interrupts = self._interrupts
        interrupts.error = StreamClosed
        try:
            interrupts.begin(lane.sequence)
            return next(iterator)
        finally:
            interrupts.running = None
            interrupts.error = JobCancelled
