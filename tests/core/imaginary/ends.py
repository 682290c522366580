"""How a worker comes to its end, and a job that it runs."""

from __future__ import annotations

from tests.core.imaginary.books import START_TIMEOUT
from tests.core.imaginary.lines import Lines
from tests.core.imaginary.process import Process
from tests.core.pool_core import (
    KILL_GRACE,
    REVOKE_GRACE,
    STOP_GRACE,
    TERM_GRACE,
    CancelMode,
    Finish,
    StopStage,
)

__all__ = ["Ends"]


class Ends(Lines):
    """Checks that nobody is pressed to end without a reason, or too hard, or too early."""

    def _make_end(self, process: Process, job: int, mode: CancelMode) -> None:
        """Expect a job to end by itself for a while, or its worker to die of it."""
        if process.told is not StopStage.NO or mode.action == "wait":
            return
        if job in process.asked_to_end:
            return
        if job == process.silent:
            process.hung, process.silent = False, None
        if mode.grace:
            process.asked_to_end[job] = self.now + mode.grace
            process.doomed.pop(job, None)
            process.stalled.add(job)
            if mode.action == "kill":
                process.breaks_pool.add(job)
            self.interrupts += mode.action == "interrupt"
        else:
            self._doom(process, job)

    def _doom(self, process: Process, job: int) -> None:
        process.doomed.setdefault(job, self.now)
        process.asked_to_end.pop(job, None)

    def _forgive(self, process: Process, job: int, what: str) -> None:
        """Take note that a job has left, of which the worker may have had to die."""
        process.stalled.discard(job)
        if job in process.asked_to_end:
            self.seen[f"{what} of a job that was asked to end"] += 1
            self.seen["hung no more"] += process.silent == job
            del process.asked_to_end[job]
        if job in process.unwanted:
            self.seen[f"{what} that nobody wanted"] += 1
            del process.unwanted[job]
        process.doomed.pop(job, None)
        process.breaks_pool.discard(job)
        if job == process.silent:
            process.hung, process.silent = False, None

    def _notice_who_has_not_ended(self) -> None:
        for process in self.processes.values():
            for job, until in [*process.asked_to_end.items()]:
                if until <= self.now and process.told is StopStage.NO:
                    self._doom(process, job)

    def _leave(self, process: Process, why: str) -> None:
        assert not process.leaving
        assert process.told is StopStage.NO
        self.seen[f"left: {why}"] += 1
        self.seen["left a job behind"] += bool(process.hand)
        process.leaving = True
        process.leave_by = self.now + self.drain_timeout

    def _press(self, process: Process, how: StopStage) -> None:
        """Check that a process is pressed to end for a reason and step by step."""
        told, told_at = process.told, process.told_at
        assert told < how, "a step back, or the same one twice"
        # Or it is killed for a job, in the moment before the timer.
        over = self.time_is_over and not self.core.in_hand(process.slot)
        if self.closing is Finish.NONE or (over and how is StopStage.KILLED):
            assert process.unwanted.keys() >= process.hand.keys(), "a job was forgotten"
            process.hand.clear()
            process.loading = None
        leaves = process.leaving and told is StopStage.NO and self.closing is None
        if leaves and not process.hand and how is not StopStage.KILLED:
            assert (how is StopStage.STOPPED) is process.ready, "it has no ears yet"
        if how is StopStage.STOPPED:
            assert not process.hand
            assert self.nobody_is_needed or self.broken or process.leaving
            process.excused = True
        elif how is StopStage.TERMINATED:
            assert not process.hand, "its jobs were not settled first"
            early = self.nobody_is_needed or process.leaving
            early = early or self.closing is Finish.NONE
            assert early or told is StopStage.STOPPED
            assert told is StopStage.NO or self.now >= told_at + STOP_GRACE
            process.excused = True
        elif process.shot:
            self.seen["killed by order"] += 1
            self.seen["killed by order, at work"] += bool(process.running)
            process.excused = process.excused or not (process.faulty or process.hung)
        elif told is not StopStage.TERMINATED or self.now < told_at + TERM_GRACE:
            self._shoot(process)
        process.told, process.told_at = how, self.now

    def _shoot(self, process: Process) -> None:
        """Check that there is a reason for a SIGKILL out of turn."""
        if process.faulty and (process.told or not process.hand):
            return
        if process.oversized:
            self.seen["killed for its size"] += 1
            return
        if self.time_is_over and not process.hand:
            # Two reasons may coincide.
            hung = process.dies_at is not None and self.now >= process.dies_at
            process.excused = not hung or self.core.slots[process.slot].exit_planned
            return
        if process.doomed:
            late = self.now >= min(process.doomed.values()) + REVOKE_GRACE
            alone = len(process.hand) <= self.width
            assert alone or late, "others might begin meanwhile"
            self.seen["killed beside others"] += len(process.hand) > 1
            self.seen["killed for a job, late" if late else "killed for a job"] += 1
            self.seen["killed since it hung"] += process.hung
            process.excused = not process.hung
            return
        if process.dies_at is not None:
            assert self.now >= process.dies_at, "it was to say where it is"
            return
        if process.leaving and process.hand:
            assert self.now >= process.leave_by, "it has time to finish its job"
            self.seen["killed since it would not leave"] += 1
            return
        assert process.state == "starting", "killed for nothing"
        assert self.now >= process.born_at + START_TIMEOUT

    def _abandon(self, process: Process) -> None:
        assert process.told is StopStage.KILLED
        assert self.now >= process.told_at + KILL_GRACE
        assert not process.abandoned
        process.abandoned = True
