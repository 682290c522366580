"""Which jobs a pool takes: whether it is open, and has room for another job."""

from __future__ import annotations

import asyncio

from asyncpool import events
from asyncpool._core.policies.job_options import DrainHold, JobOptions
from asyncpool._runtime.state.job_errors import broken_errors
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import PoolClosedError, PoolFullError


class Admission:
    """Admits jobs to a pool, or turns them away.

    Args:
        state: The pool's state.

    Attributes:
        saturated: Whether the queue was full, and has not been empty since.  Code that takes
            jobs out of the queue must call :meth:`update_saturated` then.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._core = state.core
        self._limit = state.config.max_queued
        self.saturated = False
        self._has_room = asyncio.Event()

    def check_open(self, hold: DrainHold | None = None) -> None:
        """Check that the pool is open.

        Args:
            hold: A hold that still admits the caller while the pool drains.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
        """
        closing = self._core.closing
        if closing.finish is not None and not (
            closing.draining and hold is not None and hold.held
        ):
            raise PoolClosedError
        if self._core.broken is not None:
            with self._state.turn as now:
                self._core.lifecycle.try_sooner(now)
            raise broken_errors(self._state)(None)

    def check_trying(self) -> None:
        """Check that the pool works, or still tries to start workers.

        Raises:
            PoolClosedError: If it is closed.
            PoolBrokenError: If it has given up.
        """
        if self._core.closing.finish is not None:
            raise PoolClosedError
        is_broken = self._core.broken is not None
        if is_broken and self._core.lifecycle.retry_in(self._state.loop.time()) is None:
            raise broken_errors(self._state)(None)

    def check(self, options: JobOptions) -> None:
        """Check that the pool takes a job with these options.

        The calls of a broadcast do not come this way (:meth:`Traffic.send_pinned`).  Only the
        broadcast itself needs an open pool.  Its calls take no room in the queue, since each is for
        one worker.  And a worker that starts while the pool drains gets the broadcasts that the
        pool remembers.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
            PoolFullError: If too many jobs and callers wait.
        """
        core, limit = self._core, self._limit
        if core.closing.finish is not None or core.broken is not None:
            self.check_open(options.hold)
        if limit is None or core.dispatcher.can_begin_now(options.key):
            return
        if options.bound is not None:
            return  # it waits for its session's worker, and takes no room in the queue
        # Jobs that are being pickled, and for which workers are idle, will not be queued.
        waiting = self._waiting
        not_for_long = min(core.dispatcher.free, core.dispatcher.preparing)
        if waiting - not_for_long >= limit:
            if not self.saturated:
                self.saturated = True
                self._has_room.clear()
                self._state.hub.publish(events.QueueFull(waiting))
            raise PoolFullError(waiting=waiting, max_queued=limit)

    @property
    def _waiting(self) -> int:
        """How many jobs wait, and callers for a worker of their own."""
        return self._core.waiting + self._core.dispatcher.wanted

    def check_session(self) -> None:
        """Check that one more caller may wait for a worker of its own.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
            PoolFullError: If too many jobs and callers wait.
        """
        self.check_open()
        core, limit = self._core, self._limit
        waiting = self._waiting
        if limit is not None and not core.dispatcher.idle and waiting >= limit:
            raise PoolFullError(waiting=waiting, max_queued=limit)

    def note_queued(self) -> None:
        """Tell the core that a job is queued, since a new worker could take it."""
        if self._core.dispatcher.unserved:
            with self._state.turn as now:
                self._core.exits.sizing.job_waits(now)

    def update_saturated(self) -> None:
        """Wake the callers that wait for room, if nobody waits for a worker; too many did before."""
        core = self._core
        if self._waiting:
            return
        closing = core.closing
        refuses = closing.finish is not None and not closing.draining
        # With max_queued=0 the queue is always empty, and there is room only while a worker is
        # idle.  But if the pool ends, callers that wait for room must hear of that.
        if (
            self._limit
            or core.dispatcher.can_begin_now(None)
            or refuses
            or core.broken is not None
        ):
            self.wake_all()
            self._state.hub.publish(events.QueueEmptied())

    def wake_all(self) -> None:
        """Wake all callers that wait for room."""
        self.saturated = False
        self._has_room.set()

    async def room(self) -> None:
        """Wait until the queue, which was full, is empty; or until the pool is closed.

        Cancellation:
            Safe.
        """
        while self.saturated:  # another caller may have filled it again meanwhile
            await self._has_room.wait()
