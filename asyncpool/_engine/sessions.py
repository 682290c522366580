"""Broadcasts, which every worker runs, and sessions: who waits for a worker of their own.

Present workers run a broadcast as a job, later ones at their start.
While a broadcast is open, each worker that is ready, that is starting, or that starts
before the broadcast is over gets a *call*: a pinned job, which the worker runs before any
other job.  The broadcast is over when all of them have made their call.  From then on, new
workers find it in their configuration.  So each worker makes the call once, in one of the
two ways.  An error reaches the caller while there is one, and only later fails a start.

The core decides which worker belongs to which session (``_core/sessions.py``).  It
knows how many callers wait.  This module knows which callers, and in which order they came.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asyncpool._core.functions import SessionTraits
from asyncpool._core.options import JobOptions
from asyncpool._core.sessions import Broadcast, StartBroadcasts
from asyncpool._core.slots import COMING
from asyncpool._dataclass import replace
from asyncpool._engine.admission import SessionHold
from asyncpool._engine.job import Job, PoolJob
from asyncpool._engine.large import Call, too_large, unpicklable
from asyncpool._engine.loop import Pause, Threads
from asyncpool._engine.registry import broken_errors
from asyncpool._wire.buffers import StreamTooLongError, dump
from asyncpool._wire.messages import MAX_BROADCASTS, WorkerConfig
from asyncpool._wire.pickling import PICKLE, Serializer
from asyncpool._wire.scripts import Abroad, is_in_use
from asyncpool._wire.text import function_name
from asyncpool.errors import (
    AsyncPoolError,
    BroadcastError,
    JobError,
    JobNotPicklableError,
    PoolBrokenError,
    PoolClosedError,
    WorkerGoneError,
)
from asyncpool.events import Crash

if TYPE_CHECKING:
    from asyncpool._core.data_only import DataOnly
    from asyncpool._engine.engine import Engine
    from asyncpool._wire.formats import Format

# The calls of broadcasts, which a thread pickles in one piece: a worker's configuration has no other.


def check_broadcast(options: JobOptions) -> None:
    """Check that a broadcast can have these options.

    Raises:
        ValueError: If it cannot.
    """
    if options.key is not None or options.lease is not None:
        raise ValueError("a broadcast is for every worker: it has no key, no lease")


def serializer_of(
    data: DataOnly | None, function: Any, options: JobOptions
) -> Serializer:
    """Return what loads the results of a broadcast of *function*."""
    if data is None:
        return PICKLE
    return data.serializer_of(function, options.codec or data.how)


async def pack_broadcast(
    threads: Threads,
    data: DataOnly | None,
    call: Call,
    options: JobOptions,
    *,
    abroad: bool = False,
) -> bytes:
    """Return the call of a broadcast, pickled.

    Args:
        threads: They pickle it.
        data: What calls may be, if the pool is data only.
        call: The function and its arguments.
        options: Those of the broadcast.
        abroad: Whether the workers are another program's.

    Raises:
        JobNotPicklableError: If it cannot be pickled.
        ValueError: If it is too large.
        PoolClosedError: If the threads are closed meanwhile.

    Cancellation:
        Safe.
    """
    unwanted, pack = threading.Event(), _pack_abroad if abroad else _pack
    if data is not None:
        pack = functools.partial(_pack_data, data, options.codec or data.how)
    packing = threads.pickle(pack, call, unwanted=unwanted.is_set)
    try:
        await asyncio.wait([packing])
    finally:
        unwanted.set()
        packing.cancel()  # if the caller was cancelled before it was done
    if packing.cancelled():
        raise PoolClosedError
    error = packing.exception()
    if isinstance(error, StreamTooLongError):
        raise ValueError(  # noqa: TRY004 - of the argument, which is too large
            f"the call has more than {MAX_BROADCASTS} bytes when pickled, which is "
            "the most, since every new worker gets it: have the function load "
            "large objects itself, for example from a file"
        )
    if isinstance(error, JobNotPicklableError):
        raise error
    if error is not None:  # even a SystemExit, since an argument has raised it
        raise unpicklable(error)
    return packing.result()


def _pack(call: tuple[Any, ...], pause: Pause) -> bytes:
    return b"".join(dump(call, limit=MAX_BROADCASTS, pause=pause, in_band=True).pieces)


def _pack_abroad(call: tuple[Any, ...], pause: Pause) -> bytes:
    with Abroad():
        return _pack(call, pause)


def _pack_data(
    data: DataOnly, how: Format, call: tuple[Any, ...], pause: Pause
) -> bytes:
    pause()
    function, args, kwargs = call
    payload = data.pack_alone(function, args, kwargs, how)
    if len(payload) > MAX_BROADCASTS:
        raise StreamTooLongError
    return payload


@dataclass(slots=True, kw_only=True, eq=False)
class _Run:
    """One broadcast that is not over.

    Attributes:
        broadcast: The function and its arguments.
        options: The options of each pinned job.
        over: The future that the caller awaits.
        serializer: Loads what the calls return.
        calls: The pinned jobs that are open, by slot.
        results: What the calls have returned, by slot.
        errors: What they have raised, by slot.
    """

    broadcast: Broadcast
    options: JobOptions
    over: asyncio.Future[dict[int, Any]]
    serializer: Serializer
    calls: dict[int, PoolJob[Any]] = field(default_factory=dict)
    results: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)


class Broadcaster:
    """The broadcasts of one pool.

    Args:
        engine: The pool's engine.
        config: The configuration of workers before any broadcast.
    """

    def __init__(self, engine: Engine, config: WorkerConfig) -> None:
        self._engine = engine
        self._config = config
        self._packed: bytes | None = None
        self._remembered = StartBroadcasts(MAX_BROADCASTS)
        self._numbers = itertools.count(1)
        self._runs: list[_Run] = []
        # They begin in the order of the calls, however long one is pickled: the last call is
        # the one whose effect all workers have in the end.
        self._order = asyncio.Lock()

    def config(self) -> bytes:
        """Return the configuration for a worker that is started now, packed."""
        # Until a job has needed the script, workers import it when they need it.  After that,
        # a new worker imports it before it is ready.
        first = is_in_use() or self._config.script_first
        if self._packed is None or first != self._config.script_first:
            self._config = self._config._replace(script_first=first)
            calls = self._remembered.calls
            self._packed = self._config._replace(broadcasts=calls).pack()
        return self._packed

    async def broadcast(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> dict[int, Any]:
        """Run a call in every worker; see :meth:`asyncpool.Pool.broadcast`."""
        check_broadcast(options)
        data = self._engine.config.data
        serializer = serializer_of(data, function, options)
        async with self._order:
            payload = await pack_broadcast(
                self._engine.threads, data, (function, args, kwargs), options
            )
            number = next(self._numbers)
            broadcast = Broadcast(number, function_name(function), payload)
            run = self._begin(broadcast, options, serializer)
        return await self._result(run)

    async def broadcast_packed(
        self,
        name: str,
        payload: bytes,
        options: JobOptions,
        serializer: Serializer,
    ) -> dict[int, Any]:
        """Do the same with a call that is pickled already."""
        async with self._order:
            broadcast = Broadcast(next(self._numbers), name, payload)
            run = self._begin(broadcast, options, serializer)
        return await self._result(run)

    async def _result(self, run: _Run) -> dict[int, Any]:
        try:
            return await run.over
        finally:
            if run in self._runs:  # the caller has been cancelled
                self._runs.remove(run)
            for call in list(run.calls.values()):
                call.cancel()

    def _begin(
        self, broadcast: Broadcast, options: JobOptions, serializer: Serializer
    ) -> _Run:
        """Send the call to all workers that there are, if the pool takes it."""
        self._engine.admission.check_open()
        if len(broadcast.payload) > self._config.max_payload:
            raise too_large(len(broadcast.payload), self._config.max_payload)
        self._remembered.check(broadcast, [run.broadcast for run in self._runs])
        run = _Run(
            broadcast=broadcast,
            options=replace(
                options,
                max_attempts=1,
                via="broadcast",
                name=broadcast.name,
            ),
            over=self._engine.loop.create_future(),
            serializer=serializer,
        )
        self._runs.append(run)
        for slot in self._engine.core.slots:
            if slot.state in COMING and not slot.draining:
                self._run_in(slot.index, run)
        self._engine.loop.call_soon(self._look, run)
        return run

    # What happens to workers while a broadcast is open.

    def on_spawn(self, slot: int) -> None:
        """Send the open broadcasts to a worker that is being started."""
        for run in self._runs:
            last = run.calls.get(slot)
            dying = last is not None and not last.done()  # of the previous worker
            if not dying and not run.errors:  # an error ends the broadcast
                self._run_in(slot, run)

    def on_dropped(self, numbers: Iterable[int]) -> None:
        """Cancel pinned jobs whose workers leave before they begin them."""
        for number in numbers:
            call = self._engine.registry.jobs[number]
            self._engine.registry.cancelled(call)
            super(Job, call).cancel()  # not Job's, which would tell the pool

    def _run_in(self, slot: int, run: _Run) -> None:
        payload = run.broadcast.payload
        call = self._engine.traffic.send_pinned(
            slot, payload, run.options, run.serializer
        )
        run.calls[slot] = call
        call.add_done_callback(functools.partial(self._on_done, slot, run))

    def _on_done(self, slot: int, run: _Run, call: PoolJob[Any]) -> None:
        error = None if call.cancelled() else call.exception()
        if run.calls.get(slot) is not call:
            return  # another worker is in the slot now, and has its own call
        del run.calls[slot]
        run.results.pop(slot, None)
        if error is not None:
            run.errors[slot] = error
        elif not call.cancelled():
            run.results[slot] = call.result()
        self._look(run)

    def _look(self, run: _Run) -> None:
        """End a broadcast if no call is open, or if the pool has ended."""
        if run not in self._runs:
            return
        ended = (PoolClosedError, PoolBrokenError)
        end = next((e for e in run.errors.values() if isinstance(e, ended)), None)
        if run.calls and end is None:
            return
        self._runs.remove(run)
        if run.over.done():
            return
        if end is not None:
            run.over.set_exception(end)
        elif run.errors:
            name = run.broadcast.name
            run.over.set_exception(
                BroadcastError(name, results=run.results, errors=run.errors)
            )
        else:
            self._remembered.add(run.broadcast)
            self._packed = None
            run.over.set_result(dict(sorted(run.results.items())))


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
        self.jobs: dict[PoolJob[Any], None] = {}
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

    def add(self, job: PoolJob[Any]) -> None:
        """Add a call to those that are open."""
        self.jobs[job] = None
        job.add_done_callback(self._done)

    def _done(self, job: PoolJob[Any]) -> None:
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
    ) -> PoolJob[Any]:
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
