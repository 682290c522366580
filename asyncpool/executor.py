"""A ``concurrent.futures`` executor on a pool, for code without an event loop.

The pool lives in a thread of its own, with an event loop.  Calls come from any thread.  Each goes
into a dict, and the loop is woken only if it does not look there anyway: to write to the loop's pipe
for each call would cost more than all the rest.  The loop submits calls as long as the pool sends
them to workers at once, and one for each worker that waits in the pool.  To take a call out of the
dict is atomic, so only one side gets it: the loop, which runs it, or :meth:`Call.cancel`, which drops
it.  So a cancelled call never runs, and a call counts as running once the pool has it.  That is the
protocol of :class:`concurrent.futures.Future`.  If the pool has sent calls too far ahead, and takes
them back from a worker, they are pending again, and back in the dict.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import itertools
import operator
import os
import threading
import time
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    NoReturn,
    ParamSpec,
    SupportsFloat,
    SupportsIndex,
    TypeAlias,
    TypeVar,
)

from asyncpool import errors
from asyncpool._core import checks, log_messages as say
from asyncpool._core.endings import Finish
from asyncpool._core.functions import UNKNOWN_COST
from asyncpool._core.options import JobOptions, RestartPolicy, WorkerLimits
from asyncpool._engine.job import PoolJob
from asyncpool._engine.life_log import LOGGER
from asyncpool._engine.loop import call_in
from asyncpool._engine.machine import DEFAULT_LAUNCHER, not_picklable, usable_cpus
from asyncpool._engine.options import OutputMode
from asyncpool._wire.pickling import unpicklable
from asyncpool._worker.api import call_chunk
from asyncpool.pool import Pool

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from asyncpool._engine.engine import Engine as PoolEngine
    from asyncpool.sharedpool import SharedPool

__all__ = ["ProcessPoolExecutor"]


# The thread of an executor.

# Seconds that the loop of a caller has to settle the futures of its calls.
_PATIENCE = 0.005

What: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Call(Future[Any]):
    """The future of a call; it can be cancelled unless the pool has the call."""

    queue: OrderedDict[Call, What]
    home: asyncio.AbstractEventLoop | None

    def cancel(self) -> bool:
        """Cancel the call if it is pending, and return whether it is cancelled."""
        if not super().cancel():
            return False
        if self.queue.pop(self, None) is not None:
            self.set_running_or_notify_cancel()  # tells wait() and as_completed()
        return True

    def come_back(self, what: What) -> None:
        """Be the first of the pending calls again: no worker has begun it."""
        self.queue[self] = what
        self.queue.move_to_end(self, last=False)
        with self._condition:
            self._state = "PENDING"


_EndedCall: TypeAlias = tuple[Call, Any, BaseException | None]
_Homes: TypeAlias = defaultdict[asyncio.AbstractEventLoop | None, deque[_EndedCall]]


def _settle_all(ended_calls: deque[_EndedCall]) -> None:
    # Two threads may do this at once: each call is taken by one of them.
    with contextlib.suppress(IndexError):
        while True:
            _settle(*ended_calls.popleft())


def _settle(call: Call, value: Any, error: BaseException | None) -> None:
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
        say.CALLBACK_FAILED.log(LOGGER, {}, error=failure, call=call)


def _as_documented(error: BaseException) -> BaseException:
    """Return what an executor raises: the error of the call, or that of a broken pool."""
    if isinstance(error, errors.BROKEN):
        return errors.with_base(error, BrokenProcessPool)
    raised = error.exception if isinstance(error, errors.JobRaisedError) else error
    # An asyncio future would refuse a StopIteration, and never be done.
    return error if isinstance(raised, StopIteration) else raised


# How many calls the pool gets in one iteration of the loop, which takes about half a millisecond.
_CALLS_A_TURN = 100

_OPTIONS = JobOptions()


class _Engine:
    """A pool in a thread of its own.  The thread ends when it is told to and all calls are done.

    It has no reference to its executor, which may be collected while calls are pending.

    Args:
        pool: The pool, not started.

    Attributes:
        thread: The thread.
    """

    def __init__(self, pool: Pool | SharedPool) -> None:
        self._pool = pool
        self._queue: OrderedDict[Call, What] = OrderedDict()
        self._lock = threading.RLock()  # reentrant: a signal handler may submit, too
        self._refusal: Callable[[], Exception] | None = None
        # What the pool has, and the expected cost of the last of them.
        self._calls: dict[PoolJob[Any], tuple[Call, What]] = {}
        self._cost = UNKNOWN_COST
        # How many calls may wait in the pool: none before it has started, and none any more when
        # pending calls are cancelled.
        self._most_waiting = 0
        self._awake = True  # the loop begins with a look at the queue
        self._coming = False
        self._closing = False
        self._grace: float | None = None
        self._begun = False
        self._over = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop
        self._pool_engine: PoolEngine
        # What has ended, by the loops of the callers, and what these loops are to settle.
        self._ended_calls: _Homes = defaultdict(deque)
        self._sent: list[deque[_EndedCall]] = []
        self.thread = threading.Thread(target=self._run, name=f"asyncpool {pool.name}")

    # Any thread may call these.

    def put(self, what: What) -> Call:
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
                raise _as_documented(self._refusal())
            queue[call] = what
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
        """Cancel the calls that no worker has; those that wait in the pool a moment later."""
        started, self._most_waiting = self._most_waiting, 0  # first: see _withdraw()
        for call in list(self._queue):
            call.cancel()
        if started:
            call_in(self._loop, self._turn)

    def end_now(self, grace: float) -> None:
        """End the thread although calls are running; they fail.

        Args:
            grace: Seconds until workers that still run are killed.
        """
        with self._lock:
            self._grace = grace if self._grace is None else min(grace, self._grace)
            # Before it has begun: it looks at the grace before it starts the pool.
            if self._begun:
                call_in(self._loop, self._press, self._grace)

    def _wake(self) -> None:
        # Two threads may get here at once, and then wake the loop twice.
        self._awake = True
        call_in(self._loop, self._turn)

    def forked(self, refusal: Callable[[], Exception]) -> None:
        """Note that this is a copy in a forked process, where the thread does not exist."""
        self._lock = threading.RLock()  # a thread may have held the old one
        self._awake, self._begun, self._most_waiting = True, False, 0
        self.refuse(refusal)

    # Only the engine's thread calls these.

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:  # noqa: BLE001 - whatever it is, callers wait
            say.EXECUTOR_FAILED.log(LOGGER, {"pool": self._pool.name}, error=error)
            text = f"the executor failed: {error!r}"
            self._break(partial(errors.PoolClosedError, text))

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        with contextlib.suppress(AttributeError):  # uvloop's has a clock of its own
            # Tests that freeze the time freeze time.monotonic(), and no timer would fire.
            self._loop.time = partial(time.clock_gettime, time.CLOCK_MONOTONIC)  # type: ignore[method-assign]
        with self._lock:
            self._begun = True
            if self._grace is not None:
                return
        try:
            await self._pool.start()
        except errors.PoolClosedError:
            return  # end_now() was called, so there are no calls
        except errors.PoolBrokenError as error:
            # The pool could not start, and does not try again.
            broken = partial(errors.PoolBrokenError, retry_after=None)
            self._break(partial(broken, reason=error.reason, crashes=error.crashes))
            return
        except (errors.AsyncPoolError, OSError, RuntimeError, ValueError) as error:
            self._break(partial(_not_started, self._pool.name, error))
            return
        engine = self._pool_engine = self._pool._running_engine()  # noqa: SLF001
        engine.limit_ahead()  # a call that an agent has counts as running
        engine.registry.on_unassigned = self._turn_soon
        self._traffic = engine.traffic
        self._traffic.before_refill = self._feed
        # A pool that others share has as many workers as they have given it.
        self._most_waiting = engine.most_workers * engine.concurrency
        self._turn()
        await self._over.wait()
        self._settle_rest()
        await self._pool.close()
        engine.registry.on_unassigned = lambda: None  # no cycle
        self._traffic.before_refill = None

    def _press(self, grace: float) -> None:
        self._pool._running_engine().close(Finish.NOTHING, grace)  # noqa: SLF001

    def _break(self, error: Callable[[], Exception]) -> None:
        self.refuse(error)
        with contextlib.suppress(KeyError):  # another thread may cancel the last one
            while True:
                call, _ = self._queue.popitem(last=False)
                if call.set_running_or_notify_cancel():
                    _settle(call, None, error())

    def _turn(self) -> None:
        """Settle the calls that have ended, and give the pool as many as it can begin soon."""
        self._awake, self._coming = True, False
        if self._ended_calls:
            self._deliver()
        queue, waiting, most = (
            self._queue,
            self._pool_engine.unassigned,
            self._most_waiting,
        )
        if waiting > most:
            self._withdraw(most)
        for _ in range(_CALLS_A_TURN):
            if not queue:
                break
            if waiting >= most:
                return  # the end of the next call leads here again
            waiting += self._begin()
        self._awake = False
        # A call may have come just before, from a thread that still saw the loop awake.
        if queue:
            self._awake = True
            self._turn_soon()
        elif self._closing and not self._calls:
            self._over.set()

    def _turn_soon(self) -> None:
        if not self._coming:
            self._coming = True
            self._loop.call_soon(self._turn)

    def _begin(self) -> bool:
        """Submit the first pending call to the pool, and return whether it waits there."""
        try:
            call, what = self._queue.popitem(last=False)
        except KeyError:  # another thread has cancelled it just now
            return False
        if not call.set_running_or_notify_cancel():
            return False
        try:
            job = self._traffic.submit(*what, _OPTIONS)
        except BaseException as error:  # noqa: BLE001 - an argument's, perhaps
            # No signal is handled in this thread, so the error belongs to this call.
            known = error if isinstance(error, Exception) else unpicklable(error)
            _settle(call, None, known)
            return False
        self._calls[job] = call, what
        job.add_done_callback(self._on_done)
        # Nobody knows how long it takes to load what is large, or is being pickled.
        self._cost = job.traits.cost if job.payload else UNKNOWN_COST
        return job.slot is None

    def _feed(self, room: float) -> None:
        """Submit calls for a worker that is about to get its next ones, so that it gets them at once."""
        while self._queue and room >= self._cost:
            room -= self._cost
            self._begin()

    def _withdraw(self, most: int) -> None:
        """Take the calls that no worker has out of the pool, but for the first *most*."""
        jobs = self._calls
        waiting = [
            it for it in jobs if not (it.attempt or it.times_suspected or it.done())
        ]
        for job in reversed(waiting[most:]):
            job.remove_done_callback(self._on_done)
            job.cancel()
            call, what = jobs.pop(job)
            call.come_back(what)
            if not self._most_waiting:  # perhaps since this loop has begun
                try:
                    call.cancel()
                except BaseException as failure:  # noqa: BLE001 - a callback's
                    say.CALLBACK_FAILED.log(LOGGER, {}, error=failure, call=call)

    def _on_done(self, job: PoolJob[Any]) -> None:
        call, _ = self._calls.pop(job)
        error = job.exception()
        value = job.result() if error is None else None
        self._ended_calls[call.home].append((call, value, error))
        self._turn_soon()

    def _deliver(self) -> None:
        """Settle the futures of all calls that have ended.

        To tell an event loop that a future is done, concurrent.futures writes to that loop's
        pipe.  Each write releases the GIL, so two threads would pass the GIL to and fro for
        every call.  So if calls come from a loop, their futures are settled in that loop, all
        that have ended in one visit.  They are settled here if that loop does not get around to
        it; for example, because it is blocked and waits for one of them.
        """
        homes, self._ended_calls = self._ended_calls, defaultdict(deque)
        for home, ended_calls in homes.items():
            if home is not None:
                with contextlib.suppress(RuntimeError):  # the caller's loop is closed
                    home.call_soon_threadsafe(_settle_all, ended_calls)
                    if not self._sent:
                        self._loop.call_later(_PATIENCE, self._settle_rest)
                    self._sent.append(ended_calls)
                    continue
            _settle_all(ended_calls)

    def _settle_rest(self) -> None:
        while self._sent:
            _settle_all(self._sent.pop(0))


def _not_started(name: str, error: Exception) -> Exception:
    failure = errors.PoolClosedError(f"{name} could not be started: {error}")
    failure.__cause__ = error
    return failure


P = ParamSpec("P")
R = TypeVar("R")

# Why there are no more calls.
_AFTER_SHUTDOWN = "cannot schedule new futures after shutdown"
_AFTER_EXIT = "cannot schedule new futures after interpreter shutdown"

# If the initializer raises, the caller of the first result is told after a third of a second,
# not after ten.
_RESTART = RestartPolicy(max_failed_starts=3)

# Whatever passes for a number in the standard library: NumPy's do too.
_INT = checks.Argument((SupportsIndex,), "an int")
_SECONDS = checks.Argument((SupportsFloat,), "a number of seconds").or_none()
_COUNT = checks.Argument((int,), "an integer").or_none()

# Seconds: long enough to kill a worker that SIGTERM has not ended.
_TERMINATION = 30.0


class ProcessPoolExecutor(Executor):
    """What :class:`concurrent.futures.ProcessPoolExecutor` is, on supervised workers.

    It needs no event loop of yours: it runs one in a thread of its own.  Any thread may use it.
    Its thread and workers start with the first call.  They end with :meth:`shutdown`, with the
    interpreter, or when the executor is garbage-collected; pending calls are finished first.

    If a worker dies, only the call that it was running fails, and the pool replaces the worker.
    The error is a :exc:`asyncpool.errors.WorkerCrashedError` and a
    :exc:`concurrent.futures.process.BrokenProcessPool`.

    Args:
        max_workers: How many workers; ``None`` means the CPUs that this process may
            use, by its affinity and its cgroup's quota.
        mp_context: A context of :mod:`multiprocessing`.  With the context of ``"spawn"``, each
            worker starts as a new interpreter.  With any other one, and with ``None``,
            workers are forked from a clean process, and inherit nothing of this one.
        initializer: Called in each new worker before its first call.
        initargs: The arguments of *initializer*; see :class:`Pool`.
        max_tasks_per_child: How many calls a worker makes at the most before another one
            takes its place; ``None`` for any number.
        worker_output: Where the lines that calls print go; see :class:`Pool`.
        worker_env: Environment variables of workers; see :class:`Pool`.
        start_timeout: How many seconds a worker may take to start, with what it imports.  That is
            longer than a :class:`Pool` gives it, since the standard library waits for ever.
        pool: A :class:`Pool` that was not started, or what :func:`connect` returns: calls go there,
            and nothing else may be given.  The executor starts it and closes it.  Of a shared pool,
            up to three calls for each worker count as running, and more if they are short.

    Raises:
        ValueError: If a number is too low, *pool* is given and something about workers, or it
            was started before.
        TypeError: If an argument is of the wrong type.
        UnsupportedPlatformError: If this platform cannot run a pool.
        JobNotPicklableError: If *initializer* or *initargs* cannot be pickled.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        mp_context: BaseContext | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
        worker_output: OutputMode = "log",
        worker_env: Mapping[str, str]
        | Callable[[int], Mapping[str, str]]
        | None = None,
        start_timeout: float = 120.0,
        pool: Pool | SharedPool | None = None,
    ) -> None:
        given = locals()
        _INT.or_none()("max_workers", max_workers)
        workers = usable_cpus() if max_workers is None else operator.index(max_workers)
        if workers <= 0:
            raise ValueError("max_workers must be greater than 0")
        if initializer is not None and not callable(initializer):
            raise TypeError("initializer must be a callable")
        limit = max_tasks_per_child
        _COUNT.within(">= 1", checks.is_positive)("max_tasks_per_child", limit)
        launcher = DEFAULT_LAUNCHER
        if mp_context is not None:
            if not hasattr(mp_context, "get_start_method"):
                what = "a context of multiprocessing"
                raise TypeError(f"mp_context must be {what}, not {mp_context!r}")
            inherits = mp_context.get_start_method() in {"fork", "forkserver"}
            launcher = "forkserver" if inherits else "spawn"
        if pool is None:
            # A worker that has made its calls ends before its replacement starts, so that there are
            # never more calls at once than workers.  No worker waits for another one's replacement.
            surge, unavailable = (1, 0) if limit is None else (0, workers)
            pool = Pool(
                workers,
                restart_policy=_RESTART,
                worker_limits=WorkerLimits(max_jobs=limit, jitter=0),
                max_surge=surge,
                max_unavailable=unavailable,
                initializer=initializer,
                initargs=initargs,
                launcher=launcher,
                worker_output=worker_output,
                worker_env=worker_env,
                start_timeout=start_timeout,
                max_message_size=None,
            )
        else:
            # A BoundPool has only the first one: it is a pool with options, and nothing to start.
            if not (hasattr(pool, "_running_engine") and hasattr(pool, "start")):
                what = "an asyncpool.Pool, or what asyncpool.connect() returns"
                raise TypeError(f"pool must be {what}, not {pool!r}")
            if pool._is_started:  # noqa: SLF001 - it is the executor's own
                raise ValueError(
                    "pool has been started: the executor starts its pool in a thread of its own, "
                    "and ends it, so give it a new one"
                )
            parameters = inspect.signature(ProcessPoolExecutor).parameters
            for name, option in parameters.items():
                if name != "pool" and given[name] != option.default:
                    raise ValueError(
                        f"the workers are those of pool, so {name} must not be given"
                    )
        # dask reads this name to learn how many calls to submit at a time.
        self._max_workers: int = workers
        self._pool: Pool | SharedPool = pool
        self._engine: _Engine | None = None
        self._shut_down = False

    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Future[R]:
        """Call ``fn(*args, **kwargs)`` in a worker; return a future of its result.

        The call is pickled when it is sent to a worker, or soon before.  Until then it can
        be cancelled, and a cancelled call never runs; afterwards the future is running and
        cannot be cancelled, unless the pool takes the call back from a worker whose call before
        it turns out to be long.

        Returns:
            A future.  Its ``result()`` raises what *fn* raised, with the worker's
            traceback as its cause.  It raises :exc:`JobNotPicklableError` if the call or its
            outcome cannot be pickled, and :exc:`WorkerCrashedError` if the worker died of
            the call; that is a ``BrokenProcessPool`` too.

        Raises:
            RuntimeError: If the executor is shut down, the interpreter is about to end, or
                this process is a fork of the process that made the executor.
            PoolBrokenError: If no worker could be started; it is a ``BrokenProcessPool``
                too.
        """
        return (self._engine or self._start()).put((fn, args, kwargs))

    def map(
        self,
        fn: Callable[..., R],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[R]:
        """Return an iterator over the results of ``fn``, in the order of the arguments.

        Args:
            fn: Called in workers with one item of each iterable, until one of these ends.
            *iterables: They are read at once, unless there is a *buffersize*.
            timeout: Seconds from this call on after which the iterator waits no longer.
            chunksize: How many calls are sent together, and come back together.
            buffersize: How many chunks may be in progress or unread; the iterator reads the
                iterables as you read results.

        Raises:
            TimeoutError: From the iterator, if the next result is not there in time.
            ValueError: If *chunksize* or *buffersize* is less than 1.
            TypeError: If one of them is of the wrong type.
            RuntimeError: As :meth:`submit` does.

        The iterator raises an exception of *fn* in the place of its result.  Once somebody has
        asked it for a result, it cancels the pending calls when it ends, or is garbage-collected,
        before all results are there.
        """
        _SECONDS("timeout", timeout)
        _INT("chunksize", chunksize)
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        _COUNT.within("None or > 0", checks.is_positive)("buffersize", buffersize)
        end = None if timeout is None else time.monotonic() + timeout
        function: Callable[..., Any] = fn
        calls: Iterator[tuple[Any, ...]] = zip(*iterables, strict=False)
        if in_chunks := chunksize > 1:
            function, rows = partial(call_chunk, fn), calls
            chunks = iter(lambda: list(itertools.islice(rows, chunksize)), [])
            calls = zip(chunks, strict=False)
        # A weak reference: if nobody else has the executor, it can be collected.
        executor = weakref.ref(self)
        futures: deque[Future[Any]] = deque()

        def submit(count: int | None) -> None:
            owner = executor()
            if owner is not None:
                for args in itertools.islice(calls, count):
                    futures.append(owner.submit(function, *args))

        def cancel() -> None:
            # No reference is kept: a future, its error, the traceback and a frame would be a cycle.
            while futures:
                futures.popleft().cancel()

        def results() -> Iterator[Any]:
            try:
                while futures:
                    left = None if end is None else end - time.monotonic()
                    found = futures[0].result(left)
                    del futures[0]
                    if buffersize is not None:
                        submit(1)
                    found = found if in_chunks else [found]
                    found.reverse()
                    # No reference to a result is kept here while the caller works on it.
                    while found:
                        yield found.pop()
            finally:
                cancel()

        try:
            submit(buffersize)
        except BaseException:  # even one that an iterable has raised
            cancel()
            raise
        return results()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - theirs
        """Take no more calls, and end the thread and the workers when all calls are done.

        Args:
            wait: Whether to return when they have ended, and not at once.  In a callback of a
                future, which runs in that thread, this returns at once anyway.
            cancel_futures: Cancel the calls that are pending.

        You may call it any number of times.
        """
        with _lock:
            self._shut_down = True
        if (engine := self._engine) is None:
            return
        engine.refuse(partial(RuntimeError, _AFTER_SHUTDOWN))
        if cancel_futures:
            engine.cancel_pending()
        engine.finish()
        if wait and engine.thread is not threading.current_thread():
            engine.thread.join()

    def terminate_workers(self) -> None:
        """End all workers now: by SIGTERM, and by SIGKILL if one still runs two seconds later.

        This returns at once; :meth:`shutdown` waits until the workers have ended.  The executor
        takes no more calls and cancels pending ones.  Calls that are running, or were sent ahead
        of time, fail with a :exc:`PoolClosedError` that is a ``BrokenProcessPool`` too.

        You may call it any number of times, in any thread, and after :meth:`shutdown`.
        """
        self._end_now(_TERMINATION)

    def kill_workers(self) -> None:
        """End all workers now, as :meth:`terminate_workers` does, but by SIGKILL."""
        self._end_now(0.0)

    def _end_now(self, grace: float) -> None:
        self.shutdown(wait=False, cancel_futures=True)
        if self._engine is not None:
            self._engine.end_now(grace)

    def _start(self) -> _Engine:
        with _lock:
            if self._shut_down:
                raise RuntimeError(_AFTER_SHUTDOWN)
            if _exiting:
                raise RuntimeError(_AFTER_EXIT)
            if self._engine is None:
                engine = _Engine(self._pool)
                _engines.add(engine)
                engine.thread.start()
                weakref.finalize(self, engine.finish).atexit = False
                self._engine = engine
            return self._engine

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)

    def __repr__(self) -> str:
        state = "shut down" if self._shut_down else "open"
        return f"<ProcessPoolExecutor {self._pool.name} {state}: {self._max_workers} workers>"


# What the standard library's executors do at the end of the interpreter, and in forks.

_lock = threading.RLock()
_engines: weakref.WeakSet[_Engine] = weakref.WeakSet()
_exiting = False


def _at_exit() -> None:
    """Finish pending calls, before the interpreter waits for all threads."""
    global _exiting  # noqa: PLW0603
    with _lock:
        _exiting = True
        engines = [engine for engine in _engines if engine.thread.is_alive()]
    for engine in engines:
        engine.refuse(partial(RuntimeError, _AFTER_EXIT))
        engine.finish()
    for engine in engines:
        engine.thread.join()


def _after_fork() -> None:
    global _lock, _engines  # noqa: PLW0603
    _lock = threading.RLock()
    text = (
        f"this executor belongs to process {os.getppid()}, which has forked this one: "
        "make another one here"
    )
    for engine in _engines:
        engine.forked(partial(RuntimeError, text))
    # Never collected: that would close objects that the parent uses, such as its epoll.
    _inherited.extend(_engines)
    _engines = weakref.WeakSet()


_inherited: list[_Engine] = []

threading._register_atexit(_at_exit)  # type: ignore[attr-defined]  # noqa: SLF001
os.register_at_fork(after_in_child=_after_fork)
