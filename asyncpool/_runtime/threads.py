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
from typing import Any, NamedTuple, ParamSpec, TypeVar

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


class _Call(NamedTuple):
    """What a thread is to do.

    Attributes:
        function: What it calls.
        answer: What the caller has, and may cancel.
        ended: Done when the thread is through with it.
    """

    function: Callable[[], Any]
    answer: asyncio.Future[Any]
    ended: asyncio.Future[None]


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
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self.running: set[asyncio.Future[None]] = set()

    def call(self, function: Callable[[], R]) -> asyncio.Future[R]:
        """Have *function* called; to cancel the future does not stop that."""
        # Two, and no asyncio.shield(): if its caller has gone, what the call has raised
        # after that is nobody's, and asyncio would complain of it.
        answer: asyncio.Future[R] = self._loop.create_future()
        ended: asyncio.Future[None] = self._loop.create_future()
        call = _Call(function, answer, ended)
        self._calls.put(call)
        self.running.add(ended)
        ended.add_done_callback(self.running.discard)
        if len(self._threads) < min(self._most, len(self.running)):
            self._start_one()
        if not self._threads:
            self._calls.get()
            _settle(call, *_outcome_of(function))
        return answer

    def close(self) -> None:
        """End the threads."""
        stuck = bool(self.running)
        while not self._calls.empty():
            call = self._calls.get()
            if call is not None:
                call.answer.cancel()
                call.ended.cancel()
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
        while call := self._calls.get():
            outcome = _outcome_of(call.function)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(_settle, call, *outcome)
            del call, outcome


def _outcome_of(function: Callable[[], Any]) -> tuple[Any, BaseException | None]:
    try:
        return function(), None
    except BaseException as error:  # noqa: BLE001 - it is the caller's
        return None, error


def _settle(call: _Call, value: Any, error: BaseException | None) -> None:
    answer = call.answer
    if answer.done():
        pass  # its caller has gone
    elif error is None:
        answer.set_result(value)
    elif isinstance(error, StopIteration):  # which a future refuses
        answer.set_exception(RuntimeError(f"it raised {error!r}"))
    else:
        answer.set_exception(error)
    if not call.ended.done():
        call.ended.set_result(None)
