"""The open jobs of a pool, how each of them ends, and the figures of its life.

Every end of a job goes through :class:`JobRegistry`, which removes the job in the same
step.  So each job ends once.
"""

from __future__ import annotations

import operator
import pickle
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from time import monotonic
from typing import TYPE_CHECKING, Any

from asyncpool import errors
from asyncpool._core.deadlines import Deadlines
from asyncpool._core.figures import Durations, FunctionTotals
from asyncpool._core.options import Keeper
from asyncpool._engine.hub import PoolHub
from asyncpool._engine.job import (
    ChunkJob,
    Failed,
    Holder,
    PoolJob,
    StreamJob,
    attribute_to,
    load_outcome,
)
from asyncpool._engine.worker import WorkerHandle
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.messages import with_parts
from asyncpool._wire.pickling import PICKLE, unloadable, unpicklable
from asyncpool.enums import CrashKind, Delivery, JobOutcome, TimeLimit
from asyncpool.events import CloseSummary
from asyncpool.stats import ClientStats

if TYPE_CHECKING:
    from asyncpool._engine.engine import Engine


_VALUE = FrameKind.VALUE


def timed_out(job: PoolJob[Any], handle: WorkerHandle) -> Failed:
    """Return the error of a job that has exceeded a time limit, whatever has ended it since."""
    error = timeout_error(job, take_stack(job, handle))
    return Failed(error, may_retry=job.exceeded is not TimeLimit.DEADLINE)


# What a pool counts while it lives; nothing depends on it.


class PoolFigures:
    """The counters and histograms of one pool.

    Attributes:
        functions: The jobs that have ended, by function.
        refused: Calls that the pool did not take.
        spawned: Processes that were started.
        starts: How long they took until they were ready.
        crash_kinds: The crashes, by kind.
        exits: The ends of workers, by cause; see ``_core/slots.py``.
        lost_clients: Clients of a shared pool that were gone, or not heard, with jobs open.
        refused_clients: Clients of a shared pool that did not come in, or were cut off.
        exited_cpu: Seconds of CPU time of the processes that are gone.
        agents: Each returns the figures of the clients that an agent has.
    """

    def __init__(self) -> None:
        self.agents: list[Callable[[], list[ClientStats]]] = []
        self.functions = FunctionTotals()
        self.refused = self.spawned = 0
        self.lost_clients = self.refused_clients = 0
        self.starts = Durations()
        self.crash_kinds: Counter[CrashKind] = Counter()
        self.exits: Counter[str] = Counter()
        self.exited_cpu = 0.0


def outcome_of_error(error: BaseException) -> JobOutcome:
    """Return how a job has ended that its pool has failed with *error*."""
    if isinstance(error, errors.JobTimeoutError):
        return JobOutcome.TIMEOUT
    if isinstance(error, errors.WorkerCrashedError):
        return JobOutcome.CRASHED
    if isinstance(error, errors.JobNotPicklableError):
        return JobOutcome.REFUSED
    return JobOutcome.ABORTED


# The leases of a pool's jobs: the keeper keeps each until no worker runs its job any more.
#
# When a job is cancelled, or too late, it is done for its caller at once.  It may still run in
# its worker: until it has cleaned up, until the worker is dead, or until its normal end.  If
# another service got the lease meanwhile, both would do the same work at the same time.  So a
# keeper does not keep the lease for the job, but for its *holder*.  The holder is done when the
# job is settled and no worker has it in flight.
#
# If a keeper knows how long a lease lasts, it tells the holder when the lease lapses, and the
# holder tells the worker that has the job.  If the job still runs at that moment, the worker ends
# itself.  It needs no other process for that, since it knows the moment before it gets the job.


class Leases:
    """The holders of leases in one pool.

    Attributes:
        holders: Those whose jobs are open, or still in flight, by the jobs' numbers.
        fence: Tells the worker in a slot until when it may run a job; whoever has workers sets it.
    """

    fence: Callable[[PoolJob[Any], int, float], object]

    def __init__(self) -> None:
        self.holders: dict[int, Holder] = {}
        # Those of calls whose jobs are not open yet, by keeper and lease.
        self._pending: dict[tuple[Keeper, Hashable], Holder] = {}

    def submit(
        self, name: Hashable, submit: Callable[..., PoolJob[Any]], *call: Any
    ) -> PoolJob[Any]:
        """Submit a job; the keeper takes its lease, or refuses it, before the job can begin.

        Args:
            name: The lease, by what its keeper calls it.
            submit: Submits the call.
            *call: The call; its options are last.
        """
        lease: tuple[Keeper, Hashable] = call[-1].lease
        holder = Holder(self.fence)
        lease[0].keep(name, holder)
        self._pending[lease] = holder
        try:
            job = submit(*call)
        except BaseException:
            holder.release()
            raise
        finally:
            self._pending.pop(lease, None)
        if job.done():
            holder.release()
        return job

    def enter(self, job: PoolJob[Any], lease: tuple[Keeper, Hashable]) -> None:
        """Connect the holder with its job, before a worker gets that."""
        holder = self._pending.pop(lease, None)
        # A hostile client may ask for a lease in a session, whose calls have none.
        if holder is not None:
            self.holders[job.id] = holder
            holder.job = job

    def before_sending(self, job: PoolJob[Any], slot: int) -> None:
        """Tell the worker in *slot* until when it may run a job, if that is known."""
        holder = self.holders.get(job.id)
        if holder is not None and holder.until is not None:
            self.fence(job, slot, holder.until)

    def settle(self, job: PoolJob[Any]) -> None:
        """Note that an open job is settled; a worker may still have it."""
        holder = self.holders.get(job.id)
        if holder is not None:
            holder.slot = job.slot
            if job.slot is None:
                self.holders.pop(job.id).release()

    def left_worker(self, number: int) -> None:
        """Note that no worker has this job any more, if it is settled."""
        holder = self.holders.get(number)
        if holder is not None and holder.slot is not None:
            self.holders.pop(number).release()

    def worker_gone(self, slot: int | None = None) -> None:
        """Note that the worker in *slot*, or each, has nothing in flight any more."""
        for number, holder in list(self.holders.items()):
            if slot in {None, holder.slot}:
                self.left_worker(number)


# Errors that are made before it is known which job they are for; attribute_to() fills that in.
_UNATTRIBUTED = errors.JobNotPicklableError | errors.JobRaisedError | errors.RemoteError


class JobRegistry:
    """The jobs that are open, by number, and the counters of all.

    Args:
        hub: Where their events go.

    Attributes:
        jobs: The jobs, in the order in which they came.
        figures: The other counters and histograms of the pool.
        submitted: How many jobs got a number.
        failed: How many jobs the pool has failed.
        deadlines: When the time of each job is over.
        timed: How many open jobs have time limits.
        leases: The holders of their leases.
        on_unassigned: Called when a job has left its worker without having begun.
        unheard: How many jobs failed with the end of the pool while nobody waited for them,
            by function.
    """

    def __init__(self, hub: PoolHub) -> None:
        self._hub = hub
        self.jobs: dict[int, PoolJob[Any]] = {}
        self.leases = Leases()
        self.deadlines: Deadlines[int] = Deadlines()
        self.timed = 0
        self.unheard: Counter[str] = Counter()
        self.figures = PoolFigures()
        self.submitted = self.failed = self._raised = 0
        self.on_unassigned: Callable[[], object] = lambda: None
        self._at_close: tuple[int, int, int] | None = None

    @property
    def completed(self) -> int:
        """How many jobs have returned or raised."""
        return self._raised + sum(it.ok for it in self.figures.functions)

    def next_id(self) -> int:
        """Return the number of the next job, from 1."""
        self.submitted += 1
        return self.submitted

    def enter(self, job: PoolJob[Any]) -> None:
        """Add a job to those that are open."""
        self.jobs[job.id] = job
        if job.options.timed:
            self.timed += 1
        if (lease := job.options.lease) is not None:
            self.leases.enter(job, lease)
        if self._hub.announces_jobs:
            self._hub.queued(job)

    def refuse(self, job: PoolJob[Any], error: BaseException) -> PoolJob[Any]:
        """End a job whose call cannot be sent, and which was never entered; return it.

        Raises:
            BaseException: What a signal handler may have raised; then the caller gets no job.
        """
        self.failed += 1
        if isinstance(error, SystemExit | KeyboardInterrupt):
            raise error
        if not isinstance(error, errors.JobNotPicklableError):
            error = unpicklable(error)
        attribute_to(error, job)
        job.function.figures.ended(JobOutcome.REFUSED)
        self._hub.job_ended(job, JobOutcome.REFUSED, error)
        job.set_exception(error)
        return job

    def outcome_of(self, job: PoolJob[Any], handle: WorkerHandle, frame: Frame) -> Any:
        """Return the outcome of a job, see :func:`load_outcome`; an error if it is too late.

        If the worker cannot have sent such an outcome, it is not trusted any more.
        """
        serializer = job.function.serializer
        if job.exceeded is None:
            result = load_outcome(serializer, frame)
            if type(result) is Failed:
                self._hub.failed(job, handle.slot, frame, handle.since)
                if result.distrust:
                    handle.distrust(result.distrust)
            return result
        self._hub.failed(job, handle.slot, frame, handle.since)
        if isinstance(job, ChunkJob):
            result = load_outcome(serializer, frame)
            if isinstance(result, Failed):  # the outcome cannot be read
                job.assume_lost()
            else:
                job.find_in_result(result)
        return timed_out(job, handle)

    def settle_all(
        self,
        taken: Iterable[PoolJob[Any] | None],
        frames: Iterable[Frame],
        handle: WorkerHandle,
        at: float,
        *,
        large: bool,
    ) -> list[PoolJob[Any]]:
        """End jobs with their outcomes; return those that are to be tried again.

        Args:
            taken: The jobs, and ``None`` in place of those that are settled, or will be.
            frames: Their outcomes.
            handle: Their worker.
            at: When the outcomes came, by :func:`time.monotonic`.
            large: Whether an outcome may be large, and in several parts.
        """
        jobs = self.jobs
        again: list[PoolJob[Any]] = []
        careful = large or self.leases.holders or self._hub.tracks_jobs
        timed = self.timed
        # Most of them are of one function, whose parts are looked up once.
        function: Any = None
        run_times = wait_times = function
        fast, returned = False, 0
        for job, frame in zip(taken, frames, strict=False):
            if job is None:
                continue
            kind, job_id, _, run_us, payload = frame
            job.slot = None
            if job.function is not function:
                if returned:
                    function.figures.ok += returned
                function, returned = job.function, 0
                run_times, wait_times = function.figures.run, function.figures.wait
                fast = function.serializer is PICKLE and not careful
            # Durations.note(), inlined twice: its calls would double the cost.
            run_times.counts[run_us.bit_length()] += 1
            run_times.total += run_us
            wait = int((at - job.queued_at) * 1e6) - run_us
            if wait > 0:
                wait_times.counts[wait.bit_length()] += 1
                wait_times.total += wait
            else:
                wait_times.counts[0] += 1
            if not fast or kind is not _VALUE or (timed and job.exceeded is not None):
                if self.settle(job, self.outcome_of(job, handle, Frame(*frame))):
                    again.append(job)
                continue
            try:
                value = pickle.loads(payload)  # noqa: S301 - as load_value()
            except BaseException as error:  # noqa: BLE001 - what is unpickled may raise anything
                self.settle(job, Failed(unloadable(error), may_retry=False))
                continue
            if job.done():  # as in settle()
                self.remove_done(job)
                continue
            # The rest of settle(), inlined.
            del jobs[job_id]
            if timed and job.options.timed:
                self.timed -= 1
                self.deadlines.discard(job_id)
            job.payload = b""
            returned += 1
            job.set_result(value)
        if returned:
            function.figures.ok += returned
        return again

    def settle(self, job: PoolJob[Any], loaded: Any) -> bool:
        """End *job* with its outcome; or return true, if the job is to be tried again.

        Args:
            job: The job.
            loaded: What :func:`load_outcome` made of the outcome.
        """
        if job.done():  # by a callback of a job before it in this read
            self.remove_done(job)
            return False
        if type(loaded) is not Failed:
            self._remove(job)
            job.function.figures.ok += 1
            if self._hub.tracks_jobs:
                self._hub.job_ended(job, JobOutcome.OK)
            job.set_result(loaded)
            return False
        error = loaded.error
        raised = error.exception if isinstance(error, errors.JobRaisedError) else error
        attempt, policy = job.attempt, job.attempt_policy
        if loaded.may_retry and policy.after_exception(raised, attempt=attempt):
            job.function.figures.retries += 1
            self.lose_attempt(job)
            self._hub.attempt_failed(job, error)
            return True
        if isinstance(error, _UNATTRIBUTED):
            attribute_to(error, job)
        self._raised += 1
        over = job.exceeded is not None
        self._end(job, JobOutcome.TIMEOUT if over else JobOutcome.RAISED, error)
        job.set_exception(error)
        return False

    def lose_attempt(self, job: PoolJob[Any]) -> None:
        """Note that an attempt of an open job is lost, and that it waits for the next one."""
        self.end_attempt(job)
        if isinstance(job, StreamJob):
            job.begin_again()

    def unassign(
        self, job: PoolJob[Any], *, suspect: bool = False, costs: bool = False
    ) -> None:
        """Note that an open job has left a worker that has not begun it.

        Args:
            job: The job.
            suspect: Whether the worker died, and the job may be the cause.
            costs: Whether the attempt counts all the same.
        """
        job.times_suspected += suspect
        job.attempt -= not costs
        self._leave_worker(job)
        self._hub.unassigned(job)
        self.on_unassigned()

    def end_attempt(self, job: PoolJob[Any]) -> None:
        """Note that an attempt that had begun is over; the next one would wait from now on."""
        job.queued_at, job.began_earlier = monotonic(), True
        self._leave_worker(job)

    def _leave_worker(self, job: PoolJob[Any]) -> None:
        job.slot = None
        if job.heartbeats is not None:
            job.context = with_parts(job.context, details=job.heartbeats.details)
        if job.began is not None:  # its time counted as that of a running job
            job.began = job.exceeded = None
            self.deadlines.set(job.id, job.options.deadline)

    def fail(self, job: PoolJob[Any], error: BaseException) -> None:
        """End *job* without an outcome."""
        if job.done():
            self.remove_done(job)
            return
        self.failed += 1
        self._end(job, outcome_of_error(error), error)
        closed = isinstance(error, errors.PoolClosedError)
        if closed and not job.awaited:
            self.unheard[job.title] += 1
        job.set_exception(error)
        if closed:
            job.exception()  # marks it as retrieved: one line in the log tells of all

    def fail_all(self, error: BaseException) -> None:
        """End every job that is still open."""
        for job in list(self.jobs.values()):
            self.fail(job, error)

    def remove_done(self, job: PoolJob[Any]) -> bool:
        """Remove *job*, and return whether it was still open."""
        if job.id not in self.jobs:
            return False
        self._end(job, JobOutcome.CANCELLED)
        return True

    def mark_close(self, kills: int) -> None:
        """Begin to count what a close does; only the first call counts."""
        if self._at_close is None:
            self._at_close = (self.completed, self.failed, kills)

    def summary(self, kills: int) -> CloseSummary:
        """Return what has happened since :meth:`mark_close`."""
        now = self.completed, self.failed, kills
        finished, failed, killed = map(operator.sub, now, self._at_close or (0, 0, 0))
        return CloseSummary(finished=finished, failed=failed, killed=killed)

    def _end(
        self, job: PoolJob[Any], outcome: JobOutcome, error: BaseException | None = None
    ) -> None:
        """Remove a job that has not returned, and tell its end."""
        self._remove(job)
        job.function.figures.ended(outcome)
        self._hub.job_ended(job, outcome, error)

    def _remove(self, job: PoolJob[Any]) -> None:
        del self.jobs[job.id]
        if job.options.timed:
            self.timed -= 1
            self.deadlines.discard(job.id)
        if self.leases.holders:
            self.leases.settle(job)
        job.slot, job.payload = None, b""


# The errors that the pool gives to a job, and what they tell of its worker.

_ERRORS: dict[CrashKind, type[errors.WorkerCrashedError]] = {
    CrashKind.FAILED_START: errors.WorkerStartError,
    CrashKind.OUT_OF_MEMORY: errors.WorkerOutOfMemoryError,
    CrashKind.HUNG: errors.WorkerHungError,
}


def _fields_of(job: PoolJob[object]) -> dict[str, Any]:
    """Return what each of them tells of the job itself."""
    return {"job_id": job.id, "function": job.function.name}


def take_stack(job: PoolJob[object], handle: WorkerHandle) -> str:
    """Return the stack of a job that its worker has written, and erase it."""
    parts = (handle.page.stack(job.id, job.attempt), handle.page.take_stacks())
    return "\n".join(part for part in parts if part)


def delivery_of(job: PoolJob[object], handle: WorkerHandle) -> Delivery:
    """Return how far *job*, which was assigned to a worker, has got on its way."""
    if handle.page.begun(job.id, job.attempt):
        return Delivery.STARTED
    # A worker that has a part of the frame cannot begin the job.
    taken = job.frame_end <= handle.outbox.sent_bytes
    return Delivery.SENT if taken else Delivery.NEVER_SENT


def crash_error(job: PoolJob[object], delivery: Delivery) -> errors.WorkerCrashedError:
    """Return the error of a job whose worker has crashed."""
    if job.began_earlier:
        delivery = Delivery.STARTED  # in an earlier attempt, if not in this one
    cls = _ERRORS.get(job.crashes[-1].kind, errors.WorkerCrashedError)
    return cls(crashes=job.crashes, delivery=delivery, **_fields_of(job))


def timeout_error(job: PoolJob[object], stack: str = "") -> errors.JobTimeoutError:
    """Return the error of a job that has exceeded a time limit.

    Args:
        job: The job; it is noted there which limit it has exceeded.
        stack: What it did then, if it ran.
    """
    limit = job.exceeded
    assert limit is not None
    seconds = getattr(job.options, limit)
    attempt = job.attempt if job.began is not None else 0
    return errors.JobTimeoutError(
        attempt=attempt, limit=limit, seconds=seconds, stack=stack, **_fields_of(job)
    )


def expired_error(job: PoolJob[object], now: float) -> errors.JobTimeoutError:
    """Note which of its limits a job has exceeded *now*, and return its error."""
    job.exceeded = job.options.exceeded(now, running=job.began is not None)
    return timeout_error(job)


def closed_error(
    job: PoolJob[object], handles: Mapping[int, WorkerHandle]
) -> errors.PoolClosedError:
    """Return the error of a job whose pool closes before the job is done.

    Args:
        job: The job.
        handles: The workers by slot, one of which may have it.
    """
    delivery, earlier_attempts = Delivery.NEVER_SENT, job.attempt
    if job.slot is not None:
        delivery = delivery_of(job, handles[job.slot])
        earlier_attempts -= 1
    if earlier_attempts > 0:
        # It had begun before.  Or it has ended, and its outcome is being unpickled.
        delivery = Delivery.STARTED
    which = errors.job_text(job.id, job.function.name)
    text = f"the pool was closed before {which} was done"
    return errors.PoolClosedError(text, delivery=delivery, **_fields_of(job))


def broken_errors(
    engine: Engine,
) -> Callable[[PoolJob[object] | None], errors.PoolBrokenError]:
    """Return what makes the errors of a broken pool, for each of its jobs or for a caller.

    All of them tell what is known now.  The pool may have recovered before the last one is made.
    """
    reason, crashes = engine.core.broken or "", tuple(engine.crashes)
    retry_after = engine.core.lifecycle.retry_in(engine.loop.time())

    def error_of(job: PoolJob[object] | None) -> errors.PoolBrokenError:
        error = errors.PoolBrokenError(
            reason=reason, crashes=crashes, retry_after=retry_after
        )
        if job is not None and crashes[-1].kind is CrashKind.FAILED_START:
            error.__cause__ = errors.WorkerStartError(
                crashes=crashes[-1:], delivery=Delivery.NEVER_SENT, **_fields_of(job)
            )
        return error

    return error_of
