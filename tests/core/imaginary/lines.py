"""Who waits, where, and in which order they go to a worker."""

from __future__ import annotations

from collections.abc import Iterable

from tests.core.imaginary.books import Books
from tests.core.pool_core import (
    BUDGET,
    REFILL,
    StopStage,
    choose,
)

__all__ = ["Lines"]


class Lines(Books):
    """Checks that every job waits, and begins, where and when it is its turn."""

    def _enter(self, job: int, priority: int, slot: int | None) -> None:
        if job in self.keys:
            self._enter_line(job, priority, slot)
            return
        leads = self.queue.would_be_first(priority)
        if slot is not None:
            assert leads, "a job overtook the queue"
            self.seen["an urgent job that need not wait"] += bool(self.queue)
            self.queue.pass_by(job)
            self._begin(slot, job)
            return
        assert not self.free(), "a job waits while a worker is idle"
        roomy = [p for p in self.processes.values() if p.hand and self._has_room(p)]
        roomy = [p for p in roomy if not self._has_line(p)]
        assert not leads or not any(map(self._lanes_free, roomy)), "a lane is free"
        short = self.traits[job].cost <= REFILL
        assert not leads or not roomy or not short, "a short job might have gone"
        self.queue.add(job, priority)
        self.core.job_waits(self.now)

    def _enter_line(self, job: int, priority: int, slot: int | None) -> None:
        wanted = self.slot_for(job)
        if slot is not None:
            assert slot == wanted, "it is somebody else's"
            rivals = [other for other in self.keyed if self.slot_for(other) == slot]
            assert not rivals, "a job overtook its line"
            idle = slot in self.free()
            assert idle or self.queue.would_be_first(priority), (
                "a job overtook the queue"
            )
            self.queue.pass_by(job)
            self.seen["a keyed job that need not wait"] += 1
            self._begin(slot, job)
            return
        assert wanted not in self.free(), "a job waits for an idle worker"
        self.keyed.append(job)
        self.ranks[job] = priority
        self.seen["a keyed job that waits"] += 1
        self.seen["a keyed job that waits while others are idle"] += bool(self.free())
        self.seen["a keyed job whom nobody is there for"] += wanted is None
        if wanted is not None:
            self.processes[wanted].line = True
        if self.core.unserved:
            self.core.job_waits(self.now)

    def _begin(self, slot: int, job: int) -> None:
        process = self.processes[slot]
        assert process.ready
        assert not process.leaving
        assert process.told is StopStage.NO, "a job for a worker that must go"
        assert not process.faulty
        assert not process.doomed
        assert not process.asked_to_end, "a job behind one that is to end"
        assert process.loading is None, "a job behind one that is not sent"
        assert not process.owes, "a job before one that may come back, and is older"
        own = self.owners.get(slot)
        assert own == self.calls.get(job) or job in self.errands, "it is somebody's own"
        assert own is None or not process.hand, "a call beside another job"
        others = [errand for errand in self.errands_before(slot) if errand != job]
        assert job in self.errands or not others, "a job before an errand"
        if job not in self.errands:
            # A session is not cut short for that.
            spent = process.spent and job not in self.calls
            assert not spent, "more jobs than a worker may have"
            process.given += 1
            self.seen["as many jobs as it may have"] += process.spent
        assert job in self.open
        assert not self.broken
        self.seen["a job beside others"] += 0 < len(process.hand) < self.width
        if len(process.hand) >= self.width:
            cost = self._cost(process) + self._share(job)
            assert cost <= BUDGET, "a job waits behind a long one"
            self.seen["a job that travels ahead"] += 1
        process.hand[job] = process.sent + 1
        if job in self.large:
            process.loading = job
        else:
            process.sent += 1

    def _leave_line(self, slot: int, job: int) -> None:
        """Check that a job with a key is sent where it belongs, and in its turn."""
        self.keyed.remove(job)
        key = self.keys[job]
        before, after = choose(key, self.seats), choose(key, self.seats_after)
        there = None if before is None else self.seats[before]
        assert slot in {
            there,
            None if after is None else self.seats_after[after],
        }, "it is somebody else's"
        if there is not None and there != slot and there in self.processes:
            # It waited there when that worker was last given jobs.
            self.processes[there].line = True
        if job not in self.back and job not in self.prepared:
            for other in self.keyed:
                if self.keys[other] == key and self.ranks.get(other) == self.ranks[job]:
                    assert other > job or other in self.prepared, "not in their order"
                    assert other not in self.back, "who comes back is first"
        if job in self.back:
            self.back.remove(job)
        else:
            self.queue.note_turn_elsewhere(job)
        self.seen["a keyed job that had to wait"] += 1
        self._begin(slot, job)

    def _look_at_places(self) -> None:
        """Take note of who has which place by now, and check who was meant to have it."""
        before, self.seats = self.seats, {}
        for slot in self.core.slots:
            process = self.processes.get(slot.index)
            if slot.bucket is None:
                assert (
                    process is None
                    or not process.ready
                    or (process.leaving or slot.replaces is not None or process.told)
                    or slot.index in self.owners
                ), "a worker without a place"
                if process is not None:
                    process.place = None
                continue
            assert slot.bucket not in self.seats, "two in one place"
            assert process is not None, "nobody is there"
            assert not process.leaving
            assert slot.replaces is None, "it is not there yet"
            assert slot.index not in self.owners, "a key for somebody's own"
            assert process.place in {None, slot.bucket}, "a worker that works was moved"
            process.place = slot.bucket
            self.seats[slot.bucket] = slot.index
        if self.seats != before:
            self.seen["places that changed"] += 1
            for process in self.processes.values():
                process.line = process.line or bool(self.keyed)
        assert self.core.seats() == self.seats

    def _put_back(self, jobs: Iterable[int]) -> None:
        """Let jobs wait before all others, each where it belongs."""
        jobs = list(jobs)
        self.given_back.update(job for job in jobs if job in self.errands)
        calls = [job for job in jobs if job in self.calls]
        self.waiting_calls[:0] = calls
        jobs = [job for job in jobs if job not in self.errands and job not in calls]
        back = [job for job in jobs if job in self.keys]
        self.keyed += back
        self.back.update(back)
        for job in back:
            self.seen["a keyed job that came back"] += 1
            slot = self.slot_for(job)
            if slot in self.processes:
                self.processes[slot].line = True
        self.queue.give_back([job for job in jobs if job not in self.keys])

    def _unqueue(self, job: int) -> None:
        if job in self.preparing:
            self.preparing.remove(job)
        elif job in self.keyed:
            for process in self.processes.values():
                process.line = process.line or process.slot == self.slot_for(job)
            self.keyed.remove(job)
            self.back.discard(job)
        else:
            self.queue.remove(job)
