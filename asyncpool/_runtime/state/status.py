"""The status of a pool, for callers that wait until it is ready, or until it has ended."""

from __future__ import annotations

import asyncio

from asyncpool import events
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import PoolBrokenError, PoolClosedError


class PoolStatus:
    """Whether a pool works, has ended, or has failed.

    Args:
        state: The pool's state.

    Attributes:
        ready: Done when the first worker is ready, or all are, as the options say; failed if
            the pool broke before.
        ended: Done when nothing of the pool is left.
        outcome: Done when nothing of the pool is left; failed when the pool gives up for good, or
            when its supervisor fails.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self.ready: asyncio.Future[None] = state.loop.create_future()
        self.ended: asyncio.Future[None] = state.loop.create_future()
        self.outcome: asyncio.Future[None] = state.loop.create_future()

    @property
    def was_ready(self) -> bool:
        """Whether the pool has been ready."""
        return self.ready.done() and self.ready.exception() is None

    @property
    def cannot_start(self) -> bool:
        """Whether the pool was never ready and cannot become ready, so that it ends."""
        if self.ready.done():
            return False
        core = self._state.core
        breaks_pool = self._state.config.wait_for_all and core.failure is not None
        return breaks_pool or core.broken is not None

    def worker_ready(self) -> None:
        """Note that a worker is ready."""
        if self._state.config.wait_for_all:
            self.check_all_ready()
        elif not self.ready.done():
            self.ready.set_result(None)

    def check_all_ready(self) -> None:
        """End the wait for all workers, if they are ready, or if some have failed to start."""
        core = self._state.core
        if self.ready.done() or not self._state.config.wait_for_all:
            return
        if core.minimum_ready:
            self.ready.set_result(None)
        elif core.failure is not None:
            reason = f"{core.failure}, and not all workers are ready"
            crashes = tuple(self._state.crashes)
            self._fail_waiters(
                PoolBrokenError(reason=reason, crashes=crashes, retry_after=None)
            )

    def note_broken(self, error: PoolBrokenError) -> None:
        """Note that the pool is broken; for good, if it was never ready."""
        if error.retry_after is not None and not self.ready.done():
            error = PoolBrokenError(
                reason=error.reason, crashes=error.crashes, retry_after=None
            )
        self._state.log.broken(error.reason, error.retry_after)
        self._state.hub.publish(events.Broken(error.reason, error.crashes))
        if error.retry_after is None:
            self._fail_waiters(error)

    def note_recovered(self, slot: int) -> None:
        """Note that starts succeed again, since the worker in *slot* is ready."""
        self._state.log.recovered(slot)
        self._state.hub.publish(events.Recovered(slot))

    def note_failure(self, error: Exception) -> PoolClosedError:
        """Note that the supervisor has failed; return the error for open jobs."""
        self._state.log.failed(error)
        text = f"the supervisor failed: {error!r}"
        crashes = tuple(self._state.crashes)
        self._fail_waiters(
            PoolBrokenError(reason=text, crashes=crashes, retry_after=None)
        )
        return PoolClosedError(text)

    def note_ended(self) -> None:
        """Note that nothing of the pool is left."""
        for future in (self.ready, self.outcome, self.ended):
            if not future.done():
                future.set_result(None)

    def _fail_waiters(self, error: PoolBrokenError) -> None:
        for future in (self.ready, self.outcome):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved, since nobody may wait for it
