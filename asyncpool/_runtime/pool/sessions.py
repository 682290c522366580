"""Sessions, from the pool's side: who waits for a worker of their own, and what it runs.

The core decides which worker belongs to which session (``_core/supervision/sessions.py``).  It
knows how many callers wait.  This module knows which callers, and in which order they came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.pool.admission import SessionHold
from asyncpool._runtime.pool.registry import broken_errors
from asyncpool.errors import (
    AsyncPoolError,
    JobError,
    PoolClosedError,
    WorkerGoneError,
)
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._runtime.pool.engine import Engine


class SessionWorker:
    """The worker of one session.

    Attributes:
        session: The number of the session.
        slot: The worker's slot.
        pid: The worker's pid.
        gone: Whether the worker is gone, and the session is over.
        crash: How the worker died, if the pool did not end it.
        cause: The cause of the error that later calls get.
        jobs: The calls that are open.
        hold: Keeps the pool open.
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

    def error(self) -> WorkerGoneError:
        """Return the error of a call that has no worker any more."""
        error = WorkerGoneError(slot=self.slot, pid=self.pid, crash=self.crash)
        error.__cause__ = self.cause
        return error

    def options_of_call(self, options: JobOptions) -> JobOptions:
        """Return *options* as those of a call for this worker."""
        return replace(options, bound=SessionTraits(self.session), hold=self.hold)

    async def finish(self, *, failed: bool) -> None:
        """Wait for the open calls, unless the session has *failed*; take no more.

        Cancellation:
            Cancels the calls that are left.
        """
        try:
            while self.jobs and not failed:
                await asyncio.wait([*self.jobs])
        finally:
            for job in [*self.jobs]:
                job.cancel()
            self.gone = True

    def add(self, job: Job[Any]) -> None:
        """Add a call to those that are open."""
        self.jobs[job] = None
        job.add_done_callback(self._done)

    def _done(self, job: Job[Any]) -> None:
        del self.jobs[job]
        # Not exception(), which would mark the error as retrieved.
        error = None if job.cancelled() else job._exception  # noqa: SLF001
        if self.gone and isinstance(error, JobError):
            self.cause = error


class Sessions:
    """The sessions of one pool.

    Args:
        engine: The pool's engine.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # Of the callers that wait, the core knows how many.  For each there will be a worker, or an
        # error, in the queue.  A queue may give to who comes late what woke somebody else; a lock
        # is fair, and who has it is the only one that gets.
        self._waiting = 0
        self._offers: asyncio.Queue[SessionWorker | AsyncPoolError] = asyncio.Queue()
        self._first = asyncio.Lock()
        self._session_workers: dict[int, SessionWorker] = {}

    # How sessions begin.

    async def take(
        self,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
    ) -> SessionWorker:
        """Wait for a worker; see :meth:`asyncpool.Pool.worker`."""
        self._engine.admission.check_session()
        hold = SessionHold()
        self._engine.draining.hold(hold)
        try:
            session_worker = await self._wait(timeout)
        except BaseException:
            hold.release()
            raise
        hold.what = (
            f"a session with worker {session_worker.pid} in slot {session_worker.slot}"
        )
        session_worker.hold = hold
        return session_worker

    async def _wait(self, timeout: float | None) -> SessionWorker:  # noqa: ASYNC109
        offer: SessionWorker | AsyncPoolError | None = None
        limit = asyncio.timeout(timeout)
        self._waiting += 1
        try:
            self._want()
            async with limit, self._first:
                offer = await self._offers.get()
                while isinstance(offer, SessionWorker) and offer.gone:
                    # The worker has died in this turn of the loop.
                    offer = self._refusal()
                    if offer is None:
                        self._want()
                        offer = await self._offers.get()
        except BaseException as error:
            self._leave_queue(offer)
            if isinstance(error, TimeoutError) and limit.expired():
                name = self._engine.config.title
                text = f"no worker of {name} was free within {timeout:g} s"
                raise TimeoutError(text) from None
            raise
        finally:
            self._waiting -= 1
        if not isinstance(offer, SessionWorker):
            raise offer
        return offer

    def _refusal(self) -> AsyncPoolError | None:
        """Return why nobody who waits gets a worker any more; ``None`` if that is not so."""
        closing = self._engine.core.closing
        if closing.finish is not None and not closing.draining:
            return PoolClosedError()
        broken = self._engine.core.broken is not None
        return broken_errors(self._engine)(None) if broken else None

    def _want(self) -> None:
        core = self._engine.core
        with self._engine.turn:
            core.want_worker()
        if core.dispatcher.wanted and core.exits.sizing.watching:
            self._engine.admission.note_queued()

    def _leave_queue(self, offer: SessionWorker | AsyncPoolError | None) -> None:
        """Note that a caller waits no more, who may have been given something in this turn."""
        if offer is None and self._offers.qsize() >= self._waiting:
            offer = self._offers.get_nowait()  # there is one for each of the others
        if isinstance(offer, SessionWorker):
            self._end(offer, fresh=False)
        elif offer is None:
            with self._engine.turn as now:
                self._engine.core.leave_queue(now)

    def offer(self, slot: int, session: int) -> None:
        """Give the worker in *slot* to the caller that has waited longest."""
        pid = self._engine.handles[slot].pid
        assert pid is not None
        session_worker = self._session_workers[session] = SessionWorker(
            session, slot, pid
        )
        self._offers.put_nowait(session_worker)

    def refuse(self) -> None:
        """Turn away all callers that wait."""
        while self._offers.qsize() < self._waiting:
            self._offers.put_nowait(self._refusal() or PoolClosedError())

    # How sessions go on.

    def call(
        self,
        session_worker: SessionWorker,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Have the worker of a session run a call after the session's other calls."""
        if session_worker.gone:
            self._engine.admission.check_open(
                session_worker.hold
            )  # raises that error first
            raise session_worker.error()
        options = session_worker.options_of_call(options)
        job = self._engine.traffic.submit(function, args, kwargs, options)
        session_worker.add(job)
        return job

    # How sessions end.

    def worker_crashed(self, crash: Crash) -> None:
        """Keep *crash*, which says how the worker of a session has died."""
        for session_worker in self._session_workers.values():
            if (session_worker.slot, session_worker.pid) == (crash.slot, crash.pid):
                session_worker.crash = crash

    def end(self, session: int, calls: tuple[int, ...]) -> None:
        """End *session*, whose worker is gone, and fail *calls*."""
        session_worker = self._session_workers.get(session)
        if session_worker is None:
            return  # its calls were cancelled with it
        session_worker.gone = True
        if calls:
            # Later, since the error of the running call is their cause, and must be known first.
            loop = self._engine.loop
            loop.call_soon(loop.call_soon, self._fail, session_worker, calls)

    def _fail(self, session_worker: SessionWorker, calls: tuple[int, ...]) -> None:
        for number in calls:
            job = self._engine.registry.jobs.get(number)
            if job is not None:
                self._engine.registry.fail(job, session_worker.error())

    async def leave(
        self, session_worker: SessionWorker, *, fresh: bool, failed: bool
    ) -> None:
        """End a session when its calls are done; at once if it has *failed*.

        Cancellation:
            Ends it at once.
        """
        try:
            await session_worker.finish(failed=failed)
        finally:
            self._end(session_worker, fresh=fresh)
            session_worker.hold.release()

    def _end(self, session_worker: SessionWorker, *, fresh: bool) -> None:
        self._session_workers.pop(session_worker.session, None)
        core = self._engine.core
        if not core.closing.over:
            with self._engine.turn as now:
                core.end_session(session_worker.session, now, fresh=fresh)
