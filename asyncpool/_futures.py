"""The thread behind an executor: a pool, and the loop that it lives in.

Calls come from any thread.  Each goes into a dict, and the loop is woken only if it does not
look there anyway: to write to the loop's pipe for each call would cost more than all the rest.
The loop gives the pool as many calls as workers have room for, and a few more.  To take a call
out of the dict is atomic, so only one side gets it: the loop, which runs it, or
:meth:`Call.cancel`, which drops it.  So a cancelled call never runs, and a call counts as running
once the pool has it.  That is the protocol of :class:`concurrent.futures.Future`.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from asyncpool._core import log_messages as say
from asyncpool._core.endings import Finish
from asyncpool._core.functions import BUDGET
from asyncpool._core.options import JobOptions
from asyncpool._engine.engine import Engine as PoolEngine
from asyncpool._engine.job import Job
from asyncpool._wire.pickling import unpicklable
from asyncpool.errors import (
    AsyncPoolError,
    JobRaisedError,
    PoolBrokenError,
    PoolClosedError,
    WorkerCrashedError,
)

if TYPE_CHECKING:
    from asyncpool.pool import Pool
    from asyncpool.sharedpool._remote_pool import RemotePool

# Give an error a second class, so that code which expects that class catches it too.
#
# Code that was written for another library expects that library's errors.  Their modules are
# expensive to import, and only the part of asyncpool that stands in for that library needs them.
# So no class in ``errors.py`` can derive from them.

E = TypeVar("E", bound=AsyncPoolError)


def with_base(error: E, kind: type[Exception]) -> E:
    """Return *error* itself, which from now on is also an instance of *kind*.

    It keeps its attributes, its cause and its text.  It can still be pickled.
    """
    if not isinstance(error, kind):
        pair: Any = (type(error), kind)
        error.__class__ = _both(*pair)
    return error


@functools.cache
def _both(cls: Any, kind: Any) -> type[Any]:
    def reduce(self: AsyncPoolError) -> tuple[Any, ...]:
        # A pickle could not find this class by a name, since it is in no module.
        return _rebuild, (cls, kind, self.args, self.__dict__.copy())

    namespace = {
        "__doc__": cls.__doc__,
        "__module__": cls.__module__,
        "__reduce__": reduce,
    }
    return type(cls.__name__, (cls, kind), namespace)


def _rebuild(
    cls: type[AsyncPoolError],
    kind: type[Exception],
    args: tuple[Any, ...],
    details: dict[str, Any],
) -> AsyncPoolError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(details)
    return with_base(error, kind)


# How calls of an executor end: their futures, which belong to other threads, are settled.

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


_LOGGER = logging.getLogger("asyncpool")

# How much work the pool may have queued for each worker, in the unit of ``BUDGET``: as much as
# a worker may have in flight, and as much again, so that no worker runs out of calls meanwhile.
_AHEAD = 2 * BUDGET

# How many calls the pool gets in one turn of the loop, which takes about half a millisecond.
_CALLS_A_TURN = 100

_OPTIONS = JobOptions()


class Engine:
    """A pool in a thread of its own.  The thread ends when it is told to and all calls are done.

    It has no reference to its executor, which may be collected while calls are pending.

    Args:
        pool: The pool, not started.
        workers: How many workers it has.
        on_end: Called when the thread ends.

    Attributes:
        thread: The thread.
    """

    def __init__(
        self, pool: Pool | RemotePool, workers: int, on_end: Callable[[Engine], None]
    ) -> None:
        self._pool = pool
        self._workers = workers
        self._on_end = on_end
        self._queue: OrderedDict[Call, What] = OrderedDict()
        self._lock = threading.RLock()  # reentrant: a signal handler may submit, too
        self._refusal: Callable[[], Exception] | None = None
        self._open = 0
        self._room = workers
        self._awake = True  # the loop begins with a look at the queue
        self._coming = False
        self._closing = False
        self._grace: float | None = None
        self._begun = False
        self._loop: asyncio.AbstractEventLoop
        self._finished: asyncio.Future[None]
        self._delivery: Delivery
        self._supervisor: PoolEngine
        self.thread = threading.Thread(target=self._run, name=f"asyncpool {pool.name}")

    # Any thread may call these.

    def put(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Call:
        """Queue a call, and return its future.

        Raises:
            PoolBrokenError: If the pool could not start.
            RuntimeError: If no more calls are accepted.
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
        """Accept no more calls; each later one gets the error of *refusal*."""
        with self._lock:
            self._refusal = self._refusal or refusal

    def finish(self) -> None:
        """End the thread when all calls are done.

        This takes no lock, since the garbage collector may call it at any moment.
        """
        self._closing = True
        if not self._awake:
            self._wake()

    def cancel_pending(self) -> None:
        """Cancel the calls that the pool does not have yet."""
        for call in list(self._queue):
            call.cancel()

    def end_now(self, grace: float) -> None:
        """End the thread although calls are running; they fail.

        Args:
            grace: Seconds until workers that still run are killed.
        """
        with self._lock:
            self._grace = grace if self._grace is None else min(grace, self._grace)
            if not self._begun:
                return  # the thread looks at the grace before it starts the pool
        with contextlib.suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._press)

    def _wake(self) -> None:
        # Two threads may get here at once, and then wake the loop twice.
        self._awake = True
        self._loop.call_soon_threadsafe(self._hand_over)

    def forked(self, refusal: Callable[[], Exception]) -> None:
        """Note that this is a copy in a forked process, where the thread does not exist."""
        self._lock = (
            threading.RLock()
        )  # some thread may have held the old one at the fork
        self._awake, self._begun = True, False
        self.refuse(refusal)

    # Only the engine's thread calls these.

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - whatever it is, callers wait
            say.EXECUTOR_FAILED.log(_LOGGER, {"pool": self._pool.name}, error=error)
            text = f"the executor failed: {error!r}"
            self._break(lambda: with_base(PoolClosedError(text), BrokenProcessPool))
        finally:
            self._on_end(self)

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        if (task := asyncio.current_task()) is not None:
            task.set_name(f"asyncpool executor {self._pool.name}")
        self._finished = self._loop.create_future()
        self._delivery = Delivery(self._loop)
        with self._lock:
            self._begun = True
            if self._grace is not None:
                return
        try:
            await self._pool.start()
        except PoolClosedError:
            return  # end_now() was called, so there are no calls
        except PoolBrokenError as error:
            # The pool could not start, and does not try again.
            reason, crashes = error.reason, error.crashes
            self._break(
                lambda: with_base(
                    PoolBrokenError(reason=reason, crashes=crashes, retry_after=None),
                    BrokenProcessPool,
                )
            )
            return
        except (AsyncPoolError, OSError, RuntimeError, ValueError) as error:
            self._break(partial(_not_started, self._pool.name, error))
            return
        supervisor = self._supervisor = self._pool._running_supervisor()  # noqa: SLF001
        supervisor.limit_ahead()  # a call that an agent has counts as running
        self._traffic = supervisor.traffic
        # A pool that others share has as many workers as they have given it.
        self._workers = self._room = supervisor.most_workers * supervisor.concurrency
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
                settle(call, error=error())

    def _hand_over(self) -> None:
        """Give the pool as many calls as it can begin soon."""
        self._awake, self._coming = True, False
        queue, waiting = self._queue, self._supervisor.queued
        for _ in range(_CALLS_A_TURN):
            if not queue:
                self._rest()
                return
            if waiting >= self._room:
                return  # the end of the next call leads here again
            waiting += self._begin(*queue.popitem(last=False))
        self._come_back()

    def _come_back(self) -> None:
        if not self._coming:
            self._coming = True
            self._loop.call_soon(self._hand_over)

    def _rest(self) -> None:
        if self._finished.done():
            return  # the loop counts as awake, so nobody wakes it any more
        if self._closing and not self._open:
            self._finished.set_result(None)
            return
        self._awake = False
        # A call may have come just before, from a thread that still saw the loop awake.
        if self._queue or (self._closing and not self._open):
            self._awake = True
            self._come_back()

    def _begin(self, call: Call, what: What) -> bool:
        """Submit a call to the pool, and return whether it is queued there."""
        if not call.set_running_or_notify_cancel():
            return False
        function, args, kwargs = what
        try:
            job = self._traffic.submit(function, args, kwargs, _OPTIONS)
        except Exception as error:  # noqa: BLE001 - it belongs to this call
            settle(call, error=error)
            return False
        except BaseException as error:  # noqa: BLE001 - an argument's
            # No signal is handled in this thread, so the error belongs to this call.
            settle(call, error=unpicklable(error))
            return False
        self._open += 1
        job.add_done_callback(partial(self._on_done, call))
        if job.slot is not None:
            return False
        self._room = self._workers * (1 + int(_AHEAD / job.traits.cost))
        return True

    def _on_done(self, call: Call, job: Job[Any]) -> None:
        self._open -= 1
        error = job.exception()
        value = job.result() if error is None else None
        self._delivery.add((call, value, error))
        # If the loop is awake, it has left calls in the queue.
        if self._awake or self._closing:
            self._come_back()


def _not_started(name: str, error: Exception) -> Exception:
    failure = with_base(
        PoolClosedError(f"{name} could not be started: {error}"), BrokenProcessPool
    )
    failure.__cause__ = error
    return failure
