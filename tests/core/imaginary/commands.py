"""What is to be done: each command of the core, carried out and checked."""

from __future__ import annotations

from tests.core.imaginary.books import START_TIMEOUT, Books, Process
from tests.core.pool_core import (
    KILL_GRACE,
    REVOKE_GRACE,
    STOP_GRACE,
    TERM_GRACE,
    CancelMode,
    Finish,
    SessionTraits,
    StopStage,
    cmd,
)

__all__ = ["Commands"]


class Commands(Books):
    """Carries out what a :class:`Core` wants done."""

    def feed(self, commands: list[cmd.Command]) -> None:
        self._carry_out_all(commands)
        self._look_at_places()

    def _carry_out_all(self, commands: list[cmd.Command]) -> None:
        self.seats_after = {
            slot.bucket: slot.index
            for slot in self.core.slots
            if slot.bucket is not None
        }
        for command in commands:
            assert not self.finished, "a command after Finished"
            self.seen[type(command).__name__] += 1
            self._carry_out(command)

    def _carry_out(self, command: cmd.Command) -> None:
        match command:
            case cmd.Spawn(slot, generation):
                self._spawn(slot, generation)
            case cmd.Assign(slot, jobs):
                assert jobs
                for job in jobs:
                    if job in self.calls:
                        self._begin_call(slot, job)
                        continue
                    if job in self.errands:
                        assert self.errands_before(slot)[0] == job
                        assert not self.processes[slot].hand
                        self.seen["an errand that begins"] += 1
                        self._begin(slot, job)
                        continue
                    if job in self.keys:
                        self._leave_line(slot, job)
                        continue
                    first = min(self.queue.came, default=job)
                    assert self.queue.pop() == job, "jobs begin in their order"
                    self.seen["a job that overtakes others"] += job > first
                    self._begin(slot, job)
            case cmd.Unassign(jobs):
                assert not any(
                    job in p.hand for p in self.processes.values() for job in jobs
                )
                self._put_back([job for job in jobs if job in self.open])
            case cmd.DropPinnedJobs(jobs):
                for job in jobs:
                    if job in self.given_back:
                        self.given_back.remove(job)
                        self.seen["an errand that came back"] += 1
                    else:
                        process = self.processes.get(self.errands[job])
                        assert process is None or process.leaving or process.told
                    self._end(job, "an errand that nobody runs")
            case cmd.Offer() | cmd.EndSession() | cmd.RefuseSessions():
                self._carry_out_for_sessions(command)
            case cmd.Revoke(slot, places):
                assert places
                process = self.processes[slot]
                process.questions.append(places)
                process.pending.append(places)
                hand = process.hand
                unwanted = {*process.unwanted, *process.late}
                unwanted = {hand[job] for job in unwanted if job in hand}
                process.owing.update(set(places) - unwanted)
            case cmd.Interrupt(slot, place):
                process = self.processes[slot]
                assert place in [process.hand[job] for job in process.asked_to_end]
                self.interrupts -= 1
            case cmd.WriteStacks(slot, written):
                process = self.processes[slot]
                assert written in process.asked_to_end or process.hung
                process.writes = True
            case cmd.Stop(slot):
                self._press(self.processes[slot], StopStage.ASKED)
            case cmd.Terminate(slot):
                self._press(self.processes[slot], StopStage.TERMINATED)
            case cmd.Kill(slot):
                self._press(self.processes[slot], StopStage.KILLED)
            case cmd.Abandon(slot):
                self._abandon(self.processes[slot])
            case cmd.FailJobs(jobs, why):
                self._fail(jobs, why)
            case cmd.TellRestart(slot, delay):
                assert slot not in self.processes
                most = 0.5 * len(self.core.slots) + 1e-9
                assert 0 <= delay <= most, "a refusal"
                self.seen["a restart behind the limit of forks"] += delay > 0
                self.not_before[slot] = self.now + delay
            case cmd.ParkSlot(slot, _, probe_in):
                self._park(slot, probe_in)
            case cmd.LeaveEmpty(slot):
                self._empty(slot)
            case cmd.KeepWorker(slot, again_in):
                self._empty(slot)
                if again_in is not None:
                    self.put_off = self.now + again_in
            case cmd.Draining(slot, why):
                others = any(process.leaving for process in self.processes.values())
                assert why != "idle" or not others, "one at a time"
                self._leave(self.processes[slot], why)
                if why in {"resize", "idle"} and self.processes[slot].ready:
                    self._check_who_stays()
            case cmd.Resized(workers):
                self.workers = workers
            case cmd.RollEnded(replaced, trouble, filled):
                assert self.rolling
                self.rolling = False
                assert replaced + filled <= self.places
                staying = [
                    process for process in self.processes.values() if process.rolled
                ]
                assert trouble or not staying, "it may run what is old"
                self.seen["filled by a roll"] += filled
                self.seen["a roll in vain" if trouble else "a complete roll"] += 1
            case cmd.GiveUp():
                assert not self.gave_up
                self.gave_up = self.core.retry_in(self.now) is None
                assert self.gave_up or not self.broken
                self.broken = True
            case cmd.Recover(slot):
                self._recover(slot)
            case cmd.Finished():
                self._finish()
            case _:
                raise AssertionError(command)

    def _check_who_stays(self) -> None:
        """Check that a worker went because there were too many that are well."""
        well = [p for p in self.processes.values() if p.ready and not p.leaving]
        alive = [p for p in well if p.told is StopStage.NO]
        assert len(alive) >= self.workers, "those that are empty may stay so"

    def _carry_out_for_sessions(
        self, command: cmd.Offer | cmd.EndSession | cmd.RefuseSessions
    ) -> None:
        match command:
            case cmd.Offer(slot, session):
                process = self.processes[slot]
                assert self.wanted, "nobody wants it"
                assert not process.hand
                assert self.core.slots[slot].replaces is None
                assert not any(s.replaces == slot for s in self.core.slots)
                assert slot not in self.owners, "it is somebody else's"
                self.wanted -= 1
                self.owners[slot] = session
            case cmd.EndSession(session, calls):
                for job in calls:
                    assert self.calls[job] == session
                    self.waiting_calls.remove(job)
                    self._end(job, "a call whose session is over")
                if session in self.owners.values():
                    self._forget(session)
                    self.departing += 1
            case cmd.RefuseSessions():
                assert self.wanted
                assert self.closing is not None or self.broken
                self.departing += self.wanted
                self.wanted = 0

    def _forget(self, session: int) -> None:
        self.owners = {n: own for n, own in self.owners.items() if own != session}
        left = [job for job in self.waiting_calls if self.calls[job] == session]
        assert not left, "a call is forgotten"

    def _come_as_call(self, session: int) -> int:
        job = self.jobs + 1
        self.traits[job] = SessionTraits(session)
        self.open.add(job)
        self.calls[job] = session
        return job

    def _begin_call(self, slot: int, job: int) -> None:
        session = self.calls[job]
        own = [other for other in self.waiting_calls if self.calls[other] == session]
        assert own[0] == job, "calls begin in their order"
        self.waiting_calls.remove(job)
        self.seen["a call of a session"] += 1
        self._begin(slot, job)

    def _spawn(self, slot: int, generation: int) -> None:
        assert slot not in self.processes, "two processes in one slot"
        assert generation == self.generations[slot] + 1
        if slot in self.parked:
            assert not self.gave_up
            if self.now < self.retry_at:
                assert self.hurried, "before the delay was over"
                self.hurried -= 1
            assert not self.trying, "one tries for all"
            self.parked.remove(slot)
            self.last_try = slot
        assert self.now >= self.not_before[slot], "before the delay was over"
        assert self.now <= self.close_at
        assert not self.nobody_is_needed, "a worker that no job needs"
        self.seen["a worker of a pool that drains"] += self.closing is not None
        if self.broken:
            self.seen["a probe of a broken pool"] += 1
        staying = sum(not p.leaving for p in self.processes.values())
        # Somebody must find out about a broken pool, too, while its last ones are busy.
        budget = self.workers + self.surge + self.broken
        assert staying < budget, "over the budget"
        self.generations[slot] = generation
        process = Process(slot, self.now, width=self.width)
        new = self.core.slots[slot]
        old = None if new.replaces is None else self.core.slots[new.replaces]
        assert old is None or old.rank in {new.rank, *range(self.most, 99)}
        process.most = self.limits.recycle_limits(slot, generation).jobs
        self.processes[slot] = process

    def _fail(self, jobs: tuple[int, ...], why: str) -> None:
        assert jobs
        if why == "expired":
            assert self.expired == {*jobs}
            self.expired.clear()
            return
        assert self.broken if why == "broken" else self.closing is not None
        for job in jobs:
            if job in self.waiting_calls:
                self.waiting_calls.remove(job)
                self._end(job, why)
                continue
            if job in self.waiting_errands or job in self.given_back:
                self.given_back.discard(job)
                self._end(job, why)
                continue
            self._end(job, why)
            if job in self.waiting:
                self._unqueue(job)
                assert why == "broken" or self.closing or self.time_is_over
            else:
                assert self.closing is Finish.NOTHING or self.time_is_over
                if job in self.unpacking:
                    self.unpacking.remove(job)
                    self.seen["closed while it was unpacked"] += 1
                for process in self.processes.values():
                    if process.hand.pop(job, None) and process.loading == job:
                        process.loading = None
                        self.seen["closed before it was sent"] += 1

    def _empty(self, slot: int) -> None:
        assert slot not in self.processes
        self.parked.discard(slot)
        self.not_before.pop(slot, None)

    def _park(self, slot: int, probe_in: float | None) -> None:
        assert slot not in self.processes
        self.parked.add(slot)
        if probe_in is None:
            return
        assert probe_in <= self.policy.max_delay
        if not self.trying:
            self.retry_at = self.now + probe_in

    def _recover(self, slot: int) -> None:
        assert self.processes[slot].state == "idle"
        assert not self.gave_up
        self.seen["a broken pool recovered"] += self.broken
        self.broken = False

    def _finish(self) -> None:
        assert self.closing is not None
        assert not self.processes, "a process outlives the pool"
        assert not self.open, "a job outlives the pool"
        self.finished = True

    # Nobody is pressed to end without a reason, or too hard, or too early.

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
        over = self.time_is_over and self.core.closing.finish is Finish.NOTHING
        if self.closing is Finish.NOTHING or (over and how is StopStage.KILLED):
            assert process.unwanted.keys() >= process.hand.keys(), "a job was forgotten"
            process.hand.clear()
            process.loading = None
        leaves = process.leaving and told is StopStage.NO and self.closing is None
        if leaves and not process.hand and how is not StopStage.KILLED:
            assert (how is StopStage.ASKED) is process.ready, "it has no ears yet"
        if how is StopStage.ASKED:
            assert not process.hand
            assert self.nobody_is_needed or self.broken or process.leaving
            process.excused = True
        elif how is StopStage.TERMINATED:
            assert not process.hand, "its jobs were not settled first"
            early = self.nobody_is_needed or process.leaving
            early = early or self.closing is Finish.NOTHING
            assert early or told is StopStage.ASKED
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
