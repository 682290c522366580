"""What happens to workers, and to the pool as a whole."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tests.core.imaginary.jobs import Jobs
from tests.core.imaginary.process import Process
from tests.core.pool_core import (
    STACK_GRACE,
    Finish,
    StopStage,
    cmd,
)

__all__ = ["ImaginaryShell"]


class ImaginaryShell(Jobs):
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
            slot, self.now, started=started, requeue=back, jitter=jitter
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
            self.feed(self.core.withdraw(slot, unsent, self.now))
            traits = self.traits[unsent]
            self.feed(self.core.requeue({unsent: traits}, self.now))

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
