"""Who may come in: whether the pool is open, and has room for another job."""

from __future__ import annotations

import asyncio

from asyncpool import events
from asyncpool._core.policies.job_limits import Hold, JobOptions
from asyncpool._runtime.state.bulk_failure import broken_errors
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool.errors import PoolClosedError, PoolFullError


class Admission:
    """Admits jobs to a pool, or turns them away.

    Args:
        state: The pool.

    Attributes:
        saturated: Whether the queue was full, and has not been empty since.  Who makes it
            empty has to :meth:`relax`.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._core = state.core
        self._limit = state.config.max_queued
        self.saturated = False
        self._relaxed = asyncio.Event()

    def check_open(self, hold: Hold | None = None) -> None:
        """Check that there is a pool to do something with.

        Args:
            hold: What holds the pool open for it, also while it drains.

        Raises:
            PoolClosedError: If it is closed.
            PoolBrokenError: If it is broken.
        """
        closing = self._core.closing
        if closing.finish is not None and not (
            closing.draining and hold is not None and hold.held
        ):
            raise PoolClosedError
        if self._core.broken is not None:
            self._core.workers.try_sooner(self._state.loop.time())
            self._state.performer.rearm()
            raise broken_errors(self._state)(None)

    def check_trying(self) -> None:
        """Check that there is a pool that works, or that tries to start workers.

        Raises:
            PoolClosedError: If it is closed.
            PoolBrokenError: If it has given up.
        """
        if self._core.closing.finish is not None:
            raise PoolClosedError
        is_broken = self._core.broken is not None
        if is_broken and self._core.workers.retry_in(self._state.loop.time()) is None:
            raise broken_errors(self._state)(None)

    def check(self, options: JobOptions) -> None:
        """Check that a job with these options may come in.

        The calls of a broadcast do not come this way (:meth:`Traffic.send_pinned`): only the
        broadcast itself has to find the pool open.  Each is for one worker, so it takes no
        room in the queue, and may be for one that is started while the pool drains.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
            PoolFullError: If too many wait.
        """
        core, limit = self._core, self._limit
        if core.closing.finish is not None or core.broken is not None:
            self.check_open(options.hold)
        if limit is None or core.dispatcher.has_idle_worker_for(options.key):
            return
        if options.bound is not None:
            return  # it waits for its own worker, and in no queue
        # Some will not wait: those still being pickled, for whom workers are idle.
        waiting = core.balance.waiting
        not_for_long = min(core.dispatcher.free, core.dispatcher.preparing)
        if waiting - not_for_long >= limit:
            if not self.saturated:
                self.saturated = True
                self._relaxed.clear()
                self._state.hub.publish(events.QueueFull(waiting))
            raise PoolFullError(waiting=waiting, max_queued=limit)

    def check_session(self) -> None:
        """Check that one more may wait for a worker to himself.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
            PoolFullError: If too many jobs and others wait.
        """
        self.check_open()
        core, limit = self._core, self._limit
        waiting = core.balance.waiting + core.dispatcher.wanted
        if limit is not None and not core.dispatcher.idle and waiting >= limit:
            raise PoolFullError(waiting=waiting, max_queued=limit)

    @decision
    def crowded(self) -> None:
        """Take note that a job waits, while there may be more workers."""
        core = self._core
        if core.dispatcher.unserved:
            core.replacements.sizing.crowded(self._state.loop.time())
            self._state.performer.rearm()

    def relax(self) -> None:
        """Take note that jobs may have left a queue that was full."""
        core = self._core
        if core.balance.waiting:
            return
        closing = core.closing
        refuses = closing.finish is not None and not closing.draining
        # A queue with room for nobody is empty, and still full until a worker is idle.  But
        # who waits for that is to hear when there is no pool any more.
        if (
            self._limit
            or core.dispatcher.has_idle_worker_for(None)
            or refuses
            or core.broken is not None
        ):
            self.end()
            self._state.hub.publish(events.QueueEmptied())

    def end(self) -> None:
        """Have nobody wait for room any more."""
        self.saturated = False
        self._relaxed.set()

    async def room(self) -> None:
        """Wait until the queue, which was full, is empty; or the pool is closed.

        Cancellation:
            Safe.
        """
        while self.saturated:  # another one may have filled it before this one's turn
            await self._relaxed.wait()
