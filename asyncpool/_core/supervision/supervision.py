"""Everything that a supervisor decides, and nothing that it does.

Two ways lead in.  The hot path, :meth:`Supervision.submit`, :meth:`Supervision.outcome`
and :meth:`Supervision.refill`, answers with what to send where.  Everything else in a
pool's life (a worker is ready, ended, is faulty; a job is cancelled; a timer fires;
the pool closes) is told by a method that returns the commands to carry out, in
order.  The shell never waits in between: what comes of a command comes back as the
next call.  Times are passed in, and :meth:`Supervision.next_deadline` says when to
call :meth:`Supervision.on_timer`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.base.run_times import PINNED, Bound, Profile
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import InFlight
from asyncpool._core.placement.affinity_slots import AffinitySlots
from asyncpool._core.placement.balance import Balance
from asyncpool._core.placement.pinned_jobs import PinnedJobs
from asyncpool._core.placement.sessions import Sessions
from asyncpool._core.policies.job_limits import KILL, CancelMode
from asyncpool._core.policies.restart import Restart, RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import Assign, Command, DropPinnedJobs, Unassign
from asyncpool._core.slots.lifecycle import STOP_GRACE, SlotLifecycle, fail_jobs
from asyncpool._core.slots.slots import UP, Slot, SlotEvent, SlotState, StopStage
from asyncpool._core.supervision.closing import Closing, Finish
from asyncpool._core.supervision.draining import DrainingWorkers
from asyncpool._core.supervision.late_workers import LateWorkers
from asyncpool._core.supervision.replacement import Replacements
from asyncpool._core.supervision.termination import Termination

_NO_LIMITS = WorkerLimits()
_CLOSED = "the pool was closed"


class Supervision:
    """The state of a pool as far as decisions depend on it.

    Args:
        workers: How many workers there are to be, at the least and at the most.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
        limits: When workers are due for recycling.
        idle_timeout: Seconds after which an idle worker goes, if there may be fewer.
        concurrency: How many jobs each worker runs at once.
        max_surge: How many workers there may be beyond the size of the pool, and
        max_unavailable: How many may be missing, for the sake of planned exits.
        stop_grace: Seconds that a worker which was stopped has to end by itself,
        end_grace: and if the whole pool ends; as many by default.
        serving: Workers have no jobs, but serve others as long as they live; to the
            core they are idle.
    """

    def __init__(
        self,
        *,
        workers: tuple[int, int],
        policy: RestartPolicy,
        start_timeout: float,
        limits: WorkerLimits = _NO_LIMITS,
        idle_timeout: float = 60.0,
        concurrency: int = 1,
        max_surge: int = 1,
        max_unavailable: int = 0,
        stop_grace: float = STOP_GRACE,
        end_grace: float | None = None,
        serving: bool = False,
    ) -> None:
        least, most = workers
        self.dispatcher = Dispatcher()
        self._lifecycle = SlotLifecycle(
            workers=least,
            count=most + max_surge,
            limits=limits,
            policy=policy,
            start_timeout=start_timeout,
            stop_grace=stop_grace,
            concurrency=concurrency,
            dispatcher=self.dispatcher,
        )
        self.slots = self._lifecycle.slots
        self._pinned = PinnedJobs(self.slots, self.dispatcher)
        self._sessions = Sessions(self.slots, self.dispatcher, self._pinned)
        self.closing = Closing(
            self._lifecycle, self.dispatcher, self._pinned, end_grace
        )
        self.late_workers = LateWorkers(self.slots, self.closing)
        self._termination = Termination(self._lifecycle, self.dispatcher)
        self._affinity_slots = AffinitySlots(self.slots, self.dispatcher)
        leaving = DrainingWorkers(
            self._lifecycle, self.dispatcher, self._pinned, limits.drain_timeout
        )
        sizing = Sizing(least, most, idle_timeout)
        budget = Budget(
            self.slots,
            sizing,
            max_surge=max_surge,
            max_unavailable=max_unavailable,
            serving=serving,
        )
        self.replacements = Replacements(
            self._lifecycle,
            self.dispatcher,
            affinity_slots=self._affinity_slots,
            leaving=leaving,
            sizing=sizing,
            budget=budget,
            policy=policy,
            closing=self.closing,
        )
        self.balance = Balance(self.slots, self.dispatcher, sizing)
        self._serving = serving

    @property
    def broken(self) -> str | None:
        """Why there is no hope for the pool, if there is none."""
        return self._lifecycle.broken

    @property
    def whole(self) -> bool:
        """Whether as many workers are ready as there are to be at the least."""
        ready = sum(slot.state in UP and not slot.draining for slot in self.slots)
        return ready >= self.replacements.sizing.least

    @property
    def failures(self) -> int | None:
        """How many starts have failed in a row, if those are so many that there is no hope."""
        ledger = self._lifecycle.ledger
        return ledger.failures if ledger.breaks_pool else None

    @property
    def kills(self) -> int:
        """How many processes had to be killed."""
        return self._lifecycle.kills

    @property
    def restarts(self) -> int:
        """How many workers were started after others, or to replace them."""
        return self._lifecycle.restarts

    # The hot path.

    def submit(self, job: int, profile: Profile, priority: int = 0) -> int | None:
        """Return the slot that gets *job* now, or queue it and return ``None``."""
        index = self.dispatcher.submit(job, profile, priority)
        if index is not None:
            self.slots[index].assign()
        return index

    def submit_keyed(self, job: int, profile: Profile, priority: int) -> int | None:
        """Do the same with a job that has a key."""
        index = self.dispatcher.submit_keyed(job, profile, priority)
        if index is not None:
            self.slots[index].assign()
        return index

    def submit_pinned(self, index: int, job: int) -> list[Command]:
        """Have the worker in slot *index*, and no other one, run *job* before all others.

        It is the next when nothing is in its hands any more, in the order of these calls.
        """
        return self._pinned.add(self.slots[index], job)

    def announce(self, job: int) -> None:
        """Take note of a job that is being pickled; :meth:`arrive` submits it."""
        self.dispatcher.announce(job)

    def arrive(
        self, job: int, profile: Profile, now: float, priority: int = 0
    ) -> list[Command]:
        """Submit a job that was announced."""
        self.dispatcher.discard(job)
        if isinstance(profile, Bound):
            commands = self._sessions.call(job, profile)
            return [*commands, *self._settle(now)]
        submit = self.submit if profile.key is None else self.submit_keyed
        index = submit(job, profile, priority)
        commands = [] if index is None else [Assign(index, (job,))]
        return [*commands, *self._settle(now)]

    def outcome(self, index: int, job: int) -> None:
        """Take note that the worker in slot *index* finished *job*.

        Raises:
            ProtocolError: If it was not this job's turn there.
        """
        slot = self.slots[index]
        slot.in_flight.complete(job)
        slot.outcomes += 1
        if slot.job_endings:
            self._termination.clear_ending(slot, job)

    def refill(self, index: int, now: float) -> list[Command]:
        """Give the worker in slot *index* more, or let it go, after its outcomes."""
        slot = self.slots[index]
        if slot.state is not SlotState.BUSY:
            return []  # it is on its way out already
        endings = slot.job_endings
        must_end = endings and endings.killing is not None
        if must_end or slot.faulty or slot.draining or self.broken:
            commands = self._termination.end_worker(slot, now)
        elif (endings and endings.by_itself) or not slot.in_flight.wants_more:
            commands = []
        else:
            if not slot.in_flight.jobs:
                slot.apply(SlotEvent.RELEASE)
                slot.idle_since = now
            commands = self._feed(slot, now)
            if (
                slot.in_flight.exhausted
                and not slot.in_flight.jobs
                and slot.session is None
            ):
                # It is of no more use, whether there is another one or not.
                commands += self.replacements.retire(slot, "max_jobs", now, unsent=None)
            elif slot.in_flight.exhausted or slot.outcomes >= slot.recycle_limits.jobs:
                commands += self.replacements.replace(slot, "max_jobs", now)
        if self.closing.finish is not None:
            commands += self._settle(now)
        return commands

    def give_back(self, jobs: dict[int, Profile], now: float) -> list[Command]:
        """Put *jobs* at the head of the queue, or send them to workers with room."""
        return [*self._return(jobs), *self._settle(now)]

    def landing(self, job: int) -> None:
        """Take note that *job* has an outcome, which takes a while to load."""
        self.closing.landing(job)

    def landed(self, job: int, now: float) -> list[Command]:
        """Take note that it is loaded."""
        self.closing.landed(job)
        return self._settle(now)

    # The life of the workers.

    def start(self, now: float) -> list[Command]:
        """Fill every slot, unless the pool closes already, and has nothing to do."""
        if self.closing.needs_nobody:
            return []
        commands = [
            self._lifecycle.spawn(slot, now, new=True)
            for slot in self.slots
            if slot.state is SlotState.VACANT
        ]
        self._affinity_slots.open()
        return commands

    def ready(self, index: int, now: float) -> list[Command]:
        """Take note that the worker in slot *index* said hello."""
        slot = self.slots[index]
        if slot.state is not SlotState.STARTING:
            return []
        slot.apply(SlotEvent.READY)
        slot.ready_at, slot.idle_since, slot.due = now, now, None
        was_broken = self.broken is not None
        commands = self._lifecycle.on_ready(slot, now)
        if was_broken:
            for other in self.slots:
                if 0 < len(other.in_flight.jobs) < other.concurrency:
                    commands += self.refill(other.index, now)  # it has lanes again
        if slot.session is None:
            self._affinity_slots.assign(slot)
        commands += self.replacements.ready(slot, now)
        if slot.session is not None:
            commands += self._sessions.renew(slot)
        elif not slot.draining:
            commands += self._feed(slot, now)
        commands += self.replacements.step(now)
        self.replacements.count(now)
        return [*commands, *self._settle(now)]

    def ended(
        self,
        index: int,
        now: float,
        *,
        started: bool,
        requeue: Sequence[int],
        jitter: float,
    ) -> list[Command]:
        """Take note that the process in slot *index* is gone.

        Args:
            index: The slot.
            now: The time.
            started: Whether the worker had begun one of its jobs, or served somebody.
            requeue: Those of its jobs that are to be tried again, oldest first.
            jitter: A random number in ``[0, 1)``, for the jitter.
        """
        slot = self.slots[index]
        self.dispatcher.worker_gone(index)
        in_flight, slot.in_flight = slot.in_flight, InFlight(slot.concurrency)
        slot.due = None
        slot.probing = False
        slot.apply(SlotEvent.EXITED)
        old = None if slot.replaces is None else self.slots[slot.replaces]
        self.replacements.gone(slot)
        # A session that lasts goes on in this slot.
        followed = self._sessions.lasts(slot) and not self.closing.needs_nobody
        needed = self.replacements.budget.needs(slot) or followed
        commands = self._pinned.drop(slot)
        commands += self._return({job: in_flight.jobs[job][2] for job in requeue})
        if self.closing.needs_nobody:
            pass  # nobody needs another worker
        elif old is not None and not slot.planned:
            commands += self.replacements.failed(slot, old, now, jitter)
        elif not slot.planned:
            by_jobs = slot.faulty and slot.outcomes > 0 and not self._serving
            blamed = started or by_jobs
            commands += self._judge(
                slot, now, needed=needed, blamed=blamed, jitter=jitter
            )
        elif not needed:
            commands += self._lifecycle.leave_empty(slot)
        elif self.broken is not None:
            commands += self._lifecycle.park(slot, self.broken, now)
        else:
            commands.append(self._lifecycle.spawn(slot, now))
        followed = followed and self.broken is None
        commands += self._sessions.gone(slot, followed=followed)
        commands += self._sessions.hand_out()
        commands += self.replacements.step(now)
        self.replacements.count(now)
        return [*commands, *self._settle(now)]

    def served(self, index: int, served: int, now: float) -> list[Command]:
        """Take note that the worker in slot *index* has served so many, in all."""
        slot = self.slots[index]
        slot.outcomes = served
        if served >= slot.recycle_limits.jobs:
            return self.replacements.replace(slot, "max_jobs", now)
        return []

    def condemn(self, index: int, now: float) -> list[Command]:
        """Replace the worker in slot *index*, once it has nothing more in flight.

        One that serves is followed before that.
        """
        slot = self.slots[index]
        slot.faulty = True
        self.dispatcher.worker_gone(index)
        if slot.state is SlotState.BUSY:
            return []
        if self._serving and slot.ready_at is not None:
            if slot.state is SlotState.IDLE:
                return self._let_finish(slot, now)
            return []  # it finishes already
        return self._lifecycle.stop_worker(slot, StopStage.KILLED, now)

    def try_sooner(self, now: float) -> None:
        """Take note that a caller was refused, since the pool is broken."""
        self._lifecycle.try_sooner(now)

    def retry_in(self, now: float) -> float | None:
        """Return the seconds until a broken pool tries to start a worker; ``None`` for never."""
        return self._lifecycle.retry_in(now)

    # Jobs that are not to go on where they are.

    def drop(self, job: int, now: float) -> list[Command]:
        """Give up *job*, which may be in the queue, or on its way there."""
        commands: list[Command] = []
        if not self.dispatcher.discard(job):
            slot = self._pinned.discard(job)
            if slot is not None:
                commands += self.refill(slot.index, now)  # it may have a free lane
        return [*commands, *self._settle(now)]

    def cancel(
        self, job: int, now: float, *, index: int, begun: bool, press: CancelMode = KILL
    ) -> list[Command]:
        """Give up *job*, which the worker in slot *index* may have in flight.

        Args:
            job: The job.
            now: The time.
            index: The slot.
            begun: Whether it is known to have begun there.
            press: How it is made to end if it has.
        """
        slot = self.slots[index]
        if job not in slot.in_flight.jobs:
            return self.drop(job, now)
        return self._termination.cancel(slot, job, now, begun=begun, press=press)

    def recall(self, job: int, index: int) -> list[Command]:
        """Take *job* back, if the worker in slot *index* has not begun it: it is late.

        It fails when the worker has said so, and goes on if that has begun it.
        """
        return self._termination.recall(self.slots[index], job)

    def recalled(self, job: int, index: int) -> bool:
        """Tell whether that was asked, and has not been answered."""
        return self.slots[index].job_endings.is_late(job)

    def expire(
        self, job: int, now: float, *, index: int, press: CancelMode
    ) -> list[Command]:
        """Make *job*, which the worker in slot *index* runs, end.

        Its caller waits for that: what comes of it is still an outcome.
        """
        return self._termination.expire(self.slots[index], job, now, press)

    def hang(self, index: int, now: float, job: int | None = None) -> list[Command]:
        """Kill the worker in slot *index*, which has been silent for too long, or its *job*.

        That has crashed with it; first, the worker is to say where it is.
        """
        return self._termination.declare_hung(self.slots[index], now, job)

    def stacks_written(
        self, index: int, now: float, job: int | None = None
    ) -> list[Command]:
        """Take note that the worker in slot *index* has said where it is, or *job* is."""
        return self._termination.take_stacks(self.slots[index], now, job)

    def withdraw(self, index: int, job: int, now: float) -> list[Command]:
        """Take back *job*, which was assigned to slot *index* and was not sent yet."""
        slot = self.slots[index]
        slot.in_flight.withdraw(job)
        self._termination.clear_ending(slot, job)
        return [Unassign((job,)), *self.refill(index, now), *self._settle(now)]

    def look_for_stalls(self) -> list[Command]:
        """Take back what has waited behind the same jobs since the last look."""
        return self._termination.look_for_stalls()

    def revoked(
        self, index: int, sequences: Iterable[int], now: float
    ) -> list[Command]:
        """Take a worker's answer to a :class:`Revoke`: what it will not begin.

        Raises:
            ProtocolError: If it is no answer to that.
        """
        slot = self.slots[index]
        commands, wanted = self._termination.take_answer(slot, sequences, now)
        if self.closing.finish is not None and self.closing.finish >= Finish.RUNNING:
            commands += fail_jobs(list(wanted), "closed")
        else:
            commands += self._return(wanted)
        commands += self.refill(index, now)
        return [*commands, *self._settle(now)]

    def count_in_flight(self, index: int) -> int:
        """How many jobs the worker in slot *index* has in flight."""
        return len(self.slots[index].in_flight.jobs)

    def head(self, index: int) -> int | None:
        """Return the first job that the worker in slot *index* runs, or is about to."""
        return self.slots[index].in_flight.head

    def running(self, index: int) -> tuple[int, ...]:
        """Return the jobs that the worker in slot *index* runs, or is about to."""
        return self.slots[index].in_flight.running

    def runs(self, index: int, job: int) -> bool:
        """Tell whether the worker in slot *index* runs *job*, or is about to."""
        return self.slots[index].in_flight.runs(job)

    def last(self, index: int) -> int | None:
        """Return the job that came last into the hands of the worker in slot *index*."""
        return self.slots[index].in_flight.last

    def loaded(self, index: int, now: float) -> list[Command]:
        """Take note that the last job of slot *index*, which was loading, has been sent."""
        in_flight = self.slots[index].in_flight
        if not in_flight.closed:
            return []
        in_flight.closed = False
        return self.refill(index, now)

    # Workers that are somebody's own for a while.

    def want_worker(self) -> list[Command]:
        """Have the next idle worker be offered to whoever waits for one."""
        return [*self._sessions.want(), *self._affinity_slots.update()]

    def leave_session_queue(self, now: float) -> list[Command]:
        """Take note that one who has waited wants none any more."""
        self._sessions.leave()
        return self._let_go(now)

    def make_last(self, session: int) -> None:
        """Have *session* go on in another worker when it loses its own."""
        self._sessions.last(session)

    def call(self, job: int, profile: Bound) -> list[Command]:
        """Have the worker of a session run *job*, behind its other calls."""
        return self._sessions.call(job, profile)

    def rebuilt(self, session: int, job: int) -> list[Command]:
        """Have the calls of *session* begin, now that *job* has rebuilt it."""
        return self._sessions.rebuilt(session, job)

    def end_session(self, session: int, now: float, *, fresh: bool) -> list[Command]:
        """Give the worker of *session* back, or have a *fresh* one come instead.

        None of its calls may wait.
        """
        slot = self._sessions.end(session)
        if slot is None:
            return []
        commands: list[Command] = []
        if fresh and slot.ready_at is not None:
            commands += self.replacements.release(slot, "session", now)
        elif slot.in_flight.exhausted and slot.state is SlotState.IDLE:
            commands += self.replacements.retire(slot, "max_jobs", now, unsent=None)
        elif slot.state in UP:
            self._affinity_slots.assign(slot)
            if slot.state is SlotState.IDLE and not slot.hung:
                slot.idle_since = now
                commands += self._feed(slot, now)
        commands += self.replacements.step(now)
        self.replacements.count(now)
        return [*commands, *self._settle(now)]

    # The end of the pool.

    def close(
        self, finish: Finish, deadline: float | None, now: float
    ) -> list[Command]:
        """Finish what *finish* says, by *deadline* if there is one, and stop every worker."""
        commands: list[Command] = []
        pinned_jobs: dict[int, Slot] = {}
        if max(finish, self.closing.finish or Finish.ALL) is not Finish.ALL:
            commands += self.replacements.stop(_CLOSED)
            pinned_jobs = self._pinned.take_all()
            commands += fail_jobs(list(pinned_jobs), "closed")
        commands += self.closing.begin(finish, deadline, now)
        if self.closing.finish is not Finish.ALL:  # the time may be over already
            commands += self._refuse_sessions(now)
        for index in {slot.index: None for slot in pinned_jobs.values()}:
            commands += self.refill(index, now)  # it may have free lanes
        return [*commands, *self._settle(now)]

    @property
    def grace(self) -> float:
        """For how many seconds a cancelled job may yet run."""
        endings = (it for slot in self.slots for it in slot.job_endings.values())
        presses = [it.press for it in endings if it.press is not None]
        return max(
            (it.grace for it in presses if it.action == "interrupt"), default=0.0
        )

    def hold(self) -> None:
        """Take note that more jobs are to come, also if the pool closes meanwhile."""
        self.closing.holds += 1

    def release(self, now: float) -> list[Command]:
        """Take note that they have come."""
        self.closing.holds -= 1
        return self._settle(now)

    # Time.

    def next_deadline(self) -> float | None:
        """When to call :meth:`on_timer`; ``None`` if nothing is due."""
        return earliest(
            self._lifecycle.next_deadline(),
            self.replacements.next_deadline(),
            self.closing.due,
        )

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands = self.closing.on_timer(now)
        if self.closing.finish is Finish.NONE:
            commands += self._refuse_sessions(now)
        commands += self._termination.on_timer(now)
        commands += self._lifecycle.on_timer(now)
        commands += self.replacements.on_timer(now)
        return [*commands, *self._settle(now)]

    # The pieces.

    def _settle(self, now: float) -> list[Command]:
        """If the pool closes, let go of what no job needs any more."""
        if self.closing.over or not self.closing.needs_nobody:
            return []
        return [*self.replacements.stop(_CLOSED), *self.closing.settle(now)]

    def _judge(
        self, slot: Slot, now: float, *, needed: bool, blamed: bool, jitter: float
    ) -> list[Command]:
        before = self.broken
        commands = self._lifecycle.judge(
            slot, now, needed=needed, blamed=blamed, jitter=jitter
        )
        if self.broken != before:
            commands += self.replacements.suspend("the pool broke")
            commands += fail_jobs(list(self._pinned.take_all()), "broken")
            commands += self._sessions.give_up()
        return commands

    def _return(self, jobs: dict[int, Profile]) -> list[Command]:
        if self.broken is not None:
            return fail_jobs(list(jobs), "broken")
        commands: list[Command] = []
        pinned_jobs = tuple(job for job in jobs if jobs[job] is PINNED)
        if pinned_jobs:
            jobs = {job: jobs[job] for job in jobs if job not in pinned_jobs}
            commands.append(DropPinnedJobs(pinned_jobs))
        calls = {job: of for job, of in jobs.items() if isinstance(of, Bound)}
        if calls:
            jobs = {job: jobs[job] for job in jobs if job not in calls}
            commands += self._sessions.give_back(calls)
        for index, job in self.dispatcher.give_back(jobs):
            self.slots[index].assign()
            commands.append(Assign(index, (job,)))
        return commands

    def _let_go(self, now: float) -> list[Command]:
        """Give jobs again to those that were held back for a session in vain."""
        spare = self._sessions.let_go()
        return [command for it in spare for command in self.refill(it.index, now)]

    def _refuse_sessions(self, now: float) -> list[Command]:
        """Turn away all who wait for a worker.

        Whoever was held back for them has room for what is tried again.
        """
        return [*self._sessions.refuse(), *self._let_go(now)]

    def _feed(self, slot: Slot, now: float) -> list[Command]:
        if slot.session is not None:
            return self._sessions.go_on(slot)
        if slot.pinned:
            return self._pinned.begin(slot)
        if self.dispatcher.wanted:
            commands = self._sessions.take(slot)
            if commands is not None:
                return [*commands, *self._affinity_slots.update(), *self._let_go(now)]
        jobs = self.dispatcher.refill(slot.index, slot.in_flight)
        if not jobs:
            return []
        slot.assign()
        return [Assign(slot.index, tuple(jobs))]

    def _let_finish(self, slot: Slot, now: float) -> list[Command]:
        """Let a faulty worker finish what it serves, while another takes its place."""
        verdict = self._lifecycle.judge_early(slot, now)
        delay = verdict.delay if isinstance(verdict, Restart) else None
        return self.replacements.fail_after_drain(
            slot, "uncaught exception", now, delay
        )
