"""The status of a pool, for callers that wait until it is ready, or until it is over."""

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
        up: Done when the first worker is ready, or all are, as the options say; failed if
            the pool broke before.
        done: Done when nothing of the pool is left.
        over: The same; failed when the pool gives up for good, or its supervisor fails.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self.up: asyncio.Future[None] = state.loop.create_future()
        self.done: asyncio.Future[None] = state.loop.create_future()
        self.over: asyncio.Future[None] = state.loop.create_future()

    @property
    def was_up(self) -> bool:
        """Whether the pool has been ready."""
        return self.up.done() and self.up.exception() is None

    @property
    def start_failed(self) -> bool:
        """Whether the pool was never ready and cannot become ready, so it ends."""
        if self.up.done():
            return False
        core = self._state.core
        breaks_pool = self._state.config.wait_for_all and core.failures is not None
        return breaks_pool or core.broken is not None

    def begin(self) -> None:
        """Note that a worker is ready."""
        if self._state.config.wait_for_all:
            self.update()
        elif not self.up.done():
            self.up.set_result(None)

    def update(self) -> None:
        """Finish the wait for all workers, if they are ready, or if some fail to start."""
        core = self._state.core
        if self.up.done() or not self._state.config.wait_for_all:
            return
        if core.minimum_ready:
            self.up.set_result(None)
        elif core.failures is not None:
            reason = (
                f"{core.failures} starts failed in a row, and not all workers are ready"
            )
            crashes = tuple(self._state.crashes)
            self._break(
                PoolBrokenError(reason=reason, crashes=crashes, retry_after=None)
            )

    def give_up(self, error: PoolBrokenError) -> None:
        """Note that the pool is broken; for good, if it was never ready."""
        if error.retry_after is not None and not self.up.done():
            error = PoolBrokenError(
                reason=error.reason, crashes=error.crashes, retry_after=None
            )
        state, again = self._state, error.retry_after
        state.log.broken(error.reason, again)
        state.hub.publish(events.GaveUp(error.reason, error.crashes))
        if again is None:
            self._break(error)

    def recover(self, slot: int) -> None:
        """Note that starts succeed again, since the worker in *slot* is ready."""
        self._state.log.recovered(slot)
        self._state.hub.publish(events.Recovered(slot))

    def fail(self, error: Exception) -> PoolClosedError:
        """Note that the supervisor has failed; return the error for open jobs."""
        self._state.log.failed(error)
        text = f"the supervisor failed: {error!r}"
        crashes = tuple(self._state.crashes)
        self._break(PoolBrokenError(reason=text, crashes=crashes, retry_after=None))
        return PoolClosedError(text)

    def end(self) -> None:
        """Note that nothing of the pool is left."""
        for future in (self.up, self.over, self.done):
            if not future.done():
                future.set_result(None)

    def _break(self, error: PoolBrokenError) -> None:
        for future in (self.up, self.over):
            if not future.done():
                future.set_exception(error)
                future.exception()  # marks it as retrieved, since nobody may wait for it
