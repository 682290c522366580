"""How calls of an executor end: their futures, which belong to other threads, are settled."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeAlias

from asyncpool._core.logs import pool_messages as say
from asyncpool._runtime.base.error_aliases import with_base
from asyncpool.errors import (
    JobRaisedError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)

_LOGGER = logging.getLogger("asyncpool")

# Seconds that the loop of a caller has to settle the futures of its calls; see :class:`Delivery`.
_PATIENCE = 0.005

What: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Call(Future[Any]):
    """The future of a call; it can be cancelled until the pool has the call."""

    queue: OrderedDict[Call, What]
    home: asyncio.AbstractEventLoop | None

    def cancel(self) -> bool:
        """Cancel the call if it is pending, and return whether it is cancelled."""
        if not super().cancel():
            return False
        if self.queue.pop(self, None) is not None:
            self.set_running_or_notify_cancel()  # tells wait() and as_completed()
        return True


_EndedCall: TypeAlias = tuple[Call, Any, BaseException | None]


class Delivery:
    """Settles the futures of calls, several at a time.

    To tell an event loop that a future is done, concurrent.futures writes to that loop's
    pipe.  Each write releases the GIL, so two threads would pass the GIL to and fro for
    every call.  So if calls come from a loop, their futures are settled in that loop, all
    that have ended in one visit.  They are settled here if that loop does not get around to
    it; for example, because it is blocked and waits for one of them.

    Args:
        loop: The loop of the engine.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._ended_calls: list[_EndedCall] = []
        self._sent: list[deque[_EndedCall]] = []

    def add(self, ended: _EndedCall) -> None:
        """Settle a future soon."""
        if not self._ended_calls:
            self._loop.call_soon(self._deliver)
        self._ended_calls.append(ended)

    def finish(self) -> None:
        """Settle the futures that are left."""
        self._deliver()
        self._settle_rest()

    def _deliver(self) -> None:
        homes: dict[asyncio.AbstractEventLoop | None, deque[_EndedCall]] = {}
        for ended in self._ended_calls:
            homes.setdefault(ended[0].home, deque()).append(ended)
        self._ended_calls.clear()
        for home, ended_calls in homes.items():
            if home is None:
                _settle_all(ended_calls)
                continue
            try:
                home.call_soon_threadsafe(_settle_all, ended_calls)
            except RuntimeError:  # the caller's loop has been closed
                _settle_all(ended_calls)
                continue
            if not self._sent:
                self._loop.call_later(_PATIENCE, self._settle_rest)
            self._sent.append(ended_calls)

    def _settle_rest(self) -> None:
        for ended_calls in self._sent:
            _settle_all(ended_calls)
        self._sent.clear()


def _settle_all(ended_calls: deque[_EndedCall]) -> None:
    # Two threads may do this at once: each call is taken by one of them.
    while ended_calls:
        try:
            call, value, error = ended_calls.popleft()
        except IndexError:
            return
        settle(call, value, error=error)


def settle(
    call: Call, value: Any = None, *, error: BaseException | None = None
) -> None:
    """Settle *call*, and survive what its callbacks do."""
    try:
        if error is None:
            call.set_result(value)
        else:
            call.set_exception(_as_documented(error))
    except BaseException as failure:
        # In the main thread it may be Ctrl-C, which must end what runs there.  Then the
        # engine's thread settles the futures that are left.
        ends = isinstance(failure, SystemExit | KeyboardInterrupt)
        if ends and threading.current_thread() is threading.main_thread():
            raise
        say.CALLBACK_FAILED.log(_LOGGER, {}, error=failure, call=call)


def _as_documented(error: BaseException) -> BaseException:
    """Return what an executor raises: the error of the call, or that of a broken pool."""
    match error:
        case JobRaisedError(exception=StopIteration()):
            return error  # an asyncio future would refuse a StopIteration, and never be done
        case JobRaisedError():
            return error.exception
        case WorkerCrashedError() | PoolBrokenError() | PoolClosedError():
            return with_base(error, BrokenProcessPool)
        case _:
            return error
