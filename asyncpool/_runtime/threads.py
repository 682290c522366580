"""Threads of a pool's own, for what would hold up its loop.

Copying lets go of the GIL, so the loop hardly notices it.  Pickling holds it, and what
is built of many small objects takes a second for 100 MB; so only one thread does that,
and it makes way every millisecond (:class:`Pause`).  The threads start when they are
needed, and end with the pool.  They are not the loop's default executor, which
belongs to the user and may be full, or may be a pool of this very kind.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, ParamSpec, TypeVar

__all__ = ["AbandonedError", "Pause", "Threads"]

P = ParamSpec("P")
R = TypeVar("R")

# Two copies at once take all of the memory's bandwidth.
_COPIERS = 2

# Seconds that one thread may hold the GIL, and how long it then leaves it to others: who
# waits for it must wake up meanwhile, or finds it taken again.
_STINT = 0.001
_PAUSE = 0.00005

# Seconds that a closing pool waits for a thread that runs the user's own code.
_GRACE = 5.0


class AbandonedError(BaseException):
    """Nobody wants it any more; no ``except Exception`` of the user's stops this."""


class Pause:
    """Called between two pieces of work, so that others may work too.

    Args:
        unwanted: Tells whether the work may be given up.
    """

    def __init__(self, unwanted: Callable[[], bool]) -> None:
        self._unwanted = unwanted
        self._until = 0.0

    def __call__(self) -> None:
        """Sleep a little if it is time.

        Raises:
            AbandonedError: If the work may be given up.
        """
        if self._unwanted():
            raise AbandonedError
        if time.monotonic() >= self._until:
            time.sleep(_PAUSE)
            self._until = time.monotonic() + _STINT


class _Once(Generic[R]):
    """A call; executors keep those for which they could not start a thread."""

    def __init__(self, call: Callable[[], R]) -> None:
        self._calls = [call]

    def __call__(self) -> R:
        return self._calls.pop()()


class Threads:
    """The threads of one pool.

    Args:
        loop: The pool's loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._copiers: ThreadPoolExecutor | None = None
        self._pickler: ThreadPoolExecutor | None = None
        self._running: set[asyncio.Future[Any]] = set()

    def copy(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Call what lets go of the GIL, or takes a moment only."""
        if self._copiers is None:
            self._copiers = ThreadPoolExecutor(_COPIERS, "asyncpool-copy")
        return self._run(self._copiers, function, *args, **kwargs)

    def pickle(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Call what computes; such calls wait for each other."""
        if self._pickler is None:
            self._pickler = ThreadPoolExecutor(1, "asyncpool-pickle")
        return self._run(self._pickler, function, *args, **kwargs)

    def _run(
        self,
        executor: ThreadPoolExecutor,
        function: Callable[P, R],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> asyncio.Future[R]:
        once = _Once(partial(function, *args, **kwargs))
        try:
            future = asyncio.wrap_future(executor.submit(once), loop=self._loop)
        except RuntimeError:  # there may be no more threads
            future = self._loop.create_future()
            try:
                future.set_result(once())
            except (Exception, AbandonedError) as error:  # noqa: BLE001 - as there
                future.set_exception(error)
            return future
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    async def close(self) -> None:
        """Wait until everything is done, and end the threads.

        What runs the user's code, and does not come back, is left alone after some
        seconds.
        """
        if self._running:
            await asyncio.wait(self._running, timeout=_GRACE)
        for executor in (self._copiers, self._pickler):
            if executor is not None:
                # Nothing runs, so this takes no longer than a thread needs to wake up.
                executor.shutdown(wait=not self._running, cancel_futures=True)
