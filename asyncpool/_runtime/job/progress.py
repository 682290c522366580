"""What a running job reports, for any number of readers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

from asyncpool._core.wire.heartbeat_records import Beat
from asyncpool._runtime.base.event_loop import check_home


class HeartbeatLog:
    """The newest heartbeat of a job.

    Args:
        job: The job; its readers must hear of its end too.

    Attributes:
        attempt: The attempt that the heartbeat belongs to; 0 before the first one.
        at: When it was sent, on the loop's clock.
        details: Its details, pickled.
        heard: How many heartbeats the pool has read; there may have been more.
        news: Set, and cleared again, when there is a new one, or the job is done.
    """

    __slots__ = ("_number", "at", "attempt", "details", "heard", "news")

    def __init__(self, job: asyncio.Future[Any]) -> None:
        self.attempt: int = 0
        self.heard: int = 0
        self._number = 0
        self.at: float = 0.0
        self.details: bytes = b""
        self.news: asyncio.Event = asyncio.Event()
        job.add_done_callback(self._tell)

    def add(self, beat: Beat, now: float) -> None:
        """Store a heartbeat, if it is newer than the one that is here."""
        if (beat.attempt, beat.number) <= (self.attempt, self._number):
            return
        self.attempt, self._number = beat.attempt, beat.number
        # The worker has said when, which may be in the future, or no number at all.
        self.at = min(now, beat.at)
        self.details = beat.details
        self.heard += 1
        self._tell()

    def _tell(self, _job: object = None) -> None:
        self.news.set()
        self.news.clear()


class Progress:
    """The details of a job's heartbeats; an async iterator, see :meth:`Job.progress`.

    Args:
        job: The job.
        heartbeat_log: Its newest heartbeat.
        load: Loads the details.
    """

    def __init__(
        self,
        job: asyncio.Future[Any],
        heartbeat_log: HeartbeatLog,
        load: Callable[[bytes], Any],
    ) -> None:
        self._job = job
        self._pulse = heartbeat_log
        self._load = load
        self._seen = 0

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        """Wait for the next details.

        Raises:
            JobNotPicklableError: If they cannot be unpickled here; the next ones may be.
            RuntimeError: Outside the job's event loop.

        Cancellation:
            Safe: nothing is lost.
        """
        check_home(self._job.get_loop(), "the progress of a job")
        heartbeat_log = self._pulse
        while self._seen == heartbeat_log.heard:
            if self._job.done():
                raise StopAsyncIteration
            await heartbeat_log.news.wait()
        self._seen = heartbeat_log.heard
        return self._load(heartbeat_log.details)
