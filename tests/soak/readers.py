"""Read streams: to their end, or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from asyncpool import Stream
from asyncpool.errors import AsyncPoolError
from tests.helpers.large import Block
from tests.soak import work
from tests.soak.era import Era, Life
from tests.soak.oracle import Record
from tests.soak.plans import Plan, draw_options, is_, make_plan
from tests.soak.work import OwnError

__all__ = ["reader"]


# What a stream comes to behind its items, how often it may be started, and in which attempt
# it ends well, and how often that is drawn.
_ENDS: dict[tuple[str, int, int], int] = {
    ("return", 1, 0): 6,
    ("raise", 1, 9): 3,
    ("SIGKILL", 1, 9): 1,
    ("exit", 1, 9): 1,
    ("SIGKILL", 2, 2): 1,
    ("hang", 1, 9): 1,
}
_BAD = {"return": "value", "raise": "raised", "hang": "timeout"}


def draw_stream(rng: Random) -> Plan:
    """Draw what is streamed."""
    [(then, most, until)] = rng.choices(list(_ENDS), list(_ENDS.values()))
    count, size = rng.choice(
        ((0, 0), (1, 0), (20, 0), (300, 0), (3, 100_000), (20, 100_000), (5, 2_000_000))
    )
    course = work.Course(count, size, until, then)
    ends = _BAD.get(then, "crash")
    if 0 < until <= most:
        ends = "value|crash"  # there is another attempt if no item was taken by then
    options = draw_options(rng)
    if then == "hang":
        options |= {"timeout": rng.choice((0.3, 1.0)), "cancel_grace": 0.2}
    if rng.random() < 0.5:
        options["prefetch"] = rng.choice((1, 2, 64))
    function = rng.choice((work.items, work.a_items))
    return make_plan(
        f"stream, {then}",
        function,
        course,
        good=is_() if function is work.items else is_(None),
        ends=ends,
        max_attempts=most,
        on_cancel=rng.choice(("interrupt", "interrupt", "kill")),
        **options,
    )


def reader(rng: Random) -> Life:
    """Read some streams, one after the other, or a few at once."""

    async def live(era: Era) -> None:
        while not era.closing.is_set():
            pause = rng.choice((0.0, 0.0, 0.02, 0.1))
            readings = [_draw_reading(rng, era) for _ in range(rng.choice((1, 1, 3)))]
            async with asyncio.TaskGroup() as tasks:
                for reading in readings:
                    tasks.create_task(reading.read())
            refused = any(reading.record is None for reading in readings)
            await asyncio.sleep(pause + 0.02 * refused)

    return live


def _draw_reading(rng: Random, era: Era) -> _Reading:
    plan = draw_stream(rng)
    how = rng.choice(("all", "all", "all", "close", "break", "cancel"))
    course: work.Course = plan.args[0]
    enough = rng.randint(1, course.length + 1)
    patience = rng.choice((0.0, 0.001, 0.05))
    slow = rng.choice((0.0, 0.0, 0.0, 0.001))
    return _Reading(era, plan, how, enough, patience, slow, era.ledger.next_key())


@dataclass(slots=True)
class _Reading:
    """One stream that is read.

    Attributes:
        era: The pool.
        plan: What is streamed.
        how: How it is left: when it has ended, by closing it, or by forgetting it, after
        enough: so many items; or by cancelling the task, after
        patience: so many seconds.
        slow: Seconds between two items.
        key: Its number in the book.
        taken: How many items there were.
        attempt: That they were made in.
        record: The job, once there is one.
    """

    era: Era
    plan: Plan
    how: str
    enough: int
    patience: float
    slow: float
    key: int
    taken: int = 0
    attempt: int = 0
    record: Record | None = None
    error: BaseException | None = None
    complete: bool = False

    async def read(self) -> None:
        """Read it, and judge what comes of it."""
        task = asyncio.create_task(self._iterate())
        if self.how == "cancel":
            await asyncio.wait([task], timeout=self.patience)
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        record = self.record
        if record is None:
            return
        await self.era.settle(record)
        if self.complete:
            record.demand(record.end == "value", "the stream is complete")
        if self.error is not None:
            record.demand(self.error is _error_of(record), "it is another error")
        # What goes wrong by itself does so behind all items.
        own = record.end in {"raised", "crash"} - self.era.climate.ambient
        if self.complete or (self.error is not None and own):
            whole = self.taken == self.plan.args[0].length + 1
            record.demand(whole, f"there were {self.taken} items")
        deed = "complete" if self.complete else f"left: {self.how}"
        self.era.tally.deed(
            self.era.name,
            "stream broke" if self.error else f"stream {deed}",
            record.job.id,
        )
        self.era.tally.deeds["stream items"] += self.taken

    async def _iterate(self) -> None:
        era, plan = self.era, self.plan
        options = {"max_attempts": plan.max_attempts, **plan.options}
        told, since = era.told, era.heard()
        view = era.view(options)
        stream: Stream[Any] = view.stream(
            plan.function, str(era.book), self.key, *plan.args
        )

        def see() -> None:
            if self.record is None and stream.job is not None:
                self.record = era.enter(
                    plan, self.key, stream.job, told=told, since=since
                )

        try:
            await self._take_all(stream, see)
        except (AsyncPoolError, OwnError) as error:
            see()
            if self.record is not None:
                self.error = error
            elif isinstance(error, AsyncPoolError):
                era.refused(error)
            else:
                raise
        except asyncio.CancelledError:
            see()
            if self.record is not None:
                self.record.forsaken = True
                # It may have been cancelled between two items.
                await stream.aclose()
                self.record.demand(self.record.job.done(), "it goes on")
            raise

    async def _take_all(self, stream: Stream[Any], see: Callable[[], None]) -> None:
        async for item in stream:
            see()
            self._check(item)
            if self.how in {"close", "break"} and self.taken == self.enough:
                break
            if self.slow:
                await asyncio.sleep(self.slow)
        else:
            self.complete = True
            see()
            return
        assert self.record is not None
        if self.how == "break":
            self.record.forsaken = True  # as soon as nobody has the stream
            return
        goes_on = not self.record.job.done()
        self.record.cancelled = goes_on
        await stream.aclose()
        left = self.record.job.cancelled() == goes_on
        self.record.demand(left, "it was closed")

    def _check(self, item: Any) -> None:
        assert self.record is not None
        count, size, *_ = self.plan.args[0]
        number, self.taken = self.taken - 1, self.taken + 1
        if number < 0:
            key, self.attempt = item
            good = key == self.key
        elif size:
            expected = work.block(self.key, number, size)
            good = isinstance(item, Block) and item == expected
        else:
            good = item == (self.key, self.attempt, number)
        self.record.demand(good and number < count, f"item {number} is {item!r:.200}")


def _error_of(record: Record) -> BaseException | None:
    return None if record.job.cancelled() else record.job.exception()
