"""A shell whose processes exist only as dictionary entries.

It does what :class:`asyncpool._runtime.supervisor.Supervisor` does with the pure
core, keeps books of its own, and checks every command against them.  What it checks
are the promises of the design, so a failure here is a broken promise.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from asyncpool._core import commands as cmd
from asyncpool._core.restart import RestartPolicy
from asyncpool._core.slots import Ending
from asyncpool._core.supervision import (
    KILL_GRACE,
    STOP_GRACE,
    TERM_GRACE,
    Finish,
    Supervision,
)

__all__ = ["START_TIMEOUT", "ImaginaryShell", "Process"]

START_TIMEOUT = 20.0


@dataclass
class Process:
    """What a shell sees of a worker."""

    slot: int
    born_at: float
    state: Literal["starting", "idle", "busy"] = "starting"
    job: int | None = None
    faulty: bool = False
    told: Ending = Ending.NO
    told_at: float = 0.0
    excused: bool = False  # its end is the pool's own wish
    abandoned: bool = False


class ImaginaryShell:
    """Feeds a :class:`Supervision` and carries out what it wants done."""

    def __init__(self, *, workers: int, policy: RestartPolicy) -> None:
        self.core = Supervision(
            workers=workers, policy=policy, start_timeout=START_TIMEOUT
        )
        self.workers = workers
        self.policy = policy
        self.now = 1_000.0
        self.processes: dict[int, Process] = {}
        self.generations = [0] * workers
        self.queue: list[int] = []
        self.open: set[int] = set()
        self.jobs = 0
        self.closing: Finish | None = None
        self.close_at = math.inf
        self.broken = False
        self.finished = False
        self.parked: set[int] = set()
        self.not_before = [0.0] * workers  # when a slot may have its next process
        self.seen: Counter[str] = Counter()
        self._victim: int | None = None  # whose job is being cancelled
        self.feed(self.core.start(self.now))
        assert len(self.processes) == workers, "every slot is filled at the start"

    # What happens.

    def submit(self) -> None:
        self.jobs += 1
        job = self.jobs
        self.seen["submit"] += 1
        self.open.add(job)
        slot = self.core.submit(job)
        if slot is None:
            assert not self.free(), "a job waits while a worker is idle"
            self.queue.append(job)
            return
        assert not self.queue, "a job overtook the queue"
        self._begin(slot, job)

    def ready(self, slot: int) -> None:
        process = self.processes[slot]
        if process.told is not Ending.NO or process.state != "starting":
            self.seen["a late hello"] += 1
            assert self.core.ready(slot, self.now) == []
            return
        process.state = "idle"
        self.seen["ready"] += 1
        self.feed(self.core.ready(slot, self.now))

    def outcome(self, slot: int, *, again: bool = False) -> None:
        """Let a worker answer; *again* if its answer is one to retry after."""
        process = self.processes[slot]
        job, process.job, process.state = process.job, None, "idle"
        assert job is not None
        assert process.told is Ending.NO
        self.feed(self.core.outcome(slot, self.now))
        if again:
            self.seen["an answer to retry after"] += 1
            self.queue.insert(0, job)
            self.feed(self.core.give_back(job))
        else:
            self._end(job, "completed")

    def die(
        self,
        slot: int,
        *,
        started: bool = False,
        requeue: bool = False,
        roll: float = 0.5,
    ) -> None:
        process = self.processes.pop(slot)
        job = process.job
        started, requeue = started and job is not None, requeue and job is not None
        if job is not None and requeue:
            self.queue.insert(0, job)
        elif job is not None:
            self._end(job, "lost")
        self.seen[f"died {process.state}, told {process.told.name.lower()}"] += 1
        ledger = copy.deepcopy(self.core._ledger)
        broken = self.broken
        commands = self.core.ended(
            slot, self.now, started=started, requeue=requeue, roll=roll
        )
        verdicts = [
            command
            for command in commands
            if isinstance(command, cmd.ScheduleRestart | cmd.ParkSlot)
        ]
        self.feed(commands)
        if process.excused:
            assert self.core._ledger == ledger, "a planned exit was counted"
            assert not verdicts
            if self.closing is None and not broken:
                assert slot in self.processes, "replaced at once"
        elif self.closing is None:
            assert [verdict.slot for verdict in verdicts] == [slot]
            if started and not self.policy.count_blamed and not broken:
                assert self.core._ledger._window == ledger._window
                assert isinstance(verdicts[0], cmd.ScheduleRestart)

    def fault(self, slot: int) -> None:
        """Let an uncaught exception end one of a worker's other threads."""
        self.processes[slot].faulty = True
        self.seen["a fault"] += 1
        self.feed(self.core.faulty(slot, self.now))

    def cancel(self, job: int) -> None:
        self._end(job, "cancelled")
        if job in self.queue:
            self.queue.remove(job)
        for process in self.processes.values():
            if process.job == job:
                process.job, self._victim = None, process.slot
        self.feed(self.core.cancel(job, self.now))
        if self._victim is not None:
            assert self.processes[self._victim].told is Ending.KILLED
            self._victim = None

    def close(self, finish: Finish, timeout: float) -> None:
        self.seen["close again" if self.closing is not None else "close"] += 1
        self.closing = max(finish, self.closing or Finish.ALL)
        self.close_at = min(self.close_at, self.now + timeout)
        self.feed(self.core.close(finish, self.now + timeout, self.now))

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        for _ in range(20_000):
            self.bury_the_abandoned()
            deadline = self.core.next_deadline()
            if deadline is None or deadline > end:
                break
            self.now = max(self.now, deadline)
            self.seen["a timer"] += 1
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

    # What there is.

    def free(self) -> list[int]:
        """Return the slots whose workers could run a job now."""
        return self.slots("idle")

    def slots(self, *states: str, told: bool | None = False) -> list[int]:
        """Return the slots whose processes are in one of *states*."""
        return sorted(
            process.slot
            for process in self.processes.values()
            if process.state in states
            and (told is None or (process.told is not Ending.NO) is told)
        )

    @property
    def time_is_over(self) -> bool:
        return self.now >= self.close_at

    # What is to be done about it.

    def feed(self, commands: list[cmd.Command]) -> None:
        for command in commands:
            assert not self.finished, "a command after Finished"
            self.seen[type(command).__name__] += 1
            self._carry_out(command)

    def _carry_out(self, command: cmd.Command) -> None:  # noqa: C901 - a table
        match command:
            case cmd.Spawn(slot, generation):
                self._spawn(slot, generation)
            case cmd.Assign(slot, job):
                assert self.queue.pop(0) == job, "jobs begin in their order"
                self._begin(slot, job)
            case cmd.Stop(slot):
                self._press(self.processes[slot], Ending.STOPPED)
            case cmd.Terminate(slot):
                self._press(self.processes[slot], Ending.TERMINATED)
            case cmd.Kill(slot):
                self._press(self.processes[slot], Ending.KILLED)
            case cmd.Abandon(slot):
                self._abandon(self.processes[slot])
            case cmd.FailJobs(jobs, why):
                self._fail(jobs, why)
            case cmd.ScheduleRestart(slot, delay):
                assert slot not in self.processes
                assert 0 <= delay <= self.policy.cap
                self.not_before[slot] = self.now + delay
            case cmd.ParkSlot(slot, _, probe_in):
                self._park(slot, probe_in)
            case cmd.GiveUp():
                assert not self.broken
                self.broken = True
                self._postpone_the_probe()
            case cmd.Recover(slot):
                self._recover(slot)
            case cmd.Finished():
                self._finish()

    def _begin(self, slot: int, job: int) -> None:
        process = self.processes[slot]
        assert process.state == "idle", "one job at a time"
        assert process.told is Ending.NO, "a job for a worker that must go"
        assert not process.faulty
        assert job in self.open
        assert not self.broken
        process.state, process.job = "busy", job

    def _spawn(self, slot: int, generation: int) -> None:
        assert slot not in self.processes, "two processes in one slot"
        assert generation == self.generations[slot] + 1
        assert self.now >= self.not_before[slot], "before the delay was over"
        assert self.now <= self.close_at
        if self.closing is not None:
            assert self.queue, "a worker that no job needs"
        if self.broken:
            self.seen["a probe of a broken pool"] += 1
            probes = [p for p in self.processes.values() if not p.excused]
            assert all(p.state == "busy" for p in probes), "one probe at a time"
            self._postpone_the_probe()
        self.generations[slot] = generation
        self.processes[slot] = Process(slot, self.now)

    def _press(self, process: Process, how: Ending) -> None:
        """Check that a process is pressed to end for a reason and step by step."""
        told, waited = process.told, self.now - process.told_at
        assert told < how, "a step back, or the same one twice"
        assert process.job is None, "its job was not settled first"
        if how is Ending.STOPPED:
            assert process.state != "busy"
            assert self.closing is not None or self.broken
            process.excused = True
        elif how is Ending.TERMINATED:
            assert self.closing is not None or told is Ending.STOPPED
            assert told is Ending.NO or waited >= STOP_GRACE
            process.excused = True
        elif told is not Ending.TERMINATED or waited < TERM_GRACE:
            self._shoot(process)
        process.told, process.told_at = how, self.now

    def _shoot(self, process: Process) -> None:
        """Check that there is a reason for a SIGKILL out of turn."""
        if process.faulty and (process.told or process.state != "busy"):
            return
        if self.time_is_over or self._victim == process.slot:
            process.excused = True
            return
        assert process.state == "starting", "killed for nothing"
        assert self.now >= process.born_at + START_TIMEOUT

    def _abandon(self, process: Process) -> None:
        assert process.told is Ending.KILLED
        assert self.now >= process.told_at + KILL_GRACE
        assert not process.abandoned
        process.abandoned = True

    def _finish(self) -> None:
        assert self.closing is not None
        assert not self.processes, "a process outlives the pool"
        assert not self.open, "a job outlives the pool"
        self.finished = True

    def _fail(self, jobs: tuple[int, ...], why: str) -> None:
        assert jobs
        assert self.broken if why == "broken" else self.closing is not None
        running = {p.job: p for p in self.processes.values() if p.job is not None}
        for job in jobs:
            self._end(job, why)
            if job in self.queue:
                self.queue.remove(job)
                assert why == "broken" or self.closing or self.time_is_over
            else:
                running[job].job = None
                assert self.closing is Finish.NONE or self.time_is_over

    def _end(self, job: int, how: str) -> None:
        self.open.remove(job)  # a KeyError means that it has ended twice
        self.seen[how] += 1

    def _park(self, slot: int, probe_in: float | None) -> None:
        assert slot not in self.processes
        assert probe_in == self.policy.probe_after
        self.parked.add(slot)
        if not self.broken:  # then it probes as one
            self.not_before[slot] = self.now + (probe_in or math.inf)

    def _postpone_the_probe(self) -> None:
        probe_at = self.now + (self.policy.probe_after or math.inf)
        self.not_before = [probe_at] * self.workers

    def _recover(self, slot: int) -> None:
        assert self.processes[slot].state == "idle"
        if self.broken:
            self.seen["a broken pool recovered"] += 1
            self.broken = False
            self.parked.clear()
            self.not_before = [0.0] * self.workers
        else:
            assert slot in self.parked
            self.parked.remove(slot)
