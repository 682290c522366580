"""All that a pool decides: random walks through a model with imaginary workers.

The rules, in ``supervision_rules``, are all that a shell can report; the promises are checked by
the shell in ``imaginary/`` at each command, by the invariants here after each rule, and by the
teardown, which sees every story to a good end: jobs are done, slots are filled, a close finishes,
all of it in bounded time.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from random import Random
from typing import Any, ClassVar, get_args

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from asyncpool.enums import SlotState
from tests.core.imaginary.books import START_TIMEOUT, Process
from tests.core.imaginary.shell import ImaginaryShell
from tests.core.pool_core import (
    BY_ITSELF,
    EMPTY,
    KILL_GRACE,
    REVOKE_GRACE,
    STACK_GRACE,
    UNKNOWN_COST,
    UP,
    EndingStage,
    Finish,
    RestartPolicy,
    StopStage,
    choose,
    cmd,
)
from tests.core.supervision_rules import SupervisionRules, plans, policies
from tests.random_walks.walk import Model, told, walk

# How often workers may do something for each job, at the most: begin with an empty slot,
# be ready, load it, give it back (which takes two) or finish it, and end; and the pool may
# have to get it, and to load what came of it.
STEPS = 8


def behave(shell: ImaginaryShell, manners: str) -> bool:
    """Let each worker do what it does; tell whether any of them did something.

    The kind do what is wanted from them.  The deaf do nothing and end by SIGKILL,
    and not even that ends the undead.
    """
    active = False
    for process in list(shell.processes.values()):
        if process.told is not StopStage.NO:
            if manners == "undead":
                continue
            if manners == "deaf" and process.told is not StopStage.KILLED:
                continue
            shell.die(process.slot)
        elif manners != "kind" or process.state == "idle":
            continue
        else:
            _go_on(shell, process)
        active = True
    if not active and manners == "kind" and (shell.preparing or shell.unpacking):
        # What the pool's own threads do, when everybody waits for it.
        if shell.unpacking:
            shell.outcome_unpacked(shell.unpacking[0])
        elif len(shell.preparing) == 1 and shell.jobs % 3 == 0:
            shell.refuse(shell.preparing[0])
        else:
            shell.submit_prepared(shell.preparing[0])
        active = True
    return active


def _go_on(shell: ImaginaryShell, process: Process) -> None:
    if process.state == "starting":
        shell.ready(process.slot)
    elif process.loading is not None:
        shell.load(process.slot)
    elif process.questions:
        shell.answer(process.slot)
    elif process.answers:
        shell.hear(process.slot)
    else:
        # Now and then one that must be loaded before it counts.
        shell.outcome(process.slot, heavy=shell.seen["completed"] % 3 == 0)


def end_sessions(shell: ImaginaryShell) -> None:
    """Let nobody have, or want, a worker to himself."""
    while shell.wanted:
        shell.want_no_more()
    for session in [*shell.owners.values()]:
        shell.end_session(session, fresh=session % 2 == 0)
    shell.depart()


def get_well(shell: ImaginaryShell) -> None:
    """Check that a pool whose workers are kind from now on does all its jobs."""
    for slot in shell.slots("starting", "idle", "busy", told=True):
        shell.die(slot)  # which may be one crash too many
    end_sessions(shell)
    began, broken = shell.now, shell.seen["broken"]
    # What comes back from a worker to a broken pool fails, as the queue did.
    healthy = not any(
        process.faulty or process.hung or process.questions or process.answers
        for process in shell.processes.values()
    )
    for _ in range(200 + STEPS * shell.jobs):
        if behave(shell, "kind"):
            continue
        missing = shell.workers - len(shell.free())
        if missing <= 0 or shell.gave_up:
            break
        deadline = shell.core.next_deadline()
        assert deadline is not None, "nobody looks at the empty slots"
        shell.advance(deadline - shell.now)
    else:
        raise AssertionError("the pool has not come back")
    patience = max(shell.policy.max_delay, 0.5 * len(shell.core.slots))
    assert shell.now <= began + patience + STACK_GRACE  # who hangs goes first
    assert not shell.open
    assert shell.seen["broken"] == broken or not healthy


def close_whatever_happens(shell: ImaginaryShell, manners: str) -> None:
    """Check that a close finishes, whatever came before and the workers are like."""
    patient = shell.closing is None and manners == "kind"
    closed, began = shell.seen["closed"], shell.now
    shell.close(Finish.ALL, math.inf if patient else 50.0)
    end_sessions(shell)
    while shell.holds:
        shell.release()
    for _ in range(400 + STEPS * shell.jobs):
        shell.bury_the_abandoned()
        if shell.finished:
            break
        if not behave(shell, manners):
            deadline = shell.core.next_deadline()
            assert deadline is not None, "nobody looks at the last workers"
            shell.advance(deadline - shell.now)
    assert shell.finished, "the close never ended"
    assert shell.now <= shell.close_at + KILL_GRACE
    if patient:
        assert shell.seen["closed"] == closed, "a job was not finished"
        assert shell.now < began + 50.0, "there was nothing to wait for"


# Slots that nobody comes into.
UNUSED = {SlotState.UNUSED, SlotState.REMOVED}


class SupervisionMachine(SupervisionRules):
    """Let happen whatever can happen to a pool, in any order."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        workers=st.integers(1, 4),
        plan=plans,
        policy=policies,
        manners=st.sampled_from(["kind", "deaf", "undead"]),
    )
    def start(
        self, workers: int, policy: RestartPolicy, plan: dict[str, Any], manners: str
    ) -> None:
        self.shell = ImaginaryShell(workers=workers, policy=policy, **plan)
        self.shell.start()
        self.manners = manners

    @precondition(lambda self: self.shell.finished)
    @rule(workers=st.integers(1, 4), policy=policies, plan=plans)
    def start_over(
        self, workers: int, policy: RestartPolicy, plan: dict[str, Any]
    ) -> None:
        self.seen.update(self.shell.seen)
        self.shell = ImaginaryShell(workers=workers, policy=policy, **plan)
        self.shell.start()

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        shell = self.shell
        if shell.closing is None:
            get_well(shell)
            for _ in range(0 if shell.broken else 3):
                shell.submit()
                shell.prepare(math.inf)
        if not shell.finished:
            close_whatever_happens(shell, self.manners)
        self.seen.update(shell.seen)

    # What always holds.

    @invariant()
    def signals_that_come_early_or_late_change_nothing(self) -> None:
        core, deadline = self.shell.core, self.shell.core.next_deadline()
        if not self.shell.finished:
            now = self.shell.now
            assert core.drop(1_000_000, now) == []
            assert core.outcome_unpacked(1_000_000, now) == []
            assert core.cancel(1_000_000, now, index=0, begun=False) == []
        early = deadline is not None and deadline > self.shell.now
        if early:
            assert core.on_timer(self.shell.now) == []
        assert core.next_deadline() == deadline

    @invariant()
    def the_books_agree(self) -> None:
        shell, core = self.shell, self.shell.core
        filled = {
            slot.index
            for slot in core.slots
            if slot.state not in EMPTY and slot.state is not SlotState.REMOVED
        }
        assert filled == set(shell.processes)
        in_hand = {
            p.slot: list(p.hand)
            for p in shell.processes.values()
            if p.hand and p.told is StopStage.NO
        }
        flights = {
            s.index: list(s.in_flight.jobs) for s in core.slots if s.in_flight.jobs
        }
        going = {p.slot for p in shell.processes.values() if p.told is not StopStage.NO}
        assert in_hand == {
            slot: jobs for slot, jobs in flights.items() if slot not in going
        }
        wanted = [
            job
            for process in shell.processes.values()
            for job in process.hand
            if job not in process.unwanted
        ]
        elsewhere = [*shell.waiting, *shell.unpacking]
        elsewhere += [*shell.waiting_errands, *shell.waiting_calls]
        assert shell.open == {*wanted, *elsewhere}
        assert len(shell.open) == len(wanted) + len(elsewhere)
        for slot in core.slots:
            assert list(slot.pinned) == shell.errands_before(slot.index)
            session = shell.owners.get(slot.index)
            assert slot.session == session
            assert list(slot.calls) == shell.calls_of(session)
        assert core.dispatcher.session_waiters == shell.wanted
        assert len(core.held_back) <= len(core.slots)
        assert core.dispatcher.unassigned == len(shell.waiting)
        ahead = sum(max(0, len(jobs) - shell.width) for jobs in flights.values())
        assert core.waiting == len(shell.waiting) + ahead
        assert core.pipelining == (ahead > 0)
        assert len(core.dispatcher.idle) == len(shell.free())
        if not shell.broken:  # then nobody is given anything
            assert core.dispatcher.free == shell.lanes()
        assert (core.broken is not None, core.over) == (shell.broken, shell.finished)
        assert all(map(core.is_unpacking, shell.unpacking))
        assert not any(map(core.is_unpacking, shell.waiting))
        assert core.lifecycle.kills == shell.seen["Kill"]
        assert core.lifecycle.rolling is shell.rolling
        # A pool that has given up keeps the slot in which that happened, needed or not.
        assert core.lifecycle.settled or not shell.settled or shell.broken
        well = [p for p in shell.processes.values() if p.ready and not p.leaving]
        well = [p for p in well if p.told is StopStage.NO]
        assert len(well) == shell.workers or not core.lifecycle.settled

    @invariant()
    def no_two_workers_that_take_jobs_have_the_same_rank(self) -> None:
        slots = self.shell.core.slots
        staying = [slot for slot in slots if slot.state in UP and not slot.draining]
        ranks = [slot.rank for slot in staying if slot.replaces is None]
        # A pool that finishes what runs gives nobody anything; a replacement may be there too soon.
        if self.shell.closing in {None, Finish.ALL}:
            assert len(ranks) == len({*ranks})

    @invariant()
    def nobody_waits_while_somebody_is_idle(self) -> None:
        free = [*self.shell.free(), *self.shell.spacious()]
        assert not (self.shell.queue and free)
        stay = {slot.replaces for slot in self.shell.core.slots}
        assert not self.shell.wanted or {*self.shell.free()} <= stay
        assert not any(self.shell.slot_for(job) in free for job in self.shell.keyed)

    @invariant()
    def no_call_waits_while_its_worker_is_idle(self) -> None:
        shell = self.shell
        for slot, session in shell.owners.items():
            if slot not in shell.slots("idle") or shell.processes[slot].hung:
                continue
            calls = shell.calls_of(session)
            assert not calls
            assert not shell.errands_before(slot)

    @invariant()
    def who_waits_for_a_worker_is_in_its_line(self) -> None:
        lines = self.shell.core.lines()
        waiting = {job: place for place, line in lines.items() for job in line}
        assert sorted(waiting) == sorted(self.shell.keyed)
        for job, place in waiting.items():
            assert place == choose(self.shell.keys[job], self.shell.seats)
        assert all(lines.values()), "a line that nobody is in"

    @invariant()
    def a_broken_pool_holds_no_queued_job(self) -> None:
        shell = self.shell
        if shell.broken:
            assert not shell.waiting
            with_worker = {shell.owners.get(slot) for slot in shell.processes}
            assert {shell.calls[job] for job in shell.waiting_calls} <= with_worker

    @invariant()
    def a_closing_pool_keeps_only_what_its_jobs_need(self) -> None:
        shell = self.shell
        if shell.closing is None:
            return
        if shell.nobody_is_needed:
            assert not shell.slots("starting", "idle")
        if not shell.core.grants_no_exit:
            states = [slot.state for slot in shell.core.slots]
            assert SlotState.REMOVED not in states, "it drains as an open pool works"
        assert not (shell.closing is Finish.NOTHING and shell.open)
        assert not (shell.closing >= Finish.RUNNING and shell.preparing)

    @invariant()
    def after_the_deadline_every_job_has_ended(self) -> None:
        if self.shell.now > self.shell.close_at:
            assert not self.shell.open
            assert all(
                p.told is StopStage.KILLED for p in self.shell.processes.values()
            )

    @invariant()
    def every_timer_is_ahead(self) -> None:
        deadline = self.shell.core.next_deadline()
        assert deadline is None or deadline >= self.shell.now
        if self.shell.finished:
            assert deadline is None

    @invariant()
    def who_is_being_loaded_is_the_last_and_has_the_next_place(self) -> None:
        for process in self.shell.processes.values():
            if process.loading is not None:
                job, width = process.loading, process.width
                assert list(process.hand.items())[-1] == (job, process.sent + 1)
                assert len(process.hand) <= width
                slot = self.shell.core.slots[process.slot]
                traits = self.shell.traits[job]
                if slot.in_flight.jobs:
                    place, cost, known = slot.in_flight.jobs[job]
                    assert (place, known) == (process.sent + 1, traits)
                    assert cost == (
                        UNKNOWN_COST if job in process.stalled else UNKNOWN_COST / width
                    )
                    assert self.shell.core.last(process.slot) == job
                    assert self.shell.core.runs(process.slot, job)

    # Good things do happen: a supervisor that does nothing at all is perfectly safe.

    @invariant()
    def silence_of_a_process_is_noticed(self) -> None:
        for process in self.shell.processes.values():
            slot = self.shell.core.slots[process.slot]
            pressed = process.told is not StopStage.NO and not process.abandoned
            if pressed or (process.state == "starting" and not process.abandoned):
                since = process.told_at if pressed else process.born_at
                assert slot.due is not None
                assert slot.due <= since + START_TIMEOUT
            elif process.asked_to_end or process.doomed:
                dooms = [since + REVOKE_GRACE for since in process.doomed.values()]
                assert slot.due == min(*process.asked_to_end.values(), *dooms, math.inf)
            elif process.dies_at is not None:
                assert slot.due == process.dies_at
            else:
                assert slot.due is None

    @invariant()
    def who_is_to_end_is_told_once(self) -> None:
        assert self.shell.interrupts == 0

    @invariant()
    def nobody_works_for_a_caller_who_left(self) -> None:
        for process in self.shell.processes.values():
            if process.doomed and process.told is StopStage.NO:
                # Whoever waits behind it is being asked for, and not for long.
                due = self.shell.core.slots[process.slot].due
                assert due is not None
                assert due <= min(process.doomed.values()) + REVOKE_GRACE
            elif process.asked_to_end and process.told is StopStage.NO:
                assert self.shell.now < min(process.asked_to_end.values())
            elif process.told is StopStage.NO and any(
                mode.action != "wait" for mode in process.unwanted.values()
            ):
                assert process.questions or process.answers

    @invariant()
    def each_end_of_a_job_is_at_a_stage_that_fits(self) -> None:
        timed = {*BY_ITSELF, EndingStage.KILLING}
        for slot in self.shell.core.slots:
            if slot.state is not SlotState.BUSY:
                continue
            for job, ending in slot.job_endings.items():
                assert job in slot.in_flight.jobs
                assert (ending.due is not None) is (ending.stage in timed)
                if ending.stage is EndingStage.REVOKING:
                    assert slot.in_flight.is_revoking(job)
                if ending.stage is EndingStage.NONE:
                    assert ending.mode is not None, "nobody wants it to end"

    @invariant()
    def an_empty_slot_is_looked_at_again(self) -> None:
        shell = self.shell
        if shell.nobody_is_needed:
            return
        for slot in shell.core.slots:
            if slot.index in shell.processes or slot.state in UNUSED:
                continue
            assert (slot.state is SlotState.PARKED) is (slot.index in shell.parked)
            if slot.state is SlotState.PARKED:
                assert slot.due is None
            else:
                assert not shell.broken
                assert slot.due is not None
                assert slot.due == shell.not_before[slot.index]

    @invariant()
    def no_job_waits_for_a_worker_that_will_never_come(self) -> None:
        core = self.shell.core
        if self.shell.waiting and core.retry_at is None:
            breaks_pool = {SlotState.PARKED, *UNUSED}
            assert not all(slot.state in breaks_pool for slot in core.slots)

    @invariant()
    def a_roll_does_not_rest(self) -> None:
        shell = self.shell
        if not shell.rolling or shell.broken or shell.closing is not None:
            return
        some = shell.processes.values()
        moves = any(it.state == "starting" or it.leaving or it.told for it in some)
        empty = {it.index for it in shell.core.slots if it.due is not None}
        coming = shell.parked or empty - set(shell.processes)
        assert moves or coming or shell.owners or shell.now < shell.put_off

    @invariant()
    def somebody_tries_for_the_parked_slots(self) -> None:
        shell = self.shell
        if shell.parked and not shell.gave_up and shell.closing is None:
            assert shell.trying or shell.core.retry_at is not None
            retry_in = shell.core.retry_in(shell.now)
            assert retry_in is not None
            assert not (shell.trying and retry_in)


# With fewer examples than that, the model keeps its promises, and what is rare does not happen.
_USUAL = 60

# How often each thing must have happened.
_FLOOR = {
    "submit": 150,
    "completed": 100,
    "cancelled": 15,
    "lost": 3,
    "broken": 10,
    "closed": 15,
    "an answer to retry after": 3,
    "a late hello": 6,
    "a fault": 15,
    "close again": 1,
    "a broken pool recovered": 5,
    "parked": 30,
    "a restart behind the limit of forks": 10,
    "died busy, told no": 10,
    "died idle, told no": 6,
    "died starting, told no": 30,
    "died idle, told asked": 15,
    "died starting, told terminated": 1,
    "died busy, told killed": 1,
    "a job that travels ahead": 100,
    "a job beside others": 100,
    "died beside others": 10,
    "killed beside others": 3,
    "a job that overtakes others": 30,
    "an urgent job that need not wait": 1,
    "a keyed job that need not wait": 30,
    "a keyed job that waits": 30,
    "a keyed job that waits while others are idle": 10,
    "a keyed job whom nobody is there for": 1,
    "a keyed job that had to wait": 30,
    "a keyed job that came back": 10,
    "places that changed": 30,
    "an errand": 100,
    "an errand that begins": 60,
    "an errand that nobody runs": 10,
    "a revoked job": 3,
    "a revoke in vain": 1,
    "a stall": 1,
    "late": 3,
    "expired": 1,
    "an outcome that nobody wanted": 1,
    "an outcome of a job that was asked to end": 1,
    "Interrupt": 6,
    "WriteStacks": 6,
    "killed when it had said where it was": 1,
    "killed for a job": 1,
    "hung": 1,
    "hung without a job": 1,
    "hung while it was to end": 1,
    "hung no more": 1,
    "killed since it hung": 1,
    "left: worn": 1,
    "left: asked": 1,
    "left: max_jobs": 1,
    "left: max_age": 1,
    "left: idle": 1,
    "left: resize": 1,
    "left: roll": 1,
    "left a job behind": 1,
    "killed for its size": 1,
    "as many jobs as it may have": 30,
    "killed by order": 3,
    "killed by order, at work": 1,
    "killed since it would not leave": 1,
    "roll": 10,
    "a complete roll": 3,
    "a roll in vain": 1,
    "an early start that failed": 3,
    "an early replacement that came up": 3,
    "filled by a roll": 1,
    "resize": 10,
    "killed for a job, late": 1,
    "untouched by a death": 10,
    "requeued": 1,
    "prepared": 150,
    "submitted when prepared": 100,
    "submitted when prepared while the pool closes": 15,
    "refused": 3,
    "loaded": 100,
    "withdrawn": 6,
    "withdrawn, and another one sent": 3,
    "requeued before it was sent": 10,
    "closed before it was sent": 1,
    "unpacked": 30,
    "unpacked while the pool closes": 3,
    "closed while it was unpacked": 1,
    "Offer": 30,
    "a call of a session": 20,
    "a call whose session is over": 3,
    "a session that ends": 20,
    "a session that lost its worker": 10,
    "a worker of a pool that drains": 15,
    "held open while the pool closes": 6,
}

# So many walks make all of that happen, as a rule, and else there are more.
_WALKS = 700
_MOST_WALKS = 4_000


def test_the_model_does_all_that_it_is_for_and_keeps_its_promises() -> None:
    seen, model = SupervisionMachine.seen, Model(SupervisionMachine)
    seen.clear()
    tries = settings()
    # Other walks each time, but for a run that is to be the same as the last one.
    first = "the same" if tries.derandomize else str(time.time_ns())
    walks = _WALKS * tries.max_examples // _USUAL
    rare: list[str] = []
    for number in range(max(walks, _MOST_WALKS)):
        steps, failure = walk(model, Random(f"{first} {number}"))
        if failure is not None:
            pytest.fail(told(model, steps, failure))
        if number + 1 >= walks and number % 100 == 99:
            rare = [what for what, least in _FLOOR.items() if seen[what] < least]
            if not rare or tries.max_examples < _USUAL:
                break
    else:
        raise AssertionError(f"hardly ever happened: {rare}")
    if tries.max_examples >= _USUAL:
        assert {command.__name__ for command in get_args(cmd.Command)} <= set(seen)
