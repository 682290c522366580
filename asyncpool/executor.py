"""A ``concurrent.futures`` executor on a pool, for code without an event loop."""

from __future__ import annotations

import concurrent.futures
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, ParamSpec, SupportsFloat, TypeVar

from asyncpool._core.base.validation import ArgumentType, check_type, or_none
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._futures.engine import Engine
from asyncpool._futures.executor_options import INT, StartMethod, executor_options
from asyncpool._futures.results import chunks_of, flatten, results_of
from asyncpool._runtime.options.worker_options import OutputMode
from asyncpool._worker.api.calls import call_chunk, call_counted
from asyncpool.pool import Pool

__all__ = ["ProcessPoolExecutor"]

P = ParamSpec("P")
R = TypeVar("R")

# Whoever waits for the first result of an executor whose initializer raises is told after
# a third of a second, not after ten.
_RESTART = RestartPolicy(max_failed_starts=3)

# Whatever passes for one, as with INT.
_SECONDS: ArgumentType = ((SupportsFloat,), "a number of seconds")

# Long enough for a worker that is terminated to be killed if that does not end it.
_TERMINATION = 30.0


class ProcessPoolExecutor(concurrent.futures.Executor):
    """What :class:`concurrent.futures.ProcessPoolExecutor` is, on supervised workers.

    It needs no event loop, since it runs one in a thread of its own, and may be used
    from any thread.  Thread and workers start with the first call, and end with
    :meth:`shutdown`, with the interpreter, or when nobody has the executor any more:
    pending calls are finished first.

    A worker that dies fails the one call that it was running, with a
    :exc:`asyncpool.WorkerCrashedError` that is a
    :exc:`concurrent.futures.process.BrokenProcessPool` too, and is replaced.

    Args:
        max_workers: How many workers; ``None`` means the CPUs that this process may
            use, by its affinity and its cgroup's quota.
        mp_context: A context of :mod:`multiprocessing`.  That of ``"spawn"`` has each
            worker start as a new interpreter.  With any other one, and with ``None``,
            workers are forked from a clean process, and inherit nothing of this one.
        initializer: Called in each new worker before its first call.
        initargs: The arguments of *initializer*; see :class:`Pool`.
        max_tasks_per_child: How many calls a worker makes at the most before another one
            takes its place; ``None`` for any number.
        worker_output: Where the lines go that calls print; see :class:`Pool`.

    Raises:
        ValueError: If a number is too low.
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
    ) -> None:
        options = executor_options(locals())  # by the names of the signature
        # By this name dask finds out how many calls it should have under way.
        self._max_workers = options.max_workers
        self._limit = options.max_tasks_per_child
        # A worker whose time is over goes before its replacement comes, so that there are
        # never more calls at once than workers; none waits for another one's replacement.
        surge, unavailable = (1, 0) if self._limit is None else (0, self._max_workers)
        self._pool = Pool(
            self._max_workers,
            restart_policy=_RESTART,
            max_surge=surge,
            max_unavailable=unavailable,
            initializer=options.initializer,
            initargs=options.initargs,
            launcher=options.mp_context,
            worker_output=options.worker_output,
            max_message_size=None,
        )
        self._engine: Engine | None = None
        self._shut_down = False

    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> concurrent.futures.Future[R]:
        """Have ``fn(*args, **kwargs)`` called in a worker; return a future of its result.

        The call is pickled when it is handed over to a worker, or soon before.  From then
        on the future is running, and cannot be cancelled; until then it can, and then
        is never made.  Calls of functions that are known to be short are handed over
        ahead of time: 48 ms of work for each worker at the most, or one call.

        Returns:
            A future.  Its ``result()`` raises what *fn* raised, with the worker's
            traceback as its cause; :exc:`JobNotPicklableError` if something cannot cross;
            :exc:`WorkerCrashedError` if the worker died of it, which is a
            ``BrokenProcessPool`` too.

        Raises:
            RuntimeError: If the executor is shut down, the interpreter about to end, or
                this process a fork of the executor's.
            PoolBrokenError: If no worker could be started; it is a ``BrokenProcessPool``
                too.
        """
        engine = self._engine or self._start()
        if self._limit is None:
            return engine.put(fn, args, kwargs)
        return engine.put(partial(call_counted, self._limit, fn), args, kwargs)

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
            timeout: Seconds from now on that the iterator waits for results at the most.
            chunksize: How many calls are sent together, and come back together.
            buffersize: How many chunks may be under way or unread; the iterables are read
                as results are.

        Raises:
            TimeoutError: By the iterator, if the next result is not there in time.
            ValueError: If *chunksize* or *buffersize* is less than 1.
            TypeError: If one of them is of the wrong type.
            RuntimeError: As :meth:`submit` does.

        Whatever *fn* raises is raised when its result is due.  An iterator that ends
        before all results are there, also since nobody has it any more, cancels what is
        pending.
        """
        check_type("timeout", timeout, or_none(_SECONDS))
        check_type("chunksize", chunksize, INT)
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
        """Take no more calls, and end thread and workers when the present ones are done.

        Args:
            wait: Return when nothing is left of them, and not at once.  Nobody waits in a
                callback of a future, which runs in that thread.
            cancel_futures: Cancel the calls that are pending.

        It may be called any number of times.
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
        """End at once: by SIGTERM, and by SIGKILL who has not ended two seconds later.

        It returns at once, too; :meth:`shutdown` waits until nothing is left.  No more
        calls are taken.  Those that are pending are cancelled; those that are running, or
        were handed over ahead, fail with a :exc:`PoolClosedError` that is a
        ``BrokenProcessPool`` too.

        It may be called any number of times, in any thread, also after :meth:`shutdown`.
        """
        self._end_now(_TERMINATION)

    def kill_workers(self) -> None:
        """End at once as with :meth:`terminate_workers`, but by SIGKILL."""
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

    def __repr__(self) -> str:
        state = "shut down" if self._shut_down else "open"
        return f"<Executor {self._pool.name} {state}: {self._max_workers} workers>"


def _after_shutdown() -> Exception:
    return RuntimeError("cannot schedule new futures after shutdown")


def _after_exit() -> Exception:
    return RuntimeError("cannot schedule new futures after interpreter shutdown")


# What the standard library's executors do at the end of the interpreter, and in forks.

_lock = threading.RLock()
_engines: set[Engine] = set()
_exiting = False


def _at_exit() -> None:
    """Finish what is pending, before the interpreter waits for all threads."""
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
    # Not collected: that would close what the parent uses, its epoll for one.
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
