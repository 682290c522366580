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
from asyncpool._core.base.run_times import ERRAND, Bound, Profile
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.dispatch.in_flight import Flight
from asyncpool._core.placement.affinity_slots import Seating
from asyncpool._core.placement.balance import Balance
from asyncpool._core.placement.pinned_jobs import Errands
from asyncpool._core.placement.sessions import Sessions
from asyncpool._core.policies.job_limits import KILL, Press
from asyncpool._core.policies.restart import Restart, RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.capacity import Budget, Sizing
from asyncpool._core.slots.commands import Assign, Command, DropErrands, Unassign
from asyncpool._core.slots.lifecycle import STOP_GRACE, Lives, fail_jobs
from asyncpool._core.slots.slots import UP, Ending, Slot, SlotEvent, SlotState
from asyncpool._core.supervision.closing import Closing, Finish
from asyncpool._core.supervision.draining import Leaving
from asyncpool._core.supervision.late_workers import LateLooks
from asyncpool._core.supervision.replacement import Rotation
from asyncpool._core.supervision.termination import Pressing

_NO_LIMITS = WorkerLimits()
_CLOSED = "the pool was closed"


class Supervision:
    """The state of a pool as far as decisions depend on it.

    Args:
        workers: How many workers there are to be, at the least and at the most.
        policy: When a dead worker is replaced.
        start_timeout: Seconds that a worker has to become ready.
        limits: When workers are worn.
        idle_timeout: Seconds after which an idle worker goes, if there may be fewer.
        width: How many jobs each worker runs at once.
        surge: How many workers there may be beyond the size of the pool, and
        unavailable: How many may be missing, for the sake of planned exits.
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
        width: int = 1,
        surge: int = 1,
        unavailable: int = 0,
        stop_grace: float = STOP_GRACE,
        end_grace: float | None = None,
        serving: bool = False,
    ) -> None:
        least, most = workers
        self.dispatcher = Dispatcher()
        self._lives = Lives(
            workers=least,
            seats=most + surge,
            limits=limits,
            policy=policy,
            start_timeout=start_timeout,
            stop_grace=stop_grace,
            width=width,
            dispatcher=self.dispatcher,
        )
        self.slots = self._lives.slots
        self._errands = Errands(self.slots, self.dispatcher)
        self._sessions = Sessions(self.slots, self.dispatcher, self._errands)
        self.closing = Closing(self._lives, self.dispatcher, self._errands, end_grace)
        self.late_looks = LateLooks(self.slots, self.closing)
        self._pressing = Pressing(self._lives, self.dispatcher)
        self._seating = Seating(self.slots, self.dispatcher)
        leaving = Leaving(
            self._lives, self.dispatcher, self._errands, limits.drain_timeout
        )
        sizing = Sizing(least, most, idle_timeout)
        budget = Budget(
            self.slots, sizing, surge=surge, unavailable=unavailable, serving=serving
        )
        self.rotation = Rotation(
            self._lives,
            self.dispatcher,
            seating=self._seating,
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
        return self._lives.broken

    @property
    def whole(self) -> bool:
        """Whether as many workers are ready as there are to be at the least."""
        ready = sum(slot.state in UP and not slot.leaving for slot in self.slots)
        return ready >= self.rotation.sizing.least

    @property
    def failures(self) -> int | None:
        """How many starts have failed in a row, if those are so many that there is no hope."""
        ledger = self._lives.ledger
        return ledger.failures if ledger.hopeless else None

    @property
    def kills(self) -> int:
        """How many processes had to be killed."""
        return self._lives.kills

    @property
    def restarts(self) -> int:
        """How many workers were started after others, or to replace them."""
        return self._lives.restarts

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

    def errand(self, index: int, job: int) -> list[Command]:
        """Have the worker in slot *index*, and no other one, run *job* before all others.

        It is the next when nothing is in its hands any more, in the order of these calls.
        """
        return self._errands.add(self.slots[index], job)

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
        slot.flight.land(job)
        slot.outcomes += 1
        if slot.job_endings:
            self._pressing.clear_ending(slot, job)

    def refill(self, index: int, now: float) -> list[Command]:
        """Give the worker in slot *index* more, or let it go, after its outcomes."""
        slot = self.slots[index]
        if slot.state is not SlotState.BUSY:
            return []  # it is on its way out already
        endings = slot.job_endings
        must_end = endings and endings.killing is not None
        if must_end or slot.faulty or slot.leaving or self.broken:
            commands = self._pressing.end_worker(slot, now)
        elif (endings and endings.by_itself) or not slot.flight.hungry:
            commands = []
        else:
            if not slot.flight.jobs:
                slot.apply(SlotEvent.RELEASE)
                slot.idle_since = now
            commands = self._feed(slot, now)
            if slot.flight.spent and not slot.flight.jobs and slot.session is None:
                # It is of no more use, whether there is another one or not.
                commands += self.rotation.retire(slot, "max_jobs", now, unsent=None)
            elif slot.flight.spent or slot.outcomes >= slot.wear.jobs:
                commands += self.rotation.wear_out(slot, "max_jobs", now)
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
            self._lives.spawn(slot, now, new=True)
            for slot in self.slots
            if slot.state is SlotState.VACANT
        ]
        self._seating.open()
        return commands

    def ready(self, index: int, now: float) -> list[Command]:
        """Take note that the worker in slot *index* said hello."""
        slot = self.slots[index]
        if slot.state is not SlotState.STARTING:
            return []
        slot.apply(SlotEvent.READY)
        slot.ready_at, slot.idle_since, slot.due = now, now, None
        was_broken = self.broken is not None
        commands = self._lives.came_up(slot, now)
        if was_broken:
            for other in self.slots:
                if 0 < len(other.flight.jobs) < other.width:
                    commands += self.refill(other.index, now)  # it has lanes again
        if slot.session is None:
            self._seating.take(slot)
        commands += self.rotation.ready(slot, now)
        if slot.session is not None:
            commands += self._sessions.renew(slot)
        elif not slot.leaving:
            commands += self._feed(slot, now)
        commands += self.rotation.step(now)
        self.rotation.count(now)
        return [*commands, *self._settle(now)]

    def ended(
        self,
        index: int,
        now: float,
        *,
        started: bool,
        requeue: Sequence[int],
        roll: float,
    ) -> list[Command]:
        """Take note that the process in slot *index* is gone.

        Args:
            index: The slot.
            now: The time.
            started: Whether the worker had begun one of its jobs, or served somebody.
            requeue: Those of its jobs that are to be tried again, oldest first.
            roll: A random number in ``[0, 1)``, for the jitter.
        """
        slot = self.slots[index]
        self.dispatcher.worker_gone(index)
        flight, slot.flight = slot.flight, Flight(slot.width)
        slot.due = None
        slot.probing = False
        slot.apply(SlotEvent.EXITED)
        old = None if slot.replaces is None else self.slots[slot.replaces]
        self.rotation.gone(slot)
        # A session that lasts goes on in this slot.
        followed = self._sessions.lasts(slot) and not self.closing.needs_nobody
        needed = self.rotation.budget.needs(slot) or followed
        commands = self._errands.drop(slot)
        commands += self._return({job: flight.jobs[job][2] for job in requeue})
        if self.closing.needs_nobody:
            pass  # nobody needs another worker
        elif old is not None and not slot.planned:
            commands += self.rotation.failed(slot, old, now, roll)
        elif not slot.planned:
            by_jobs = slot.faulty and slot.outcomes > 0 and not self._serving
            blamed = started or by_jobs
            commands += self._judge(slot, now, needed=needed, blamed=blamed, roll=roll)
        elif not needed:
            commands += self._lives.leave_empty(slot)
        elif self.broken is not None:
            commands += self._lives.park(slot, self.broken, now)
        else:
            commands.append(self._lives.spawn(slot, now))
        followed = followed and self.broken is None
        commands += self._sessions.gone(slot, followed=followed)
        commands += self._sessions.hand_out()
        commands += self.rotation.step(now)
        self.rotation.count(now)
        return [*commands, *self._settle(now)]

    def served(self, index: int, served: int, now: float) -> list[Command]:
        """Take note that the worker in slot *index* has served so many, in all."""
        slot = self.slots[index]
        slot.outcomes = served
        if served >= slot.wear.jobs:
            return self.rotation.wear_out(slot, "max_jobs", now)
        return []

    def faulty(self, index: int, now: float) -> list[Command]:
        """Replace the worker in slot *index*, once it has nothing more in hand.

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
        return self._lives.end(slot, Ending.KILLED, now)

    def wanted(self, now: float) -> None:
        """Take note that a caller was refused, since the pool is broken."""
        self._lives.wanted(now)

    def retry_in(self, now: float) -> float | None:
        """Return the seconds until a broken pool tries to start a worker; ``None`` for never."""
        return self._lives.retry_in(now)

    # Jobs that are not to go on where they are.

    def drop(self, job: int, now: float) -> list[Command]:
        """Give up *job*, which may be in the queue, or on its way there."""
        commands: list[Command] = []
        if not self.dispatcher.discard(job):
            slot = self._errands.discard(job)
            if slot is not None:
                commands += self.refill(slot.index, now)  # it may have a free lane
        return [*commands, *self._settle(now)]

    def cancel(
        self, job: int, now: float, *, index: int, begun: bool, press: Press = KILL
    ) -> list[Command]:
        """Give up *job*, which the worker in slot *index* may have in hand.

        Args:
            job: The job.
            now: The time.
            index: The slot.
            begun: Whether it is known to have begun there.
            press: How it is made to end if it has.
        """
        slot = self.slots[index]
        if job not in slot.flight.jobs:
            return self.drop(job, now)
        return self._pressing.cancel(slot, job, now, begun=begun, press=press)

    def recall(self, job: int, index: int) -> list[Command]:
        """Take *job* back, if the worker in slot *index* has not begun it: it is late.

        It fails when the worker has said so, and goes on if that has begun it.
        """
        return self._pressing.recall(self.slots[index], job)

    def recalled(self, job: int, index: int) -> bool:
        """Tell whether that was asked, and has not been answered."""
        return self.slots[index].job_endings.is_late(job)

    def expire(
        self, job: int, now: float, *, index: int, press: Press
    ) -> list[Command]:
        """Make *job*, which the worker in slot *index* runs, end.

        Its caller waits for that: what comes of it is still an outcome.
        """
        return self._pressing.expire(self.slots[index], job, now, press)

    def hang(self, index: int, now: float, job: int | None = None) -> list[Command]:
        """Kill the worker in slot *index*, which has been silent for too long, or its *job*.

        That has crashed with it; first, the worker is to say where it is.
        """
        return self._pressing.declare_hung(self.slots[index], now, job)

    def stacks_written(
        self, index: int, now: float, job: int | None = None
    ) -> list[Command]:
        """Take note that the worker in slot *index* has said where it is, or *job* is."""
        return self._pressing.take_stacks(self.slots[index], now, job)

    def withdraw(self, index: int, job: int, now: float) -> list[Command]:
        """Take back *job*, which was assigned to slot *index* and was not sent yet."""
        slot = self.slots[index]
        slot.flight.withdraw(job)
        self._pressing.clear_ending(slot, job)
        return [Unassign((job,)), *self.refill(index, now), *self._settle(now)]

    def look_for_stalls(self) -> list[Command]:
        """Take back what has waited behind the same jobs since the last look."""
        return self._pressing.look_for_stalls()

    def revoked(self, index: int, places: Iterable[int], now: float) -> list[Command]:
        """Take a worker's answer to a :class:`Revoke`: what it will not begin.

        Raises:
            ProtocolError: If it is no answer to that.
        """
        slot = self.slots[index]
        commands, wanted = self._pressing.take_answer(slot, places, now)
        if self.closing.finish is not None and self.closing.finish >= Finish.RUNNING:
            commands += fail_jobs(list(wanted), "closed")
        else:
            commands += self._return(wanted)
        commands += self.refill(index, now)
        return [*commands, *self._settle(now)]

    def in_hand(self, index: int) -> int:
        """How many jobs the worker in slot *index* has in hand."""
        return len(self.slots[index].flight.jobs)

    def head(self, index: int) -> int | None:
        """Return the first job that the worker in slot *index* runs, or is about to."""
        return self.slots[index].flight.head

    def running(self, index: int) -> tuple[int, ...]:
        """Return the jobs that the worker in slot *index* runs, or is about to."""
        return self.slots[index].flight.running

    def runs(self, index: int, job: int) -> bool:
        """Tell whether the worker in slot *index* runs *job*, or is about to."""
        return self.slots[index].flight.runs(job)

    def last(self, index: int) -> int | None:
        """Return the job that came last into the hands of the worker in slot *index*."""
        return self.slots[index].flight.last

    def loaded(self, index: int, now: float) -> list[Command]:
        """Take note that the last job of slot *index*, which was loading, has been sent."""
        flight = self.slots[index].flight
        if not flight.closed:
            return []
        flight.closed = False
        return self.refill(index, now)

    # Workers that are somebody's own for a while.

    def want_worker(self) -> list[Command]:
        """Have the next idle worker be offered to whoever waits for one."""
        return [*self._sessions.want(), *self._seating.settle()]

    def leave_line(self, now: float) -> list[Command]:
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
            commands += self.rotation.let_go(slot, "session", now)
        elif slot.flight.spent and slot.state is SlotState.IDLE:
            commands += self.rotation.retire(slot, "max_jobs", now, unsent=None)
        elif slot.state in UP:
            self._seating.take(slot)
            if slot.state is SlotState.IDLE and not slot.hung:
                slot.idle_since = now
                commands += self._feed(slot, now)
        commands += self.rotation.step(now)
        self.rotation.count(now)
        return [*commands, *self._settle(now)]

    # The end of the pool.

    def close(
        self, finish: Finish, deadline: float | None, now: float
    ) -> list[Command]:
        """Finish what *finish* says, by *deadline* if there is one, and stop every worker."""
        commands: list[Command] = []
        errands: dict[int, Slot] = {}
        if max(finish, self.closing.finish or Finish.ALL) is not Finish.ALL:
            commands += self.rotation.stop(_CLOSED)
            errands = self._errands.take_all()
            commands += fail_jobs(list(errands), "closed")
        commands += self.closing.begin(finish, deadline, now)
        if self.closing.finish is not Finish.ALL:  # the time may be over already
            commands += self._refuse_sessions(now)
        for index in {slot.index: None for slot in errands.values()}:
            commands += self.refill(index, now)  # it may have free lanes
        return [*commands, *self._settle(now)]

    @property
    def grace(self) -> float:
        """For how many seconds a cancelled job may yet run."""
        endings = (it for slot in self.slots for it in slot.job_endings.values())
        presses = [it.press for it in endings if it.press is not None]
        return max((it.grace for it in presses if it.how == "interrupt"), default=0.0)

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
            self._lives.next_deadline(),
            self.rotation.next_deadline(),
            self.closing.due,
        )

    def on_timer(self, now: float) -> list[Command]:
        """Do what is due."""
        commands = self.closing.on_timer(now)
        if self.closing.finish is Finish.NONE:
            commands += self._refuse_sessions(now)
        commands += self._pressing.on_timer(now)
        commands += self._lives.on_timer(now)
        commands += self.rotation.on_timer(now)
        return [*commands, *self._settle(now)]

    # The pieces.

    def _settle(self, now: float) -> list[Command]:
        """If the pool closes, let go of what no job needs any more."""
        if self.closing.over or not self.closing.needs_nobody:
            return []
        return [*self.rotation.stop(_CLOSED), *self.closing.settle(now)]

    def _judge(
        self, slot: Slot, now: float, *, needed: bool, blamed: bool, roll: float
    ) -> list[Command]:
        before = self.broken
        commands = self._lives.judge(slot, now, needed=needed, blamed=blamed, roll=roll)
        if self.broken != before:
            commands += self.rotation.suspend("the pool broke")
            commands += fail_jobs(list(self._errands.take_all()), "broken")
            commands += self._sessions.give_up()
        return commands

    def _return(self, jobs: dict[int, Profile]) -> list[Command]:
        if self.broken is not None:
            return fail_jobs(list(jobs), "broken")
        commands: list[Command] = []
        errands = tuple(job for job in jobs if jobs[job] is ERRAND)
        if errands:
            jobs = {job: jobs[job] for job in jobs if job not in errands}
            commands.append(DropErrands(errands))
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
        if slot.errands:
            return self._errands.begin(slot)
        if self.dispatcher.wanted:
            commands = self._sessions.take(slot)
            if commands is not None:
                return [*commands, *self._seating.settle(), *self._let_go(now)]
        jobs = self.dispatcher.refill(slot.index, slot.flight)
        if not jobs:
            return []
        slot.assign()
        return [Assign(slot.index, tuple(jobs))]

    def _let_finish(self, slot: Slot, now: float) -> list[Command]:
        """Let a faulty worker finish what it serves, while another takes its place."""
        verdict = self._lives.announce(slot, now)
        delay = verdict.delay if isinstance(verdict, Restart) else None
        return self.rotation.break_off(slot, "uncaught exception", now, delay)
