"""Jobs that are not to go on where they are, and workers that must die of them.

A job in a worker's hands can be unwanted (cancelled), out of time, or silent.  One that
only waits there is asked back, as are those that wait behind one which turns out to be
long; one that runs is *asked* to end by itself for a while, and then the worker is
*doomed*: it is killed as soon as no other job can be spared that.  What ends in time is
forgiven, and costs nothing.

Those that run beside such a job go on, but nothing else begins there meanwhile, since it
might be hurt too.
"""

from __future__ import annotations

from collections.abc import Iterable

from asyncpool._core.base.deadlines import earliest
from asyncpool._core.base.run_times import Profile
from asyncpool._core.dispatch.dispatcher import Dispatcher
from asyncpool._core.policies.job_limits import Press
from asyncpool._core.slots.commands import (
    Command,
    Interrupt,
    Revoke,
    Unassign,
    WriteStacks,
)
from asyncpool._core.slots.lifecycle import Lives, fail_jobs
from asyncpool._core.slots.slots import UP, Ending, Slot, SlotState

__all__ = ["LEAST_GRACE", "REVOKE_GRACE", "STACK_GRACE", "Pressing"]

# Seconds that a worker, which is to be killed for one job, has to give back others.
REVOKE_GRACE = 0.1

# Seconds that a worker has at the most to write down where it is, before it is killed
# anyway: on an idle machine it needs 1 to 8 ms, or 100 if the GIL is held, and it may have to
# wait for its turn in between, beside six computing processes on two cores for 30 ms and more.
STACK_GRACE = 0.25

# Seconds that a job must have to end by itself, or it is not even asked to.
LEAST_GRACE = 0.1


class Pressing:
    """Makes jobs end.

    Args:
        lives: What ends workers.
        dispatcher: Which must not count on a worker that may have to die.
    """

    def __init__(self, lives: Lives, dispatcher: Dispatcher) -> None:
        self._lives = lives
        self._dispatcher = dispatcher

    def cancel(
        self, slot: Slot, job: int, now: float, *, begun: bool, press: Press
    ) -> list[Command]:
        """Give up *job*, which *slot*'s worker has in hand."""
        slot.unwanted[job] = press
        if slot.state is not SlotState.BUSY:
            return []
        if begun:
            return self._press(slot, job, press, now)
        if slot.flight.asks_for(job):
            return []  # the answer tells what has become of it
        return [Revoke(slot.index, slot.flight.ask([job]))]

    def recall(self, slot: Slot, job: int) -> list[Command]:
        """Have *job*, which is late, given back, if it has not begun."""
        if slot.state is not SlotState.BUSY or job not in slot.flight.jobs:
            return []
        slot.late.add(job)
        if slot.flight.asks_for(job):
            return []
        return [Revoke(slot.index, slot.flight.ask([job]))]

    def look_for_stalls(self) -> list[Command]:
        """Ask back what has waited behind the same jobs since the last look."""
        commands: list[Command] = []
        for slot in self._lives.slots:
            flight, seen, slot.seen = slot.flight, slot.seen, slot.flight.running
            if not seen or seen != slot.seen or slot.state is SlotState.STOPPING:
                continue
            behind = flight.behind()
            if behind and not flight.asking:
                flight.stall(slot.seen)
                self._dispatcher.worker_gone(slot.index)
                commands.append(Revoke(slot.index, flight.ask(behind)))
        return commands

    def revoked(
        self, slot: Slot, places: Iterable[int], now: float
    ) -> tuple[list[Command], dict[int, Profile]]:
        """Take the answer of *slot*'s worker to a :class:`Revoke`: what it will not begin.

        Returns:
            The commands; and those of the jobs that somebody still wants.

        Raises:
            ProtocolError: If it is no answer to that.
        """
        back, kept = slot.flight.answer(places)
        late = [job for job in back if job in slot.late and job not in slot.unwanted]
        gone = {*slot.unwanted, *late}
        wanted = {job: back[job] for job in back if job not in gone}
        slot.late.difference_update(back, kept)
        for job in back:
            self.forgive(slot, job)
        commands: list[Command] = [Unassign(tuple(back))] if back else []
        commands += self._kept(slot, kept, now)
        return [*commands, *fail_jobs(late, "late")], wanted

    def expire(self, slot: Slot, job: int, now: float, press: Press) -> list[Command]:
        """Make *job*, which *slot*'s worker runs, end."""
        if slot.state is not SlotState.BUSY:
            return []
        if press.how == "kill" or press.grace < LEAST_GRACE:
            press = Press("kill", STACK_GRACE)
        elif press.how == "wait":
            press = Press("interrupt", press.grace)
        return [WriteStacks(slot.index, job), *self._press(slot, job, press, now)]

    def hang(self, slot: Slot, now: float, job: int | None) -> list[Command]:
        """Have a worker that is silent, or whose *job* is, say where it is, and killed."""
        if slot.state not in UP or slot.hung or slot.doomed:
            return []
        job = slot.flight.head if job is None else job
        slot.hung, slot.silent = True, job
        due = now + STACK_GRACE
        commands: list[Command] = [WriteStacks(slot.index, job)]
        if job is None:
            slot.due = due
            self._dispatcher.worker_gone(slot.index)
            return commands
        if job not in slot.asked:
            commands += self._ask(slot, job, due)
        elif due < slot.asked[job]:
            slot.asked[job] = due
            _set_due(slot)
        slot.hopeless[job] = False
        return commands

    def stacks_written(self, slot: Slot, now: float, job: int | None) -> list[Command]:
        """Take note that *slot*'s worker has said where it is, or where *job* is."""
        if slot.hung and slot.state is SlotState.IDLE:
            return self._lives.end(slot, Ending.KILLED, now)
        if job in slot.hopeless:
            slot.hopeless[job] = True
        hopeless = [one for one in slot.hopeless if one in slot.asked]
        if not hopeless or (job is not None and not all(slot.hopeless.values())):
            return []
        for one in hopeless:
            self._doom(slot, one, now)
        return self.wind_up(slot, now)

    def forgive(self, slot: Slot, job: int) -> None:
        """Let a worker live that has finished, or given back, a job which was to end."""
        slot.unwanted.pop(job, None)
        if slot.state is not SlotState.BUSY:
            return  # too late
        if job not in slot.doomed and job not in slot.asked:
            return
        slot.doomed.pop(job, None)
        slot.asked.pop(job, None)
        slot.hopeless.pop(job, None)
        _set_due(slot)
        if slot.silent == job:
            slot.hung, slot.silent = False, None

    def wind_up(self, slot: Slot, now: float) -> list[Command]:
        """End a worker that gets no more jobs, as soon as that hurts no job."""
        flight = slot.flight
        if slot.doomed:
            behind = flight.behind()
            if not behind:
                planned = not slot.hung
                return self._lives.end(slot, Ending.KILLED, now, planned=planned)
            return [] if flight.asking else [Revoke(slot.index, flight.ask(behind))]
        if flight.jobs:
            return []
        if slot.faulty:
            return self._lives.end(slot, Ending.KILLED, now)
        return self._lives.end(slot, Ending.STOPPED, now, planned=True)

    def on_timer(self, now: float) -> list[Command]:
        """End those whose job had its time to end by itself."""
        commands: list[Command] = []
        for slot in self._lives.slots:
            over = [job for job, due in slot.asked.items() if due <= now]
            for job in over:
                self._doom(slot, job, now)
            if over:
                commands += self.wind_up(slot, now)
        return commands

    def _kept(self, slot: Slot, jobs: list[int], now: float) -> list[Command]:
        """Take note that these were asked back, and have begun."""
        begun = [job for job in jobs if job in slot.unwanted]
        if not begun or slot.state is not SlotState.BUSY:
            return []
        # Those before the last are done, and their outcomes are on their way.
        commands: list[Command] = []
        for job in begun[-slot.width :]:
            commands += self._press(slot, job, slot.unwanted[job], now)
        return commands

    def _press(self, slot: Slot, job: int, press: Press, now: float) -> list[Command]:
        """Make *job*, which has begun, end as *press* says."""
        if press.how == "wait" or job in slot.asked:
            return []
        if slot.silent == job:
            slot.hung, slot.silent = False, None
        if press.grace == 0:
            self._doom(slot, job, now)
            return self.wind_up(slot, now)
        if press.how == "kill":
            slot.hopeless[job] = False
        commands = self._ask(slot, job, now + press.grace)
        if press.how == "interrupt":
            place = slot.flight.place(job)
            commands.insert(0, Interrupt(slot.index, place))
        return commands

    def _ask(self, slot: Slot, job: int, due: float) -> list[Command]:
        """Give *job* until *due*; nothing may wait behind it meanwhile."""
        flight = slot.flight
        slot.doomed.pop(job, None)
        slot.asked[job] = due
        _set_due(slot)
        flight.stall((job,))
        self._dispatcher.worker_gone(slot.index)
        behind = flight.behind()
        if not behind or flight.asking:
            return []
        return [Revoke(slot.index, flight.ask(behind))]

    def _doom(self, slot: Slot, job: int, now: float) -> None:
        """Have a worker killed for *job*, once nobody else's job can begin there."""
        slot.doomed.setdefault(job, now + REVOKE_GRACE)
        slot.asked.pop(job, None)
        _set_due(slot)
        self._dispatcher.worker_gone(slot.index)


def _set_due(slot: Slot) -> None:
    slot.due = earliest(*slot.asked.values(), *slot.doomed.values())
