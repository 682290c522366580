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
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from time import monotonic
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

from asyncpool._core.figures import FunctionTotals
from asyncpool._core.functions import Function, FunctionTable
from asyncpool._core.job_options import LEAST, JobOptions
from asyncpool._engine.job import JOB_TYPES, Chunk, Failed, Job, StreamJob
from asyncpool._engine.large import Call, too_large
from asyncpool._engine.loop import Alarm, elsewhere
from asyncpool._engine.outbox import NOT_PUT
from asyncpool._engine.worker import CancelledJob, WorkerHandle
from asyncpool._wire.buffers import HEAVY, LIGHT, OutOfBandPickle, StreamTooLongError
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import pack_moment
from asyncpool._wire.pickling import PICKLE, Serializer, unloadable
from asyncpool.enums import JobOutcome
from asyncpool.errors import AsyncPoolError, ProtocolError

if TYPE_CHECKING:
    from asyncpool._core.data_only import DataFunctionTable, DataOnly
    from asyncpool._engine.engine import Engine
    from asyncpool._wire.formats import Format


# Seconds that a worker has to say whether it has begun a job that was cancelled.  An idle
# machine needs 0.1 ms.
_ANSWER_GRACE = 0.1

_VALUE = FrameKind.VALUE
_MANAGERS = "multiprocessing.managers"
_modules = sys.modules


class Traffic:
    """The jobs of one pool, on their way.

    Args:
        engine: The pool's engine.

    Attributes:
        functions: What the pool knows of the functions.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        config = engine.config
        self._propagation = config.propagation
        self._max_payload = config.worker.max_payload
        self._tight = self._max_payload < HEAVY  # which other calls never reach
        self._bounded = config.max_queued is not None
        self._leases = engine.leases
        self._sizing = engine.core.exits.sizing
        self._concurrency = config.worker.concurrency
        self.functions = FunctionTables(engine.figures.functions, config.data)
        self._functions = self.functions.usual
        self._alarm = Alarm(engine.loop, self._look_again)
        # Jobs that were cancelled, and that their workers may have begun, with those workers.
        self._asked_back: list[tuple[WorkerHandle, Job[Any]]] = []
        engine.leases.fence = self._fence

    # The way of a job to its worker.

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Queue a call, or send it to a worker at once; return its future."""
        engine = self._engine
        # Before Python 3.12 it takes 140 ns to ask which loop runs, and this takes 50.
        if get_ident() != engine.thread or not engine.loop.is_running():
            self._check_home()
        # As a turn does, which would take 1 us more: a job in the queue changes no deadline.
        engine.deciding += 1
        try:
            core, registry = engine.core, engine.registry
            closing, broken = core.closing.finish, core.lifecycle.broken
            if self._bounded or closing is not None or broken is not None:
                try:
                    engine.admission.check(options)
                except AsyncPoolError:
                    self._count_refusal(function, options)
                    raise
            functions, types = self._functions, JOB_TYPES
            if options.codec is not None:
                functions = self.functions.of(options)
                types = functions.job_types or types
            known = None
            if type(function) is FunctionType and options.via == "submit":
                known = functions.known.get(function)
            if known is None or options.name:
                known = functions.find(function, options.name, options.via)
            registry.submitted = number = registry.submitted + 1
            job: Job[Any] = types[options.via](
                number, known, options, self, engine.loop
            )
            if _MANAGERS in _modules:
                # A manager drops an object that has no proxy left, and the worker has none yet.
                job.add_done_callback(functools.partial(_keep, args, kwargs))
            try:
                if self._propagation is not None:
                    job._context = self._propagation.add_to(job._context)
                payload = known.serializer.pack_job(
                    function, args, kwargs, number=known.number, limit=HEAVY
                )
            except StreamTooLongError:
                return self._submit_large(job, (function, args, kwargs))
            except BaseException as error:  # noqa: BLE001 - an argument's
                return registry.refuse(job, error)
            if (type(payload) is not bytes or self._tight) and (
                len(payload) > self._max_payload
            ):
                return registry.refuse(job, too_large(len(payload), self._max_payload))
            if options.limits.timed or self._leases.coming or engine.hub.on_new:
                registry.enter(job)
            else:
                registry.jobs[number] = job
            if options.limits.timed and not engine.timers.wait(job):
                return job
            if engine.deciding > 1:
                # A listener has called this, say, while a decision is carried out: a worker
                # would get this job before one that it was assigned sooner.
                self._engine.large.put_off(job, payload)
                return job
            job._payload = payload
            if (
                type(payload) is bytes
                and options.key is None
                and options.bound is None
                and not job._credit
            ):
                slot = core.submit(number, known.traits, options.priority)
            else:
                slot = self._place(job)
            if slot is not None:
                self.send(slot, (job,))
            elif self._sizing.watching:
                engine.admission.note_queued()
            return job
        finally:
            engine.deciding -= 1

    def _check_home(self) -> None:
        if asyncio._get_running_loop() is not self._engine.loop:  # noqa: SLF001 - no exception if there is none
            raise elsewhere(self._engine.config.title)

    def _count_refusal(self, function: Callable[..., Any], options: JobOptions) -> None:
        if options.hold is not None:
            return  # a map tries again when there is room
        self._engine.figures.refused += 1
        known = self.functions.of(options).find(function, options.name, options.via)
        known.figures.ended(JobOutcome.REFUSED)

    def _submit_large(self, job: Job[Any], call: Call) -> Job[Any]:
        """Have a thread pickle a call, which is then queued; return its future."""
        self._engine.registry.enter(job)
        if self._engine.timers.wait(job):
            self._engine.large.pack(job, call)
        return job

    def _place(self, job: Job[Any]) -> int | None:
        """Assign a job that needs special treatment; return its slot, or queue it."""
        core = self._engine.core
        options = job._options
        if options.bound is not None:
            with self._engine.turn:
                core.sessions.call(job.id, options.bound)
            return None
        submit = core.submit if options.key is None else core.submit_keyed
        return submit(job.id, job._traits, options.priority)

    def send_pinned(
        self,
        slot: int,
        payload: bytes,
        options: JobOptions,
        serializer: Serializer,
    ) -> Job[Any]:
        """Have the worker in *slot* run a pickled call before other jobs, without admission."""
        engine, name = self._engine, options.name
        figures = engine.figures.functions.of(name, "broadcast")
        function = Function(0, b"", name, figures, serializer)
        job: Job[Any] = Job(
            engine.registry.next_id(), function, options, self, engine.loop
        )
        job._payload = payload
        with engine.turn:
            engine.registry.enter(job)
            if engine.timers.wait(job):
                engine.core.submit_pinned(slot, job.id)
        return job

    def send(self, slot: int, jobs: Sequence[Job[Any]]) -> None:
        """Send *jobs*, which the core has assigned to *slot*, to its worker."""
        handle = self._engine.handles[slot]
        in_flight = len(self._engine.core.slots[slot].in_flight.jobs)
        worker, outbox, now = handle.pid, handle.outbox, monotonic()
        lanes = self._concurrency > 1
        leases, hub = self._leases.open, self._engine.hub
        for job in jobs:
            # Counted first, since the worker may die of the job at any moment.
            job.attempt += 1
            job._slot, job.worker_pid = slot, worker
            if lanes:
                job._sent_at = now
            if hub.traced and job.id in hub.traced:
                self._engine.registry.watch.sending(job, slot)
            payload = job._payload
            if type(payload) is OutOfBandPickle:
                job._frame_end = NOT_PUT
                self._engine.large.send(handle, job, payload)
            else:
                if leases:
                    self._leases.before_sending(job, slot)
                job._frame_end = outbox.put_job(
                    job.id,
                    job.attempt,
                    job._function,
                    payload,
                    job._context,
                    credit=job._credit,
                )
        if self._engine.registry.timed:
            self._engine.timers.begin_first(slot)
        if in_flight == len(jobs):
            outbox.flush()  # the worker has nothing else to do
            handle.since = now
            if not self._engine.loop_lag.alarm.is_set:
                self._engine.loop_lag.go()
        else:
            outbox.flush_soon()  # more jobs may come in this turn
        if hub.listened:
            self._tell_begun(slot, now)
        long = in_flight > self._concurrency or isinstance(jobs[-1], Chunk)
        if long and not self._engine.stalls.alarm.is_set:
            self._engine.stalls.go()

    def _fence(self, job: Job[Any], slot: int, until: float) -> None:
        """Tell a worker until when it may run a job that it has, or will get."""
        handle = self._engine.handles[slot]
        in_flight = self._engine.core.slots[slot].in_flight
        # A job that is still loading may never be sent.  Then another job gets its number.
        if job.id in in_flight.jobs and not (
            handle.outbox.loading and in_flight.last == job.id
        ):
            sequence = in_flight.sequence_of(job.id)
            # The clock is the loop's, which all processes of a machine share.
            handle.ask(FrameKind.FENCE, pack_moment(until), sequence)

    # The way of a job back to its caller.

    def on_outcomes(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Settle jobs, and give their worker the next ones."""
        engine, index = self._engine, handle.slot
        core, registry = engine.core, engine.registry
        handle.since = at = monotonic()
        engine.deciding += 1  # as in submit()
        try:
            to_settle = self._take_outcomes(handle, frames, at)
            # The worker gets its next jobs before the pool looks at these outcomes.
            now = engine.loop.time()
            core.refill(index, now)
            # Others may have waited for this worker, if it is idle now.
            if core.todo or engine.admission.saturated:
                engine.act()
            if engine.stalls.alarm.is_set:
                engine.stalls.look_soon()
            if registry.timed:
                engine.timers.begin_first(index)
            if engine.hub.listened:
                self._tell_begun(index, at)
            for job, frame in to_settle:
                if (
                    frame.kind is _VALUE
                    and job._function.serializer is PICKLE
                    and job._exceeded is None
                    and type(frame.payload) is bytes
                ):
                    try:
                        value = pickle.loads(frame.payload)  # noqa: S301 - as load_value()
                    except BaseException as error:  # noqa: BLE001 - what is unpickled may raise anything
                        failed = Failed(unloadable(error), may_retry=False)
                        registry.settle(job, failed)
                    else:
                        registry.returned(job, value)
                elif registry.settle(job, registry.outcome_of(job, handle, frame)):
                    core.requeue({job.id: job._traits}, now)
                    engine.act()
        finally:
            engine.deciding -= 1

    def _tell_begun(self, slot: int, at: float) -> None:
        """Tell those who listen which jobs of a worker have begun by now."""
        registry = self._engine.registry
        running = self._engine.core.slots[slot].in_flight.running
        jobs = (registry.jobs[number] for number in running if number in registry.jobs)
        registry.watch.running(jobs, slot, at)

    def _take_outcomes(
        self, handle: WorkerHandle, frames: list[Frame], at: float
    ) -> list[tuple[Job[Any], Frame]]:
        """Take jobs off their worker; return those that still have to be settled."""
        engine, slot = self._engine, handle.slot
        registry, hub = engine.registry, engine.hub
        jobs, telling = registry.jobs, hub.telling
        numbers: list[int] = []
        for frame in frames:
            number = frame.job
            if number in jobs and jobs[number].attempt != frame.attempt:
                job = jobs[number]
                handle.distrust(f"it sent attempt {frame.attempt} of {job!r}")
                break
            numbers.append(number)
        taken = engine.core.slots[slot].in_flight
        before = taken.ended
        try:
            engine.core.outcome(slot, *numbers)
        except ProtocolError as error:
            handle.distrust(str(error))
        to_settle: list[tuple[Job[Any], Frame]] = []
        for frame in frames[: taken.ended - before]:
            number = frame.job
            if number not in jobs:  # its caller has given the job up
                registry.leases.give_back(number)
                continue
            job = jobs[number]
            function, run = job._function, frame.number
            traits = function.traits
            if run > LEAST or traits.cost != LEAST:  # else it changes nothing
                traits.note(run)
            function.figures.ran(run, int((at - job._queued_at) * 1e6) - run)
            if telling and (hub.listened or number in hub.traced):
                registry.watch.ran(job, slot, frame, at)
            job._slot = job.worker_pid = None
            payload = frame.payload
            # Most are short, for which the call would cost 50 ns and say the same.
            heavy = (
                type(payload) is not bytes or len(payload) > LIGHT
            ) and function.serializer.is_heavy(payload)
            if heavy and job._exceeded is None:
                self._engine.timers.end(job)
                self._engine.large.unpack(job, frame, handle)
            else:
                to_settle.append((job, frame))
        return to_settle

    def on_exit(self, handle: WorkerHandle) -> None:
        """Use outcomes that a worker noted on its page and could not send before it died."""
        noted = handle.page.outcomes()
        if not noted or handle.broke_protocol:
            return
        frames: list[Frame] = []
        for number in self._engine.core.slots[handle.slot].in_flight.running:
            job = self._engine.registry.jobs.get(number)
            frame = None if job is None else noted.get((number, job.attempt))
            if frame is not None:
                frames.append(frame)
        if frames:
            with self._engine.turn:
                self.on_outcomes(handle, frames)

    def stop(self) -> None:
        """Watch for no more answers."""
        self._alarm.cancel()
        self._asked_back.clear()

    # What else can happen to a job before its end.

    def is_running(self, job: Job[Any]) -> bool:
        """Return whether the worker of *job* runs it, or has run it."""
        if job._slot is None:
            return self._engine.large.is_unpacking(job)
        return self._engine.core.slots[job._slot].in_flight.runs(job.id)

    async def stack_of(self, job: Job[Any]) -> str:
        """Return where a job is that its worker runs; empty if it runs nowhere.

        Cancellation:
            Safe.
        """
        return await self._engine.stacks.of_job(job)

    # Jobs that are cancelled or revoked.

    def on_cancel(self, job: Job[Any]) -> None:
        """Take a job, which its caller has cancelled, out of the queue or off its worker."""
        engine, slot = self._engine, job._slot
        if engine.deciding:
            engine.loop.call_soon(self.on_cancel, job)
            return
        if job.id in engine.hub.traced and slot is not None and self.is_running(job):
            since = engine.handles[slot].since
            engine.registry.watch.lost(job, engine.core.slots[slot], since)
        if engine.registry.cancelled(job):
            self.take_out(job, slot)

    def take_out(self, job: Job[Any], slot: int | None) -> None:
        """Free the place of a job, which is settled, in the queue or in its worker."""
        engine = self._engine
        if slot is None:
            now = engine.loop.time()
            engine.core.drop(job.id, now)
            engine.core.outcome_unpacked(job.id, now)
            engine.act()  # no turn: what leaves the queue changes no deadline
            self._engine.large.go_on()
        elif (
            engine.core.slots[slot].in_flight.last == job.id
            and engine.handles[slot].outbox.withdraw()
        ):
            with engine.turn as now:
                engine.core.withdraw(slot, job.id, now)
        else:
            handle = engine.handles[slot]
            begun = handle.page.begun(job.id, job.attempt)
            function = job._function.name
            handle.cancelled.append(CancelledJob(job.id, job.attempt, function))
            self._end(handle, job, begun=begun)
            if not begun:
                self._asked_back.append((handle, job))
                if not self._alarm.is_set:
                    self._alarm.set_in(_ANSWER_GRACE)

    def _end(self, handle: WorkerHandle, job: Job[Any], *, begun: bool) -> None:
        """End a job that its worker has begun, or ask the worker for it."""
        slot, mode = handle.slot, job._limits.cancel_mode
        with self._engine.turn as now:
            self._engine.core.cancel(job.id, now, index=slot, begun=begun, mode=mode)

    def _look_again(self, _: float) -> None:
        """End the jobs that their workers have begun meanwhile, without an answer to the pool.

        A worker answers late if its job holds the GIL, and never if the job has stopped the
        process, or holds the GIL for ever.
        """
        asked_back, self._asked_back = self._asked_back, []
        for handle, job in asked_back:
            if not self._is_unanswered(handle, job):
                continue
            if handle.page.begun(job.id, job.attempt):
                self._end(handle, job, begun=True)
            else:
                self._asked_back.append((handle, job))
        if self._asked_back:
            self._alarm.set_in(_ANSWER_GRACE)

    def _is_unanswered(self, handle: WorkerHandle, job: Job[Any]) -> bool:
        engine, slot = self._engine, handle.slot
        same = engine.handles.get(slot) is handle
        return same and engine.core.endings.unanswered(job.id, slot)

    def on_revoked(self, handle: WorkerHandle, sequences: tuple[int, ...]) -> None:
        """Note which jobs a worker will not begin."""
        try:
            with self._engine.turn as now:
                self._engine.core.revoked(handle.slot, sequences, now)
        except ProtocolError as error:
            handle.distrust(str(error))

    # Streams that yield items.

    def on_items(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Hand the items of streams to their jobs."""
        for frame in frames:
            try:
                self._on_item(handle, frame)
            except ProtocolError as error:
                handle.distrust(str(error))
                return

    def _on_item(self, handle: WorkerHandle, frame: Frame) -> None:
        if frame.job not in self._engine.core.slots[handle.slot].in_flight.jobs:
            raise ProtocolError(
                f"it sent an item of job {frame.job}, which it does not have"
            )
        job = self._engine.registry.jobs.get(frame.job)
        if job is None:
            return  # its caller has given the job up
        if not isinstance(job, StreamJob) or job.attempt != frame.attempt:
            raise ProtocolError(
                f"it sent an item of attempt {frame.attempt} of {job!r}"
            )
        job.receive(frame)

    def give_credit(self, job: StreamJob) -> None:
        """Tell the job's worker how many items it may send in all."""
        if job._slot is not None:
            handle = self._engine.handles[job._slot]
            handle.ask(FrameKind.CREDIT, b"", job.id, job.attempt, job._credit)


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
        self._totals = totals
        self._data = data
        self._by_format: dict[Format, FunctionTable] = {}
        self.usual = table(self._totals)
        if self._data is not None:
            self.usual = self._table_for(self._data, self._data.how)
            self._by_format[self._data.how] = self.usual

    @property
    def codec_name(self) -> str:
        """What the codec of the pool is called."""
        return "pickle" if self._data is None else self._data.how.name

    def packed(self, make: Callable[[FunctionTotals, FunctionTable], T]) -> T:
        """Return what *make* makes: a table whose numbers continue those of this pool."""
        return make(self._totals, self.usual)

    def of(self, options: JobOptions) -> FunctionTable:
        """Return the functions of jobs with these options."""
        how = options.codec
        if how is None:
            return self.usual
        if isinstance(how, FunctionTable):  # an agent's: its calls are packed already
            return how
        found = self._by_format.get(how)
        if found is None:
            assert self._data is not None  # only then there is such an option
            if (
                len(self._by_format) >= _MOST_FORMATS
            ):  # a view with a new codec for each job
                oldest = next(one for one in self._by_format if one != self._data.how)
                del self._by_format[oldest]
            found = self._table_for(self._data, how, self.usual)
            self._by_format[how] = found
        return found

    def _table_for(
        self, data: DataOnly, how: Format, usual: FunctionTable | None = None
    ) -> DataFunctionTable:
        from asyncpool._core.data_only import DataFunctionTable  # noqa: PLC0415 - see above

        return DataFunctionTable(self._totals, data, how, usual)
