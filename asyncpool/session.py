"""A worker to oneself; :meth:`asyncpool.Pool.worker` makes it."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar, Unpack, overload

from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_limits import JobOptions, Options
from asyncpool._runtime.base.arguments import (
    check_callable,
    check_timeout,
    not_callable,
)
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.options.job_options import changed
from asyncpool._runtime.pool.sessions import SessionWorker
from asyncpool._runtime.pool.supervisor import Supervisor
from asyncpool.stream import Stream

__all__ = ["WorkerSession"]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(slots=True)
class _State:
    session_worker: SessionWorker | None = None
    entered: bool = False
    left: bool = False


class WorkerSession:
    """One worker, and nobody else's, for as long as its context is entered.

    Its calls find what those before them have left there: globals, open files, models.
    They run one after the other.  Leaving the context waits for them; leaving it by an
    exception or a cancellation cancels them.
    """

    def __init__(
        self,
        supervisor: Callable[[], Supervisor],
        options: JobOptions,
        *,
        timeout: float | None,
        fresh: bool,
        on_restart: Callable[[], Any] | None,
    ) -> None:
        check_timeout(timeout)
        check_callable("on_restart", on_restart)
        self._running_supervisor = supervisor
        self._options = _checked(options)
        self._timeout = timeout
        self._fresh = fresh
        self._on_restart = on_restart
        # Views share it, and know when the session begins and ends.
        self._state = _State()

    @property
    def slot(self) -> int:
        """The worker's slot.

        Raises:
            RuntimeError: If the context has not been entered.
        """
        return self._session_worker.slot

    @property
    def pid(self) -> int:
        """The number of the worker's process, of the last one if it is gone.

        Raises:
            RuntimeError: If the context has not been entered.
        """
        return self._session_worker.pid

    def options(self, **changes: Unpack[Options]) -> WorkerSession:
        """Return a view of the session whose calls have these options.

        See :meth:`asyncpool.Pool.options`.  *timeout* and the like are for each call.

        Raises:
            ValueError: If a value is out of range, or *max_attempts*, *priority*, *key* or
                *lease* is given: a call runs once, in this worker, in its turn.
            TypeError: If an option is unknown, or takes something else.
        """
        view = copy.copy(self)
        view._options = _checked(changed(self._options, changes))  # noqa: SLF001
        return view

    @overload
    def submit(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Job[R]: ...

    @overload
    def submit(
        self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Job[R]: ...

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Job[Any]:
        """Run ``fn(*args, **kwargs)`` in this worker; return a future of its result.

        It begins when the calls before it have ended, and it has one attempt.

        Args:
            fn: Any callable, as in :meth:`asyncpool.Pool.submit`.
            *args: Its arguments.
            **kwargs: Its keyword arguments.

        Returns:
            A :class:`asyncpool.Job`.  Awaiting it raises what that of the pool's ``submit``
            would; and :exc:`WorkerGoneError` if the worker died before the call began.

        Raises:
            WorkerGoneError: If the worker is gone, and nothing rebuilds its state.
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If the context is not entered, or outside the pool's event loop.

        Cancellation:
            As in the pool.  A worker that has to be killed for it is gone.
        """
        return self._submit(fn, args, kwargs, self._options)

    @overload
    def stream(
        self,
        fn: Callable[P, Iterable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Stream[R]: ...

    @overload
    def stream(
        self,
        fn: Callable[P, AsyncIterable[R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Stream[R]: ...

    def stream(
        self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> Stream[Any]:
        """Run a generator function in this worker; return its items, for ``async for``.

        See :meth:`asyncpool.Pool.stream`; as a call of the session it is like the others.
        They wait while it runs, and so does whoever leaves the context before it has ended
        or was closed.

        Raises:
            TypeError: If *fn* is not callable.
            PoolClosedError: If the pool was never started.

        Cancellation:
            As in the pool.  What :meth:`submit` raises comes with the first item.
        """
        return self._stream(fn, args, kwargs, self._options)

    async def __aenter__(self) -> Self:
        """Wait for a worker, first come, first served; see :meth:`asyncpool.Pool.worker`.

        Raises:
            TimeoutError: If none was free in time.
            PoolFullError: If *max_queued* jobs and others are waiting.
            PoolClosedError: If the pool is closed, was never started, or closes before a
                worker is free, without finishing all.
            PoolBrokenError: If no worker can be kept alive.
            RuntimeError: If it was entered before, or outside the pool's event loop.

        Cancellation:
            Safe.  Whoever has just got a worker gives it to the next one.
        """
        if self._state.entered:
            raise RuntimeError("a session can be entered only once: ask for another")
        supervisor = self._running_supervisor()
        supervisor.check_home()
        self._state.entered = True
        self._state.session_worker = await supervisor.sessions.take(
            self._timeout, self._on_restart, self._options
        )
        return self

    async def __aexit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the worker back, or have it replaced, when its calls have ended.

        By an exception, their end is not waited for: they are cancelled.

        Cancellation:
            Cancels the calls, and gives the worker back at once; what cannot be interrupted
            there ends before anybody else's job begins.
        """
        try:
            await self._running_supervisor().sessions.leave(
                self._session_worker, fresh=self._fresh, failed=error is not None
            )
        finally:
            self._state.left = True

    @property
    def _session_worker(self) -> SessionWorker:
        if self._state.session_worker is None:
            raise RuntimeError("the session has no worker: use 'async with'")
        return self._state.session_worker

    def _submit(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        if not callable(fn):
            raise not_callable("submit", fn)
        session_worker = self._session_worker
        if self._state.left:
            raise RuntimeError("the session is over: its context was left")
        return self._running_supervisor().sessions.call(
            session_worker, fn, args, kwargs, options
        )

    def _stream(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: JobOptions,
    ) -> Stream[Any]:
        if not callable(fn):
            raise not_callable("stream", fn)
        options = replace(options, form="stream")
        return Stream(
            self._running_supervisor(), partial(self._submit, fn, args, kwargs, options)
        )

    def __repr__(self) -> str:
        if self._state.session_worker is None:
            return "<WorkerSession, not begun>"
        over = ", over" if self._state.left else ""
        return f"<WorkerSession: worker {self.pid} in slot {self.slot}{over}>"


def _checked(options: JobOptions) -> JobOptions:
    """Return *options*, if a call of a session can have them.

    Raises:
        ValueError: If it cannot.
    """
    for name, given in (
        ("max_attempts", options.attempts.max_attempts != 1),
        ("priority", options.priority != 0),
        ("key", options.key is not None),
        ("lease", options.lease is not None),
    ):
        if given:
            raise ValueError(
                f"{name} is no option of a worker to oneself: its calls run once, in "
                "this worker, in their order"
            )
    return replace(options, attempts=AttemptPolicy())
