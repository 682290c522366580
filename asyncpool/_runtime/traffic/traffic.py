"""The traffic of jobs: to the workers, and back to their callers.

Every job takes this way: :meth:`Traffic.submit`, :meth:`Traffic.send`,
:meth:`Traffic.on_outcomes`.  ``job_control.py`` has what else can happen to a job on its
way.  ``large_jobs.py`` and :class:`LargeSender` have the part of the way that only large jobs take.
"""

from __future__ import annotations

import asyncio
import functools
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from threading import get_ident
from time import monotonic
from types import FunctionType
from typing import Any

from asyncpool._core.base.job_traits import LEAST
from asyncpool._core.pickling.calls import unloadable
from asyncpool._core.pickling.functions import Function
from asyncpool._core.pickling.out_of_band import (
    HEAVY,
    LIGHT,
    OutOfBandPickle,
    StreamTooLongError,
)
from asyncpool._core.pickling.serializers import PICKLE, Serializer
from asyncpool._core.policies.job_options import JobOptions
from asyncpool._core.wire.frames import Frame, FrameKind
from asyncpool._core.wire.messages import pack_moment
from asyncpool._runtime.base.alarm import Alarm
from asyncpool._runtime.base.event_loop import elsewhere
from asyncpool._runtime.base.threads import Threads
from asyncpool._runtime.channel.outbox import NOT_PUT
from asyncpool._runtime.job.chunk_job import Chunk
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.job.outcomes import Failed
from asyncpool._runtime.job.stream_job import JOB_TYPES
from asyncpool._runtime.state.admission import Admission
from asyncpool._runtime.state.pool_state import PoolState
from asyncpool._runtime.traffic.function_tables import FunctionTables
from asyncpool._runtime.traffic.job_control import JobControl
from asyncpool._runtime.traffic.job_timers import Heartbeats, JobTimers
from asyncpool._runtime.traffic.large_jobs import (
    Call,
    LargeObjects,
    too_large,
    unpicklable,
)
from asyncpool._runtime.traffic.stack_dump import LiveStacks, StackDumps
from asyncpool._runtime.worker.handle import WorkerHandle
from asyncpool.enums import JobOutcome
from asyncpool.errors import AsyncPoolError, JobNotPicklableError, ProtocolError

# The stall watch: a look, every few milliseconds, at workers that have several jobs in flight.
#
# Each look is a *round*.  A round finds jobs that others wait behind.

# Seconds from one round to the next.  A running job counts as long if two rounds in succession
# find it with others behind it.
EVERY = 0.004

# Seconds to the next round if an idle worker could take jobs that wait behind a long one.
SOON = 0.0005

# After so many rounds a running chunk of a map counts as long.
_LONG = 2


class StallWatch:
    """The rounds of one pool, as long as there is a reason for them.

    Args:
        state: The pool's state.
        times: Watches how long jobs run.
    """

    def __init__(
        self,
        state: PoolState,
        times: JobTimers,
    ) -> None:
        self._state = state
        self._core = state.core
        self._times = times
        self._alarm = Alarm(state.loop, lambda _: self._check_for_stalls())
        self._soon = False

    @property
    def active(self) -> bool:
        """Whether a next round is set."""
        return self._alarm.is_set

    def go(self) -> None:
        """Set the next round, if none is set."""
        if not self.active:
            self._soon = self._core.unbalanced
            self._alarm.set_in(SOON if self._soon else EVERY)

    def look_soon(self) -> None:
        """Move the next round forward, if a worker has become idle meanwhile."""
        if not self._alarm.is_set or self._soon or not self._core.unbalanced:
            return
        self._alarm.cancel()
        self.go()

    def stop(self) -> None:
        """Make no more rounds."""
        self._alarm.cancel()

    def _check_for_stalls(self) -> None:
        with self._state.turn:
            self._core.endings.check_for_stalls()
        watched = self._look_for_long_chunks()
        if watched or self._core.pipelining:
            self.go()

    def _look_for_long_chunks(self) -> bool:
        """Stop long chunks, so that their other items go elsewhere; return whether to go on."""
        watched = False
        for slot, handle in self._state.handles.items():
            for number in self._core.slots[slot].in_flight.running:
                job = self._state.registry.jobs.get(number)
                if job is None or not isinstance(job, Chunk):
                    continue
                job.rounds += 1
                watched = watched or job.rounds <= _LONG
                if job.rounds == _LONG:
                    handle.page.stop_chunk(job.id, job.attempt)
                    # The item that runs now has the whole time limit, from now on.
                    self._times.begin(job)
        return watched


# How a job with large arguments gets to its worker.
#
# Its large buffers come first, into memory that the worker sees.  ``large_jobs.py`` has pickled them.


class LargeSender:
    """Sends jobs with large arguments.

    Args:
        state: The pool's state.
        large: Pickles the next jobs, when one has left the queue.
        timers: Watch the time limits of a job from when it is sent.
    """

    def __init__(
        self, state: PoolState, large: LargeObjects, timers: JobTimers
    ) -> None:
        self._state = state
        self._large = large
        self._timers = timers
        self._lanes = state.config.worker.concurrency > 1

    def send(
        self, handle: WorkerHandle, job: Job[Any], pickled: OutOfBandPickle
    ) -> None:
        """Put a job's large buffers where its worker sees them, then send the job.

        The worker gets nothing else before.
        """
        send = partial(self._send_loaded, handle, job, job.attempt, pickled)
        handle.outbox.load(pickled, send)
        self._large.go_on()

    def _send_loaded(
        self,
        handle: WorkerHandle,
        job: Job[Any],
        attempt: int,
        pickled: OutOfBandPickle,
    ) -> None:
        """Send a job whose large buffers the worker can see by now."""
        outbox, core = handle.outbox, self._state.core
        # The pool may have been closed meanwhile, which has failed the job.
        if core.slots[handle.slot].in_flight.last == job.id:
            self._state.registry.leases.before_sending(job, handle.slot)
            job._frame_end = outbox.put_job(
                job.id,
                attempt,
                job._function,
                pickled.payload,
                job._context,
                credit=job._credit,
            )
            self._timers.begin(job)
        outbox.flush()
        if self._lanes:
            with self._state.turn as now:
                core.arguments_loaded(handle.slot, now)


_VALUE = FrameKind.VALUE
_MANAGERS = "multiprocessing.managers"
_modules = sys.modules


class Traffic:
    """The jobs of one pool, on their way.

    Args:
        state: The pool's state.
        admission: Checks whether the pool takes a job.
        threads: Pickle large objects.

    Attributes:
        functions: What the pool knows of the functions.
        heartbeats: Reads the heartbeats of jobs.
        stack_dumps: Gets the stacks of workers that will be killed.
        live_stacks: Asks workers where their jobs are.
        job_control: Handles jobs that are cancelled or revoked, and items of streams.
        timers: Watches the time limits of jobs.
    """

    def __init__(
        self, state: PoolState, admission: Admission, threads: Threads
    ) -> None:
        self._state = state
        self._admission = admission
        self._propagation = state.config.propagation
        self._max_payload = state.config.worker.max_payload
        self._bounded = state.config.max_queued is not None
        self._leases = state.registry.leases
        self._sizing = state.core.exits.sizing
        self._concurrency = state.config.worker.concurrency
        self.functions = FunctionTables(
            state.registry.figures.functions, state.config.data
        )
        self._functions = self.functions.usual
        self._large = LargeObjects(state, threads, admission)
        self.heartbeats = Heartbeats(state)
        self.stack_dumps = StackDumps(state)
        self.live_stacks = LiveStacks(state)
        self.job_control = JobControl(state, self._large, self.live_stacks)
        self.timers = JobTimers(
            state, self.heartbeats, self.stack_dumps, self.job_control
        )
        self._large_sender = LargeSender(state, self._large, self.timers)
        state.registry.leases.fence = self._fence
        self._stall_watch = StallWatch(state, self.timers)

    # The way of a job to its worker.

    def submit(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        options: JobOptions,
    ) -> Job[Any]:
        """Queue a call, or send it to a worker at once; return its future."""
        state = self._state
        # Before Python 3.12 it takes 140 ns to ask which loop runs, and this takes 50.
        if get_ident() != state.thread or not state.loop.is_running():
            self._check_home()
        # As a turn does, which would take 1 us more: a job in the queue changes no deadline.
        state.deciding += 1
        try:
            core, registry = state.core, state.registry
            closing, broken = core.closing.finish, core.lifecycle.broken
            if self._bounded or closing is not None or broken is not None:
                try:
                    self._admission.check(options)
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
                number, known, options, self.job_control, state.loop
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
                return self._refuse(job, error)
            if len(payload) > self._max_payload:
                return self._refuse(job, too_large(len(payload), self._max_payload))
            if options.limits.timed or self._leases.coming or state.hub.on_new:
                registry.enter(job)
            else:
                registry.jobs[number] = job
            if options.limits.timed and not self.timers.wait(job):
                return job
            if state.deciding > 1:
                # A listener has called this, say, while a decision is carried out: a worker
                # would get this job before one that it was assigned sooner.
                self._large.put_off(job, payload)
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
                self._admission.note_queued()
            return job
        finally:
            state.deciding -= 1

    def _check_home(self) -> None:
        if asyncio._get_running_loop() is not self._state.loop:  # noqa: SLF001 - no exception if there is none
            raise elsewhere(self._state.config.title)

    def _count_refusal(self, function: Callable[..., Any], options: JobOptions) -> None:
        if options.hold is not None:
            return  # a map tries again when there is room
        self._state.registry.figures.refused += 1
        known = self.functions.of(options).find(function, options.name, options.via)
        known.figures.ended(JobOutcome.REFUSED)

    def _refuse(self, job: Job[Any], error: BaseException) -> Job[Any]:
        """End a job whose call cannot be sent.

        Raises:
            BaseException: What a signal handler may have raised; then the caller gets no job.
        """
        if isinstance(error, SystemExit | KeyboardInterrupt):
            self._state.registry.count_unentered()
            raise error
        if not isinstance(error, JobNotPicklableError):
            error = unpicklable(error)
        self._state.registry.refuse(job, error)
        return job

    def _submit_large(self, job: Job[Any], call: Call) -> Job[Any]:
        """Have a thread pickle a call, which is then queued; return its future."""
        self._state.registry.enter(job)
        if not job._limits.timed or self.timers.wait(job):
            self._large.pack(job, call)
        return job

    def _place(self, job: Job[Any]) -> int | None:
        """Assign a job that needs special treatment; return its slot, or queue it."""
        core = self._state.core
        options = job._options
        if options.bound is not None:
            with self._state.turn:
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
        state, name = self._state, options.name
        totals = state.registry.figures.functions
        figures = totals.of(name, "broadcast")
        function = Function(0, b"", name, figures, serializer)
        job: Job[Any] = Job(
            state.registry.next_id(), function, options, self.job_control, state.loop
        )
        job._payload = payload
        with state.turn:
            state.registry.enter(job)
            if not options.limits.timed or self.timers.wait(job):
                state.core.submit_pinned(slot, job.id)
        return job

    def send(self, slot: int, jobs: Iterable[Job[Any]]) -> None:
        """Send *jobs*, which the core has assigned to *slot*, to its worker."""
        handle = self._state.handles[slot]
        in_flight = len(self._state.core.slots[slot].in_flight.jobs)
        count, worker, outbox, now = 0, handle.pid, handle.outbox, monotonic()
        lanes = self._concurrency > 1
        leases, hub = self._state.registry.leases.open, self._state.hub
        for job in jobs:
            # Counted first, since the worker may die of the job at any moment.
            job.attempt += 1
            job._slot, job.worker_pid = slot, worker
            if lanes:
                job._sent_at = now
            if hub.traced and job.id in hub.traced:
                self._state.registry.watch.sending(job, slot)
            payload = job._payload
            if type(payload) is OutOfBandPickle:
                job._frame_end = NOT_PUT
                self._large_sender.send(handle, job, payload)
            else:
                if leases:
                    self._state.registry.leases.before_sending(job, slot)
                job._frame_end = outbox.put_job(
                    job.id,
                    job.attempt,
                    job._function,
                    payload,
                    job._context,
                    credit=job._credit,
                )
            count += 1
        if self._state.registry.timed:
            self.timers.begin_first(slot)
        if in_flight == count:
            outbox.flush()  # the worker has nothing else to do
            handle.since = now
            if not self._state.loop_lag.active:
                self._state.loop_lag.go()
        else:
            outbox.flush_soon()  # more jobs may come in this turn
        if hub.listened:
            self._tell_begun(slot, now)
        # There is at least one job.
        long = in_flight > self._concurrency or isinstance(job, Chunk)  # pyright: ignore[reportPossiblyUnboundVariable]
        if long and not self._stall_watch.active:
            self._stall_watch.go()

    def _fence(self, job: Job[Any], slot: int, until: float) -> None:
        """Tell a worker until when it may run a job that it has, or will get."""
        handle, in_flight = (
            self._state.handles[slot],
            self._state.core.slots[slot].in_flight,
        )
        # A job that is still loading may never be sent.  Then another job gets its number.
        if job.id in in_flight.jobs and not (
            handle.outbox.loading and in_flight.last == job.id
        ):
            sequence = in_flight.sequence_of(job.id)
            # The clock is the loop's, which all processes of a machine share.
            handle.ask(FrameKind.FENCE, pack_moment(until), sequence)

    # The way of a job back to its caller.

    def on_outcomes(self, handle: WorkerHandle, frames: list[Frame]) -> None:
        """Settle jobs, and give their worker the next ones; part of a decision."""
        state, index = self._state, handle.slot
        core, registry = state.core, state.registry
        handle.since = at = monotonic()
        to_settle = self._take_outcomes(handle, frames, at)
        # The worker gets its next jobs before the pool looks at these outcomes.
        now = state.loop.time()
        core.refill(index, now)
        # Others may have waited for this worker, if it is idle now.
        if core.todo or self._admission.saturated:
            state.performer.act()
        self._stall_watch.look_soon()
        if registry.timed:
            self.timers.begin_first(index)
        if state.hub.listened:
            self._tell_begun(index, at)
        for job, frame in to_settle:
            if (
                frame.kind is _VALUE
                and job._function.serializer is PICKLE
                and job._exceeded is None
                and type(frame.payload) is bytes
            ):
                try:
                    value = pickle.loads(frame.payload)  # noqa: S301 - of a worker without a codec
                except BaseException as error:  # noqa: BLE001 - what is unpickled may raise anything
                    registry.settle(job, Failed(unloadable(error), may_retry=False))
                else:
                    registry.returned(job, value)
            elif registry.settle(job, registry.outcome_of(job, handle, frame)):
                core.requeue({job.id: job._traits}, now)
                state.performer.act()

    def _tell_begun(self, slot: int, at: float) -> None:
        """Tell those who listen which jobs of a worker have begun by now."""
        registry = self._state.registry
        running = self._state.core.slots[slot].in_flight.running
        jobs = (registry.jobs[number] for number in running if number in registry.jobs)
        registry.watch.running(jobs, slot, at)

    def _take_outcomes(
        self, handle: WorkerHandle, frames: list[Frame], at: float
    ) -> list[tuple[Job[Any], Frame]]:
        """Take jobs off their worker; return those that still have to be settled."""
        state, slot = self._state, handle.slot
        registry, hub = state.registry, state.hub
        jobs, telling = registry.jobs, hub.telling
        numbers: list[int] = []
        for frame in frames:
            number = frame.job
            if number in jobs and jobs[number].attempt != frame.attempt:
                job = jobs[number]
                handle.distrust(f"it sent attempt {frame.attempt} of {job!r}")
                break
            numbers.append(number)
        taken = state.core.slots[slot].in_flight
        before = taken.ended
        try:
            state.core.outcome(slot, *numbers)
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
                self.timers.end(job)
                self._large.unpack(job, frame, handle)
            else:
                to_settle.append((job, frame))
        return to_settle

    def on_exit(self, handle: WorkerHandle) -> None:
        """Use outcomes that a worker noted on its page and could not send before it died."""
        noted = handle.page.outcomes()
        if not noted or handle.broke_protocol:
            return
        frames: list[Frame] = []
        for number in self._state.core.slots[handle.slot].in_flight.running:
            job = self._state.registry.jobs.get(number)
            frame = None if job is None else noted.get((number, job.attempt))
            if frame is not None:
                frames.append(frame)
        if frames:
            with self._state.turn:
                self.on_outcomes(handle, frames)

    def stop(self) -> None:
        """Stop all timers."""
        self.timers.stop()
        self.job_control.stop()
        self._stall_watch.stop()
        self.heartbeats.stop()


def _keep(_args: object, _kwargs: object, _: object) -> None:
    """Do nothing.  The callback keeps the arguments alive until the job is done."""
