"""The thread behind an executor: a pool, and the loop that it lives in.

Calls come from any thread.  They are put into a dict, and the loop is woken only if it
is not at it already: to write to its pipe for each of them would cost more than all the
rest.  The loop hands them over to the pool as long as workers have room, and a little
more.  Whoever takes a call out of that dict has it for himself, the loop to run it or
:meth:`Call.cancel` to drop it: so a call that was cancelled never runs, as the protocol
of :class:`concurrent.futures.Future` has it, and one that the pool has is running.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, TypeAlias

from asyncpool._core.base.run_times import BUDGET
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._core.supervision.closing import Finish
from asyncpool._runtime.base.error_aliases import with_base
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool._runtime.traffic.large_jobs import unpicklable
from asyncpool.errors import (
    JobRaisedError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)
from asyncpool.pool import Pool

_LOGGER = logging.getLogger("asyncpool")

# What the pool may have waiting for each worker, in the reckoning of profiles.py: as much
# as a worker may have in flight, and once more, so that none runs dry meanwhile.
_AHEAD = 2 * BUDGET

# Calls that are handed over in one turn of the loop: half a millisecond or so.
_CALLS_A_TURN = 100

_OPTIONS = JobOptions()

# Seconds that a loop has to settle the futures of its own calls; see :class:`Delivery`.
_PATIENCE = 0.005

_What: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Call(Future[Any]):
    """The future of a call; it can be cancelled until the pool has the call."""

    queue: OrderedDict[Call, _What]
    home: asyncio.AbstractEventLoop | None

    def cancel(self) -> bool:
        """Cancel the call if it is pending, and return whether it is cancelled."""
        if not super().cancel():
            return False
        if self.queue.pop(self, None) is not None:
            self.set_running_or_notify_cancel()  # tells wait() and as_completed()
        return True


class Engine:
    """A pool in a thread of its own; it ends when it is closed and all calls are done.

    It knows nothing of its executor, which may be collected while calls are pending.

    Args:
        pool: The pool, not started.
        workers: How many workers it has.
        on_end: Called when the thread ends.

    Attributes:
        thread: The thread.
    """

    def __init__(
        self, pool: Pool, workers: int, on_end: Callable[[Engine], None]
    ) -> None:
        self._pool = pool
        self._workers = workers
        self._on_end = on_end
        self._queue: OrderedDict[Call, _What] = OrderedDict()
        self._lock = threading.RLock()  # a signal's handler may submit, too
        self._refusal: Callable[[], Exception] | None = None
        self._open = 0
        self._room = workers
        self._awake = True  # it begins with a look at the queue
        self._coming = False
        self._closing = False
        self._grace: float | None = None
        self._begun = False
        self._loop: asyncio.AbstractEventLoop
        self._finished: asyncio.Future[None]
        self._delivery: Delivery
        self._supervisor: Supervisor
        self.thread = threading.Thread(target=self._run, name=f"asyncpool {pool.name}")

    # Called in any thread.

    def put(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        """Have a call made, and return its future.

        Raises:
            PoolBrokenError: If the pool did not come up.
            RuntimeError: If no more calls are taken.
        """
        call = Call()
        queue = call.queue = self._queue
        call.home = asyncio._get_running_loop()  # noqa: SLF001 - no exception if there is none
        with self._lock:
            if self._refusal is not None:
                raise self._refusal()
            queue[call] = (function, args, kwargs)
        if not self._awake:
            self._wake()
        return call

    def refuse(self, refusal: Callable[[], Exception]) -> None:
        """Take no more calls, from the next one on."""
        with self._lock:
            self._refusal = self._refusal or refusal

    def finish(self) -> None:
        """Have it end when all calls are done.

        Takes no lock, since the garbage collector may call it at any moment.
        """
        self._closing = True
        if not self._awake:
            self._wake()

    def cancel_pending(self) -> None:
        """Cancel the calls that the pool does not have yet."""
        for call in list(self._queue):
            call.cancel()

    def end_now(self, grace: float) -> None:
        """Have it end though calls are running, which fail.

        Args:
            grace: Seconds until workers that still run are killed.
        """
        with self._lock:
            self._grace = grace if self._grace is None else min(grace, self._grace)
            if not self._begun:
                return  # it looks, before it starts anything
        with contextlib.suppress(RuntimeError):  # it has ended
            self._loop.call_soon_threadsafe(self._press)

    def _wake(self) -> None:
        # Two threads may get here at once, and then it is woken twice.
        self._awake = True
        self._loop.call_soon_threadsafe(self._hand_over)

    def forked(self, refusal: Callable[[], Exception]) -> None:
        """Take note that this is a copy in another process, where the thread is not."""
        self._lock = threading.RLock()  # somebody may have held the old one
        self._awake, self._begun = True, False
        self.refuse(refusal)

    # Called in its own thread.

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            _LOGGER.exception("the thread of %s failed", self._pool.name)
            text = f"the executor failed: {error!r}"
            self._break(lambda: with_base(PoolClosedError(text), BrokenProcessPool))
        finally:
            self._on_end(self)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._finished = self._loop.create_future()
        self._delivery = Delivery(self._loop)
        with self._lock:
            self._begun = True
            if self._grace is not None:
                return
        try:
            await self._pool.start()
        except PoolClosedError:
            return  # by end_now(), and there are no calls
        except PoolBrokenError as error:
            # The pool is gone, and does not try again.
            reason, crashes = error.reason, error.crashes
            self._break(
                lambda: with_base(
                    PoolBrokenError(reason=reason, crashes=crashes, retry_after=None),
                    BrokenProcessPool,
                )
            )
            return
        self._supervisor = self._pool._running_supervisor()  # noqa: SLF001
        self._traffic = self._supervisor.traffic
        self._hand_over()
        await self._finished
        self._delivery.finish()
        await self._pool.close()

    def _press(self) -> None:
        assert self._grace is not None
        self._pool._running_supervisor().close(Finish.NONE, self._grace)  # noqa: SLF001

    def _break(self, error: Callable[[], Exception]) -> None:
        self.refuse(error)
        while self._queue:
            call, _ = self._queue.popitem(last=False)
            if call.set_running_or_notify_cancel():
                _settle(call, error=error())

    def _hand_over(self) -> None:
        """Give the pool as many calls as it can begin soon."""
        self._awake, self._coming = True, False
        queue, waiting = self._queue, self._supervisor.queued
        for _ in range(_CALLS_A_TURN):
            if not queue:
                self._rest()
                return
            if waiting >= self._room:
                return  # the next one that is done comes back here
            waiting += self._begin(*queue.popitem(last=False))
        self._come_back()

    def _come_back(self) -> None:
        if not self._coming:
            self._coming = True
            self._loop.call_soon(self._hand_over)

    def _rest(self) -> None:
        if self._finished.done():
            return  # it stays awake: nobody need wake it any more
        if self._closing and not self._open:
            self._finished.set_result(None)
            return
        self._awake = False
        # Somebody may have come meanwhile, and have seen that it was awake.
        if self._queue or (self._closing and not self._open):
            self._awake = True
            self._come_back()

    def _begin(self, call: Call, what: _What) -> bool:
        """Submit a call to the pool, and tell whether it has to wait there."""
        if not call.set_running_or_notify_cancel():
            return False
        function, args, kwargs = what
        try:
            job = self._traffic.submit(function, args, kwargs, _OPTIONS)
        except Exception as error:  # noqa: BLE001 - it belongs to this call
            _settle(call, error=error)
            return False
        except BaseException as error:  # noqa: BLE001 - an argument's
            # No signal is handled in this thread, so it is nobody's but this call's.
            _settle(call, error=unpicklable(error))
            return False
        self._open += 1
        job.add_done_callback(partial(self._land, call))
        if job._slot is not None:
            return False
        self._room = self._workers * (1 + int(_AHEAD / job._profile.cost))
        return True

    def _land(self, call: Call, job: Job[Any]) -> None:
        self._open -= 1
        error = job.exception()
        value = job.result() if error is None else None
        self._delivery.add((call, value, error))
        # Awake, it has left calls in the queue; they may have been cancelled meanwhile.
        if self._awake or self._closing:
            self._come_back()


_EndedCall: TypeAlias = tuple[Call, Any, BaseException | None]


class Delivery:
    """Settles the futures of calls, several at a time.

    What a future has to tell a loop, it tells by a write to that loop's pipe, and each
    write lets go of the GIL: two threads then hand it to and fro for every call.  So the
    futures of calls that come from a loop are settled there, all that have landed by one
    visit; or here, if that loop does not get around to it, since it waits for one of them
    in a blocking way for example.

    Args:
        loop: The loop that this is used in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._landed: list[_EndedCall] = []
        self._sent: list[deque[_EndedCall]] = []

    def add(self, ended: _EndedCall) -> None:
        """Have a future settled soon."""
        if not self._landed:
            self._loop.call_soon(self._deliver)
        self._landed.append(ended)

    def finish(self) -> None:
        """Settle what is not settled yet."""
        self._deliver()
        self._settle_rest()

    def _deliver(self) -> None:
        homes: dict[asyncio.AbstractEventLoop | None, deque[_EndedCall]] = {}
        for ended in self._landed:
            homes.setdefault(ended[0].home, deque()).append(ended)
        self._landed.clear()
        for home, ended_calls in homes.items():
            if home is None:
                _settle_all(ended_calls)
                continue
            try:
                home.call_soon_threadsafe(_settle_all, ended_calls)
            except RuntimeError:  # it is closed
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
    # Two threads may be at it: each call is taken by one of them.
    while ended_calls:
        try:
            call, value, error = ended_calls.popleft()
        except IndexError:
            return
        _settle(call, value, error=error)


def _settle(
    call: Call, value: Any = None, *, error: BaseException | None = None
) -> None:
    """Settle *call*, and survive what its callbacks do."""
    try:
        if error is None:
            call.set_result(value)
        else:
            call.set_exception(_as_documented(error))
    except BaseException as failure:
        # In the main thread that may be Ctrl-C, and must end what runs there; what is not
        # settled yet, the engine's thread settles.
        ends = isinstance(failure, SystemExit | KeyboardInterrupt)
        if ends and threading.current_thread() is threading.main_thread():
            raise
        _LOGGER.exception("a callback of %r failed", call)


def _as_documented(error: BaseException) -> BaseException:
    """Return what an executor raises: what the call has raised, or a broken pool."""
    match error:
        case JobRaisedError(exception=StopIteration()):
            return error  # an asyncio future would refuse it, and never be done
        case JobRaisedError():
            return error.exception
        case WorkerCrashedError() | PoolBrokenError() | PoolClosedError():
            return with_base(error, BrokenProcessPool)
        case _:
            return error
