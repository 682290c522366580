"""A session: a worker that belongs to one caller; :meth:`asyncpool.Pool.worker` makes it."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Self, Unpack

from asyncpool._core import checks
from asyncpool._core.options import JobOptions, Options, changed
from asyncpool._engine.job import Job, PoolJob  # pyright: ignore[reportUnusedImport]
from asyncpool._engine.sessions import SessionWorker
from asyncpool.pool import PoolSubmitter, Submitter
from asyncpool.stream import Stream  # pyright: ignore[reportUnusedImport]

__all__ = ["WorkerSession"]


class WorkerSession(Submitter):
    """A worker that belongs to one caller while the context is entered.

    A call of the session finds what earlier calls have left in the worker: globals, open files,
    models.  The calls run one after the other.  Leaving the context waits for them.  Leaving it
    by an exception or a cancellation cancels them.
    """

    def __init__(
        self, pool: PoolSubmitter, *, timeout: float | None, fresh: bool
    ) -> None:
        checks.TIMEOUT("timeout", timeout)
        checks.SWITCH("fresh", fresh)
        # With its life alone, nothing would keep the pool from being collected.
        self._pool, self._life = pool, pool._life  # noqa: SLF001 - it makes this
        self._options = _checked(pool._options)  # noqa: SLF001
        self._timeout = timeout
        self._fresh = fresh
        # All views of the session share it, so each knows when the session begins and ends.
        self._worker = SessionWorker()

    @property
    def slot(self) -> int:
        """The worker's slot.

        Raises:
            RuntimeError: If the context has not been entered.
        """
        return self._entered_worker.slot

    @property
    def pid(self) -> int:
        """The process id of the worker.

        Raises:
            RuntimeError: If the context has not been entered.
        """
        return self._entered_worker.pid

    def options(self, **changes: Unpack[Options]) -> WorkerSession:
        """Return a view of the session whose calls have these options.

        See :meth:`asyncpool.Pool.options`.  A *timeout* or another limit is for each call.

        Raises:
            ValueError: If a value is out of range, or *max_attempts*, *priority*, *key* or
                *lease* is given: a call runs once, in this worker, in the order of the calls.
            TypeError: If an option is unknown, or takes something else.
        """
        view = copy.copy(self)
        view._options = _checked(changed(self._options, changes))  # noqa: SLF001 - its copy
        return view

    if not TYPE_CHECKING:  # for checkers they are as those of a pool

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Job[Any]:
            """Run ``fn(*args, **kwargs)`` in this worker; return a future of its result.

            The call begins when the calls before it have ended.  It has one attempt.

            Args:
                fn: Any callable, as in :meth:`asyncpool.Pool.submit`.
                *args: Its arguments.
                **kwargs: Its keyword arguments.

            Returns:
                A :class:`asyncpool.Job`.  Awaiting it raises the same errors as a job of
                :meth:`asyncpool.Pool.submit`, and :exc:`WorkerGoneError` if the worker died before
                the call began.

            Raises:
                WorkerGoneError: If the worker is gone.
                PoolClosedError: If the pool is closed.
                PoolBrokenError: If no worker can be kept alive.
                RuntimeError: If the context is not entered, or outside the pool's event loop.

            Cancellation:
                As in the pool.  If the pool has to kill the worker for it, the session loses it.
            """
            checks.called("submit", fn)
            return self._submit(fn, args, kwargs, self._options)

        def stream(self, fn: Any, /, *args: Any, **kwargs: Any) -> Stream[Any]:
            """Run a generator function in this worker; return its items, for ``async for``.

            See :meth:`asyncpool.Pool.stream`.  A stream is a call of the session: later calls wait
            until it has ended or was closed, and so does leaving the context.

            Raises:
                TypeError: If *fn* is not callable.
                PoolClosedError: If the pool was never started.

            Cancellation:
                As in the pool.  The errors of :meth:`submit` are raised with the first item.
            """
            return super().stream(fn, *args, **kwargs)

    async def __aenter__(self) -> Self:
        """Wait for a worker, first come, first served; see :meth:`asyncpool.Pool.worker`.

        Raises:
            TimeoutError: If none was free in time.
            PoolFullError: If *max_queued* jobs and sessions wait already.
            PoolClosedError: If the pool is closed or was never started.  Also if the pool
                closes, without finishing all jobs, before a worker is free.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If it was entered before, or outside the pool's event loop.

        Cancellation:
            Safe.  If the session has just got a worker, the pool gives it to the next one.
        """
        if self._worker.asked:
            raise RuntimeError("a session can be entered only once: ask for another")
        engine = self._running_engine()
        engine.check_loop()
        self._worker.asked = True
        await engine.sessions.take(self._worker, self._timeout)
        return self

    async def __aexit__(
        self, _: object, error: BaseException | None, __: object
    ) -> None:
        """Give the worker back, or have it replaced, when its calls have ended.

        If an exception leaves the context, the calls are cancelled.

        Raises:
            RuntimeError: Outside the pool's event loop.

        Cancellation:
            Cancels the calls and gives the worker back at once.  A call that cannot be
            interrupted ends before another caller's job begins.
        """
        engine = self._running_engine()
        engine.check_loop()
        await self._entered_worker.leave(
            engine, fresh=self._fresh, failed=error is not None
        )

    @property
    def _entered_worker(self) -> SessionWorker:
        if not self._worker.pid:
            raise RuntimeError("the session has no worker: use 'async with'")
        return self._worker

    def _submit(
        self,
        fn: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> PoolJob[Any]:
        worker = self._entered_worker
        if worker.left:
            raise RuntimeError("the session is over: its context was left")
        return worker.call(self._running_engine(), (fn, args, kwargs), options)

    def __repr__(self) -> str:
        worker = self._worker
        if not worker.pid:
            return "<WorkerSession, not begun>"
        over = ", over" if worker.left else ""
        return f"<WorkerSession: worker {worker.pid} in slot {worker.slot}{over}>"


_PLAIN = JobOptions()


def _checked(options: JobOptions) -> JobOptions:
    """Return *options*, after checking that a call of a session can have them.

    Raises:
        ValueError: If it cannot.
    """
    for name in ("max_attempts", "priority", "key", "lease"):
        if getattr(options, name) != getattr(_PLAIN, name):
            raise ValueError(
                f"{name} is no option of a worker to oneself: its calls run once, in "
                "this worker, in their order"
            )
    return options
