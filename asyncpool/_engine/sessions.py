"""Broadcasts, which every worker runs, and sessions: who waits for a worker of their own.

Present workers run a broadcast as a job, later ones at their start.
While a broadcast is open, each worker that is ready, that is starting, or that starts
before the broadcast is over gets a *call*: a pinned job, which the worker runs before any
other job.  The broadcast is over when all of them have made their call.  From then on, new
workers find it in their configuration.  So each worker makes the call once, in one of the
two ways.  An error reaches the caller while there is one, and only later fails a start.

Each new worker runs the broadcasts when it starts, in their order.  Only the last broadcast of a
function counts.  Otherwise a service that broadcasts its configuration every minute would have
workers that take longer and longer to start.  Two functions are the same if they have the same
name.  So this also holds for closures and partials, which are new objects each time.

The core decides which worker belongs to which session (``_core/core.py``).  It
knows how many callers wait.  This module knows which callers, and in which order they came.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from asyncpool._core.functions import SessionTraits
from asyncpool._core.options import JobOptions
from asyncpool._core.slots import STARTING_OR_UP
from asyncpool._dataclass import replace
from asyncpool._engine.job import Job, PoolJob
from asyncpool._engine.large import Call
from asyncpool._engine.loop import Pause, Threads
from asyncpool._engine.registry import broken_errors
from asyncpool._wire.buffers import OverLimitError
from asyncpool._wire.messages import MAX_BROADCASTS, WorkerConfig
from asyncpool._wire.pickling import PICKLE, Serializer, dump, too_large, unpicklable
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


class Broadcast:
    """A call for every worker.

    Attributes:
        name: The name of its function in errors and reports.
        payload: The pickled call.
        options: The options of the calls.
        serializer: Loads what the calls return.
        calls: The last call of each slot, or the answer of each agent, until it is over.
    """

    def __init__(
        self, name: str, payload: bytes, options: JobOptions, serializer: Serializer
    ) -> None:
        self.name, self.payload = name, payload
        self.options, self.serializer = options, serializer
        self.calls: dict[Any, asyncio.Future[Any]] = {}

    @property
    def errors(self) -> dict[Any, BaseException]:
        """What calls have raised, by slot."""
        return {
            slot: error
            for slot, call in self.calls.items()
            if (error := error_of(call)) is not None
        }


def error_of(call: asyncio.Future[Any]) -> BaseException | None:
    """Return what a call has raised, if it has; asyncio then takes the error for read."""
    return call.exception() if call.done() and not call.cancelled() else None


class Broadcasts(ABC):
    """The broadcasts that are open, and those that new workers run; in the order of the calls.

    Args:
        threads: Pickle the calls.
        data: What calls may be, if the pool is data only.
    """

    # Whether the workers are another program's.
    _abroad = False

    def __init__(self, threads: Threads, data: DataOnly | None) -> None:
        self._threads, self._data = threads, data
        self._is_open: dict[Broadcast, bool] = {}
        # They begin in the order of the calls, however long one is pickled: the last call is
        # the one whose effect all workers have in the end.
        self._order = asyncio.Lock()

    @property
    def open(self) -> list[Broadcast]:
        """Those that are not over."""
        return [it for it, is_open in self._is_open.items() if is_open]

    @property
    def remembered(self) -> list[Broadcast]:
        """Those that new workers run."""
        return [it for it, is_open in self._is_open.items() if not is_open]

    async def broadcast(self, call: Call, options: JobOptions) -> dict[int, Any]:
        """Run a call in every worker; see :meth:`asyncpool.Pool.broadcast`."""
        self._targets()  # refuses the call before it is pickled
        async with self._order:
            broadcast = await self._pack(call, options)
            self._begin(broadcast)
        return await self._results(broadcast)

    @abstractmethod
    def _targets(self) -> Iterable[Any]:
        """Return what is to make a call now: slots, or agents.

        Raises:
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
        """

    @abstractmethod
    def _call(self, target: Any, broadcast: Broadcast) -> asyncio.Future[Any]:
        """Have a target make the call."""

    @abstractmethod
    async def _results(self, broadcast: Broadcast) -> dict[int, Any]:
        """Return what the workers have returned, by slot, when the broadcast is over."""

    async def _pack(self, call: Call, options: JobOptions) -> Broadcast:
        """Pickle a call, in one piece: the configuration of a worker has no other.

        Raises:
            JobNotPicklableError: If it cannot be pickled.
            ValueError: If it is too large, or a broadcast cannot have these options.
            PoolClosedError: If the threads are closed meanwhile.

        Cancellation:
            Safe.
        """
        if options.key is not None or options.lease is not None:
            raise ValueError("a broadcast is for every worker: it has no key, no lease")
        data = self._data
        serializer: Serializer = PICKLE
        if data is not None:
            serializer = data.serializer_of(call[0], options.codec or data.how)

        def pack(pause: Pause) -> bytes:  # a thread runs this
            if data is None:
                with Abroad() if self._abroad else nullcontext():
                    packed = dump(call, limit=MAX_BROADCASTS, pause=pause, in_band=True)
                    return b"".join(packed.pieces)
            pause()
            payload = data.pack_alone(call, options.codec or data.how)
            if len(payload) > MAX_BROADCASTS:
                raise OverLimitError
            return payload

        unwanted = threading.Event()
        packing = self._threads.pickle(pack, unwanted=unwanted.is_set)
        try:
            await asyncio.wait([packing])
        finally:
            unwanted.set()
            packing.cancel()  # if the caller was cancelled before it was done
        if packing.cancelled():
            raise PoolClosedError
        error = packing.exception()
        if isinstance(error, OverLimitError):
            raise ValueError(  # noqa: TRY004 - of the argument, which is too large
                f"the call has more than {MAX_BROADCASTS} bytes when pickled, which is "
                "the most, since every new worker gets it: have the function load "
                "large objects itself, for example from a file"
            )
        if error is not None:  # even a SystemExit, since an argument has raised it
            refused = isinstance(error, JobNotPicklableError)
            raise error if refused else unpicklable(error)
        return Broadcast(function_name(call[0]), packing.result(), options, serializer)

    def _begin(self, new: Broadcast) -> None:
        """Have all targets make the call, if there is room for it.

        Raises:
            ValueError: If there is not.
        """
        targets, size = self._targets(), len(new.payload)
        # An earlier one of the same function will be replaced, if it is over.
        kept = [*self.open, *(it for it in self.remembered if it.name != new.name)]
        before = sum(len(it.payload) for it in kept)
        if before + size > MAX_BROADCASTS:
            raise ValueError(
                f"the call of {new.name} has {size} bytes when pickled, the "
                f"broadcasts before it have {before}, and {MAX_BROADCASTS} is the most, since "
                "every new worker gets them: have the function load what is large, from "
                "a file for example"
            )
        new.calls = {target: self._call(target, new) for target in targets}
        self._is_open[new] = True

    def _end(self, broadcast: Broadcast, *, remember: bool) -> None:
        """Forget a broadcast, or remember it instead of an earlier one of the same function."""
        broadcast.calls = {}
        if not remember:
            del self._is_open[broadcast]
            return
        self._is_open[broadcast] = False
        same = [it for it in self.remembered if it.name == broadcast.name]
        for superseded in same[:-1]:  # this one, if a later one was over sooner
            del self._is_open[superseded]


class Broadcaster(Broadcasts):
    """The broadcasts of one pool.

    Args:
        engine: The pool's engine.
        config: The configuration of workers before any broadcast.
    """

    def __init__(self, engine: Engine, config: WorkerConfig) -> None:
        super().__init__(engine.threads, engine.config.data)
        self._engine, self._config = engine, config
        self._packed: bytes | None = None

    def config(self) -> bytes:
        """Return the configuration for a worker that is started now, packed."""
        # Until a job has needed the script, workers import it when they need it.  After that,
        # a new worker imports it before it is ready.
        first = is_in_use() or self._config.script_first
        if self._packed is None or first != self._config.script_first:
            self._config = self._config._replace(script_first=first)
            calls = tuple((it.name, it.payload) for it in self.remembered)
            self._packed = pickle.dumps(self._config._replace(broadcasts=calls))
        return self._packed

    async def broadcast_packed(self, broadcast: Broadcast) -> dict[int, Any]:
        """Run a call that is pickled already in every worker."""
        async with self._order:
            self._begin(broadcast)
        return await self._results(broadcast)

    def _targets(self) -> list[int]:
        self._engine.admission.check_open()
        slots = self._engine.core.slots
        ups = (it for it in slots if it.state in STARTING_OR_UP and not it.draining)
        return [slot.index for slot in ups]

    def _call(self, target: int, broadcast: Broadcast) -> PoolJob[Any]:
        call = self._engine.traffic.send_pinned(target, broadcast)
        call.add_done_callback(error_of)  # nobody else may: the caller may be cancelled
        return call

    def _begin(self, new: Broadcast) -> None:
        if len(new.payload) > self._config.max_payload:
            raise too_large(len(new.payload), self._config.max_payload)
        self._engine.traffic.check_code(new.name, new.payload)
        new.options = replace(
            new.options, max_attempts=1, via="broadcast", name=new.name
        )
        super()._begin(new)

    async def _results(self, broadcast: Broadcast) -> dict[int, Any]:
        calls, succeeded = broadcast.calls, False
        try:
            while waiting := [call for call in calls.values() if not call.done()]:
                await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
                for error in broadcast.errors.values():
                    if isinstance(error, (PoolClosedError, PoolBrokenError)):
                        raise error
            # One that is cancelled was dropped, since its worker has left.
            ended = {it: calls[it] for it in sorted(calls) if not calls[it].cancelled()}
            errors = broadcast.errors
            results = {it: ended[it].result() for it in ended if it not in errors}
            if errors:
                raise BroadcastError(broadcast.name, results=results, errors=errors)
            self._packed, succeeded = None, True
            return results
        finally:
            self._end(broadcast, remember=succeeded)
            for call in calls.values():
                call.cancel()

    # What happens to workers while a broadcast is open.

    def on_spawn(self, slot: int) -> None:
        """Send the open broadcasts to a worker that is being started."""
        for broadcast in self.open:
            last = broadcast.calls.get(slot)
            dying = last is not None and not last.done()  # of the previous worker
            if not dying and not broadcast.errors:  # an error ends the broadcast
                broadcast.calls[slot] = self._call(slot, broadcast)

    def on_dropped(self, numbers: Iterable[int]) -> None:
        """Cancel pinned jobs whose workers leave before they begin them."""
        for number in numbers:
            call = self._engine.registry.jobs[number]
            self._engine.registry.remove_done(call)
            super(Job, call).cancel()  # not Job's, which would tell the pool


class SessionWorker:
    """The worker of one session; from when the caller waits for it, it holds the pool open.

    Attributes:
        session: The number of the session.
        slot: The worker's slot.
        pid: The worker's pid; 0 before the session has a worker.
        asked: Whether the caller has asked for the worker.
        gone: Whether it takes no more calls: the worker is gone, or the session was left.
        left: Whether the session was left.
        crash: How the worker died, if the pool did not end it.
        cause: The cause of the error that later calls get.
        jobs: The calls that are open.
    """

    def __init__(self) -> None:
        self.session = self.slot = self.pid = 0
        self.asked = self.gone = self.left = False
        self.crash: Crash | None = None
        self.cause: BaseException | None = None
        self.jobs: dict[PoolJob[Any], None] = {}

    def __str__(self) -> str:
        if not self.pid:
            return "a session that waits for a worker"
        return f"a session with worker {self.pid} in slot {self.slot}"

    def error(self) -> WorkerGoneError:
        """Return the error of a call that has no worker any more."""
        error = WorkerGoneError(slot=self.slot, pid=self.pid, crash=self.crash)
        error.__cause__ = self.cause
        return error

    def call(self, engine: Engine, call: Call, options: JobOptions) -> PoolJob[Any]:
        """Have it make a call after the session's other calls.

        Raises:
            WorkerGoneError: If the session has lost its worker.
            AsyncPoolError: If the pool takes no call.
        """
        engine.sessions.check(self)
        options = replace(options, session=SessionTraits(self.session), hold=self)
        job = engine.traffic.submit(*call, options)
        self.jobs[job] = None
        job.add_done_callback(self._done)
        return job

    async def leave(self, engine: Engine, *, fresh: bool, failed: bool) -> None:
        """Give the worker back when its calls are done; at once if the session has *failed*.

        Cancellation:
            Cancels the calls that are left, and gives the worker back at once.
        """
        try:
            while self.jobs and not failed:
                await asyncio.wait([*self.jobs])
        finally:
            for job in [*self.jobs]:
                job.cancel()
            self.gone = self.left = True
            engine.sessions.give_back(self.session, fresh=fresh)
            engine.holds.release(self)

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
        # The core knows how many callers wait.  For each there will be a worker, or an error, in the
        # queue.  An asyncio.Queue is not fair: a late caller may take what woke an earlier one.  A
        # lock is, so only the one who holds it calls get().
        self._waiting = 0
        self._offers: asyncio.Queue[tuple[int, int, int] | AsyncPoolError]
        self._offers, self._first = asyncio.Queue(), asyncio.Lock()
        # By the sessions' numbers; none as long as the worker is in the queue.
        self._session_workers: dict[int, SessionWorker | None] = {}

    # How sessions begin.

    async def take(
        self,
        worker: SessionWorker,
        timeout: float | None,  # noqa: ASYNC109 - it is only for the wait
    ) -> None:
        """Wait for a *worker*; see :meth:`asyncpool.Pool.worker`."""
        engine, limit = self._engine, asyncio.timeout(timeout)
        engine.admission.check_session()
        engine.holds.hold(worker)
        self._waiting += 1
        try:
            self._request()
            async with limit, self._first:
                offer = await self._offers.get()
                while (
                    isinstance(offer, tuple) and offer[0] not in self._session_workers
                ):
                    # The worker has died in this iteration of the loop.
                    refusal = self._refusal()
                    if refusal is None:
                        self._request()
                    offer = refusal or await self._offers.get()
        except BaseException as error:
            self._cancel_request()
            engine.holds.release(worker)
            if isinstance(error, TimeoutError) and limit.expired():
                name = engine.config.title
                text = f"no worker of {name} was free within {timeout:g} s"
                raise TimeoutError(text) from None
            raise
        self._waiting -= 1
        if isinstance(offer, AsyncPoolError):
            engine.holds.release(worker)
            raise offer
        worker.session, worker.slot, worker.pid = offer
        self._session_workers[worker.session] = worker

    def _refusal(self) -> AsyncPoolError | None:
        """Return why nobody who waits gets a worker any more; ``None`` if that is not so."""
        closing = self._engine.core.closing
        if closing.finish is not None and not closing.draining:
            return PoolClosedError()
        broken = self._engine.core.broken is not None
        return broken_errors(self._engine)(None) if broken else None

    def _request(self) -> None:
        core = self._engine.core
        with self._engine.turn:
            core.affinity.request_session()
        if core.dispatcher.session_waiters and core.lifecycle.sizing.may_grow:
            self._engine.admission.note_queued()

    def _cancel_request(self) -> None:
        """Note that a caller waits no more, who may have been given something in this turn."""
        self._waiting -= 1
        if self._offers.qsize() <= self._waiting:
            with self._engine.turn as now:
                self._engine.core.affinity.cancel_session_request(now)
            return
        offer = self._offers.get_nowait()  # there is one for each of the others
        if isinstance(offer, tuple):
            self.give_back(offer[0], fresh=False)

    def offer(self, slot: int, session: int) -> None:
        """Give the worker in *slot* to the caller that has waited longest."""
        pid = self._engine.handles[slot].pid
        assert pid is not None
        self._session_workers[session] = None
        self._offers.put_nowait((session, slot, pid))

    def refuse(self) -> None:
        """Turn away all callers that wait."""
        while self._offers.qsize() < self._waiting:
            self._offers.put_nowait(self._refusal() or PoolClosedError())

    # How sessions go on.

    def check(self, worker: SessionWorker) -> None:
        """Check that a session still has its worker.

        Raises:
            WorkerGoneError: If it has not.
            PoolClosedError: If the pool is closed.
            PoolBrokenError: If it is broken.
        """
        if worker.gone:
            # Whatever keeps the pool from taking any call comes first.
            self._engine.admission.check_open(worker)
            raise worker.error()

    # How sessions end.

    def worker_crashed(self, crash: Crash) -> None:
        """Keep *crash*, which says how the worker of a session has died."""
        for worker in filter(None, self._session_workers.values()):
            if (worker.slot, worker.pid) == (crash.slot, crash.pid):
                worker.crash = crash

    def end(self, session: int, calls: tuple[int, ...]) -> None:
        """End *session*, whose worker is gone, and fail *calls*."""
        worker = self._session_workers.get(session)
        if worker is None:
            # Its calls were cancelled with it, or nobody has it yet.
            self._session_workers.pop(session, None)
            return
        worker.gone = True
        if calls:
            # Later, since the error of the running call is their cause, and must be known first.
            loop = self._engine.loop
            loop.call_soon(loop.call_soon, self._fail, worker, calls)

    def _fail(self, worker: SessionWorker, calls: tuple[int, ...]) -> None:
        for number in calls:
            job = self._engine.registry.jobs.get(number)
            if job is not None:
                self._engine.registry.fail(job, worker.error())

    def give_back(self, session: int, *, fresh: bool) -> None:
        """Return the worker of *session* to the pool, or have it replaced by a *fresh* one."""
        self._session_workers.pop(session, None)
        core = self._engine.core
        if not core.closing.over:
            with self._engine.turn as now:
                core.affinity.end_session(session, now, fresh=fresh)
