"""Threads of a pool's own, for what would hold up its loop.

Copying lets go of the GIL, so the loop hardly notices it.  Pickling holds it, and what
is built of many small objects takes a second for 100 MB; so only one thread does that,
and it makes way every millisecond (:class:`Pause`).  The threads start when they are
needed, and end with the pool.  They are not the loop's default executor, which
belongs to the user and may be full, or may be a pool of this very kind.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

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


class Threads:
    """The threads of one pool.

    Args:
        loop: The pool's loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._copiers = _Crew(loop, "asyncpool-copy", most=_COPIERS)
        self._pickler = _Crew(loop, "asyncpool-pickle", most=1)

    def copy(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Call what lets go of the GIL, or takes a moment only."""
        return self._copiers.call(partial(function, *args, **kwargs))

    def pickle(
        self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> asyncio.Future[R]:
        """Call what computes; such calls wait for each other."""
        return self._pickler.call(partial(function, *args, **kwargs))

    async def close(self) -> None:
        """Wait until everything is done, and end the threads.

        What runs the user's code, and does not come back, is left alone after some
        seconds; calls behind it are cancelled.
        """
        running = self._copiers.running | self._pickler.running
        if running:
            await asyncio.wait(running, timeout=_GRACE)
        for crew in (self._copiers, self._pickler):
            crew.close()


class _Crew:
    """Some threads that take calls from one queue.

    Not an executor of the standard library's: that one waits for its threads when the
    interpreter ends, and when it may start no more of them, it raises an error and keeps
    the call.  These are daemons, and if there is no thread at all, the loop has to do it.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, *, most: int
    ) -> None:
        self._loop = loop
        self._name = name
        self._most = most
        self._threads: list[threading.Thread] = []
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None]
        self._calls = SimpleQueue()
        self.running: set[asyncio.Future[Any]] = set()

    def call(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Have *function* called; to cancel the future does not stop that."""
        future: asyncio.Future[R] = self._loop.create_future()
        self._calls.put((function, future))
        self.running.add(future)
        future.add_done_callback(self.running.discard)
        if len(self._threads) < min(self._most, len(self.running)):
            self._start_one()
        if not self._threads:
            self._calls.get()
            _settle(future, *_outcome_of(function))
        return asyncio.shield(future)

    def close(self) -> None:
        """End the threads."""
        stuck = bool(self.running)
        while not self._calls.empty():
            entry = self._calls.get()
            if entry is not None:
                entry[1].cancel()
        for _ in self._threads:
            self._calls.put(None)
        while self._threads and not stuck:
            self._threads.pop().join()  # it takes no longer than it needs to wake up

    def _start_one(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        with contextlib.suppress(RuntimeError):  # there may be no more
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        while entry := self._calls.get():
            function, future = entry
            outcome = _outcome_of(function)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, future, *outcome)
            del entry, function, future, outcome


def _outcome_of(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        return None, error


def _settle(
    future: asyncio.Future[Any], value: Any, error: BaseException | None
) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(value)
    elif isinstance(error, StopIteration):  # which a future refuses
        future.set_exception(RuntimeError(f"it raised {error!r}"))
    else:
        future.set_exception(error)
