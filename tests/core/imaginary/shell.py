"""What happens to workers, to jobs, and to the pool as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.core.imaginary.books import Process
from tests.core.imaginary.commands import Commands
from tests.core.pool_core import (
    KILL,
    LEAST_GRACE,
    LOADING_TRAITS,
    REFILL_BELOW,
    STACK_GRACE,
    UNKNOWN_COST,
    CancelMode,
    Finish,
    JobTraits,
    KeyedTraits,
    SessionTraits,
    StopStage,
    cmd,
)

__all__ = ["ImaginaryShell"]


class ImaginaryShell(Commands):
    """Feeds a :class:`Core` and carries out what it wants done."""

    def start(self) -> None:
        self.feed(self.core.start(self.now))
        assert len(self.processes) == self.workers, "every worker is started"

    def ready(self, slot: int) -> None:
        process = self.processes[slot]
        if process.told is not StopStage.NO or process.ready:
            self.seen["a late hello"] += 1
            assert self.core.ready(slot, self.now) == []
            return
        process.ready = True
        self.seen["ready"] += 1
        if (
            process.early
            and self.rolling
            and self.core.slots[slot].replaces is not None
        ):
            self.seen["an early replacement that came up"] += 1
        # Starts succeed, for all of them.
        self.parked.clear()
        self.retry_at, self.last_try = -math.inf, None
        self.hurried = 2 * self.rolling
        self.feed(self.core.ready(slot, self.now))

    def write(self, slot: int) -> None:
        """Let a worker have said where it is."""
        process = self.processes[slot]
        process.writes = False
        breaks_pool = [
            job for job in process.asked_to_end if job in process.breaks_pool
        ]
        if process.told is StopStage.NO:
            for job in breaks_pool:
                self._doom(process, job)
                self.seen["killed when it had said where it was"] += 1
        if process.dies_at is not None:
            process.dies_at = self.now
        self.feed(self.core.stacks_written(slot, self.now))

    def hang(self, slot: int, job: int | None = None) -> None:
        """Let it be noticed that a worker is silent, or a job that it runs."""
        process = self.processes[slot]
        able = process.ready and process.told is StopStage.NO
        if not able or process.hung or process.doomed:
            assert self.core.hang(slot, self.now, job) == []
            return
        due = self.now + STACK_GRACE
        silent = next(iter(process.hand), None) if job is None else job
        process.hung, process.silent = True, silent
        self.seen["hung" if silent else "hung without a job"] += 1
        if silent is None:
            process.dies_at = due
        else:
            process.breaks_pool.add(silent)
            if silent in process.asked_to_end:
                self.seen["hung while it was to end"] += 1
            until = process.asked_to_end.get(silent, due)
            process.asked_to_end[silent] = min(until, due)
            process.stalled.add(silent)
        commands = self.core.hang(slot, self.now, job)
        assert cmd.WriteStacks(slot, silent) in commands
        self.feed(commands)

    def fault(self, slot: int) -> None:
        """Let an uncaught exception end one of a worker's other threads."""
        self.processes[slot].faulty = True
        self.seen["a fault"] += 1
        self.feed(self.core.fault(slot, self.now))

    def check_for_stalls(self) -> None:
        first = {p.slot: p.first() for p in self.processes.values()}
        for command in self.core.check_for_stalls():
            assert isinstance(command, cmd.Revoke)
            process = self.processes[command.slot]
            assert len(process.hand) > self.width
            assert command.sequences == tuple(process.hand.values())[self.width :]
            process.stalled.update(first[command.slot])
            self.seen["a stall"] += 1
            self.feed([command])

    def die(self, slot: int, *, requeue: bool = False, jitter: float = 0.5) -> None:
        """End a process; *requeue* if its death is one to retry after."""
        process = self.processes.pop(slot)
        if self.last_try == slot:
            self.last_try = None
        wanted = [job for job in process.hand if job not in process.unwanted]
        started = any(job in wanted for job in process.running)
        self.seen["died beside others"] += len(process.running) > 1
        waits = next((job for job in process.first() if job not in process.running), 0)
        back = []
        for job in wanted:
            touched = job in process.running or (job == waits and not process.excused)
            if job == process.loading:
                self.seen["requeued before it was sent"] += 1
                back.append(job)
            elif touched and not requeue:
                self._end(job, "lost")
            else:
                self.seen["requeued" if touched else "untouched by a death"] += 1
                back.append(job)
        self._put_back(back)
        self.seen["a session that lost its worker"] += slot in self.owners
        self.seen[f"died {process.state}, told {process.told.name.lower()}"] += 1
        ledger = self.core.restart_book()
        broken = self.broken
        commands = self.core.ended(
            slot, self.now, had_begun=started, requeue=back, jitter=jitter
        )
        verdicts = [
            command
            for command in commands
            if isinstance(
                command,
                cmd.TellRestart | cmd.ParkSlot | cmd.LeaveEmpty | cmd.KeepWorker,
            )
        ]
        self.feed(commands)
        self._look_at_a_start(process, commands)
        if process.excused:
            assert self.core.restart_book() == ledger, "a planned exit was counted"
            allowed = cmd.LeaveEmpty | cmd.ParkSlot if broken else cmd.LeaveEmpty
            assert all(isinstance(verdict, allowed) for verdict in verdicts)
            verdicts = [verdict for verdict in verdicts if verdict.slot == slot]
            if self.closing is None and not broken:
                assert slot in self.processes or verdicts, "replaced at once"
        elif self.closing is None:
            assert verdicts[0].slot == slot
            smaller = any(isinstance(it, cmd.Resized) for it in commands)
            self._check_what_follows_elsewhere(
                verdicts[1:], spare=smaller, broken=broken
            )
            if process.ready and not self.broken:
                assert isinstance(verdicts[0], cmd.TellRestart | cmd.LeaveEmpty)
            if started and isinstance(verdicts[0], cmd.TellRestart):
                assert verdicts[0].delay == 0, "a job is to blame"
            self.seen["parked"] += isinstance(verdicts[0], cmd.ParkSlot)
            if isinstance(verdicts[0], cmd.KeepWorker):
                assert self.core.restart_book() == ledger, "it cannot break the pool"

    def _look_at_a_start(self, process: Process, commands: list[cmd.Command]) -> None:
        """Check that one which had begun before a roll does not end it, if it has failed."""
        if process.ready:
            return
        if process.early:
            self.seen["an early start that failed"] += self.rolling
            troubles = {it.reason for it in commands if isinstance(it, cmd.RollEnded)}
            assert "a replacement did not start" not in troubles, "of another roll"
            # Whoever begins when another start fails is taken for one that began after that.
            again = "a start failed again" in troubles
            assert process.tied or not again, "of another roll"
        for other in self.processes.values():
            other.tied = other.tied or other.born_at == self.now

    def _check_what_follows_elsewhere(
        self, verdicts: Sequence[cmd.Command], *, spare: bool, broken: bool
    ) -> None:
        for verdict in verdicts:
            if isinstance(verdict, cmd.ParkSlot):
                # A pool that gives up, also on whom it was to start a little later.
                assert self.broken
                assert not broken
            else:
                # The pool has got smaller.
                assert isinstance(verdict, cmd.LeaveEmpty)
                assert spare

    def lose(self, session: int, then: int) -> None:
        """Let the worker of a session die, and *then* so much of what follows happen."""
        slot = next(slot for slot, own in self.owners.items() if own == session)
        if slot in self.processes:
            self.die(slot)
        if then > 0 and slot in self.slots("starting"):
            self.ready(slot)
        if then > 1 and slot in self.slots("busy"):
            self.outcome(slot)

    def wear_out(self, slot: int) -> None:
        self.feed(self.core.replace(slot, "worn", self.now))

    def retire(self, slot: int) -> None:
        process = self.processes[slot]
        unsent, process.loading = process.loading, None
        if not process.ready or process.told:
            unsent, process.loading = None, unsent
        self.feed(self.core.retire(slot, "asked", self.now, unsent=unsent))
        assert process.leaving or not process.ready or process.told, "it goes at once"
        if unsent is not None:
            self.seen["retired before it was sent a job"] += 1
            del process.hand[unsent]
            process.given -= 1
            self._forgive(process, unsent, "a job withdrawn")
            self.feed(self.core.withdraw(slot, unsent, self.now, requeue=True))

    def oversized(self, slot: int) -> None:
        process = self.processes[slot]
        if process.ready and process.told is StopStage.NO:
            process.oversized = True
        self.feed(self.core.oversized(slot, "", self.now))

    def kill(self, slot: int) -> None:
        process = self.processes[slot]
        process.shot = True
        self.feed(self.core.kill(slot, self.now))
        assert process.told is StopStage.KILLED

    def roll(self) -> None:
        self.seen["roll"] += 1
        self.rolling = True
        # One that has begun may fail of what is old; the next one is the roll's own.
        self.hurried = 2
        self.put_off = -math.inf
        self._mark_who_is_there()
        self.feed(self.core.roll(self.now))

    def _mark_who_is_there(self) -> None:
        self.places = len(self.parked)
        for slot, process in self.processes.items():
            process.early = not process.ready and not process.excused
            process.rolled = not process.leaving and process.told is StopStage.NO
            stays = process.rolled or process.early
            pair = self.core.slots[slot].replaces
            old = None if pair is None else self.processes.get(pair)
            # Who is to replace somebody that stays is no worker more.
            self.places += stays and not (old and not old.leaving and not old.told)

    def resize(self, least: int, most: int) -> None:
        self.seen["resize"] += 1
        self.retry_at = min(self.retry_at, self.now)
        self.most = most
        self.feed(self.core.resize(least, most, self.now))
        assert least <= self.workers <= most

    def hold(self) -> None:
        """Let somebody have more jobs to come, as a map has."""
        self.holds += 1
        self.core.hold()

    def release(self) -> None:
        self.holds -= 1
        self.seen["held open while the pool closes"] += self.closing is not None
        self.feed(self.core.release(self.now))

    def close(self, finish: Finish, timeout: float = math.inf) -> None:
        self.seen["close again" if self.closing is not None else "close"] += 1
        self.closing = max(finish, self.closing or Finish.ALL)
        self.close_at = min(self.close_at, self.now + timeout)
        deadline = None if timeout == math.inf else self.now + timeout
        self.feed(self.core.close(finish, deadline, self.now))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(20_000):
            self.bury_the_abandoned()
            deadline = self.core.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.seen["a timer"] += 1
            self._notice_who_has_not_ended()
            commands = self.core.on_timer(self.now)
            assert commands or self.core.next_deadline() != deadline, "a busy loop"
            self.feed(commands)
        else:
            raise AssertionError("timers without end")
        self.now = end

    def bury_the_abandoned(self) -> None:
        for process in list(self.processes.values()):
            if process.abandoned:
                self.die(process.slot)

    # Jobs come, go to workers and come back, and end.

    def submit(
        self, cost: float = UNKNOWN_COST, priority: int = 0, key: int | None = None
    ) -> None:
        job = self._come(cost, key)
        self.seen["submit"] += 1
        place = self.core.submit if key is None else self.core.place
        slot = place(job, self.traits[job], priority)
        self._enter(job, priority, slot)

    def prepare(self, cost: float, key: int | None = None) -> None:
        """Let a job come that must be pickled first."""
        job = self._come(cost, key)
        self.seen["prepared"] += 1
        self.preparing.append(job)
        self.prepared.add(job)
        self.core.prepare(job)

    def submit_prepared(self, job: int, priority: int = 0) -> None:
        """Let a job that is being prepared be pickled by now."""
        self.preparing.remove(job)
        self.seen["submitted when prepared"] += 1
        if self.closing is not None:
            self.seen["submitted when prepared while the pool closes"] += 1
        commands = self.core.submit_prepared(job, self.traits[job], self.now, priority)
        match commands:
            case [cmd.Assign(slot, (first,)), *rest]:
                assert first == job
                self._enter(job, priority, slot)
                self.feed(rest)
            case _:
                self._enter(job, priority, None)
                self.feed(commands)

    def refuse(self, job: int) -> None:
        """Let it turn out that a job that is being prepared cannot be pickled."""
        self._end(job, "refused")
        self.preparing.remove(job)
        self.feed(self.core.drop(job, self.now))

    def errand(self, slot: int) -> None:
        """Have a job come for one worker."""
        process = self.processes[slot]
        job = self._come(UNKNOWN_COST, None)
        self.errands[job] = slot
        self.seen["an errand"] += 1
        commands = self.core.submit_pinned(slot, job)
        if slot in self.slots("idle") and not process.hung:
            assert commands == [cmd.Assign(slot, (job,))]
        else:
            assert commands == []
            process.line = True
        self.feed(commands)

    def want(self) -> None:
        """Let somebody want a worker to himself."""
        self.wanted += 1
        self.session_holds += 1
        self.core.hold()
        self.feed(self.core.request_worker())
        if self.wanted:
            self.core.job_waits(self.now)

    def want_no_more(self) -> None:
        self.wanted -= 1
        self.feed(self.core.cancel_request(self.now))
        self._let_go()

    def depart(self) -> None:
        """Let those leave who have lost their worker, or were refused one."""
        while self.departing:
            self.departing -= 1
            self._let_go()

    def _let_go(self) -> None:
        self.session_holds -= 1
        self.feed(self.core.release(self.now))

    def call(self, session: int) -> None:
        job = self._come_as_call(session)
        self.waiting_calls.append(job)
        self.feed(self.core.call(job, SessionTraits(session)))

    def end_session(self, session: int, *, fresh: bool) -> None:
        """Let somebody give his worker back, and cancel what he has it do."""
        for job in [job for job in self.open if self.calls.get(job) == session]:
            self.cancel(job)
        if session not in self.owners.values():
            return
        self._forget(session)
        self.seen["a session that ends"] += 1
        self.feed(self.core.end_session(session, self.now, fresh=fresh))
        self._let_go()

    def _come(self, cost: float, key: int | None) -> int:
        job = self.jobs + 1
        traits: JobTraits = LOADING_TRAITS
        if cost == math.inf:
            self.large.add(job)
        if cost < math.inf:
            traits = JobTraits()
            traits.cost = cost
        if key is not None:
            traits = KeyedTraits(traits, key)
            self.keys[job] = key
        self.traits[job] = traits
        self.open.add(job)
        return job

    def load(self, slot: int) -> None:
        """Let the arguments of a job have arrived where its worker sees them."""
        process = self.processes[slot]
        assert process.loading is not None
        process.sent += 1
        assert list(process.hand.items())[-1] == (process.loading, process.sent)
        process.loading = None
        self.seen["loaded"] += 1
        self.feed(self.core.arguments_loaded(slot, self.now))

    def outcome(
        self, slot: int, *, count: int = 1, again: bool = False, heavy: bool = False
    ) -> None:
        """Let a worker answer *count* jobs.

        *again* if they are to be retried, *heavy* if the answer must be loaded first.
        """
        process, errands = self.processes[slot], {*self.errands}
        assert process.told is StopStage.NO
        jobs: list[int] = []
        while len(jobs) < count and process.begin():
            # Any of those that run may be the next one that ends.
            jobs.append(process.running.pop(len(jobs) * 3 % len(process.running)))
        for job in jobs:
            self.core.outcome(slot, job)
            del process.hand[job]
            process.late.discard(job)
            self.errands.pop(job, None)
            self._forgive(process, job, "an outcome")
        if self._cost(process) <= REFILL_BELOW:
            process.line = False
        self.feed(self.core.refill(slot, self.now))
        for job in jobs:
            if job not in self.open:
                continue  # its caller has left
            if heavy:
                self.unpacking.append(job)
                self.core.begin_unpacking(job)
                continue
            if not again or job in errands or job in self.calls:
                self._end(job, "completed")
                continue
            self._again(job)

    def outcome_unpacked(self, job: int, *, again: bool = False) -> None:
        """Let an answer be loaded."""
        self.unpacking.remove(job)
        self.seen["unpacked"] += 1
        self.seen["unpacked while the pool closes"] += self.closing is not None
        if again and job not in self.calls:
            self._again(job)
        else:
            self._end(job, "completed")
        self.feed(self.core.outcome_unpacked(job, self.now))

    def _again(self, job: int) -> None:
        self.seen["an answer to retry after"] += 1
        self._put_back([job])
        self.feed(self.core.requeue({job: self.traits[job]}, self.now))

    def answer(self, slot: int) -> None:
        """Let a worker answer what it was asked."""
        self.processes[slot].answer()

    def hear(self, slot: int) -> None:
        """Let the pool hear such an answer."""
        process = self.processes[slot]
        won = process.answers.popleft()
        back = [job for job, place in process.hand.items() if place in won]
        for job in back:
            del process.hand[job]
            process.given -= job not in self.errands
        self.seen["a revoked job" if won else "a revoke in vain"] += 1
        self.expired = process.late.intersection(back).difference(process.unwanted)
        for job in self.expired:
            self._end(job, "expired")
        for job in back:
            self._forgive(process, job, "a job given back")
        answered = process.pending.popleft()
        process.owing.difference_update(answered)
        kept = {job for job, place in process.hand.items() if place in answered}
        process.late.difference_update(back, kept)
        for job in process.running:
            if job in process.unwanted and process.hand.get(job) in answered:
                self._make_end(process, job, process.unwanted[job])
        commands = self.core.revoked(slot, won, self.now)
        left = [c.jobs for c in commands if isinstance(c, cmd.Unassign)]
        assert left == [tuple(back)] * bool(back), "each is with no worker any more"
        self.feed(commands)
        assert not self.expired, "a job that came back too late was not failed"
        # What was wanted is somewhere now.
        placed = {job for p in self.processes.values() for job in p.hand}
        assert self.open == placed.difference(
            *(p.unwanted for p in self.processes.values())
        ) | {*self.waiting, *self.unpacking, *self.waiting_errands, *self.waiting_calls}

    def be_late(self, slot: int, job: int) -> None:
        """Let the time be over that a job may wait, in a worker that seems not to have begun it."""
        self.processes[slot].late.add(job)
        self.seen["late"] += 1
        self.feed(self.core.revoke(job, slot))
        assert self.core.is_revoked(job, slot)
        assert self.core.revoke(job, slot) == [], "it is asked once"

    def expire(self, slot: int, mode: CancelMode, job: int) -> None:
        """Let the time of a job be over that a worker runs."""
        process = self.processes[slot]
        if mode.action == "kill" or mode.grace < LEAST_GRACE:
            self._make_end(process, job, CancelMode("kill", STACK_GRACE))
        else:
            self._make_end(process, job, CancelMode("interrupt", mode.grace))
        commands = self.core.expire(job, self.now, index=slot, mode=mode)
        assert (
            cmd.WriteStacks(slot, job) in commands or process.told is not StopStage.NO
        )
        self.feed(commands)

    def cancel(self, job: int, mode: CancelMode = KILL) -> None:
        self._end(job, "cancelled")
        if job in self.waiting:
            self._unqueue(job)
            self.feed(self.core.drop(job, self.now))
            return
        if job in self.waiting_calls:
            self.waiting_calls.remove(job)
        if job in self.unpacking:
            self.unpacking.remove(job)
            self.feed(self.core.outcome_unpacked(job, self.now))
            return
        if not any(job in p.hand for p in self.processes.values()):
            self.feed(self.core.drop(job, self.now))
            return
        (process,) = (p for p in self.processes.values() if job in p.hand)
        if job == process.loading:
            self._withdraw(process)
            return
        process.unwanted[job] = mode
        begun = job in process.running
        if begun:
            self._make_end(process, job, mode)
        commands = self.core.cancel(
            job, self.now, index=process.slot, begun=begun, mode=mode
        )
        self.feed(commands)
        if begun and mode is KILL and job in process.doomed:
            alone = len(process.hand) <= self.width
            asked = process.questions or process.answers
            assert process.told or asked, "a job runs on that nobody wants"
            assert process.told is StopStage.KILLED or not alone

    def _withdraw(self, process: Process) -> None:
        """Give up a job of which its worker has never heard."""
        job, process.loading = process.loading, None
        assert job is not None
        del process.hand[job]
        process.given -= 1
        self._forgive(process, job, "a job withdrawn")
        commands = self.core.withdraw(process.slot, job, self.now)
        assert commands[0] == cmd.Unassign((job,))
        news = [type(command) for command in commands]
        # Another job may be its last one, and then it gives back what it has not begun.
        assert cmd.Revoke not in news or cmd.Draining in news, "nothing to ask for"
        assert cmd.Kill not in news or process.faulty, "the worker has done nothing"
        self.seen["withdrawn"] += 1
        self.seen["withdrawn, and another one sent"] += cmd.Assign in news
        self.feed(commands)
