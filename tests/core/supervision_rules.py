"""What may happen to a pool, in any order: the rules of its model."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from tests.core.imaginary.books import COSTS
from tests.core.imaginary.shell import ImaginaryShell
from tests.core.list_queue import PRIORITIES
from tests.core.pool_core import (
    BURST,
    KILL,
    REVOKE_GRACE,
    UNKNOWN_COST,
    CancelMode,
    Finish,
    RestartPolicy,
    StopStage,
    WorkerLimits,
)

__all__ = ["SupervisionRules", "plans", "policies"]

policies = st.builds(
    RestartPolicy,
    initial_delay=st.sampled_from([0.05, 0.5]),
    max_delay=st.sampled_from([1.0, 8.0]),
    max_failed_starts=st.sampled_from([2, 1, 5, None]),
    max_restarts=st.sampled_from([None, None, None, 2, 7]),
)
wear = st.sampled_from([{}, {}, {"max_jobs": 3}, {"max_jobs": 9}])
limits = st.builds(
    lambda wear, **others: WorkerLimits(**wear, **others),
    wear=wear,
    max_age=st.sampled_from([None, 20.0]),
    drain_timeout=st.sampled_from([600.0, 5.0, None]),
)
plans = st.builds(
    lambda surge, **others: {
        **others,
        "max_surge": surge[0],
        "max_unavailable": surge[1],
    },
    surge=st.sampled_from([(1, 0), (1, 0), (2, 0), (0, 1), (1, 1)]),
    limits=limits,
    more=st.sampled_from([0, 0, 2, 5]),
    width=st.sampled_from([1, 1, 1, 2, 3, 7]),
)
anything = st.data()
rolls = st.sampled_from([0.0, 0.5, 0.999])
coins = st.booleans()
ranks = st.sampled_from(PRIORITIES)
keys = st.integers(0, 5)

MAPS = 2  # under way at once

# How a job is made to end.
PRESSES = (
    KILL,
    CancelMode("interrupt", 0.5),
    CancelMode("interrupt", 60.0),
    CancelMode("interrupt", 0.0),
    CancelMode("wait", 1.0),
)

# Why a worker goes that nobody has anything against, and one that somebody has.
PLANS = ("wear_out", "wear_out", "retire", "retire", "oversized")


class SupervisionRules(RuleBasedStateMachine):
    """All that callers, workers and time may do to a supervisor with imaginary workers."""

    shell: ImaginaryShell

    # Callers submit jobs, cancel them, and hold the pool open.

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(
        costs=st.lists(st.sampled_from(COSTS), min_size=1, max_size=6),
        priority=ranks,
        key=st.none() | keys,
    )
    def submit(self, costs: list[float], priority: int, key: int | None) -> None:
        for cost in costs:
            self.shell.submit(cost, priority, key)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(count=st.integers(1, 8), priority=ranks, key=st.none() | keys)
    def submit_short_jobs(self, count: int, priority: int, key: int | None) -> None:
        for _ in range(count):
            self.shell.submit(10.0, priority, key)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(count=st.integers(1, 3))
    def submit_urgent_jobs_before_a_long_one(self, count: int) -> None:
        """All may begin, or wait in a worker, whoever waits in the queue."""
        self.shell.submit(UNKNOWN_COST)
        for _ in range(count):
            self.shell.submit(10.0, min(PRIORITIES))

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(
        costs=st.lists(st.sampled_from([math.inf, *COSTS]), min_size=1, max_size=3),
        key=st.none() | keys,
    )
    def prepare(self, costs: list[float], key: int | None) -> None:
        for cost in costs:
            self.shell.prepare(cost, key)

    @precondition(lambda self: self.shell.preparing)
    @rule(
        data=anything,
        what=st.sampled_from(["submit", "submit", "refuse", "cancel"]),
        priority=ranks,
    )
    def a_job_is_prepared_or_is_not(
        self, data: st.DataObject, what: str, priority: int
    ) -> None:
        job = data.draw(st.sampled_from(self.shell.preparing))
        if what == "submit":
            self.shell.submit_prepared(job, priority)
        elif what == "refuse":
            self.shell.refuse(job)
        else:
            self.shell.cancel(job)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(count=st.integers(1, 3), key=st.none() | keys)
    def submit_jobs_with_large_arguments(self, count: int, key: int | None) -> None:
        for _ in range(count):
            self.shell.submit(math.inf, key=key)

    @precondition(lambda self: self.shell.loading())
    @rule(
        data=anything,
        what=st.sampled_from(["load", "load", "cancel", "crash", "fault"]),
        jitter=rolls,
    )
    def a_job_is_loaded_or_is_not(
        self, data: st.DataObject, what: str, jitter: float
    ) -> None:
        slot = data.draw(st.sampled_from(self.shell.loading()))
        job = self.shell.processes[slot].loading
        assert job is not None
        if what == "fault":
            self.shell.fault(slot)
            what = data.draw(st.sampled_from(["load", "cancel", "crash"]))
        if what == "load":
            self.shell.load(slot)
        elif what == "cancel":
            self.shell.cancel(job)
        else:
            self.shell.die(slot, jitter=jitter)

    @precondition(lambda self: self.shell.queue)
    @rule(data=anything)
    def cancel_a_queued_job(self, data: st.DataObject) -> None:
        self.shell.cancel(data.draw(st.sampled_from([*self.shell.queue])))

    @precondition(lambda self: self.shell.keyed)
    @rule(data=anything)
    def cancel_a_job_in_a_line(self, data: st.DataObject) -> None:
        self.shell.cancel(data.draw(st.sampled_from(self.shell.keyed)))

    @precondition(lambda self: self.shell.slots("busy"))
    @rule(data=anything, begin=coins)
    def cancel_a_job_in_hand(self, data: st.DataObject, *, begin: bool) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("busy")))
        process = self.shell.processes[slot]
        if begin:
            process.begin()
        jobs = [job for job in process.hand if job not in process.unwanted]
        if jobs:
            self.shell.cancel(
                data.draw(st.sampled_from(jobs)), data.draw(st.sampled_from(PRESSES))
            )

    @precondition(lambda self: self.shell.slots("busy", told=False))
    @rule(
        data=anything, then=st.sampled_from(["nothing", "write", "hang", "be silent"])
    )
    def the_time_of_a_job_is_over(self, data: st.DataObject, then: str) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("busy", told=False)))
        process = self.shell.processes[slot]
        process.begin()
        job = data.draw(st.sampled_from(process.first()))
        if job != process.loading and job not in process.unwanted:
            self.shell.expire(slot, data.draw(st.sampled_from(PRESSES)), job)
            if then == "write":
                self.shell.write(slot)
            elif then == "hang":
                self.shell.hang(slot)
            elif then == "be silent" and job in process.hand:
                self.shell.hang(slot, job)

    @precondition(lambda self: self.shell.writing())
    @rule(data=anything)
    def a_worker_says_where_it_is(self, data: st.DataObject) -> None:
        self.shell.write(data.draw(st.sampled_from(self.shell.writing())))

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @precondition(lambda self: self.shell.processes)
    @rule(count=st.integers(1, 2), whim=st.integers(0, 2))
    def a_job_for_each_worker(self, count: int, whim: int) -> None:
        if whim:
            return
        for _ in range(count):
            for slot in self.shell.slots("starting", "idle", "busy"):
                if not self.shell.processes[slot].leaving:
                    self.shell.errand(slot)

    @precondition(lambda self: self.shell.waiting_errands)
    @rule(data=anything)
    def cancel_an_errand(self, data: st.DataObject) -> None:
        self.shell.cancel(data.draw(st.sampled_from(self.shell.waiting_errands)))

    # Those who have more jobs to come, and hold the pool open meanwhile.

    @precondition(lambda self: self.shell.closing is None and self.shell.holds < MAPS)
    @rule()
    def a_map_begins(self) -> None:
        self.shell.hold()

    @precondition(lambda self: self.shell.holds)
    @rule(jobs=st.integers(0, 2))
    def a_map_ends(self, jobs: int) -> None:
        shell = self.shell
        refused = shell.broken or shell.finished or shell.time_is_over
        if shell.closing in {None, Finish.ALL}:
            for _ in range(0 if refused else jobs):
                self.shell.submit()
        self.shell.release()

    # Some have a worker to themselves.

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(
        count=st.integers(1, 2),
        then=st.sampled_from(["nothing", "call", "lose", "lose", "end"]),
        much=st.integers(0, 3),
    )
    def want_a_worker(self, count: int, then: str, much: int) -> None:
        shell = self.shell
        for _ in range(count):
            shell.want()
        for session in [*shell.owners.values()] if then != "nothing" else ():
            shell.call(session)
            if then == "lose":
                shell.lose(session, much)
            elif then == "end" and not shell.broken:
                shell.call(session)  # it waits behind the first one
                shell.lose(session, 0)
            if shell.broken:
                break  # and refuses further calls

    @precondition(lambda self: self.shell.owners and not self.shell.finished)
    @rule(data=anything, what=st.sampled_from(["call", "call", "lose", "cancel"]))
    def a_session_goes_on(self, data: st.DataObject, what: str) -> None:
        shell = self.shell
        session = data.draw(st.sampled_from([*shell.owners.values()]))
        if what == "lose":
            shell.lose(session, data.draw(st.integers(0, 3)))
        elif what == "cancel" and shell.waiting_calls:
            shell.cancel(data.draw(st.sampled_from(shell.waiting_calls)))
        elif what == "call" and not shell.broken and not shell.time_is_over:
            for _ in range(2 if shell.closing in {None, Finish.ALL} else 0):
                shell.call(session)

    @precondition(lambda self: not self.shell.finished)
    @precondition(
        lambda self: self.shell.owners or self.shell.wanted or self.shell.departing
    )
    @rule(data=anything, what=st.sampled_from(["fresh", "as it is", "in vain"]))
    def a_session_ends(self, data: st.DataObject, what: str) -> None:
        shell = self.shell
        shell.depart()
        if what == "in vain" and shell.wanted:
            shell.want_no_more()
        elif shell.owners:
            session = data.draw(st.sampled_from([*shell.owners.values()]))
            shell.end_session(session, fresh=what == "fresh")

    # Workers come up, work, are silent and die.

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

    # Planned exits, rolls and sizes.

    @precondition(lambda self: self.shell.processes)
    @rule(data=anything, whim=st.integers(0, 1), what=st.sampled_from(PLANS))
    def a_worker_is_to_go(self, data: st.DataObject, whim: int, what: str) -> None:
        if whim == 0:
            slot = data.draw(st.sampled_from(sorted(self.shell.processes)))
            getattr(self.shell, what)(slot)

    @precondition(lambda self: self.shell.slots("idle", "busy", told=None))
    @rule(data=anything, begin=coins, then=st.sampled_from(["nothing", "end", "end"]))
    def a_worker_is_killed_by_order(
        self, data: st.DataObject, *, begin: bool, then: str
    ) -> None:
        slot = data.draw(st.sampled_from(self.shell.slots("idle", "busy", told=None)))
        if begin:
            self.shell.processes[slot].begin()
        self.shell.kill(slot)
        if then == "end":
            self.shell.die(slot, requeue=begin)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @precondition(lambda self: not self.shell.rolling)
    @rule(whim=st.integers(0, 1))
    def roll(self, whim: int) -> None:
        if whim == 0:
            self.shell.roll()

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @precondition(lambda self: not self.shell.rolling)
    @precondition(lambda self: self.shell.slots("idle", "busy"))
    @rule(
        data=anything,
        since=st.sampled_from(["worn", "rolled in vain"]),
        then=st.sampled_from(["nothing", "ready", "ready", "die"]),
    )
    def roll_while_replacements_are_being_started(
        self, data: st.DataObject, since: str, then: str
    ) -> None:
        shell = self.shell
        if since == "worn":
            shell.wear_out(data.draw(st.sampled_from(shell.slots("idle", "busy"))))
        else:
            shell.roll()
            if shell.slots("starting"):
                shell.die(data.draw(st.sampled_from(shell.slots("starting"))))
        if shell.rolling or shell.broken:
            return
        early = shell.slots("starting")
        shell.roll()
        for slot in early:
            if slot in shell.slots("starting") and then == "ready":
                shell.ready(slot)
            elif slot in shell.slots("starting") and then == "die":
                shell.die(slot)

    @precondition(lambda self: self.shell.rolling)
    @rule(then=st.sampled_from(["ready", "ready", "ready", "die", "wait"]))
    def a_roll_goes_on(self, then: str) -> None:
        for slot in self.shell.slots("starting"):
            if then == "ready":
                self.shell.ready(slot)
            elif then == "die":
                self.shell.die(slot)
        for slot in self.shell.slots("starting", "idle", "busy", told=True):
            self.shell.die(slot)

    @precondition(lambda self: self.shell.closing is None and not self.shell.broken)
    @rule(
        least=st.integers(1, 4),
        more=st.sampled_from([0, 0, 1, 4]),
        whim=st.integers(0, 2),
    )
    def resize(self, least: int, more: int, whim: int) -> None:
        if whim == 0:
            self.shell.resize(least, least + more)

    # Time goes by, and the pool is closed.

    @precondition(lambda self: self.shell.core.next_deadline() is not None)
    @rule(seconds=st.sampled_from([0.05, 0.3, 1.0, 3.0, 6.0, 25.0]))
    def wait(self, seconds: float) -> None:
        self.shell.advance(seconds)

    @rule(seconds=st.sampled_from([0.0, 70.0, 3_600.0]), whim=st.integers(0, 3))
    def the_machine_was_asleep(self, seconds: float, whim: int) -> None:
        if whim == 0:
            self.shell.advance(seconds)

    # Closing ends the story, so it comes late or hardly ever.

    @precondition(lambda self: self.shell.closing is None)
    @rule(
        whim=st.integers(0, 11),
        finish=st.sampled_from(Finish),
        timeout=st.sampled_from([0.0, 1.0, 30.0, math.inf]),
    )
    def close(self, whim: int, finish: Finish, timeout: float) -> None:
        if whim == 0:
            self.shell.close(finish, timeout)

    @precondition(lambda self: self.shell.closing is None and self.shell.preparing)
    @rule(whim=st.integers(0, 5), timeout=st.sampled_from([1.0, 30.0]))
    def close_before_all_are_pickled(self, whim: int, timeout: float) -> None:
        if whim == 0:
            self.shell.close(Finish.ALL, timeout)

    @precondition(lambda self: self.shell.closing is not None)
    @precondition(lambda self: not self.shell.finished)
    @rule(
        finish=st.sampled_from(Finish),
        timeout=st.sampled_from([0.0, 1.0, 9.0, 60.0, math.inf]),
    )
    def close_again(self, finish: Finish, timeout: float) -> None:
        self.shell.close(finish, timeout)
