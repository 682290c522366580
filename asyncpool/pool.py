"""The pool: what a service holds, and how it submits jobs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import fields
from types import TracebackType
from typing import Any, Literal, Self, Unpack

from asyncpool._api.caller import Caller
from asyncpool._api.supervised import Supervised
from asyncpool._core.policies.job_limits import JobOptions, OnCancel, Options
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.supervision.closing import Finish
from asyncpool._runtime.base.arguments import (
    check_choice,
    check_timeout,
    least_and_most,
    not_callable,
)
from asyncpool._runtime.base.callbacks import CrashCallback
from asyncpool._runtime.base.event_loop import shielded
from asyncpool._runtime.base.machine import DEFAULT_LAUNCHER, check_platform
from asyncpool._runtime.options.job_options import changed
from asyncpool._runtime.options.pool_options import pool_options
from asyncpool._runtime.options.worker_options import OutputMode
from asyncpool._runtime.pool.lifecycle import SupervisorRunner
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool._runtime.state.config import pool_config
from asyncpool.boundpool import BoundPool
from asyncpool.enums import RunState
from asyncpool.events import CloseSummary, PoolStats, RollResult

__all__ = ["Pool"]

# What a pool that was never started has none of.
_COUNTERS = [
    field.name
    for field in fields(PoolStats)
    if field.name not in {"state", "workers", "slots"}
]

_FINISH = {"all": Finish.ALL, "running": Finish.RUNNING, "none": Finish.NONE}


class Pool(Caller, Supervised):
    """Supervised worker processes, and a queue before them.

    Use it as an async context manager, or call :meth:`start` and :meth:`close`,
    from whatever tasks you like, in one event loop.  Leaving the context waits for all
    jobs, however long they take, unless there is a *close_timeout*; leaving it by an
    exception kills what is running.  A pool that is dropped without being closed finishes
    its jobs and ends, with a :exc:`ResourceWarning`.

    Args: Workers
        workers: How many workers; ``None`` means the CPUs that this process may use, by its
            affinity and its cgroup's quota.  A pair, such as ``(2, 16)``, lets the pool
            grow while jobs wait, and shrink when workers have been idle.
        idle_timeout: Seconds after which an idle worker ends, if there may be fewer.
        concurrency: How many async functions each worker runs at once, 1 to 1024.  A plain
            function holds up all others in its worker, and a crash takes all of them.
        worker_loop: The event loop that async functions run in, one in each worker.

    Args: Start of workers
        launcher: ``"forkserver"`` forks workers from a clean process that has imported
            *preload*; ``"spawn"`` starts a new interpreter for each, which takes some
            50 ms longer.  The default is ``"spawn"`` on macOS, else ``"forkserver"``.
        preload: Modules that workers find already imported.  With ``"forkserver"`` they are
            imported once and must not leave threads behind; with ``"spawn"`` each worker
            imports them before it calls *initializer*.
        initializer: Called in each new worker before its first job; may be async.  Jobs
            find what it puts into :func:`asyncpool.worker_state`.
        initargs: The arguments of *initializer*.  Queues, locks, pipes and whatever else
            :mod:`multiprocessing` makes may be among them; the pool keeps them until it is
            closed.
        start_timeout: Seconds that a worker has to become ready.
        ready: What :meth:`start` and ``async with`` wait for: ``"any"`` worker that is
            ready, or ``"all"``, the least number of them.  With ``"all"`` the start also
            fails after ``max_failed_starts`` of *restart_policy* in a row.

    Args: Crashes and replacements
        restart_policy: When a dead worker is replaced, and when the pool gives up.
        worker_limits: When workers are replaced by fresh ones, and what the kernel allows them.
        max_surge: How many workers there may be beyond their number while some are replaced.
        max_unavailable: How many workers may be missing meanwhile.  With ``max_surge=0,
            max_unavailable=1`` a worker ends before its replacement is started, where there is
            no memory for both.
        ping_timeout: Seconds that a worker may go without answering the pool's pings; then
            it counts as hung, is killed and replaced.  A thread of its own answers, so
            only a call of C code that keeps the GIL for so long is in the way.  ``None``
            for no pings.
        on_crash: Called with a :class:`asyncpool.Crash` once for each unplanned death of a
            worker; may be async.  What it raises is logged.

    Args: Jobs
        timeout: As of :meth:`options`, for all jobs that have none of their own.
        queue_timeout: Likewise.
        heartbeat_timeout: Likewise.
        on_cancel: Likewise.
        cancel_grace: Likewise.
        max_queued: How many jobs may wait for a worker; ``None`` for no bound.
        propagate: Context variables that jobs find as they are when :meth:`submit` is
            called: each by itself, if it is an attribute of an importable module, or by
            name, ``"package.module:name"``.  Their values are pickled with each call
            (64 KiB at the most).
        close_timeout: Seconds that jobs have when the context is left; then what is left is
            killed, see :meth:`close`.  ``None`` for no limit.

    Args: Memory
        max_message_size: The most bytes that a call or a result may have when pickled; ``None``
            for no bound but memory.
        max_shared_memory: The most bytes that the pool shares with its workers, for large
            arrays and the like in arguments and results, those included that callers keep.
            What exceeds it is sent instead, some ten times slower.  0 for none.

    Args: Logs
        name: What logs call the pool; ``"pool-1"``, ``"pool-2"`` and so on by default.
        worker_output: Where the lines go that workers print: ``"log"`` sends them to the logger
            ``asyncpool.worker``, or to this process's own streams if logging is not
            configured; ``"inherit"`` always to the streams.  With either, what workers'
            loggers record goes to the loggers of the same names here.

    Raises:
        UnsupportedPlatformError: If this platform cannot run a pool.
        ValueError: If an argument is out of range, *initargs* too large (64 MiB), or
            a variable to *propagate* cannot be found.
        TypeError: If an argument is of the wrong type.
        JobNotPicklableError: If *initializer* or *initargs* cannot be pickled.
    """

    def __init__(
        self,
        workers: int | tuple[int, int] | None = None,
        *,
        idle_timeout: float = 60.0,
        concurrency: int = 1,
        worker_loop: Literal["asyncio", "uvloop"] = "asyncio",
        launcher: Literal["forkserver", "spawn"] = DEFAULT_LAUNCHER,
        preload: Iterable[str] = (),
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        start_timeout: float = 30.0,
        ready: Literal["any", "all"] = "any",
        restart_policy: RestartPolicy | None = None,
        worker_limits: WorkerLimits | None = None,
        max_surge: int = 1,
        max_unavailable: int = 0,
        ping_timeout: float | None = 30.0,
        on_crash: CrashCallback | None = None,
        timeout: float | None = None,
        queue_timeout: float | None = None,
        heartbeat_timeout: float | None = None,
        on_cancel: OnCancel = "interrupt",
        cancel_grace: float = 2.0,
        max_queued: int | None = None,
        propagate: Iterable[ContextVar[Any] | str] = (),
        close_timeout: float | None = None,
        max_message_size: int | None = 1 << 30,
        max_shared_memory: int = 1 << 30,
        name: str | None = None,
        worker_output: OutputMode = "log",
    ) -> None:
        check_platform()
        options = pool_options(locals())  # by the names of the signature
        self.name: str = options.name
        self._config = pool_config(options)
        self._options = JobOptions(limits=options.job_limits)
        self._close_timeout = options.close_timeout
        self._life = SupervisorRunner("pool", self.name)

    async def start(self) -> None:
        """Start the workers, and return when the first one is ready, or all are (*ready*).

        Raises:
            PoolBrokenError: If none can be started, or not all that are waited for; it has
                the crashes.
            PoolClosedError: If the pool is closed.
            RuntimeError: If it was started in another event loop, or by a script that a
                worker imports.

        Cancellation:
            Closes the pool.

        Concurrency:
            Further calls wait for the first one.
        """
        await self._life.start(lambda: self._config)

    def options(self, **changes: Unpack[Options]) -> BoundPool:
        """Return a view of the pool whose ``submit`` uses these options.

        Args: Time
            timeout: Seconds that each attempt may run.
            queue_timeout: Seconds that the job may wait for its first attempt.
            deadline: When the job must be done, on the event loop's clock
                (``loop.time() + seconds``); no attempt begins or goes on after that.
            heartbeat_timeout: Seconds that an attempt may go without a heartbeat
                (:func:`asyncpool.heartbeat`), from its begin on.  Then it counts as hung, and
                its worker is killed.  The job has another attempt if *max_attempts* and
                *retry_on* (``"hung"``) allow that, or fails with :exc:`WorkerHungError`.

        Args: Cancellation
            on_cancel: What becomes of a running job that is cancelled.  ``"interrupt"``
                (the default) raises :exc:`JobCancelled` in it, and its worker is killed if it has
                not ended after *cancel_grace*; ``"kill"`` kills the worker at once;
                ``"wait"`` lets it run to its end, which nobody hears of.
            cancel_grace: Seconds that an interrupted job has to end; 2 by default.

        Args: Retry
            max_attempts: How often a worker may start the job; 1 by default.  More only
                for jobs that may safely run twice.
            retry_on: What there is another attempt after: kinds of crash (``"crash"`` and
                ``"hung"`` by default; an out-of-memory kill would most likely happen
                again), and types of exceptions that the function raises.
                :exc:`JobTimeoutError` stands for its *timeout*.

        Args: Placement
            priority: Jobs with a lower number begin first, those with equal ones in the
                order of their calls.  But of every 64 jobs that leave the queue, at least
                one is the one that has waited longest.  0 by default.
            key: Ties the job to a worker: jobs with equal keys go to the same one as long
                as it lives, and then to the one that replaces it; different keys are spread
                over all.  Such a job waits for its worker even while others are idle.
                When workers come or go for good, only those keys move that must.  Any
                hashable value, such as a str, an int or a tuple of these, but no object
                that equals nothing but itself.  ``None`` for no key.
            lease: A pair, a :class:`LeaseKeeper` and a lease of it.  The keeper keeps the
                lease as long as the job is queued or running, and the job is cancelled if
                the lease is lost.  A job that is cancelled and still runs has its lease
                until it has ended, or its worker is dead.  Only one job at a time has a
                lease: for another one, ``submit`` raises :exc:`ValueError`.

        Args: Streams
            prefetch: How many items of a stream may wait for its caller; 16 by default.

        ``None`` stands for no limit.  A job whose time is over fails with
        :exc:`JobTimeoutError`; one that runs is made to end as if it were cancelled (but
        ``"wait"`` counts as ``"interrupt"``) and its caller hears of it when it has.

        Raises:
            ValueError: If a value is out of range or a kind unknown.
            TypeError: If *retry_on* holds something else, *key* is no such value, or an
                option is unknown.
        """
        return BoundPool(self, changed(self._options, changes))

    def stats(self) -> PoolStats:
        """Return the pool as it stands, and what it went through."""
        if self._supervisor is not None:
            return self._supervisor.stats()
        zero = dict.fromkeys(_COUNTERS, 0)
        state = RunState.CLOSED if self._life.closed_unused else RunState.NEW
        return PoolStats(state=state, workers=self._config.workers[0], slots=(), **zero)

    async def resize(self, workers: int | tuple[int, int]) -> None:
        """Have *workers* workers from now on, or a number between these two.

        Returns when there are, and none too many: whoever is too many finishes its job
        first, one worker after the other, those that are idle before the others.  One that
        has crashed, and is waited with before it is restarted, counts as if it were there.

        Raises:
            ValueError: If there is to be none.
            TypeError: If *workers* is neither an int nor two.
            PoolClosedError: If the pool is closed, or is before it has that size.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: the pool goes on towards that size.

        Concurrency:
            The last call counts, and all return when the pool has that size.
        """
        least, most = least_and_most(workers)
        supervisor = self._life.open()
        await shielded(supervisor.replacement.resize(least, most))

    async def roll(self) -> RollResult:
        """Replace every worker by a fresh one, as many at a time as *max_surge* allows.

        Each goes on working until its replacement is ready, finishes its job, and ends.
        If a replacement does not become ready the roll ends there: the other workers stay,
        and the result says so.  Where starts have failed, and where the pool is broken, the
        next one is tried at once.

        Raises:
            RollInProgressError: If the pool is being rolled already.
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If the pool has given up for good.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: the roll goes on.
        """
        return await shielded(self._life.trying().replacement.roll())

    async def close(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 - it bounds the jobs, not the wait
        finish: Literal["all", "running", "none"] = "all",
    ) -> CloseSummary:
        """Take no more jobs, finish those that *finish* names, end every worker.

        A pool that finishes ``"all"`` jobs works on as an open one does: it grows,
        replaces workers, retries and times out.  Maps that have begun are finished too,
        with the items that they have not drawn yet, and so are streams and broadcasts.
        Every 10 s a record of the logger ``asyncpool`` says what the pool waits for.

        Then workers are asked to stop, get SIGTERM, and then SIGKILL for their whole
        process group.  When *timeout* is over, what is left is killed and its jobs
        fail with :exc:`PoolClosedError`.

        Args:
            timeout: Seconds until then; ``None`` for no limit.
            finish: ``"all"`` jobs, only the ``"running"`` ones (those in the queue
                fail at once), or ``"none"``.

        Returns:
            How many jobs were finished and failed meanwhile, and how many workers
            had to be killed by SIGKILL.

        Raises:
            ValueError: If an argument is out of range.
            TypeError: If *timeout* is no number.
            RuntimeError: If the pool was started in another event loop.

        Cancellation:
            Safe: the close goes on without the caller.

        Concurrency:
            Any number of tasks may close.  They share one result, and a stricter
            *finish* or an earlier end tightens what the others asked for.
        """
        check_choice("finish", finish, tuple(_FINISH))
        check_timeout(timeout)
        return await self._life.close(_FINISH[finish], timeout)

    async def __aenter__(self) -> Self:
        """Start the pool, see :meth:`start`."""
        await self.start()
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the pool: all jobs are finished, or none if an error leaves.

        The jobs have the pool's *close_timeout*.  If an error leaves, or a cancellation, all
        of them fail with :exc:`asyncpool.PoolClosedError`, and those that are running end
        as if they were cancelled: they may clean up for their *cancel_grace*.

        Raises:
            RuntimeError: If the pool was started in another event loop; it goes on.

        Cancellation:
            Kills what is left, and returns when it is gone.
        """
        await self._life.leave(
            error, functools.partial(self.close, timeout=self._close_timeout)
        )

    def __del__(self) -> None:
        life: SupervisorRunner | None = getattr(self, "_life", None)
        if life is not None:  # or an argument was refused
            life.dropped(self)

    def __repr__(self) -> str:
        s = self.stats()
        return (
            f"<Pool {self.name} {s.state}: {s.idle + s.busy}/{s.workers} workers, "
            f"{s.idle} idle, {s.busy} busy, {s.queued} waiting>"
        )

    @property
    def _supervisor(self) -> Supervisor | None:
        return self._life.supervisor

    def _running_supervisor(self) -> Supervisor:
        return self._life.supervisor or self._life.running()

    async def _broadcast(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        if not callable(fn):
            raise not_callable("broadcast", fn)
        return await self._life.open().broadcasts.broadcast(fn, args, kwargs, options)
