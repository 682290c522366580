"""The ended jobs of a pool, for those who watch it: all of them, or a sample.

The pool is listened to only while the budget lasts, and then again when it is filled.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

from asyncpool._core.control.job_budget import JobBudget
from asyncpool._core.trace.slot_lanes import SlotLanes
from asyncpool._observe.control.plain import clock_offset
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.events import JobEnded

# How many jobs are kept for a watcher that looks seldom.
_KEPT = 1000

# Seconds until the next look whether the pool may be listened to again.
_PAUSE = 0.1

# Number, function, slot, lane, when it ended, wait, run, outcome, attempts.
JobRow: TypeAlias = tuple[int, str, int | None, int, float, float, float, str, int]


class JobFeed:
    """The jobs of one pool.

    Args:
        hub: What tells of them.
        concurrency: How many jobs each worker runs at once.
    """

    def __init__(self, hub: PoolHub, concurrency: int) -> None:
        self._hub = hub
        self._concurrency = concurrency
        self._loop = asyncio.get_running_loop()
        self._budget = JobBudget()
        self._heard: deque[JobEnded] = deque(maxlen=_KEPT)
        self._rows: deque[JobRow] = deque(maxlen=_KEPT)
        self._lanes: dict[int, SlotLanes] = {}
        self._count = 0
        self._listens = False
        self._alarm = Alarm(self._loop, lambda _: self._listen())

    def add(self, watcher: object, jobs: int, every: float) -> None:
        """Hear of up to *jobs* jobs in each *every* seconds for *watcher*."""
        self._budget.add(watcher, jobs, every, self._loop.time())
        self._listen()

    def remove(self, watcher: object) -> None:
        """Hear of nothing any more for *watcher*."""
        self._budget.remove(watcher)
        if not self._budget.wanted:
            self._alarm.cancel()
            self._stop()

    def since(self, seen: int, most: int) -> tuple[list[JobRow], int]:
        """Return the last jobs, at most *most*, and how many there were in all.

        Args:
            seen: How many there were at the last look.
            most: How many are wanted.
        """
        self._describe()
        new = min(self._count - seen, len(self._rows), most)
        rows = [self._rows[place] for place in range(-new, 0)]
        return rows, self._count

    def _listen(self) -> None:
        if self._listens:
            return
        if self._budget.fill(self._loop.time()):
            self._hub.add_end_listener(self._hear)
            self._listens = True
        elif self._budget.wanted:
            self._alarm.set_in(_PAUSE)

    def _hear(self, event: JobEnded) -> None:
        self._heard.append(event)
        self._count += 1
        if not self._budget.take() and not self._budget.fill(self._loop.time()):
            self._stop()
            self._alarm.set_in(_PAUSE)

    def _stop(self) -> None:
        if self._listens:
            self._hub.remove_listener(self._hear)
            self._listens = False

    def _describe(self) -> None:
        """Make rows of the jobs that were heard of since the last look."""
        offset = clock_offset()
        while self._heard:
            self._rows.append(self._row(self._heard.popleft(), offset))

    def _row(self, event: JobEnded, offset: float) -> JobRow:
        lane = 0
        if event.slot is not None and self._concurrency > 1:
            lanes = self._lanes.get(event.slot)
            if lanes is None:
                lanes = self._lanes[event.slot] = SlotLanes(self._concurrency)
            begin = int((event.at - event.run) * 1e6)
            lane, _ = lanes.put(begin, int(event.run * 1e6))
        return (
            event.job_id,
            event.function,
            event.slot,
            lane,
            event.at + offset,
            event.wait,
            event.run,
            event.outcome,
            event.attempts,
        )
