"""What holds after each step of the model: nothing bad happens, and good things do."""

from __future__ import annotations

import math

from hypothesis.stateful import invariant

from asyncpool.enums import SlotState
from tests.core.imaginary.books import START_TIMEOUT
from tests.core.pool_core import (
    BY_ITSELF,
    EMPTY,
    REVOKE_GRACE,
    UNKNOWN,
    UP,
    EndingStage,
    Finish,
    StopStage,
    choose,
)
from tests.core.supervision_rules import SupervisionRules

__all__ = ["SupervisionPromises"]

# Slots that nobody comes into.
UNUSED = {SlotState.UNUSED, SlotState.RETIRED}


class SupervisionPromises(SupervisionRules):
    """Nothing bad happens, and nobody waits for what will not come."""

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
            if slot.state not in EMPTY and slot.state is not SlotState.RETIRED
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
        assert core.wanted == shell.wanted
        assert len(core.held_back) <= len(core.slots)
        assert core.queued == len(shell.waiting)
        ahead = sum(max(0, len(jobs) - shell.width) for jobs in flights.values())
        assert core.waiting == len(shell.waiting) + ahead
        assert core.pipelining == (ahead > 0)
        assert core.idle == len(shell.free())
        if not shell.broken:  # then nobody is given anything
            assert core.free == shell.lanes()
        assert (core.broken is not None, core.over) == (
            shell.broken,
            shell.finished,
        )
        assert all(map(core.is_unpacking, shell.unpacking))
        assert not any(map(core.is_unpacking, shell.waiting))
        assert core.kills == shell.seen["Kill"]
        assert core.rolling is shell.rolling
        assert core.settled or not shell.settled
        well = [p for p in shell.processes.values() if p.ready and not p.leaving]
        well = [p for p in well if p.told is StopStage.NO]
        assert len(well) == shell.workers or not core.settled

    @invariant()
    def no_two_workers_that_take_jobs_have_the_same_rank(self) -> None:
        slots = self.shell.core.slots
        staying = [slot for slot in slots if slot.state in UP and not slot.draining]
        ranks = [slot.rank for slot in staying if slot.replaces is None]
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
            assert SlotState.RETIRED not in states, "it drains as an open pool works"
        assert not (shell.closing is Finish.NONE and shell.open)
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
                        UNKNOWN if job in process.stalled else UNKNOWN / width
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
