"""Good things do happen.

Safety says that nothing bad happens; a supervisor that does nothing at all is perfectly safe.
"""

from __future__ import annotations

import math

from hypothesis.stateful import invariant

from asyncpool.enums import SlotState
from tests.core.imaginary.books import START_TIMEOUT
from tests.core.pool_core import (
    BY_ITSELF,
    REVOKE_GRACE,
    EndingStage,
    StopStage,
)
from tests.core.supervision_rules.base import SupervisionRules

__all__ = ["ProgressInvariants"]

# Slots that nobody comes into.
UNUSED = {SlotState.UNUSED, SlotState.RETIRED}


class ProgressInvariants(SupervisionRules):
    """Nobody waits for what will not come."""

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
