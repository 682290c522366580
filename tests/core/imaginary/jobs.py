"""What happens to jobs."""

from __future__ import annotations

import math

from tests.core.imaginary.commands import Commands
from tests.core.imaginary.process import Process
from tests.core.pool_core import (
    KILL,
    LEAST_GRACE,
    LOADING_TRAITS,
    REFILL,
    STACK_GRACE,
    UNKNOWN,
    CancelMode,
    JobTraits,
    KeyedTraits,
    SessionTraits,
    StopStage,
    cmd,
)

__all__ = ["Jobs"]


class Jobs(Commands):
    """Lets jobs come, go to workers and come back, and end."""

    def submit(
        self, cost: float = UNKNOWN, priority: int = 0, key: int | None = None
    ) -> None:
        job = self._come(cost, key)
        self.seen["submit"] += 1
        submit = self.core.submit if key is None else self.core.submit_keyed
        slot = submit(job, self.traits[job], priority)
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
        job = self._come(UNKNOWN, None)
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
        self.feed(self.core.want_worker())
        if self.wanted:
            self.core.job_waits(self.now)

    def want_no_more(self) -> None:
        self.wanted -= 1
        self.feed(self.core.leave_queue(self.now))
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
        if self._cost(process) <= REFILL:
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
        ) | {
            *self.waiting,
            *self.unpacking,
            *self.waiting_errands,
            *self.waiting_calls,
        }

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
        assert cmd.Revoke not in news or cmd.Retiring in news, "nothing to ask for"
        assert cmd.Kill not in news or process.faulty, "the worker has done nothing"
        self.seen["withdrawn"] += 1
        self.seen["withdrawn, and another one sent"] += cmd.Assign in news
        self.feed(commands)
