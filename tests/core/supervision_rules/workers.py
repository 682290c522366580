"""What workers do: they come up, work, are silent and die."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core.pool_core import BURST, REVOKE_GRACE, StopStage
from tests.core.supervision_rules.base import SupervisionRules, anything, coins, rolls

__all__ = ["WorkerRules"]


class WorkerRules(SupervisionRules):
    """What workers do by themselves."""

    @precondition(lambda self: self.shell.processes)
    @rule(
        data=anything,
        whim=st.integers(0, 1),
        then=st.sampled_from(["nothing", "write", "finish"]),
    )
    def a_worker_is_silent(self, data: st.DataObject, whim: int, then: str) -> None:
        if whim == 0:
            slot = data.draw(st.sampled_from(sorted(self.shell.processes)))
            self.shell.hang(slot)
            if then == "write" and slot in self.shell.writing():
                self.shell.write(slot)
            elif then == "finish" and slot in self.shell.slots("busy", told=False):
                self.shell.outcome(slot)

    @precondition(lambda self: self.shell.slots("starting"))
    @rule(data=anything)
    def ready(self, data: st.DataObject) -> None:
        self.shell.ready(data.draw(st.sampled_from(self.shell.slots("starting"))))

    @precondition(lambda self: self.shell.slots("starting"))
    @rule()
    def all_are_ready(self) -> None:
        for slot in self.shell.slots("starting"):
            self.shell.ready(slot)

    @precondition(lambda self: self.shell.slots("starting", "idle", told=True))
    @rule(data=anything)
    def a_late_hello(self, data: st.DataObject) -> None:
        slots = self.shell.slots("starting", "idle", told=True)
        self.shell.ready(data.draw(st.sampled_from(slots)))

    @precondition(lambda self: self.shell.slots("busy"))
    @rule(data=anything, count=st.integers(1, 5), again=coins, heavy=coins)
    def outcomes(
        self, data: st.DataObject, count: int, *, again: bool, heavy: bool
    ) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("busy")))
        self.shell.outcome(slot, count=count, again=again, heavy=heavy)

    @precondition(lambda self: self.shell.unpacking)
    @rule(
        data=anything, what=st.sampled_from(["unpacked", "unpacked", "again", "cancel"])
    )
    def an_outcome_is_loaded(self, data: st.DataObject, what: str) -> None:
        job = data.draw(st.sampled_from(self.shell.unpacking))
        if what == "cancel":
            self.shell.cancel(job)
        else:
            self.shell.outcome_unpacked(job, again=what == "again")

    @precondition(lambda self: self.shell.slots("busy"))
    @rule(heavy=coins)
    def all_finish(self, *, heavy: bool) -> None:
        for slot in self.shell.slots("busy"):
            if self.shell.processes[slot].told is StopStage.NO:
                self.shell.outcome(slot, count=1_000, heavy=heavy)

    @precondition(lambda self: self.shell.slots("busy"))
    @rule(data=anything)
    def begin(self, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("busy")))
        self.shell.processes[slot].begin()

    @precondition(lambda self: self.shell.core.pipelining)
    @rule(times=st.integers(1, 3))
    def check_for_stalls(self, times: int) -> None:
        for _ in range(times):
            self.shell.check_for_stalls()

    @precondition(lambda self: self.shell.behind())
    @rule(data=anything)
    def a_job_waits_too_long_in_its_worker(self, data: st.DataObject) -> None:
        self.shell.be_late(*data.draw(st.sampled_from(self.shell.behind())))

    @precondition(lambda self: self.shell.core.pipelining)
    @rule(late=coins)
    def cancel_a_job_before_others(self, *, late: bool) -> None:
        for slot in self.shell.slots("busy"):
            process = self.shell.processes[slot]
            if len(process.hand) > process.width and process.begin():
                for job in [*process.running]:
                    if job not in process.unwanted:
                        self.shell.cancel(job)
        if late:
            self.shell.advance(2 * REVOKE_GRACE)

    @precondition(lambda self: self.shell.asked())
    @rule(data=anything)
    def answer(self, data: st.DataObject) -> None:
        self.shell.answer(data.draw(st.sampled_from(self.shell.asked())))

    @precondition(lambda self: self.shell.answered())
    @rule(data=anything)
    def hear(self, data: st.DataObject) -> None:
        self.shell.hear(data.draw(st.sampled_from(self.shell.answered())))

    @precondition(lambda self: self.shell.asked())
    @rule()
    def all_answer(self) -> None:
        for slot in self.shell.asked():
            self.shell.answer(slot)
            if slot in self.shell.answered():
                self.shell.hear(slot)

    @precondition(lambda self: self.shell.slots("starting", "idle"))
    @rule(data=anything, jitter=rolls)
    def crash_without_a_job(self, data: st.DataObject, jitter: float) -> None:
        slots = self.shell.slots("idle") or self.shell.slots("starting")
        self.shell.die(data.draw(st.sampled_from(slots)), jitter=jitter)

    @precondition(lambda self: self.shell.slots("idle"))
    @rule(whim=st.integers(0, 3))
    def a_storm_kills_all_idle_workers(self, whim: int) -> None:
        for _ in range(2 * BURST if whim == 0 else 0):
            for slot in self.shell.slots("idle"):
                self.shell.die(slot)
            for slot in self.shell.slots("starting"):
                self.shell.ready(slot)

    @precondition(lambda self: self.shell.slots("starting"))
    @rule(times=st.integers(1, 6), data=anything)
    def fail_to_start_again_and_again(self, times: int, data: st.DataObject) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("starting")))
        for _ in range(times):
            if slot in self.shell.slots("starting"):
                self.shell.die(slot)
            self.shell.advance(1.0)

    @precondition(lambda self: self.shell.slots("busy"))
    @rule(data=anything, begin=coins, requeue=coins, jitter=rolls)
    def crash_at_work(
        self, data: st.DataObject, *, begin: bool, requeue: bool, jitter: float
    ) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("busy")))
        if begin:
            self.shell.processes[slot].begin()
        self.shell.die(slot, requeue=requeue, jitter=jitter)

    @precondition(lambda self: self.shell.slots("starting", "idle", "busy", told=True))
    @rule(data=anything)
    def end_as_told(self, data: st.DataObject) -> None:
        slots = self.shell.slots("starting", "idle", "busy", told=True)
        self.shell.die(data.draw(st.sampled_from(slots)))

    @precondition(lambda self: self.shell.slots("starting", "idle", "busy", told=True))
    @rule()
    def all_end_as_told(self) -> None:
        for slot in self.shell.slots("starting", "idle", "busy", told=True):
            self.shell.die(slot)

    @precondition(lambda self: self.shell.processes)
    @rule(data=anything, whim=st.integers(0, 2))
    def fault_in_a_thread(self, data: st.DataObject, whim: int) -> None:
        if whim == 0:
            self.shell.fault(data.draw(st.sampled_from(sorted(self.shell.processes))))
