"""Jobs that are not to go on where they are, and workers that must die of them.

A job in a worker's hands may be cancelled, late, out of time, or silent.  How far it has
been made to end is a stage in the table of ``job_ending.py``; here is what moves it from
one stage to the next, and what the worker is told then.  A job that only waits in the
worker is asked back, as are those that wait behind one which turns out to be long.  A job
that runs has some time to end by itself.  When that is over, the pool kills the worker as
soon as the worker has given back all other jobs that wait in it.  A job that ends in time
costs nothing.

Those that run beside such a job go on, but nothing else begins there meanwhile, since it
might be hurt too.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpool._core.base.run_times import Profile
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.policies.job_limits import CancelMode
from asyncpool._core.slots.commands import (
    Command,
    Interrupt,
    Revoke,
    Unassign,
    WriteStacks,
)
from asyncpool._core.slots.job_ending import BY_ITSELF, EndingEvent, EndingStage
from asyncpool._core.slots.lifecycle import SlotLifecycle, fail_jobs
from asyncpool._core.slots.slots import UP, Slot, StopStage
from asyncpool.enums import SlotState

# Seconds that a worker, which is to be killed for one job, has to give back others.
REVOKE_GRACE = 0.1

# Seconds that a worker has at the most to write down where it is, before it is killed
# anyway: on an idle machine it needs 1 to 8 ms, or 100 if the GIL is held, and it may have to
# wait for its turn in between, beside six computing processes on two cores for 30 ms and more.
STACK_GRACE = 0.25

# Seconds that a job must have to end by itself, or it is not even asked to.
LEAST_GRACE = 0.1


class Termination:
    """Makes jobs end.

    Args:
        lifecycle: What ends workers.
        dispatcher: Which must not count on a worker that may have to die.
    """

    def __init__(self, lifecycle: SlotLifecycle, dispatcher: Dispatcher) -> None:
        self._lifecycle = lifecycle
        self._dispatcher = dispatcher

    def cancel(
        self, slot: Slot, job: int, now: float, *, begun: bool, press: CancelMode
    ) -> list[Command]:
        """Give up *job*, which *slot*'s worker has in flight."""
        slot.job_endings.of(job).press = press
        if slot.state is not SlotState.BUSY:
            return []
        if begun:
            return self._make_end(slot, job, press, now)
        return self._ask_back(slot, job)

    def recall(self, job: int, index: int) -> list[Command]:
        """Take *job* back, if the worker in slot *index* has not begun it: it is late.

        It fails when the worker has said so, and goes on if that has begun it.
        """
        slot = self._lifecycle.slots[index]
        if slot.state is not SlotState.BUSY or job not in slot.in_flight.jobs:
            return []
        slot.job_endings.of(job).late = True
        return self._ask_back(slot, job)

    def recalled(self, job: int, index: int) -> bool:
        """Tell whether that was asked, and has not been answered."""
        return self._lifecycle.slots[index].job_endings.is_late(job)

    def look_for_stalls(self) -> list[Command]:
        """Take back what has waited behind the same jobs since the last look."""
        commands: list[Command] = []
        for slot in self._lifecycle.slots:
            in_flight, seen, slot.seen = (
                slot.in_flight,
                slot.seen,
                slot.in_flight.running,
            )
            if not seen or seen != slot.seen or slot.state is SlotState.STOPPING:
                continue
            behind = in_flight.waiting()
            if behind and not in_flight.revoking:
                in_flight.block(slot.seen)
                self._dispatcher.worker_gone(slot.index)
                commands.append(Revoke(slot.index, in_flight.begin_revoke(behind)))
        return commands

    def take_answer(
        self, slot: Slot, sequences: Iterable[int], now: float
    ) -> tuple[list[Command], dict[int, Profile]]:
        """Take the answer of *slot*'s worker to a :class:`Revoke`: what it will not begin.

        Returns:
            The commands; and those of the jobs that somebody still wants.

        Raises:
            ProtocolError: If it is no answer to that.
        """
        back, kept = slot.in_flight.end_revoke(sequences)
        endings = slot.job_endings
        wanted = {job: back[job] for job in back if endings.is_wanted(job)}
        late = [job for job in wanted if endings.is_late(job)]
        for job in late:
            del wanted[job]
        for job in back:
            self.clear_ending(slot, job)
        commands: list[Command] = [Unassign(tuple(back))] if back else []
        commands += self._end_kept(slot, kept, now)
        return [*commands, *fail_jobs(late, "late")], wanted

    def expire(
        self, job: int, now: float, *, index: int, press: CancelMode
    ) -> list[Command]:
        """Make *job*, which the worker in slot *index* runs, end.

        Its caller waits for that: what comes of it is still an outcome.
        """
        slot = self._lifecycle.slots[index]
        if slot.state is not SlotState.BUSY:
            return []
        if press.action == "kill" or press.grace < LEAST_GRACE:
            press = CancelMode("kill", STACK_GRACE)
        elif press.action == "wait":
            press = CancelMode("interrupt", press.grace)
        return [WriteStacks(slot.index, job), *self._make_end(slot, job, press, now)]

    def hang(self, index: int, now: float, job: int | None = None) -> list[Command]:
        """Kill the worker in slot *index*, which has been silent for too long, or its *job*.

        That has crashed with it; first, the worker is to say where it is.
        """
        slot = self._lifecycle.slots[index]
        endings = slot.job_endings
        if slot.state not in UP or slot.hung or endings.killing is not None:
            return []
        job = slot.in_flight.head if job is None else job
        slot.hung = True
        due = now + STACK_GRACE
        commands: list[Command] = [WriteStacks(slot.index, job)]
        if job is None:
            slot.due = due
            self._dispatcher.worker_gone(slot.index)
            return commands
        ending = endings.of(job)
        ending.silent, ending.written = True, False
        if ending.stage in BY_ITSELF:
            endings.apply(job, EndingEvent.DUMP, due)
            _set_due(slot)
        else:
            commands += self._give_time(slot, job, EndingEvent.DUMP, due)
        return commands

    def stacks_written(
        self, index: int, now: float, job: int | None = None
    ) -> list[Command]:
        """Take note that the worker in slot *index* has said where it is, or *job* is."""
        slot = self._lifecycle.slots[index]
        if slot.hung and slot.state is SlotState.IDLE:
            return self._lifecycle.stop_worker(slot, StopStage.KILLED, now)
        if slot.state is not SlotState.BUSY:
            return []
        endings = slot.job_endings
        ending = None if job is None else endings.get(job)
        if ending is not None and ending.written is False:
            ending.written = True
        dumping = endings.dumping
        if not dumping or (job is not None and endings.unwritten):
            return []
        for one in dumping:
            self._kill_for(slot, one, now)
        return self.end_worker(slot, now)

    def clear_ending(self, slot: Slot, job: int) -> None:
        """Forget the end of *job*, which has left: its worker need not die of it."""
        ending = slot.job_endings.get(job)
        if ending is None:
            return
        if slot.state is not SlotState.BUSY:
            ending.press = None
            return  # too late: the worker is on its way out, maybe for this job
        del slot.job_endings[job]
        if ending.silent:
            slot.hung = False
        _set_due(slot)

    def end_worker(self, slot: Slot, now: float) -> list[Command]:
        """End a worker that gets no more jobs, or first ask back those that wait in it."""
        in_flight = slot.in_flight
        if slot.job_endings.killing is not None:
            behind = in_flight.waiting()
            if not behind:
                planned = not slot.hung
                return self._lifecycle.stop_worker(
                    slot, StopStage.KILLED, now, planned=planned
                )
            return (
                []
                if in_flight.revoking
                else [Revoke(slot.index, in_flight.begin_revoke(behind))]
            )
        if in_flight.jobs:
            return []
        if slot.faulty:
            return self._lifecycle.stop_worker(slot, StopStage.KILLED, now)
        return self._lifecycle.stop_worker(slot, StopStage.STOPPED, now, planned=True)

    @property
    def grace(self) -> float:
        """For how many seconds a cancelled job may yet run."""
        slots = self._lifecycle.slots
        endings = (it for slot in slots for it in slot.job_endings.values())
        presses = [it.press for it in endings if it.press is not None]
        return max(
            (it.grace for it in presses if it.action == "interrupt"), default=0.0
        )

    def on_timer(self, now: float) -> list[Command]:
        """End those whose job had its time to end by itself."""
        commands: list[Command] = []
        for slot in self._lifecycle.slots:
            endings = slot.job_endings
            if not endings or slot.state is not SlotState.BUSY:
                continue
            over = [job for job in endings.by_itself if endings.is_due(job, now)]
            for job in over:
                self._kill_for(slot, job, now)
            if over:
                commands += self.end_worker(slot, now)
        return commands

    def _ask_back(self, slot: Slot, job: int) -> list[Command]:
        """Ask for *job*, unless its worker was asked for it and has not answered."""
        slot.job_endings.apply(job, EndingEvent.REVOKE)
        if slot.in_flight.is_revoking(job):
            return []  # the answer tells what has become of it
        return [Revoke(slot.index, slot.in_flight.begin_revoke([job]))]

    def _end_kept(self, slot: Slot, kept: list[int], now: float) -> list[Command]:
        """Make cancelled jobs end that were asked back in vain, since they have begun."""
        endings = slot.job_endings
        for job in endings.keys() & kept:
            endings.keep(job)
        cancelled = [job for job in kept if not endings.is_wanted(job)]
        if not cancelled or slot.state is not SlotState.BUSY:
            return []
        # Those before the last are done, and their outcomes are on their way.
        commands: list[Command] = []
        for job in cancelled[-slot.concurrency :]:
            press = endings[job].press
            assert press is not None
            commands += self._make_end(slot, job, press, now)
        return commands

    def _make_end(
        self, slot: Slot, job: int, press: CancelMode, now: float
    ) -> list[Command]:
        """Make *job*, which has begun, end as *press* says."""
        ending = slot.job_endings.of(job)
        if press.action == "wait" or ending.stage in BY_ITSELF:
            return []
        if ending.silent:
            slot.hung = ending.silent = False
        if press.grace == 0:
            self._kill_for(slot, job, now)
            return self.end_worker(slot, now)
        if press.action == "kill":
            ending.written = False
        # A worker that was to write its stacks is killed as soon as they are written.
        dumps = ending.written is not None
        event = EndingEvent.DUMP if dumps else EndingEvent.INTERRUPT
        commands = self._give_time(slot, job, event, now + press.grace)
        if press.action == "interrupt":
            sequence = slot.in_flight.sequence_of(job)
            commands.insert(0, Interrupt(slot.index, sequence))
        return commands

    def _give_time(
        self, slot: Slot, job: int, event: EndingEvent, due: float
    ) -> list[Command]:
        """Give *job* until *due*; nothing may wait behind it meanwhile."""
        in_flight = slot.in_flight
        slot.job_endings.apply(job, event, due)
        _set_due(slot)
        in_flight.block((job,))
        self._dispatcher.worker_gone(slot.index)
        behind = in_flight.waiting()
        if not behind or in_flight.revoking:
            return []
        return [Revoke(slot.index, in_flight.begin_revoke(behind))]

    def _kill_for(self, slot: Slot, job: int, now: float) -> None:
        """Have a worker killed for *job*, once nobody else's job can begin there."""
        if slot.job_endings.of(job).stage is not EndingStage.KILLING:
            slot.job_endings.apply(job, EndingEvent.KILL, now + REVOKE_GRACE)
        _set_due(slot)
        self._dispatcher.worker_gone(slot.index)


def _set_due(slot: Slot) -> None:
    slot.due = slot.job_endings.due
