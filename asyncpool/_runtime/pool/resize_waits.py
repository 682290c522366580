"""Who waits until the pool has its new size, and what ends that wait."""

from __future__ import annotations

import asyncio
import math

from asyncpool import events
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool.errors import PoolClosedError, ResizeError


class ResizeWaits:
    """The calls of ``resize()`` that have not returned.

    Args:
        state: The pool's state.
    """

    def __init__(self, state: PoolState) -> None:
        self._state = state
        self._replacements = state.core.replacements
        self._size = 0, 0
        self._waits: dict[asyncio.Future[None], float] = {}  # and when they began

    def add(self, least: int, most: int, now: float) -> asyncio.Future[None]:
        """Return a future that is done when the pool, which is to be resized, has its size.

        Call :meth:`check` when it is being resized.
        """
        self._size = least, most
        wait: asyncio.Future[None] = self._state.loop.create_future()
        self._waits[wait] = now
        wait.add_done_callback(self._forget)  # the caller may have been cancelled
        return wait

    def check(self) -> None:
        """End the waits, if the pool has its size, or has given up for good."""
        if not self._waits or self._replacements.stopped:
            return
        if self._replacements.budget.settled:
            self._end(math.inf, None)
        elif self._state.core.workers.retry_in(self._state.loop.time()) is None:
            self._end(math.inf, self._state.crashes[-1])

    def start_failed(self, crash: events.Crash, began_at: float) -> None:
        """End the waits with *crash*, if starts fail, and that one was for the size.

        Who has called since it began waits for another start: what made this one fail may be over.
        """
        if not self._waits or not self._replacements.budget.misses(crash.slot):
            return
        if self._starts_fail:
            self._end(began_at, crash)
        if any(asked_at > began_at for asked_at in self._waits.values()):
            self._replacements.try_start(self._state.loop.time())
            self._state.performer.rearm()

    @property
    def _starts_fail(self) -> bool:
        core = self._state.core
        # Who resizes a server wants to hear of the first one that fails: its code may be broken.
        serving = self._state.config.serving is not None
        return serving or core.starts_fail or core.broken is not None

    def _end(self, until: float, crash: events.Crash | None) -> None:
        """End the waits of the calls that were made *until* then."""
        ended = [wait for wait, asked_at in self._waits.items() if asked_at <= until]
        if ended:
            self._state.log.resized(*self._size, crash)
        for wait in ended:
            self._forget(wait)
            if wait.done():
                continue
            if crash is None:
                wait.set_result(None)
            else:
                _fail(wait, ResizeError(crash))

    def _forget(self, wait: asyncio.Future[None]) -> None:
        self._waits.pop(wait, None)

    def stop(self) -> None:
        """End all waits: the pool closes."""
        for wait in [*self._waits]:
            self._forget(wait)
            if not wait.done():
                _fail(wait, PoolClosedError())


def _fail(wait: asyncio.Future[None], error: Exception) -> None:
    wait.set_exception(error)
    wait.exception()  # marks it as retrieved, since the caller may have left
