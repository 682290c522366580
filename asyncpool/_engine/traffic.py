"""The traffic of jobs: to the workers, and back to their callers.

Every job takes this way: :meth:`Traffic.submit`, :meth:`Traffic.send`,
:meth:`Traffic.on_outcomes`.  Callers may also look at a job, cancel it and take its
items while it runs, and workers give back jobs that they have not begun.  ``large.py`` has the part
of the way that only large jobs take.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from threading import get_ident
from time import monotonic
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from asyncpool._core.endings import REVOKE_GRACE
from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import (
    LEAST_COST,
    RELOADS,
    Function,
    FunctionTable,
    check_reloaded,
    modules_that_use,
)
from asyncpool._core.options import JobOptions
from asyncpool._engine.job import JOB_TYPES, ChunkJob, PoolJob, StreamJob
from asyncpool._engine.loop import other_loop_error
from asyncpool._engine.worker import NOT_PUT, CancelledJob, WorkerHandle
from asyncpool._wire.buffers import HEAVY, SURELY_QUICK, OutOfBandPickle, OverLimitError
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import MOMENT
from asyncpool._wire.pickling import is_flat, too_large
from asyncpool.enums import JobOutcome
from asyncpool.errors import AsyncPoolError, ProtocolError

if TYPE_CHECKING:
    from asyncpool._core.data_only import DataFunctionTable, DataOnly
    from asyncpool._engine.engine import Engine
    from asyncpool._engine.sessions import Broadcast
    from asyncpool._wire.buffers import Packed
    from asyncpool._wire.formats import Format


_MANAGERS = "multiprocessing.managers"
_modules = sys.modules


class Traffic:
    """The jobs of one pool, on their way.

    Args:
        engine: The pool's engine.

    Attributes:
        functions: What the pool knows of the functions.
        fast_path_open: Whether the pool takes every call, and does nothing special for any.
        before_refill: Called before a worker gets its next jobs, with how much work these may be:
            an executor then submits calls that it has kept.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        config = engine.config
        self._propagation = config.propagation
        self._max_payload = config.worker.max_payload
        self._leases = engine.leases
        self._sizing = engine.core.lifecycle.sizing
        self._queue = engine.core.dispatcher.queue
        self._concurrency = config.worker.concurrency
        self._lag_alarm, self._stalls = engine.lag_alarm, engine.stalls
        self.functions = FunctionTables(engine.figures.functions, config.data)
        self._functions = self.functions.usual
        self._special = (
            config.max_queued is not None
            or self._propagation is not None
            or config.data is not None
            or self._max_payload < HEAVY  # the fast path does not measure its calls
        )
        self._reloads = len(RELOADS.names)
        # A cache of check_code(): for so many reloads and imported modules, the modules of which
        # workers may have older code.
        self._stale: tuple[int, int, list[str]] = 0, 0, []
        RELOADS.watch(self)
        self.fast_path_open = False
        self.before_refill: Callable[[float], object] | None = None
        engine.hub.on_listeners_changed = self.refresh_fast_path
        self.refresh_fast_path()
        engine.leases.fence = self._fence

    def refresh_fast_path(self) -> None:
        """Note what the pool does for each call: it closes, is broken, or has new listeners."""
        core, hub = self._engine.core, self._engine.hub
        takes_all = core.closing.finish is None and core.broken is None
        workers_are_current = self._reloads == len(RELOADS.names)
        usual = workers_are_current and not hub.announces_jobs and not self._special
        self.fast_path_open = takes_all and usual

    def workers_have(self, reloads: int) -> None:
        """Note that all workers have the code as it was after the first *reloads* reloads."""
        self._reloads = reloads
        self._stale = 0, 0, []
        self.refresh_fast_path()

    def check_code(self, name: str, payload: Packed, reference: bytes = b"") -> None:
        """Check that workers have no older code than a call needs.

        Args:
            name: What the call is called.
            payload: Its pickle.
            reference: The pickle of its function, if that is not in the payload.

        Raises:
            JobNotPicklableError: If they may have it.
        """
        names = RELOADS.names[self._reloads :]
        if not names or self._engine.fresh:
            return
        if self._engine.registry.submitted <= 1:  # this is the first one
            self.workers_have(len(RELOADS.names))
            return
        if self._stale[:2] != (len(names), len(sys.modules)):
            self._stale = len(names), len(sys.modules), modules_that_use(names)
        stale = self._stale[2]
        check_reloaded(name, payload, stale)
        # A function of a reloaded module itself was looked up anew, by FunctionTable.find().
        check_reloaded(name, reference, (it for it in stale if it not in names))

    # The way of a job to its worker.

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> PoolJob[Any]:
        """Queue a call, or send it to a worker at once; return its future."""
        engine = self._engine
        # Before Python 3.12 it takes 140 ns to ask which loop runs, and this takes 50.
        if (
            get_ident() != engine.thread or not engine.loop.is_running()
        ) and asyncio._get_running_loop() is not engine.loop:  # noqa: SLF001 - no exception if there is none
            raise other_loop_error(engine.config.title, engine.loop)
        known = None
        if (
            self.fast_path_open
            and options.plain
            and not engine.turn_depth
            and type(function) is FunctionType
        ):
            known = self._functions.known.get(function)
            if known is not None and known.code is not function.__code__:
                known = None  # find() then refuses the call
        if known is None or kwargs or not is_flat(args):
            return self._submit_specially(function, args, kwargs, options, known)
        # engine.turn, inlined: it would take 1 us more, and a queued job changes no deadline.
        engine.turn_depth = 1
        try:
            registry = engine.registry
            registry.submitted = number = registry.submitted + 1
            payload = pickle.dumps((args, kwargs), 5)
            job: PoolJob[Any] = PoolJob(
                number, known, options, self, engine.loop, payload
            )
            registry.jobs[number] = job
            if options.timed:
                registry.timed += 1
            # Core.submit(), inlined, since a call doubles the cost: others wait already, so no
            # worker has room.
            queue = self._queue
            if queue.default_line and not options.priority and not queue.others:
                queue.default_line[number] = known.traits
                slot = None
            else:
                slot = engine.core.submit(number, known.traits, options.priority)
            if slot is not None:
                self.send(slot, (job,))
            elif self._sizing.may_grow:
                engine.admission.note_queued()
            return job
        finally:
            engine.turn_depth = 0

    def _submit_specially(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
        known: Function | None,
    ) -> PoolJob[Any]:
        """Submit a call that cannot take the fast path.

        If its function is *known*, only its arguments kept it off that path: then the pool takes
        every call, and is not asked.
        """
        engine, registry = self._engine, self._engine.registry
        engine.turn_depth += 1
        try:
            make: Callable[..., PoolJob[Any]] = PoolJob
            if known is None:
                functions = self.functions.of(options)
                try:
                    engine.admission.check(options)
                except AsyncPoolError:
                    if options.hold is None:  # not from a map, which tries again later
                        engine.figures.refused += 1
                        refused = functions.find(function, options.name, options.via)
                        refused.figures.ended(JobOutcome.REFUSED)
                    raise
                make = (functions.job_types or JOB_TYPES)[options.via]
                known = functions.find(function, options.name, options.via)
            number = registry.next_id()
            job: PoolJob[Any] = make(number, known, options, self, engine.loop)
            if _MANAGERS in _modules:
                # A manager drops an object that has no proxy left, and the worker has none yet.
                job.add_done_callback(functools.partial(_keep, args, kwargs))
            try:
                if self._propagation is not None:
                    job.context = self._propagation.add_to(job.context)
                payload = known.serializer.pack_job(
                    function, args, kwargs, number=known.number, limit=HEAVY
                )
                self.check_code(known.name, payload, known.payload)
            except OverLimitError:
                if self._enter(job):
                    engine.large.pack(job, (function, args, kwargs))
                return job
            except BaseException as error:  # noqa: BLE001 - an argument's
                return registry.refuse(job, error)
            if len(payload) > self._max_payload:
                return registry.refuse(job, too_large(len(payload), self._max_payload))
            if not self._enter(job):
                return job
            if engine.turn_depth > 1:
                # A listener has called this, say, while a decision is carried out: a worker
                # would get this job before one that it was assigned sooner.
                engine.large.put_off(job, payload)
                return job
            job.payload = payload
            slot = engine.core.place(job.id, job.traits, options.priority)
            if options.session is not None:
                engine.act()
            if slot is not None:
                self.send(slot, (job,))
            elif self._sizing.may_grow:
                engine.admission.note_queued()
            return job
        finally:
            engine.turn_depth -= 1

    def send_pinned(self, slot: int, call: Broadcast) -> PoolJob[Any]:
        """Have the worker in *slot* run a pickled call before other jobs, without admission."""
        engine = self._engine
        figures = engine.figures.functions.of(call.name, "broadcast")
        function = Function(0, b"", call.name, figures, call.serializer)
        job: PoolJob[Any] = PoolJob(
            engine.registry.next_id(), function, call.options, self, engine.loop
        )
        job.payload = call.payload
        with engine.turn:
            if self._enter(job):
                engine.core.affinity.pin(slot, job.id)
        return job

    def _enter(self, job: PoolJob[Any]) -> bool:
        """Add a job to the open ones; return false if its time is over, which has ended it."""
        self._engine.registry.enter(job)
        return not job.options.timed or self._engine.timers.watch_queued(job)

    def send(self, slot: int, jobs: Sequence[PoolJob[Any]]) -> None:
        """Send *jobs*, which the core has assigned to *slot*, to its worker."""
        engine = self._engine
        handle, hub = engine.handles[slot], engine.hub
        in_flight = len(engine.core.slots[slot].in_flight.jobs)
        outbox, now = handle.outbox, monotonic()
        # With one lane a job with large buffers is the first: it is sent when nothing else runs.
        large = type(jobs[0].payload) is OutOfBandPickle
        if self._concurrency > 1:
            for job in jobs:
                job.sent_at = now
                large = large or type(job.payload) is OutOfBandPickle
        if large or hub.traced or self._leases.holders:
            self._send_specially(slot, jobs)
        else:
            outbox.put_jobs(jobs, slot)
        if engine.registry.timed:
            engine.timers.begin_first(slot)
        if in_flight == len(jobs):
            outbox.flush()  # the worker has nothing else to do
            handle.since = now
            if not self._lag_alarm.is_set:
                engine.measure_lag()
        else:
            outbox.flush_soon()  # more may be submitted in this iteration of the loop
        if hub.job_listeners:  # the end of a job is told with the time of its begin
            self._tell_begun(slot, now)
        needs_watch = in_flight > self._concurrency or isinstance(jobs[-1], ChunkJob)
        if needs_watch and not self._stalls.alarm.is_set:
            self._stalls.go()

    def _send_specially(self, slot: int, jobs: Iterable[PoolJob[Any]]) -> None:
        """Put jobs on their way among which some have large buffers, leases or tracers."""
        engine, handle = self._engine, self._engine.handles[slot]
        for job in jobs:
            # First, since the worker may die of the job at any moment.
            job.begin_attempt(slot)
            if job.id in engine.hub.traced:
                engine.hub.sending(job, slot)
            if type(job.payload) is OutOfBandPickle:
                job.frame_end = NOT_PUT
                engine.large.send(handle, job, job.payload)
            else:
                self._leases.before_sending(job, slot)
                handle.outbox.put_job(job, job.payload)

    def _fence(self, job: PoolJob[Any], slot: int, until: float) -> None:
        """Tell a worker until when it may run a job that it has, or will get."""
        handle = self._engine.handles[slot]
        in_flight = self._engine.core.slots[slot].in_flight
        # A job that is still loading may never be sent.  Then the next one has its sequence number.
        if job.id in in_flight.jobs and not (
            handle.outbox.lending and in_flight.last == job.id
        ):
            sequence = in_flight.sequence_of(job.id)
            # The clock is the loop's, which all processes of a machine share.
            handle.send_control(FrameKind.FENCE, MOMENT.pack(until), sequence)

    # The way of a job back to its caller.

    def on_outcomes(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Settle jobs, and give their worker the next ones."""
        engine, slot = self._engine, handle.slot
        core, registry, hub = engine.core, engine.registry, engine.hub
        handle.since = at = monotonic()
        if self.before_refill is not None:
            self.before_refill(core.slots[slot].in_flight.room_after(len(frames)))
        engine.turn_depth += 1  # as in submit()
        try:
            # Take the jobs off their worker, up to the first frame that breaks the protocol.  A job
            # is missing if its caller has given it up.
            jobs, large = registry.jobs, False
            job_ids: list[int] = []  # list[int]() would take 0.4 us
            taken: list[PoolJob[Any] | None] = []
            for _, job_id, attempt, run_us, payload in frames:
                job = jobs.get(job_id)
                if job is not None:
                    if job.attempt != attempt:
                        handle.distrust(f"it sent attempt {attempt} of {job!r}")
                        break
                    traits = job.function.traits
                    # A quick run cannot lower the least cost, so the call is skipped, nearly always.
                    if run_us > LEAST_COST or traits.cost != LEAST_COST:
                        traits.note(run_us)
                    if type(payload) is not bytes or len(payload) > SURELY_QUICK:
                        large = True
                job_ids.append(job_id)
                taken.append(job)
            in_flight = core.slots[slot].in_flight
            before = in_flight.ended
            try:
                core.outcome(slot, *job_ids)
            except ProtocolError as error:
                handle.distrust(str(error))
                del taken[in_flight.ended - before :]
            if None in taken:
                for job_id, job in zip(job_ids, taken, strict=False):
                    if job is None:
                        registry.leases.left_worker(job_id)
            if hub.tracks_jobs:
                for job, frame in zip(taken, frames, strict=False):
                    if job is not None and (hub.job_listeners or job.id in hub.traced):
                        hub.ran(job, slot, Frame(*frame), at)
            if large:  # threads unpickle the outcomes that take long
                for index, (job, bare) in enumerate(zip(taken, frames, strict=False)):
                    if job is None or job.exceeded is not None:
                        continue
                    frame, function = Frame(*bare), job.function
                    if (size := len(frame.payload)) > SURELY_QUICK:
                        job.outcome_size += size
                    if function.serializer.is_heavy(frame.payload):
                        seconds = frame.number / 1e6
                        function.figures.run.note(seconds)
                        function.figures.wait.note(at - job.queued_at - seconds)
                        job.slot = taken[index] = None
                        engine.timers.end(job)
                        engine.large.unpack(job, frame, handle)
            # The worker gets its next jobs before the pool looks at these outcomes.
            now = engine.loop.time()
            core.refill(slot, now)
            # If the worker is idle now, callers that wait for one of their own, or for room, go on.
            if core.todo or engine.admission.saturated:
                engine.act()
            if self._stalls.alarm.is_set:
                self._stalls.look_soon()
            if registry.timed:
                engine.timers.begin_first(slot)
            if hub.job_listeners:
                self._tell_begun(slot, at)
            for job in registry.settle_all(taken, frames, handle, at, large=large):
                core.requeue({job.id: job.traits}, now)
                engine.act()
        finally:
            engine.turn_depth -= 1

    def _tell_begun(self, slot: int, at: float) -> None:
        """Tell those who listen which jobs of a worker have begun by now."""
        registry = self._engine.registry
        running = self._engine.core.slots[slot].in_flight.running
        jobs = (registry.jobs[number] for number in running if number in registry.jobs)
        self._engine.hub.running(jobs, slot, at)

    def on_exit(self, handle: WorkerHandle) -> None:
        """Use outcomes that a worker noted on its page and could not send before it died."""
        noted = handle.page.outcomes()
        if not noted or handle.broke_protocol:
            return
        running = self._engine.core.slots[handle.slot].in_flight.running
        jobs = filter(None, map(self._engine.registry.jobs.get, running))
        frames = [noted[it] for job in jobs if (it := (job.id, job.attempt)) in noted]
        if frames:
            with self._engine.turn:
                self.on_outcomes(handle, frames)

    # What else can happen to a job before its end.

    def is_running(self, job: PoolJob[Any]) -> bool:
        """Return whether the worker of *job* runs it, or has run it."""
        if job.slot is None:
            return job.id in self._engine.core.closing.unpacking
        return self._engine.core.slots[job.slot].in_flight.runs(job.id)

    def pid_of(self, job: PoolJob[Any]) -> int | None:
        """Return the process that has *job* in flight, if one has."""
        slot = job.slot
        return None if slot is None else self._engine.handles[slot].pid

    async def stack_of(self, job: PoolJob[Any]) -> str:
        """Return where a job is that its worker runs; empty if it runs nowhere.

        Cancellation:
            Safe.
        """
        if job.slot is None:
            return ""
        return await self._engine.stacks.ask(self._engine.handles[job.slot], job.id)

    # Jobs that are cancelled or revoked.

    def on_cancel(self, job: PoolJob[Any]) -> None:
        """Take a job, which its caller has cancelled, out of the queue or off its worker."""
        engine, slot = self._engine, job.slot
        if engine.turn_depth:
            engine.loop.call_soon(self.on_cancel, job)
            return
        if job.id in engine.hub.traced and slot is not None and self.is_running(job):
            since = engine.handles[slot].since
            engine.hub.lost(job, engine.core.slots[slot], since)
        if engine.registry.remove_done(job):
            self.take_out(job, slot)

    def take_out(self, job: PoolJob[Any], slot: int | None) -> None:
        """Take a job that is settled out of the queue, or off its worker."""
        engine = self._engine
        if slot is None:
            now = engine.loop.time()
            engine.turn_depth += (
                1  # what leaves the queue changes no deadline, so the timer stays
            )
            try:
                engine.core.drop(job.id, now)
                engine.core.outcome_unpacked(job.id, now)
                engine.act()
            finally:
                engine.turn_depth -= 1
            engine.large.go_on()
        elif (
            engine.core.slots[slot].in_flight.last == job.id
            and engine.handles[slot].outbox.withdraw()
        ):
            with engine.turn as now:
                engine.core.withdraw(slot, job.id, now)
        else:
            handle = engine.handles[slot]
            begun = handle.page.begun(job.id, job.attempt)
            function = job.function.name
            handle.cancelled.append(CancelledJob(job.id, job.attempt, function))
            self._end(handle, job, begun=begun)
            if not begun:
                engine.loop.call_later(REVOKE_GRACE, self._look_again, handle, job)

    def _end(self, handle: WorkerHandle, job: PoolJob[Any], *, begun: bool) -> None:
        """End a job that its worker has begun, or ask the worker for it."""
        slot, mode = handle.slot, job.options.cancel_mode
        with self._engine.turn as now:
            endings = self._engine.core.endings
            endings.cancel(job.id, now, index=slot, begun=begun, mode=mode)

    def _look_again(self, handle: WorkerHandle, job: PoolJob[Any]) -> None:
        """End a job that its worker has begun meanwhile, without an answer to the pool.

        A worker answers late if its job holds the GIL, and never if the job has stopped the
        process, or holds the GIL for ever.
        """
        engine = self._engine
        if handle.ignored or not engine.core.endings.unanswered(job.id, handle.slot):
            return
        if handle.page.begun(job.id, job.attempt):
            self._end(handle, job, begun=True)
        else:
            engine.loop.call_later(REVOKE_GRACE, self._look_again, handle, job)

    # Streams that yield items.

    def on_item(self, handle: WorkerHandle, frame: Frame) -> None:
        """Hand an item of a stream to its job.

        Raises:
            ProtocolError: If the worker may not send it.
        """
        if frame.job not in self._engine.core.slots[handle.slot].in_flight.jobs:
            text = f"it sent an item of job {frame.job}, which it does not have"
            raise ProtocolError(text)
        job = self._engine.registry.jobs.get(frame.job)
        if job is None:
            return  # its caller has given the job up
        if not isinstance(job, StreamJob) or job.attempt != frame.attempt:
            text = f"it sent an item of attempt {frame.attempt} of {job!r}"
            raise ProtocolError(text)
        job.receive(frame)

    def give_credit(self, job: StreamJob) -> None:
        """Tell the job's worker how many items it may send in all."""
        if job.slot is not None:
            handle = self._engine.handles[job.slot]
            handle.send_control(FrameKind.CREDIT, b"", job.id, job.attempt, job.credit)


def _keep(_args: object, _kwargs: object, _: object) -> None:
    """Do nothing.  The callback keeps the arguments alive until the job is done."""


# The functions of a pool, in a table for each format in which their calls travel.

T = TypeVar("T", bound=FunctionTable)

# How many formats the pool remembers the functions of.
_MOST_FORMATS = 16


class FunctionTables:
    """The functions of one pool.

    Args:
        totals: Where their jobs are counted.
        data: What the pool allows, if it is data only.
        table: The class of the usual table, if it is not data only.

    Attributes:
        usual: Those of jobs without a codec of their own.
    """

    def __init__(
        self,
        totals: FunctionTotals,
        data: DataOnly | None,
        table: type[FunctionTable] = FunctionTable,
    ) -> None:
        self._totals, self._data = totals, data
        self.usual = table(totals) if data is None else self._table_for(None, data.how)
        make = functools.partial(self._table_for, self.usual)
        self._table_of = functools.lru_cache(_MOST_FORMATS)(make)

    def packed(self, make: Callable[[FunctionTotals, FunctionTable], T]) -> T:
        """Return what *make* makes: a table whose numbers continue those of this pool."""
        return make(self._totals, self.usual)

    def forget(self, functions: Iterable[object]) -> None:
        """Forget *functions*: no worker has imported them yet."""
        for function in functions:
            self.usual.known.pop(function, None)
        self._table_of.cache_clear()

    def of(self, options: JobOptions) -> FunctionTable:
        """Return the functions of jobs with these options."""
        how = options.codec
        if how is None or (self._data is not None and how == self._data.how):
            return self.usual
        if isinstance(how, FunctionTable):  # an agent's: its calls are packed already
            return how
        return self._table_of(how)  # there may be a view with a new codec for each job

    def _table_for(self, usual: FunctionTable | None, how: Format) -> DataFunctionTable:
        from asyncpool._core.data_only import DataFunctionTable  # noqa: PLC0415 - few pools have a codec

        assert self._data is not None  # only then there is such an option
        return DataFunctionTable(self._totals, self._data, how, usual)
