"""How a pool stands, for those who wait until it is up, or until it is over."""

from __future__ import annotations

import asyncio
import logging

from asyncpool import events
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import PoolBrokenError, PoolClosedError

_LOGGER = logging.getLogger("asyncpool")


class PoolStatus:
    """Whether a pool works, does not any more, or has failed.

    Args:
        state: The pool.

    Attributes:
        up: Done when the first worker is ready, or all are, whatever is to be waited for;
            failed if the pool broke before.
        done: Done when nothing of the pool is left.
        over: The same; failed when the pool gives up for good, or its supervisor fails.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self.up: asyncio.Future[None] = state.loop.create_future()
        self.done: asyncio.Future[None] = state.loop.create_future()
        self.over: asyncio.Future[None] = state.loop.create_future()

    @property
    def start_failed(self) -> bool:
        """Whether the pool was never up and has no hope to be: it ends, and tries no more."""
        if self.up.done():
            return False
        core = self._state.core
        breaks_pool = self._state.config.wait_for_all and core.failures is not None
        return breaks_pool or core.broken is not None

    def begin(self) -> None:
        """Take note that a worker is ready."""
        if self._state.config.wait_for_all:
            self.update()
        elif not self.up.done():
            self.up.set_result(None)

    def update(self) -> None:
        """Tell those who wait for all workers that these are there, or that some do not come."""
        core = self._state.core
        if self.up.done() or not self._state.config.wait_for_all:
            return
        if core.whole:
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
        """Take note that the pool is broken; for good, if it was never up."""
        if error.retry_after is not None and not self.up.done():
            error = PoolBrokenError(
                reason=error.reason, crashes=error.crashes, retry_after=None
            )
        state, again = self._state, error.retry_after
        then = "given up" if again is None else f"next try in {again:.2g} s"
        _LOGGER.error("%s is broken: %s, %s", state.config.title, error.reason, then)
        state.hub.publish(events.GaveUp(error.reason, error.crashes))
        if again is None:
            self._break(error)

    def recover(self, slot: int) -> None:
        """Take note that starts succeed again, since the worker in *slot* is ready."""
        _LOGGER.info("%s starts workers again", self._state.config.title)
        self._state.hub.publish(events.Recovered(slot))

    def fail(self, error: Exception) -> PoolClosedError:
        """Take note that the supervisor fails; return what open jobs are told."""
        text = f"the supervisor failed: {error!r}"
        crashes = tuple(self._state.crashes)
        self._break(PoolBrokenError(reason=text, crashes=crashes, retry_after=None))
        return PoolClosedError(text)

    def end(self) -> None:
        """Take note that nothing of the pool is left."""
        for future in (self.up, self.over, self.done):
            if not future.done():
                future.set_result(None)

    def _break(self, error: PoolBrokenError) -> None:
        for future in (self.up, self.over):
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever waits for it may have left
