"""Workers to oneself, as the shell sees them: who waits for one, and what he has it do.

The core decides which worker is whose (``_core/placement/sessions.py``), and knows how many wait.  Who
they are, and in which order they have come, is known here.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from asyncpool._core.base.run_times import Bound
from asyncpool._core.policies.job_limits import JobOptions
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.bulk_failure import broken_errors
from asyncpool._runtime.state.draining import Draining, SessionHold
from asyncpool._runtime.state.pool_state import PoolState, decision
from asyncpool._runtime.traffic.traffic import Traffic
from asyncpool.errors import AsyncPoolError, JobError, PoolClosedError, WorkerGoneError
from asyncpool.events import Crash


class SessionWorker:
    """A worker that is somebody's own.

    Attributes:
        session: The number of the session.
        slot: The worker's slot.
        pid: The number of its process.
        gone: Whether it is gone, and the session is over.
        crash: How it has died, unless the pool has ended it.
        cause: What the error of later calls is caused by.
        jobs: The calls that are open.
        hold: What keeps the pool open.
        on_restart: What rebuilds its state in another worker, with these
        options: Those of the session.
        rebuild: The last call that did, or does.
    """

    def __init__(self, session: int, slot: int, pid: int) -> None:
        self.session = session
        self.slot = slot
        self.pid = pid
        self.gone = False
        self.crash: Crash | None = None
        self.cause: BaseException | None = None
        self.jobs: dict[Job[Any], None] = {}
        self.hold = SessionHold()
        self.on_restart: Callable[[], Any] | None = None
        self.options = JobOptions()
        self.rebuild: Job[Any] | None = None

    def error(self) -> WorkerGoneError:
        """Return the error of a call for which there is no worker any more."""
        error = WorkerGoneError(slot=self.slot, pid=self.pid, crash=self.crash)
        error.__cause__ = self.cause
        return error

    def add(self, job: Job[Any]) -> None:
        """Take in a call."""
        self.jobs[job] = None
        job.add_done_callback(self._done)

    def _done(self, job: Job[Any]) -> None:
        del self.jobs[job]
        # Looked at without taking it for heard of.
        error = None if job.cancelled() else job._exception  # noqa: SLF001
        if self.gone and isinstance(error, JobError):
            self.cause = error


class _Waiter:
    """A place in the line of those who wait for a worker."""

    __slots__ = ("offer", "turn")

    def __init__(self, turn: asyncio.Future[None]) -> None:
        self.turn = turn
        self.offer: SessionWorker | AsyncPoolError | None = None

    def take(self, offer: SessionWorker | AsyncPoolError) -> None:
        """Have it be the turn of whoever is in it, who may have been cancelled by now."""
        self.offer = offer
        if not self.turn.done():
            self.turn.set_result(None)


class Sessions:
    """The sessions of one pool.

    Args:
        state: The pool.
        admission: Who may come in.
        draining: What keeps the pool open while it drains.
        traffic: The way in for jobs.
    """

    def __init__(
        self,
        state: PoolState,
        admission: Admission,
        draining: Draining,
        traffic: Traffic,
    ) -> None:
        self._state = state
        self._admission = admission
        self._draining = draining
        self._traffic = traffic
        self._waiters: deque[_Waiter] = deque()  # as many as the core has wanted
        self._session_workers: dict[int, SessionWorker] = {}

    # They begin.

    async def take(
        self,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
        on_restart: Callable[[], Any] | None,
        options: JobOptions,
    ) -> SessionWorker:
        """Wait for a worker; see :meth:`asyncpool.Pool.worker`."""
        self._admission.check_session()
        hold = SessionHold()
        self._draining.hold(hold)
        try:
            session_worker = await self._wait(timeout)
        except BaseException:
            hold.release()
            raise
        hold.what = (
            f"a session with worker {session_worker.pid} in slot {session_worker.slot}"
        )
        session_worker.hold, session_worker.on_restart, session_worker.options = (
            hold,
            on_restart,
            options,
        )
        if on_restart is not None:
            self._state.core.sessions.make_last(session_worker.session)
        return session_worker

    async def _wait(self, timeout: float | None) -> SessionWorker:  # noqa: ASYNC109
        limit = asyncio.timeout(timeout)
        waiter = self._enter_queue()
        try:
            async with limit:
                await waiter.turn
                while isinstance(waiter.offer, SessionWorker) and waiter.offer.gone:
                    # It died in this turn of the loop: whoever was first is so again.
                    self._check_whether_more_come()
                    waiter = self._enter_queue(first=True)
                    await waiter.turn
        except BaseException as error:
            self._leave_queue(waiter)
            if isinstance(error, TimeoutError) and limit.expired():
                name = self._state.config.title
                text = f"no worker of {name} was free within {timeout:g} s"
                raise TimeoutError(text) from None
            raise
        if not isinstance(waiter.offer, SessionWorker):
            assert waiter.offer is not None
            raise waiter.offer
        return waiter.offer

    def _check_whether_more_come(self) -> None:
        error = self._refusal()
        if error is not None:
            raise error

    def _refusal(self) -> AsyncPoolError | None:
        """Return why nobody gets a worker any more who waits for one, if that is so."""
        closing = self._state.core.closing
        if closing.finish is not None and not closing.draining:
            return PoolClosedError()
        broken = self._state.core.broken is not None
        return broken_errors(self._state)(None) if broken else None

    @decision
    def _enter_queue(self, *, first: bool = False) -> _Waiter:
        waiter = _Waiter(self._state.loop.create_future())
        if first:
            self._waiters.appendleft(waiter)
        else:
            self._waiters.append(waiter)
        core = self._state.core
        self._state.performer.perform(core.sessions.want_worker())
        if core.dispatcher.wanted and core.replacements.sizing.watching:
            self._admission.crowded()
        return waiter

    @decision
    def _leave_queue(self, waiter: _Waiter) -> None:
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            core, now = self._state.core, self._state.loop.time()
            self._state.performer.perform(core.sessions.leave_queue(now))
        elif isinstance(waiter.offer, SessionWorker):
            # Just when it was his turn.
            self._end(waiter.offer, fresh=False)

    def offer(self, slot: int, session: int) -> None:
        """Give the worker in *slot* to whoever has waited longest."""
        pid = self._state.handles[slot].pid
        assert pid is not None
        session_worker = self._session_workers[session] = SessionWorker(
            session, slot, pid
        )
        self._waiters.popleft().take(session_worker)

    def refuse(self) -> None:
        """Turn away all who wait."""
        while self._waiters:
            self._waiters.popleft().take(self._refusal() or PoolClosedError())

    # They go on.

    def call(
        self,
        session_worker: SessionWorker,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Have the worker of a session run a call, behind the session's others."""
        if session_worker.gone:
            self._admission.check_open(session_worker.hold)  # or that is why
            raise session_worker.error()
        bound = Bound(session_worker.session)
        options = replace(options, bound=bound, hold=session_worker.hold)
        job = self._traffic.submit(function, args, kwargs, options)
        session_worker.add(job)
        return job

    def rebuild(self, slot: int, session: int) -> None:
        """Have the new worker of a session learn what the last one knew.

        If the last one had not begun to, the call that is to do it waits for the new one.
        """
        session_worker = self._session_workers[session]
        pid = self._state.handles[slot].pid
        assert pid is not None
        assert session_worker.on_restart is not None
        session_worker.pid = pid
        if session_worker.rebuild is not None and not session_worker.rebuild.done():
            return
        bound = Bound(session, first=True)
        options = replace(session_worker.options, bound=bound, hold=session_worker.hold)
        try:
            job = self._traffic.submit(session_worker.on_restart, (), {}, options)
        except AsyncPoolError as error:  # the pool is closed
            self._state.loop.call_soon(self._give_up, session_worker, error)
        else:
            session_worker.rebuild = job
            session_worker.add(job)
            job.add_done_callback(functools.partial(self._on_rebuilt, session_worker))

    def _on_rebuilt(self, session_worker: SessionWorker, job: Job[Any]) -> None:
        error = None if job.cancelled() else job.exception()
        if error is not None or job.cancelled():
            self._give_up(session_worker, error)
        else:
            self._go_on(session_worker, job)

    @decision
    def _go_on(self, session_worker: SessionWorker, job: Job[Any]) -> None:
        self._state.performer.perform(
            self._state.core.sessions.rebuilt(session_worker.session, job.id)
        )

    def _give_up(
        self, session_worker: SessionWorker, error: BaseException | None
    ) -> None:
        """End a session whose state cannot be rebuilt, and its calls."""
        session_worker.gone = True
        if not isinstance(error, WorkerGoneError):
            session_worker.cause = error
        for job in [*session_worker.jobs]:
            if not job.done():
                self._state.registry.fail(job, session_worker.error())
                self._take_out(job)
        self._end(session_worker, fresh=True)

    @decision
    def _take_out(self, job: Job[Any]) -> None:
        self._state.performer.perform(
            self._state.core.jobs.drop(job.id, self._state.loop.time())
        )

    def is_over(self, job: Job[Any]) -> bool:
        """Tell whether *job* is a call of a session that is over."""
        session_worker = (
            None
            if job._options.bound is None
            else self._session_workers.get(job._options.bound.session)
        )
        return session_worker is not None and session_worker.gone

    # They end.

    def worker_crashed(self, crash: Crash) -> None:
        """Take note of how a worker has died."""
        for session_worker in self._session_workers.values():
            if (session_worker.slot, session_worker.pid) == (crash.slot, crash.pid):
                session_worker.crash = crash

    def end(self, session: int, calls: tuple[int, ...]) -> None:
        """Take note that the worker of *session* is gone, and fail those *calls*."""
        session_worker = self._session_workers.get(session)
        if session_worker is None:
            return  # its calls were cancelled with it
        session_worker.gone = True
        if calls:
            # When the error of the one that was running, which is their cause, is known.
            loop = self._state.loop
            loop.call_soon(loop.call_soon, self._fail, session_worker, calls)

    def _fail(self, session_worker: SessionWorker, calls: tuple[int, ...]) -> None:
        for number in calls:
            job = self._state.registry.jobs.get(number)
            if job is not None:
                self._state.registry.fail(job, session_worker.error())

    async def leave(
        self, session_worker: SessionWorker, *, fresh: bool, failed: bool
    ) -> None:
        """End a session when its calls are done; if it has *failed*, at once.

        Cancellation:
            Ends it at once.
        """
        try:
            while session_worker.jobs and not failed:
                await asyncio.wait([*session_worker.jobs])
        finally:
            for job in [*session_worker.jobs]:
                job.cancel()
            session_worker.gone = True
            self._end(session_worker, fresh=fresh)
            session_worker.hold.release()

    @decision
    def _end(self, session_worker: SessionWorker, *, fresh: bool) -> None:
        self._session_workers.pop(session_worker.session, None)
        core = self._state.core
        if not core.closing.over:
            now = self._state.loop.time()
            self._state.performer.perform(
                core.sessions.end(session_worker.session, now, fresh=fresh)
            )
