"""A ``concurrent.futures`` executor on a pool, for code without an event loop."""

from __future__ import annotations

import concurrent.futures
import itertools
import operator
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    NoReturn,
    ParamSpec,
    Protocol,
    SupportsFloat,
    SupportsIndex,
    TypeVar,
)

from asyncpool._core import checks
from asyncpool._core.options import RestartPolicy, WorkerLimits
from asyncpool._engine.machine import DEFAULT_LAUNCHER, not_picklable, usable_cpus
from asyncpool._engine.options import LauncherKind, OutputMode, anything
from asyncpool._futures import Engine
from asyncpool._worker.api import call_chunk
from asyncpool.pool import Pool

if TYPE_CHECKING:
    from asyncpool.sharedpool import SharedPool

__all__ = ["ProcessPoolExecutor"]


# The results of :meth:`asyncpool.ProcessPoolExecutor.map`, in order.

T = TypeVar("T")


def chunks_of(calls: Iterator[T], size: int) -> Iterator[tuple[list[T]]]:
    """Yield lists of *size* calls, each as the only argument of a call."""
    while chunk := list(itertools.islice(calls, size)):
        yield (chunk,)


def flatten(chunks: Iterator[list[T]]) -> Iterator[T]:
    """Yield the items of *chunks*, and keep no reference to what was yielded."""
    for chunk in chunks:
        chunk.reverse()
        while chunk:
            yield chunk.pop()


def results_of(
    executor: Executor,
    function: Callable[..., T],
    calls: Iterator[tuple[Any, ...]],
    timeout: float | None,
    buffersize: int | None,
) -> Iterator[T]:
    """Submit *calls* now, or *buffersize* of them; return an iterator over the results."""
    end = None if timeout is None else time.monotonic() + timeout
    futures: deque[Future[T]] = deque()
    try:
        for args in itertools.islice(calls, buffersize):
            futures.append(executor.submit(function, *args))
    except BaseException:  # even one that an iterable has raised
        _cancel(futures)
        raise
    # A weak reference: if nobody else has the executor, it can be collected.
    found = weakref.ref(executor)

    def more() -> None:
        owner = found()
        if buffersize is None or owner is None:
            return
        for args in itertools.islice(calls, 1):
            futures.append(owner.submit(function, *args))

    return _in_turn(futures, more, end)


def _in_turn(
    futures: deque[Future[T]], more: Callable[[], None], end: float | None
) -> Iterator[T]:
    # No reference to a result is kept here while the caller works on it.
    try:
        while futures:
            result = [_result_of(futures.popleft(), end)]
            more()
            yield result.pop()
    finally:
        _cancel(futures)


def _result_of(future: Future[T], end: float | None) -> T:
    try:
        return future.result(None if end is None else end - time.monotonic())
    finally:
        future.cancel()
        del future  # else its exception, its traceback and this frame would be a cycle


def _cancel(futures: Iterable[Future[Any]]) -> None:
    for future in futures:
        future.cancel()


# The options of an executor, with the standard library's error messages.

# Whatever passes for an int in the standard library: integers of NumPy do too.
INT = checks.Argument((SupportsIndex,), "an int")


class StartMethod(Protocol):
    """The part of a context of :mod:`multiprocessing` that the executor uses."""

    def get_start_method(self) -> str:
        """Return ``"fork"``, ``"forkserver"`` or ``"spawn"``."""
        ...


def _max_workers(name: str, value: SupportsIndex | None) -> int:
    INT.or_none()(name, value)
    workers = usable_cpus() if value is None else operator.index(value)
    if workers <= 0:
        raise ValueError(f"{name} must be greater than 0")
    return workers


def _initializer(name: str, value: object) -> object:
    if value is not None and not callable(value):
        raise TypeError(f"{name} must be a callable")
    return value


def _max_tasks(name: str, value: int | None) -> int | None:
    if value is not None and not isinstance(value, int):
        raise TypeError(f"{name} must be an integer")
    if value is not None and value <= 0:
        raise ValueError(f"{name} must be >= 1")
    return value


def _mp_context(name: str, value: StartMethod | None) -> LauncherKind:
    if value is None:
        return DEFAULT_LAUNCHER
    get_start_method = getattr(value, "get_start_method", None)
    if get_start_method is None:
        raise TypeError(f"{name} must be a context of multiprocessing, not {value!r}")
    inherits = get_start_method() in {"fork", "forkserver"}
    return "forkserver" if inherits else "spawn"


def _pool(name: str, value: Any) -> object:
    if value is None:
        return None
    # A BoundPool has only the first one: it is a pool with options, and nothing to start.
    if not (hasattr(value, "_running_supervisor") and hasattr(value, "start")):
        what = "an asyncpool.Pool, or what asyncpool.connect() returns"
        raise TypeError(f"{name} must be {what}, not {value!r}")
    if value._is_started:  # noqa: SLF001 - it is the executor's own
        raise ValueError(
            f"{name} has been started: the executor starts its pool in a thread of its own, and "
            "ends it, so give it a new one"
        )
    return value


EXECUTOR_CHECKS: dict[str, checks.Check] = {
    "max_workers": _max_workers,
    "initializer": _initializer,
    "max_tasks_per_child": _max_tasks,
    "mp_context": _mp_context,
    "initargs": anything,  # the executor's pool checks these
    "worker_output": anything,
    "worker_env": anything,
    "pool": _pool,
}


# What an executor decides about workers that are its own, and what it takes if nothing is given.
_OF_WORKERS: dict[str, object] = {
    "max_workers": None,
    "mp_context": None,
    "initializer": None,
    "initargs": (),
    "max_tasks_per_child": None,
    "worker_output": "log",
    "worker_env": None,
}


P = ParamSpec("P")
R = TypeVar("R")

# If the initializer raises, the caller of the first result is told after a third of a second,
# not after ten.
_RESTART = RestartPolicy(max_failed_starts=3)

# Any object that converts to a float, as INT is any object that converts to an int.
_SECONDS = checks.Argument((SupportsFloat,), "a number of seconds")

# Seconds: long enough to kill a worker that SIGTERM has not ended.
_TERMINATION = 30.0


class ProcessPoolExecutor(concurrent.futures.Executor):
    """What :class:`concurrent.futures.ProcessPoolExecutor` is, on supervised workers.

    It needs no event loop of yours: it runs one in a thread of its own.  Any thread may use it.
    Its thread and workers start with the first call.  They end with :meth:`shutdown`, with the
    interpreter, or when the executor is garbage-collected; pending calls are finished first.

    If a worker dies, only the call that it was running fails, and the pool replaces the worker.
    The error is a :exc:`asyncpool.WorkerCrashedError` and a
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
        mp_context: StartMethod | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        *,
        max_tasks_per_child: int | None = None,
        worker_output: OutputMode = "log",
        worker_env: Mapping[str, str]
        | Callable[[int], Mapping[str, str]]
        | None = None,
        pool: Pool | SharedPool | None = None,
    ) -> None:
        # By the names of the signature.
        options = checks.apply(EXECUTOR_CHECKS, locals())
        if options["pool"] is not None:
            for name, usual in _OF_WORKERS.items():
                if locals()[name] != usual:
                    raise ValueError(
                        f"the workers are those of pool, so {name} must not be given"
                    )
        # dask reads this name to learn how many calls to submit at a time.
        self._max_workers: int = options["max_workers"]
        self._pool: Pool | SharedPool = options["pool"] or self._own_pool(options)
        self._engine: Engine | None = None
        self._shut_down = False

    def _own_pool(self, options: dict[str, Any]) -> Pool:
        # A worker that has made its calls ends before its replacement starts, so that there are
        # never more calls at once than workers.  No worker waits for another one's replacement.
        limit = options["max_tasks_per_child"]
        surge, unavailable = (1, 0) if limit is None else (0, self._max_workers)
        return Pool(
            self._max_workers,
            restart_policy=_RESTART,
            worker_limits=WorkerLimits(max_jobs=limit, jitter=0),
            max_surge=surge,
            max_unavailable=unavailable,
            initializer=options["initializer"],
            initargs=options["initargs"],
            launcher=options["mp_context"],
            worker_output=options["worker_output"],
            worker_env=options["worker_env"],
            max_message_size=None,
        )

    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[R]:
        """Call ``fn(*args, **kwargs)`` in a worker; return a future of its result.

        The call is pickled when it is sent to a worker, or soon before.  Until then it can
        be cancelled, and a cancelled call never runs; afterwards the future is running and
        cannot be cancelled.  Calls of functions that are known to be short are sent ahead of
        time: 48 ms of work for each worker at the most, or one call.

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
        return (self._engine or self._start()).put(fn, args, kwargs)

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

        The iterator raises an exception of *fn* in the place of its result.  If the iterator
        ends, or is garbage-collected, before all results are there, it cancels the pending calls.
        """
        _SECONDS.or_none()("timeout", timeout)
        INT("chunksize", chunksize)
        if chunksize < 1:
            raise ValueError("chunksize must be >= 1.")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError("buffersize must be an integer or None")
        if buffersize is not None and buffersize < 1:
            raise ValueError("buffersize must be None or > 0")
        calls = zip(*iterables, strict=False)
        if chunksize == 1:
            return results_of(self, fn, calls, timeout, buffersize)
        function, chunks = partial(call_chunk, fn), chunks_of(calls, chunksize)
        return flatten(results_of(self, function, chunks, timeout, buffersize))

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
            engine = self._engine
        if engine is None:
            return
        engine.refuse(_after_shutdown)
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

    def _start(self) -> Engine:
        with _lock:
            if self._shut_down:
                raise _after_shutdown()
            if _exiting:
                raise _after_exit()
            if self._engine is None:
                engine = Engine(self._pool, self._max_workers, _engines.discard)
                _engines.add(engine)
                try:
                    engine.thread.start()
                except BaseException:
                    _engines.discard(engine)
                    raise
                weakref.finalize(self, engine.finish).atexit = False
                self._engine = engine
            return self._engine

    def __reduce__(self) -> NoReturn:
        raise not_picklable(self)

    def __repr__(self) -> str:
        state = "shut down" if self._shut_down else "open"
        return f"<ProcessPoolExecutor {self._pool.name} {state}: {self._max_workers} workers>"


def _after_shutdown() -> Exception:
    return RuntimeError("cannot schedule new futures after shutdown")


def _after_exit() -> Exception:
    return RuntimeError("cannot schedule new futures after interpreter shutdown")


# What the standard library's executors do at the end of the interpreter, and in forks.

_lock = threading.RLock()
_engines: set[Engine] = set()
_exiting = False


def _at_exit() -> None:
    """Finish pending calls, before the interpreter waits for all threads."""
    global _exiting  # noqa: PLW0603
    with _lock:
        _exiting = True
        engines = list(_engines)
    for engine in engines:
        engine.refuse(_after_exit)
        engine.finish()
    for engine in engines:
        engine.thread.join()


def _after_fork() -> None:
    global _lock, _engines  # noqa: PLW0603
    _lock = threading.RLock()
    for engine in _engines:
        engine.forked(_after_fork_in(os.getppid()))
    # Never collected: that would close objects that the parent uses, such as its epoll.
    _inherited.extend(_engines)
    _engines = set()


def _after_fork_in(parent: int) -> Callable[[], Exception]:
    text = (
        f"this executor belongs to process {parent}, which has forked this one: "
        "make another one here"
    )
    return lambda: RuntimeError(text)


_inherited: list[Engine] = []

threading._register_atexit(_at_exit)  # type: ignore[attr-defined]  # noqa: SLF001
os.register_at_fork(after_in_child=_after_fork)
