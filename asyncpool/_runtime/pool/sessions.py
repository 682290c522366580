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


class Seat:
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


class _Place:
    """A place in the line of those who wait for a worker."""

    __slots__ = ("offer", "turn")

    def __init__(self, turn: asyncio.Future[None]) -> None:
        self.turn = turn
        self.offer: Seat | AsyncPoolError | None = None

    def take(self, offer: Seat | AsyncPoolError) -> None:
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
        self._line: deque[_Place] = deque()  # as many as the core has wanted
        self._seats: dict[int, Seat] = {}

    # They begin.

    async def take(
        self,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
        on_restart: Callable[[], Any] | None,
        options: JobOptions,
    ) -> Seat:
        """Wait for a worker; see :meth:`asyncpool.Pool.worker`."""
        self._admission.check_session()
        hold = SessionHold()
        self._draining.hold(hold)
        try:
            seat = await self._wait(timeout)
        except BaseException:
            hold.release()
            raise
        hold.what = f"a session with worker {seat.pid} in slot {seat.slot}"
        seat.hold, seat.on_restart, seat.options = hold, on_restart, options
        if on_restart is not None:
            self._state.core.make_last(seat.session)
        return seat

    async def _wait(self, timeout: float | None) -> Seat:  # noqa: ASYNC109
        limit = asyncio.timeout(timeout)
        place = self._enter_line()
        try:
            async with limit:
                await place.turn
                while isinstance(place.offer, Seat) and place.offer.gone:
                    # It died in this turn of the loop: whoever was first is so again.
                    self._check_whether_more_come()
                    place = self._enter_line(first=True)
                    await place.turn
        except BaseException as error:
            self._leave_line(place)
            if isinstance(error, TimeoutError) and limit.expired():
                name = self._state.config.title
                text = f"no worker of {name} was free within {timeout:g} s"
                raise TimeoutError(text) from None
            raise
        if not isinstance(place.offer, Seat):
            assert place.offer is not None
            raise place.offer
        return place.offer

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
    def _enter_line(self, *, first: bool = False) -> _Place:
        place = _Place(self._state.loop.create_future())
        if first:
            self._line.appendleft(place)
        else:
            self._line.append(place)
        core = self._state.core
        self._state.performer.perform(core.want_worker())
        if core.dispatcher.wanted and core.rotation.sizing.watching:
            self._admission.crowded()
        return place

    @decision
    def _leave_line(self, place: _Place) -> None:
        if place in self._line:
            self._line.remove(place)
            core, now = self._state.core, self._state.loop.time()
            self._state.performer.perform(core.leave_line(now))
        elif isinstance(place.offer, Seat):
            # Just when it was his turn.
            self._end(place.offer, fresh=False)

    def offer(self, slot: int, session: int) -> None:
        """Give the worker in *slot* to whoever has waited longest."""
        pid = self._state.handles[slot].pid
        assert pid is not None
        seat = self._seats[session] = Seat(session, slot, pid)
        self._line.popleft().take(seat)

    def refuse(self) -> None:
        """Turn away all who wait."""
        while self._line:
            self._line.popleft().take(self._refusal() or PoolClosedError())

    # They go on.

    def call(
        self,
        seat: Seat,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Have the worker of a session run a call, behind the session's others."""
        if seat.gone:
            self._admission.check_open(seat.hold)  # or that is why
            raise seat.error()
        bound = Bound(seat.session)
        options = replace(options, bound=bound, hold=seat.hold)
        job = self._traffic.submit(function, args, kwargs, options)
        seat.add(job)
        return job

    def rebuild(self, slot: int, session: int) -> None:
        """Have the new worker of a session learn what the last one knew.

        If the last one had not begun to, the call that is to do it waits for the new one.
        """
        seat = self._seats[session]
        pid = self._state.handles[slot].pid
        assert pid is not None
        assert seat.on_restart is not None
        seat.pid = pid
        if seat.rebuild is not None and not seat.rebuild.done():
            return
        bound = Bound(session, first=True)
        options = replace(seat.options, bound=bound, hold=seat.hold)
        try:
            job = self._traffic.submit(seat.on_restart, (), {}, options)
        except AsyncPoolError as error:  # the pool is closed
            self._state.loop.call_soon(self._give_up, seat, error)
        else:
            seat.rebuild = job
            seat.add(job)
            job.add_done_callback(functools.partial(self._on_rebuilt, seat))

    def _on_rebuilt(self, seat: Seat, job: Job[Any]) -> None:
        error = None if job.cancelled() else job.exception()
        if error is not None or job.cancelled():
            self._give_up(seat, error)
        else:
            self._go_on(seat, job)

    @decision
    def _go_on(self, seat: Seat, job: Job[Any]) -> None:
        self._state.performer.perform(self._state.core.rebuilt(seat.session, job.id))

    def _give_up(self, seat: Seat, error: BaseException | None) -> None:
        """End a session whose state cannot be rebuilt, and its calls."""
        seat.gone = True
        if not isinstance(error, WorkerGoneError):
            seat.cause = error
        for job in [*seat.jobs]:
            if not job.done():
                self._state.book.fail(job, seat.error())
                self._take_out(job)
        self._end(seat, fresh=True)

    @decision
    def _take_out(self, job: Job[Any]) -> None:
        self._state.performer.perform(
            self._state.core.drop(job.id, self._state.loop.time())
        )

    def is_over(self, job: Job[Any]) -> bool:
        """Tell whether *job* is a call of a session that is over."""
        seat = None if job.bound is None else self._seats.get(job.bound.session)
        return seat is not None and seat.gone

    # They end.

    def worker_crashed(self, crash: Crash) -> None:
        """Take note of how a worker has died."""
        for seat in self._seats.values():
            if (seat.slot, seat.pid) == (crash.slot, crash.pid):
                seat.crash = crash

    def end(self, session: int, calls: tuple[int, ...]) -> None:
        """Take note that the worker of *session* is gone, and fail those *calls*."""
        seat = self._seats.get(session)
        if seat is None:
            return  # its calls were cancelled with it
        seat.gone = True
        if calls:
            # When the error of the one that was running, which is their cause, is known.
            loop = self._state.loop
            loop.call_soon(loop.call_soon, self._fail, seat, calls)

    def _fail(self, seat: Seat, calls: tuple[int, ...]) -> None:
        for number in calls:
            job = self._state.book.jobs.get(number)
            if job is not None:
                self._state.book.fail(job, seat.error())

    async def leave(self, seat: Seat, *, fresh: bool, failed: bool) -> None:
        """End a session when its calls are done; if it has *failed*, at once.

        Cancellation:
            Ends it at once.
        """
        try:
            while seat.jobs and not failed:
                await asyncio.wait([*seat.jobs])
        finally:
            for job in [*seat.jobs]:
                job.cancel()
            seat.gone = True
            self._end(seat, fresh=fresh)
            seat.hold.release()

    @decision
    def _end(self, seat: Seat, *, fresh: bool) -> None:
        self._seats.pop(seat.session, None)
        core = self._state.core
        if not core.closing.over:
            now = self._state.loop.time()
            self._state.performer.perform(
                core.end_session(seat.session, now, fresh=fresh)
            )
