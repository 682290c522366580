"""Everything that a pool decides, and nothing that it does.

The engine (``_engine``) does the I/O.  It tells the core what has happened, by one call
for each event.  A call returns what its caller needs to know.  What is to be done it
appends to :attr:`Core.todo`, and does none of it: a future's callback would come back
into a half-changed state.  The engine carries it out, in its order, when the call has
returned.  It never waits for the result of an effect: the result comes with a later call.
Times are arguments, and :meth:`Core.next_deadline` says when to call
:meth:`Core.on_timer`.

The hot path is :meth:`Core.submit`, which returns the slot to send the job to,
:meth:`Core.outcome` and :meth:`Core.refill`.

Effects are tuples: a name, and arguments.  A slot is given by its index.

=================================== ==============================================================
``spawn, slot, generation``         start a worker
``assign, slot, jobs``              send jobs to a worker, in this order
``unassign, jobs``                  the jobs are with no worker any more, and have not begun;
                                    the callers may have given up some of them before
``drop_pinned, jobs``               forget jobs that were pinned to a worker which goes
``offer, slot, session``            give the worker to the caller that has waited longest, as *session*
``end_session, session, jobs``      the session's worker is gone, and its waiting jobs fail
``refuse_sessions``                 refuse all callers that wait for a session
``revoke, slot, sequences``         ask a worker not to begin these jobs
``interrupt, slot, sequence``       ask a worker to end a running job
``write_stacks, slot, job``         have a worker write the stacks of its threads, and of the
                                    coroutine of *job*, if it is not ``None``
``stop, slot``                      tell a worker that it gets no more jobs
``terminate, slot``                 send SIGTERM to a worker
``kill, slot, reason``              send SIGKILL to a worker and to all that it has started
``abandon, slot``                   wait no longer for the end of a process
``fail_jobs, jobs, why``            there will be no outcome: closed, broken or expired
``restarting, slot, delay``         tell that the next worker starts in *delay* seconds
``parked, slot, reason, delay``     tell that a slot stays empty until starts succeed again;
                                    the next start is tried in *delay* seconds, if ever
``left_empty, slot``                tell that no worker follows, since none is needed
``draining, slot, reason``          tell that a worker gets no more jobs
``resized, workers``                tell that the pool should have so many workers now
``roll_ended, replaced, why, filled``  a roll is over; *why* says what stopped it, if anything,
                                    and *filled* how many slots that had no worker have one
``broken, reason``                  refuse jobs, since no worker can be started
``recovered, slot``                 tell that starts succeed again
``finished``                        every slot is removed, no job is open
=================================== ==============================================================
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Literal

from asyncpool._core import checks
from asyncpool._core.checks import option
from asyncpool._core.deadlines import earliest
from asyncpool._core.dispatcher import Dispatcher
from asyncpool._core.endings import STACK_GRACE, Closing, Endings
from asyncpool._core.functions import PINNED, JobTraits, SessionTraits
from asyncpool._core.lifecycle import STOP_GRACE, Aftermath, Lifecycle
from asyncpool._core.options import RestartPolicy, WorkerLimits
from asyncpool._core.slots import ALIVE, UP, Slot, SlotEvent, StopStage
from asyncpool._dataclass import dataclass
from asyncpool._wire.page import MAX_LANES
from asyncpool.enums import SlotState


def _restart_policy(name: str, value: Any) -> Any:
    policy = RestartPolicy() if value is None else value
    return checks.Argument((RestartPolicy,), "a RestartPolicy")(name, policy)


def _concurrency(name: str, value: int) -> int:
    if checks.at_least(1)(name, value) > MAX_LANES:
        text = f"{name} must be at most {MAX_LANES}, not {value}"
        raise ValueError(f"{text}: have more workers instead")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreOptions:
    """The options that a core decides by.

    Attributes:
        workers: The least and the greatest number of workers.
        restart_policy: When a dead worker is replaced.
        worker_limits: When workers are due for recycling.
        start_timeout: Seconds that a worker has to become ready.
        idle_timeout: After how many seconds an idle worker goes, if the size may
            shrink.
        concurrency: How many jobs each worker runs at once.
        max_surge: How many workers there may be beyond the size of the pool during
            planned exits.
        max_unavailable: How many workers may be missing during planned exits.
        stop_grace: Seconds that a stopped worker has to end by itself.
        end_grace: The same if the whole pool ends; ``None`` for *stop_grace*.
        serving: Makes a cluster's ``Service`` (``_cluster/service.py``), whose workers serve as
            long as they live, and have no jobs.  The core treats them as idle.
    """

    workers: tuple[int, int]
    restart_policy: RestartPolicy = option(_restart_policy)
    worker_limits: WorkerLimits
    start_timeout: float = option(checks.PERIOD)
    idle_timeout: float = option(checks.PERIOD, 60.0)
    concurrency: int = option(_concurrency, 1)
    max_surge: int = option(checks.at_least(0), 1)
    max_unavailable: int = option(checks.at_least(0), 0)
    stop_grace: float = STOP_GRACE
    end_grace: float | None = None
    serving: Callable[..., Any] | None = None


# Workers that certain jobs need: pinned jobs, sessions, keys.
#
# A *pinned* job is for one given worker, which begins it before any other.  Such jobs wait
# at their slot, never in the queue.  If the worker goes before it has begun such a job,
# the pool drops the job.
#
# A caller that asks for a *session* gets the next idle worker.  While callers wait, the
# pool holds back as many workers as are wanted: it sends them no job of the queue, so
# that they finish what they have in flight.  The first worker that has finished goes to a
# caller.  From then on until the session ends, the worker runs only the session's
# *calls*, one after the other, and pinned jobs.
#
# A worker that is to be replaced stays until its session is over.  If the worker dies, or
# a call retires it, that ends the session.
#
# A *bucket* is a number that stands for one worker.  The keys of jobs are divided among
# the buckets (``dispatcher.py``).  A bucket passes from a worker to the one that
# follows it:
#
# * If a worker ends and another one follows at once in its slot, that one gets the
#   bucket.  Jobs wait for it, since it is there within milliseconds.
# * A replacement, which starts in an unused slot, gets the bucket when it is ready and
#   the old worker leaves.
# * A worker that belongs to a session has no bucket meanwhile.
# * If no worker follows at once, the bucket is given up, and its keys go to their next
#   choices.  That is so if there is a backoff, if the slot is parked or not needed, or if
#   a worker leaves before its replacement is ready.  A worker that is ready and has no
#   bucket takes the lowest free one.  Most likely that is the one that was given up, so
#   its keys come back, and no other keys move.
#
# A worker that is started because the pool grows has no bucket before it is ready.  The
# workers with which a pool begins have theirs from the start.  Otherwise all keys would
# first belong to the first worker that is ready, and then move.


class Affinity:
    """The pinned jobs of a pool, its sessions, and its buckets.

    Args:
        core: The core of the pool.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._slots = core.slots
        self._dispatcher = core.dispatcher
        self._numbers = itertools.count(1)
        # Slots that are held back, and still have jobs in flight.
        self._held: set[int] = set()

    # Pinned jobs.

    def pin(self, index: int, job: int) -> None:
        """Have the worker in slot *index*, and no other one, run *job* before all others.

        The worker begins it as soon as it has nothing else in flight.  Several pinned
        jobs begin in the order of these calls.
        """
        slot = self._slots[index]
        slot.pinned.append(job)
        self._dispatcher.exclude(slot.index)
        self.begin_own_job(slot)

    def drop_pinned(self, slot: Slot) -> None:
        """Drop the pinned jobs of *slot*, since its worker goes."""
        pinned_jobs = tuple(slot.pinned)
        slot.pinned.clear()
        if pinned_jobs:
            self._core.end_jobs(pinned_jobs, "drop_pinned", pinned_jobs)

    def discard(self, job: int) -> Slot | None:
        """Forget *job* if it is a pinned job or a session's call, and return its slot."""
        for slot in self._slots:
            for jobs in (slot.pinned, slot.calls):
                if job in jobs:
                    jobs.remove(job)
                    return slot
        return None

    def take_all(self) -> dict[int, Slot]:
        """Forget all pinned jobs, and all calls of sessions; return them, each with its slot."""
        jobs: dict[int, Slot] = {}
        for slot in self._slots:
            jobs |= dict.fromkeys((*slot.pinned, *slot.calls), slot)
            slot.pinned.clear()
            slot.calls.clear()
        return jobs

    # Sessions begin.

    def request_session(self) -> None:
        """Offer the next idle worker to a caller that waits for a session."""
        self._dispatcher.session_waiters += 1
        self.grant_waiting()
        self.update_buckets()

    def cancel_session_request(self, now: float) -> None:
        """Record that a caller that waited wants no session any more."""
        self._dispatcher.session_waiters -= 1
        self._feed_spare(now)

    def grant_waiting(self) -> None:
        """Offer idle workers to callers that wait.

        A worker is offered when it becomes idle.  But a worker that was to be replaced,
        and stays because its replacement has failed, is idle already.
        """
        for index in [*reversed(self._dispatcher.idle)]:
            slot = self._slots[index]
            if self._dispatcher.session_waiters and self._is_grantable(slot):
                self._offer(slot)

    def hold_back(self, slot: Slot, now: float) -> bool:
        """Give the worker of *slot*, which could get jobs now, to a session that waits; or hold it back.

        Returns:
            Whether it is a caller's now, or is held back for one, and so gets no job.
        """
        if not self._is_grantable(slot):
            self._held.discard(slot.index)
            return False
        if not slot.in_flight.jobs:
            self._offer(slot)
        elif slot.index not in self._held:
            # Workers that have begun to end meanwhile are of no use.
            self._held = {n for n in self._held if self._may_free_up(self._slots[n])}
            if len(self._held) >= self._dispatcher.session_waiters:
                return False
            self._held.add(slot.index)
            self._dispatcher.exclude(slot.index)
        self.update_buckets()
        self._feed_spare(now)
        return True

    def _feed_spare(self, now: float) -> None:
        """Give jobs again to workers that were held back for sessions nobody wants any more."""
        spare = sorted(self._held)[self._dispatcher.session_waiters :]
        self._held.difference_update(spare)
        for index in spare:
            self._core.refill(index, now)

    def refuse_sessions(self, now: float) -> None:
        """Refuse all callers that wait for a session.

        Workers that were held back for them have room for jobs that are tried again.
        """
        wanted, self._dispatcher.session_waiters = self._dispatcher.session_waiters, 0
        if wanted:
            self._core.do("refuse_sessions")
        self._feed_spare(now)

    def _offer(self, slot: Slot) -> None:
        self._dispatcher.session_waiters -= 1
        self._dispatcher.exclude(slot.index)
        self._held.discard(slot.index)
        slot.session = next(self._numbers)
        self._core.do("offer", slot.index, slot.session)

    def _is_grantable(self, slot: Slot) -> bool:
        # A worker whose replacement is starting is about to leave.  So is a worker that
        # may run no more jobs.
        return not slot.in_flight.exhausted and not any(
            other.replaces == slot.index for other in self._slots
        )

    def _may_free_up(self, slot: Slot) -> bool:
        ends = slot.faulty or slot.job_endings.killing is not None
        return slot.stays and not ends and self._is_grantable(slot)

    # Pinned jobs and sessions go on.

    def queue_call(
        self, job: int, traits: SessionTraits, *, again: bool = False
    ) -> None:
        """Run *job* in the worker of its session, after the session's other calls.

        A job that comes *again*, and has not begun, goes before them.
        """
        slot = self._slot_of(traits.session)
        if slot is None:
            self._core.end_jobs((job,), "end_session", traits.session, (job,))
        elif again:
            slot.calls.appendleft(job)
        else:
            slot.calls.append(job)
            self.begin_own_job(slot)

    def _slot_of(self, session: int) -> Slot | None:
        return next((slot for slot in self._slots if slot.session == session), None)

    def begin_own_job(self, slot: Slot) -> None:
        """Begin what only the worker of *slot* may run, if it has nothing in flight."""
        if slot.in_flight.jobs or slot.state not in UP or slot.hung or slot.draining:
            return
        if slot.pinned:
            job, traits = slot.pinned.popleft(), PINNED
            # It does not count towards max_jobs: each replacement would also have one, and
            # go again.
            slot.in_flight.max_sent += 1
        elif slot.calls:
            assert slot.session is not None
            job, traits = slot.calls.popleft(), SessionTraits(slot.session)
        else:
            return
        slot.in_flight.add(job, traits)
        slot.mark_busy()
        self._core.do("assign", slot.index, (job,))

    # Sessions lose their worker, and end.

    def gone(self, slot: Slot) -> None:
        """Record that the worker of *slot* is gone."""
        self._held.discard(slot.index)
        if slot.session is not None:
            session, calls, slot.session = slot.session, tuple(slot.calls), None
            slot.calls.clear()
            self._core.end_jobs(calls, "end_session", session, calls)

    def break_off(self, now: float) -> None:
        """Record that the pool is broken: refuse all callers that wait."""
        self._held.clear()  # the workers get jobs again when the pool has recovered
        self.refuse_sessions(now)

    def end_session(self, session: int, now: float, *, fresh: bool) -> None:
        """Return the worker of *session* to the pool, or replace it by a *fresh* one.

        Its calls that still wait are dropped.
        """
        slot, core = self._slot_of(session), self._core
        if slot is None:
            return  # it is over already
        slot.session = None
        slot.calls.clear()
        if fresh and slot.ready_at is not None:
            core.lifecycle.drain(slot, "session", now)
        elif slot.in_flight.exhausted and slot.state is SlotState.IDLE:
            core.lifecycle.drain_now(slot, "max_jobs", now)
        elif slot.state in UP:
            self.assign_bucket(slot)
            if slot.state is SlotState.IDLE and not slot.hung:
                slot.idle_since = now
                core.give_next(slot, now)
        core.after_change(now)

    # Buckets.

    def assign_bucket(self, slot: Slot) -> None:
        """Give a bucket to the worker of *slot*, which is ready; then update all of them."""
        if slot.bucket is None and slot.replaces is not None:
            old = self._slots[slot.replaces]
            slot.bucket, old.bucket = old.bucket, None
        if slot.bucket is None:
            taken = {other.bucket for other in self._slots}
            slot.bucket = min(set(range(len(self._slots))) - taken)

    def update_buckets(self) -> None:
        """Free the buckets that were given up, and move jobs to where their keys belong now."""
        slots_by_bucket = {}
        for slot in self._slots:
            if slot.draining or slot.session or slot.state not in ALIVE:
                slot.bucket = None
            elif slot.bucket is not None:
                slots_by_bucket[slot.bucket] = slot.index
        self._core.assign(self._dispatcher.assign_buckets(slots_by_bucket))


class Core:
    """The state of a pool, as far as decisions depend on it.

    Args:
        options: What it decides by.

    Attributes:
        options: As above.
        concurrency: How many jobs each worker runs at once.
        serving: Whether workers serve, and have no jobs.
        todo: What is to be done; see above.
        slots: Every slot.
        dispatcher: The jobs that have no worker, and which workers may have them.
        lifecycle: How workers start in the slots, are replaced, and end; and how many there are.
        affinity: The jobs that need one particular worker: pinned ones, calls of sessions, jobs with keys.
        endings: The jobs that the pool ends.
        closing: The end of the pool.
    """

    def __init__(self, options: CoreOptions) -> None:
        self.options = options
        self.concurrency = options.concurrency
        self.serving = options.serving is not None
        self.todo: list[tuple[Any, ...]] = []
        # During ended(): the jobs that can have no other worker.
        self._unplaceable: set[int] | None = None
        self.slots: list[Slot] = []
        self.dispatcher = Dispatcher()
        self.lifecycle = Lifecycle(self)
        self.affinity = Affinity(self)
        self.endings = Endings(self)
        self.closing = Closing(self)

    # What the parts have in common.

    def do(self, *effect: Any) -> None:
        """Have something done."""
        self.todo.append(effect)

    def end_jobs(self, jobs: Collection[int], *effect: Any) -> None:
        """Append an effect that ends *jobs*; if their worker ends just now, no other one gets them."""
        if self._unplaceable is not None:
            self._unplaceable.update(jobs)
        self.todo.append(effect)

    def fail(
        self, jobs: Collection[int], why: Literal["closed", "broken", "expired"]
    ) -> None:
        """Have *jobs* fail, if there are any."""
        if jobs:
            self.end_jobs(jobs, "fail_jobs", tuple(jobs), why)

    def revoke(self, slot: Slot, jobs: Iterable[int], *, requeue: bool = True) -> bool:
        """Ask the worker of *slot* not to begin *jobs*; with *requeue* they run elsewhere.

        It is not asked again for those that it was asked for already.  Return whether it is asked
        for any now.
        """
        sequences = slot.in_flight.begin_revoke(jobs, requeue=requeue)
        if sequences:
            self.do("revoke", slot.index, sequences)
        return bool(sequences)

    # The hot path.

    def submit(self, job: int, traits: JobTraits, priority: int = 0) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        index = self.dispatcher.submit(job, traits, priority)
        if index is not None:
            self.slots[index].mark_busy()
        return index

    def place(self, job: int, traits: JobTraits, priority: int) -> int | None:
        """Do the same as :meth:`submit` for a job that may have a key, or be a session's."""
        if isinstance(traits, SessionTraits):
            self.affinity.queue_call(job, traits)
            return None
        if traits.key is None:
            return self.submit(job, traits, priority)
        index = self.dispatcher.submit_keyed(job, traits, priority)
        if index is not None:
            self.slots[index].mark_busy()
        return index

    def outcome(self, index: int, *jobs: int) -> None:
        """Record that the worker in slot *index* has finished *jobs*, in this order.

        Raises:
            ProtocolError: If it was not the turn of one of them there.  Those before it are
                recorded.
        """
        slot = self.slots[index]
        before = slot.in_flight.ended
        try:
            slot.in_flight.complete(*jobs)
        finally:
            if slot.job_endings:
                for job in jobs[: slot.in_flight.ended - before]:
                    self.endings.clear(slot, job)

    def refill(self, index: int, now: float) -> None:
        """Give the worker in slot *index* more jobs, or let it go, after it has sent outcomes."""
        slot = self.slots[index]
        if slot.state is not SlotState.BUSY:
            return  # it ends already
        records, in_flight = slot.job_endings, slot.in_flight
        must_end = records and records.killing is not None
        if must_end or slot.faulty or slot.draining or self.lifecycle.broken:
            self.endings.end_worker(slot, now)
        elif (not in_flight.jobs or in_flight.wants_more) and not (
            records and records.any_ends_by_itself
        ):
            if not in_flight.jobs:
                slot.state, slot.idle_since = SlotState.IDLE, now
            self.give_next(slot, now)
            exhausted = in_flight.sent >= in_flight.max_sent
            if exhausted and not in_flight.jobs and slot.session is None:
                # It may run no more jobs, so it goes even before its replacement is
                # ready.
                self.lifecycle.drain_now(slot, "max_jobs", now)
            elif exhausted:
                self.lifecycle.replace(slot, "max_jobs", now)
        if self.closing.finish is not None:
            self.closing.advance(now)

    def give_next(self, slot: Slot, now: float) -> None:
        """Give the worker of *slot* what it should run next."""
        if slot.session is not None or slot.pinned:
            self.affinity.begin_own_job(slot)
        elif not (
            self.dispatcher.session_waiters and self.affinity.hold_back(slot, now)
        ):
            jobs = self.dispatcher.jobs_for(slot.index, slot.in_flight)
            if jobs:
                slot.mark_busy()
                self.todo.append(("assign", slot.index, jobs))

    # Other ways to submit.

    def submit_prepared(
        self, job: int, traits: JobTraits, now: float, priority: int = 0
    ) -> None:
        """Submit a job whose pickling is complete; until now it was in ``Dispatcher.preparing``."""
        self.dispatcher.preparing.pop(job, None)
        index = self.place(job, traits, priority)
        if index is not None:
            self.do("assign", index, (job,))
        self.closing.advance(now)

    def arguments_loaded(self, index: int, now: float) -> None:
        """Record that the last job of slot *index* has been sent, with its large arguments."""
        in_flight = self.slots[index].in_flight
        if in_flight.blocked:
            in_flight.blocked = False
            self.refill(index, now)

    # Jobs leave their worker, or the queue.

    def requeue(self, jobs: dict[int, JobTraits], now: float) -> None:
        """Put *jobs* at the head of the queue, or assign them to workers with room."""
        self.put_back(jobs)
        self.closing.advance(now)

    def drop(self, job: int, now: float) -> None:
        """Give up *job*, which may be in the queue, or is about to be queued."""
        if not self.dispatcher.remove(job):
            slot = self.affinity.discard(job)
            if slot is not None:
                # Its free lanes need not wait for that job any more.
                self.refill(slot.index, now)
        self.closing.advance(now)

    def withdraw(
        self, index: int, job: int, now: float, *, requeue: bool = False
    ) -> None:
        """Take back *job*, which was assigned to slot *index* but not sent yet.

        It is given up, or with *requeue* waits for another worker.  It is queued in this same step:
        otherwise a closing pool would find nothing left to do.
        """
        slot = self.slots[index]
        traits = slot.in_flight.traits_of(job)
        slot.in_flight.withdraw(job)
        self.endings.clear(slot, job)
        self.do("unassign", (job,))
        if requeue:
            self.put_back({job: traits})
        self.refill(index, now)
        self.closing.advance(now)

    def outcome_unpacked(self, job: int, now: float) -> None:
        """Record that the outcome of *job*, a large one, is unpickled."""
        self.closing.unpacking.pop(job, None)
        self.closing.advance(now)

    def put_back(self, jobs: dict[int, JobTraits]) -> None:
        """Put *jobs*, which have left their worker, where they wait for another one."""
        if self.lifecycle.broken is not None:
            self.fail(jobs, "broken")
            return
        pinned = tuple(job for job, traits in jobs.items() if traits is PINNED)
        if pinned:
            self.end_jobs(pinned, "drop_pinned", pinned)
        others: dict[int, JobTraits] = {}
        for job, traits in jobs.items():
            if isinstance(traits, SessionTraits):
                self.affinity.queue_call(job, traits, again=True)
            elif traits is not PINNED:
                others[job] = traits
        self.assign(self.dispatcher.requeue(others))

    def assign(self, placed: Iterable[tuple[int, int]]) -> None:
        """Send jobs to workers that have room for them: pairs of a slot and a job."""
        for index, job in placed:
            self.slots[index].mark_busy()
            self.do("assign", index, (job,))

    # Workers start, become ready, and end.

    def start(self, now: float) -> None:
        """Fill every slot, unless the pool already closes and has nothing to do."""
        if not self.closing.no_worker_needed:
            for slot in self.lifecycle.slots_in(SlotState.VACANT):
                self.lifecycle.spawn(slot, now, new=True)
                slot.bucket = slot.index
            self.affinity.update_buckets()

    def ready(self, index: int, now: float) -> None:
        """Record that the worker in slot *index* has said hello."""
        slot = self.slots[index]
        if slot.state is not SlotState.STARTING:
            return
        slot.apply(SlotEvent.READY)
        slot.stacks_requested = False  # it may have been asked just before
        slot.ready_at, slot.idle_since, slot.due = now, now, None
        was_broken = self.lifecycle.broken is not None
        self.lifecycle.on_ready(slot, now)
        if was_broken:
            for other in self.slots:
                if 0 < len(other.in_flight.jobs) < self.concurrency:
                    # It has free lanes, and may get jobs again.
                    self.refill(other.index, now)
        self.affinity.assign_bucket(slot)
        self.lifecycle.finish_replacement(slot, now)
        if not slot.draining:
            self.give_next(slot, now)
        self.after_change(now)

    def ended(
        self,
        index: int,
        now: float,
        *,
        had_begun: bool,
        requeue: Sequence[int],
        jitter: float,
        final: bool = False,
    ) -> tuple[Aftermath, set[int]]:
        """Record that the process in slot *index* is gone.

        Args:
            index: The slot.
            now: The time.
            had_begun: Whether the worker had begun one of its jobs, or had served a
                connection.
            requeue: Which of its jobs are tried again, oldest first.
            jitter: A random number in ``[0, 1)``, which shortens the delay.
            final: Whether the next start would fail in the same way, if this one has.

        Returns:
            What follows in the slot, and which jobs can have no other worker.
        """
        slot = self.slots[index]
        unplaceable = self._unplaceable = set()
        self.dispatcher.exclude(index)
        in_flight, old = self.lifecycle.gone(slot)
        self.affinity.drop_pinned(slot)
        self.put_back({job: in_flight.traits_of(job) for job in requeue})
        # A thread that has ended with an error was probably started by a job, if any has run here.
        faulty_by_jobs = slot.faulty and in_flight.ended > 0 and not self.serving
        blamed = had_begun or faulty_by_jobs
        aftermath = self.lifecycle.follow_end(
            slot, old, now, blamed=blamed, jitter=jitter, final=final
        )
        self.affinity.gone(slot)
        self.affinity.grant_waiting()
        self.after_change(now)
        self._unplaceable = None
        return aftermath, unplaceable

    def after_change(self, now: float) -> None:
        """Do what follows when a worker has come or gone."""
        self.lifecycle.reconcile(now)
        # Some jobs may have no worker now.
        if self.dispatcher.unserved > self.lifecycle.coming:
            self.lifecycle.sizing.job_waits(now)
        self.closing.advance(now)

    def served(self, index: int, served: int, now: float) -> None:
        """Record how many connections the worker in slot *index* has served in all."""
        slot = self.slots[index]
        slot.in_flight.ended = served
        if served >= slot.in_flight.max_sent:
            self.lifecycle.replace(slot, "max_jobs", now)

    def replace_faulty(self, index: int, now: float) -> None:
        """Replace the faulty worker in slot *index*, once it has nothing in flight.

        The successor of a worker that serves starts before that.
        """
        slot = self.slots[index]
        slot.faulty = True
        self.dispatcher.exclude(index)
        if slot.state is SlotState.BUSY:
            return
        if not self.serving or slot.ready_at is None:
            self.lifecycle.stop(slot, StopStage.KILLED, now)
        elif slot.state is SlotState.IDLE:  # or else it drains already
            self.lifecycle.fail_after_drain(slot, "uncaught exception", now)

    def oversized(self, index: int, reason: str, now: float) -> None:
        """Kill the worker in slot *index*, which has more memory than it may have."""
        slot = self.slots[index]
        if slot.state in UP:
            slot.oversized = True
            self.lifecycle.stop(slot, StopStage.KILLED, now, reason=reason)

    def kill(self, index: int, now: float) -> None:
        """Kill the worker in slot *index*, which was ready, because the user asked for it.

        So its end is no crash, unless the worker was about to end for another reason.
        """
        slot = self.slots[index]
        slot.exit_reason, planned = "kill", not (slot.faulty or slot.hung)
        how, reason = StopStage.KILLED, "kill() was called"
        self.lifecycle.stop(slot, how, now, planned=planned, reason=reason)

    def hold_released(self, now: float) -> None:
        """Record that a map or a session that held the pool open submits no more jobs."""
        self.closing.holds -= 1
        self.closing.advance(now)

    # Time.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        return earliest(self.lifecycle.next_deadline(), self.closing.due)

    def on_timer(self, now: float) -> None:
        """Do what is due."""
        self.closing.on_timer(now)
        self.endings.on_timer(now)
        self.lifecycle.on_timer(now)
        self.closing.advance(now)

    # Workers that the pool is about to kill, since they have not ended in time.
    #
    # The pool asks each of them for its stacks shortly before its time is over.  So the
    # answer takes no extra time, and a worker that ends in time after all has lost nothing.

    def next_stack_request(self) -> float | None:
        """When to call :meth:`take_stack_requests`; ``None`` if no worker's time is limited."""
        due = earliest(*map(self._due_to_end, self.slots))
        return None if due is None else due - STACK_GRACE

    def take_stack_requests(self, now: float) -> list[tuple[int, float]]:
        """Return the slots of the workers to ask now, each with the end of the worker's time."""
        found: list[tuple[int, float]] = []
        for slot in self.slots:
            due = self._due_to_end(slot)
            if due is not None and due - STACK_GRACE <= now:
                slot.stacks_requested = True
                found.append((slot.index, due))
        return found

    def _due_to_end(self, slot: Slot) -> float | None:
        """Return when the pool kills the worker of *slot*, unless it was asked already."""
        if slot.stacks_requested:
            return None
        if slot.state is SlotState.BUSY:
            jobs = slot.in_flight.jobs
            # A cancelled job has had time to end.  Nobody needs to know why it did not.
            if jobs and not any(map(slot.job_endings.is_wanted, jobs)):
                return None
            return earliest(slot.drain_deadline, self.closing.due)
        if slot.state is SlotState.STARTING:
            return slot.due
        if slot.state is SlotState.STOPPING and slot.stop_stage is not StopStage.KILLED:
            return earliest(slot.due, self.closing.due)
        return None

    # Questions.

    @property
    def broken(self) -> str | None:
        """Why the pool is broken, or has given up; ``None`` if it has not."""
        return self.lifecycle.broken

    @property
    def waiting(self) -> int:
        """How many jobs have not begun: in the queue, or in a worker behind other jobs."""
        ahead = sum(slot.in_flight.ahead for slot in self.slots)
        return self.dispatcher.unassigned + ahead

    @property
    def pipelining(self) -> bool:
        """Whether a job waits inside a worker for its turn."""
        return any(slot.in_flight.ahead for slot in self.slots)

    @property
    def unbalanced(self) -> bool:
        """Whether a worker is idle while jobs wait in other workers, and were not asked back."""
        return bool(self.dispatcher.idle) and any(
            slot.in_flight.ahead and not slot.in_flight.revoking for slot in self.slots
        )

    @property
    def minimum_ready(self) -> bool:
        """Whether as many workers are ready as there must be at the least."""
        return sum(slot.stays for slot in self.slots) >= self.lifecycle.sizing.least

    @property
    def failure(self) -> str | None:
        """How starts have failed, if so often that the pool breaks once it has no worker."""
        ledger = self.lifecycle.ledger
        return ledger.reason if ledger.breaks_pool else None
