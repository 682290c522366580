"""Tests of asyncpool/_core/supervision/supervision.py: a supervisor with imaginary workers.

The rules are all that a shell can report; the promises are checked by the shell in
``imaginary/`` at each command, by the invariants below after each rule, and by
the teardown, which sees every story to a good end.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any, ClassVar, get_args

from hypothesis import seed, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from asyncpool._core.base.job_traits import UNKNOWN
from asyncpool._core.dispatch.rendezvous import choose
from asyncpool._core.policies.job_options import KILL, CancelMode
from asyncpool._core.policies.restart import BURST, RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._core.slots.commands import (
    Command,
)
from asyncpool._core.slots.job_ending import BY_ITSELF, EndingStage
from asyncpool._core.slots.lifecycle import EMPTY
from asyncpool._core.slots.slots import StopStage
from asyncpool._core.supervision.closing import Finish
from asyncpool._core.supervision.termination import REVOKE_GRACE
from asyncpool.enums import SlotState
from tests.core.endings import close_whatever_happens, get_well
from tests.core.imaginary.books import COSTS, START_TIMEOUT
from tests.core.imaginary.shell import ImaginaryShell
from tests.core.list_queue import PRIORITIES
from tests.helpers.inside import affinity_queues_of, slots_held

policies = st.builds(
    RestartPolicy,
    initial_delay=st.sampled_from([0.05, 0.5]),
    max_delay=st.sampled_from([1.0, 8.0]),
    max_failed_starts=st.sampled_from([2, 1, 5, None]),
    max_restarts=st.sampled_from([None, None, None, 2, 7]),
)
wear = st.sampled_from(
    [
        {},
        {},
        {"max_jobs": 3},
        {"max_jobs": 3, "exact": True},
        {"max_jobs": 9, "exact": True},
    ]
)
limits = st.builds(
    lambda wear, **others: WorkerLimits(**wear, **others),
    wear=wear,
    max_age=st.sampled_from([None, 20.0]),
    drain_timeout=st.sampled_from([600.0, 5.0, None]),
)
plans = st.fixed_dictionaries(
    {
        "limits": limits,
        "more": st.sampled_from([0, 0, 2, 5]),
        "width": st.sampled_from([1, 1, 1, 2, 3, 7]),
    }
).flatmap(
    lambda plan: st.sampled_from([(1, 0), (1, 0), (2, 0), (0, 1), (1, 1)]).map(
        lambda budget: {**plan, "max_surge": budget[0], "max_unavailable": budget[1]}
    )
)
anything = st.data()
MAPS = 2  # under way at once
rolls = st.sampled_from([0.0, 0.5, 0.999])
coins = st.booleans()
ranks = st.sampled_from(PRIORITIES)
keys = st.integers(0, 5)

# Slots that nobody comes into.
UNUSED = {SlotState.UNUSED, SlotState.RETIRED}

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


class SupervisionMachine(RuleBasedStateMachine):
    """Let happen whatever can happen to a pool, in any order."""

    seen: ClassVar[Counter[str]] = Counter()

    @initialize(
        workers=st.integers(1, 4),
        plan=plans,
        policy=policies,
        manners=st.sampled_from(["kind", "deaf", "undead"]),
    )
    def start(
        self,
        workers: int,
        policy: RestartPolicy,
        plan: dict[str, Any],
        manners: str,
    ) -> None:
        self.shell = ImaginaryShell(workers=workers, policy=policy, **plan)
        self.shell.start()
        self.manners = manners

    @precondition(lambda self: self.shell.finished)
    @rule(workers=st.integers(1, 4), policy=policies, plan=plans)
    def start_over(
        self, workers: int, policy: RestartPolicy, plan: dict[str, Any]
    ) -> None:
        self.seen.update(self.shell.seen)
        self.shell = ImaginaryShell(workers=workers, policy=policy, **plan)
        self.shell.start()

    # The callers.

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
        self.shell.submit(UNKNOWN)
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

    # Those who have a worker to themselves.

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
            if then == "lose" and session not in shell.rebuilding:
                shell.last(session)
                shell.lose(session, much)
            elif then == "end" and not shell.broken:
                shell.call(session)  # it waits behind the first one
                shell.lose(session, 0)
            if shell.broken:
                break  # and refuses further calls

    @precondition(lambda self: self.shell.owners and not self.shell.finished)
    @rule(
        data=anything, what=st.sampled_from(["call", "call", "last", "lose", "cancel"])
    )
    def a_session_goes_on(self, data: st.DataObject, what: str) -> None:
        shell = self.shell
        session = data.draw(st.sampled_from([*shell.owners.values()]))
        if what in {"last", "lose"} and session not in shell.rebuilding:
            shell.last(session)
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
    @rule(
        data=anything,
        what=st.sampled_from(["fresh", "as it is", "in vain", "rebuilt"]),
    )
    def a_session_ends(self, data: st.DataObject, what: str) -> None:
        shell = self.shell
        shell.depart()
        if what == "in vain" and shell.wanted:
            shell.want_no_more()
        elif what == "rebuilt":
            shell.rebuild_further()
        elif shell.owners:
            session = data.draw(st.sampled_from([*shell.owners.values()]))
            shell.end_session(session, fresh=what == "fresh")

    # The workers.

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

    @precondition(lambda self: self.shell.core.balance.pipelining)
    @rule(times=st.integers(1, 3))
    def check_for_stalls(self, times: int) -> None:
        for _ in range(times):
            self.shell.check_for_stalls()

    @precondition(lambda self: self.shell.core.balance.pipelining)
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

    # Planned exits.

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

    # Time.

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

    # What always holds.

    @invariant()
    def signals_that_come_early_or_late_change_nothing(self) -> None:
        core, deadline = self.shell.core, self.shell.core.next_deadline()
        if not self.shell.finished:
            now = self.shell.now
            assert core.jobs.drop(1_000_000, now) == []
            assert core.jobs.outcome_unpacked(1_000_000, now) == []
            assert core.jobs.cancel(1_000_000, now, index=0, begun=False) == []
        early = deadline is not None and deadline > self.shell.now
        if early:
            assert core.on_timer(self.shell.now) == []
        assert core.next_deadline() == deadline

    @invariant()
    def the_books_agree(self) -> None:
        shell, core = self.shell, self.shell.core
        filled = {
            slot.index
            for slot in core.slots
            if slot.state not in EMPTY and slot.state is not SlotState.RETIRED
        }
        assert filled == set(shell.processes)
        in_hand = {
            p.slot: list(p.hand)
            for p in shell.processes.values()
            if p.hand and p.told is StopStage.NO
        }
        flights = {
            s.index: list(s.in_flight.jobs) for s in core.slots if s.in_flight.jobs
        }
        going = {p.slot for p in shell.processes.values() if p.told is not StopStage.NO}
        assert in_hand == {
            slot: jobs for slot, jobs in flights.items() if slot not in going
        }
        wanted = [
            job
            for process in shell.processes.values()
            for job in process.hand
            if job not in process.unwanted
        ]
        elsewhere = [*shell.waiting, *shell.unpacking]
        elsewhere += [*shell.waiting_errands, *shell.waiting_calls]
        assert shell.open == {*wanted, *elsewhere}
        assert len(shell.open) == len(wanted) + len(elsewhere)
        for slot in core.slots:
            assert list(slot.pinned) == shell.errands_before(slot.index)
            session = shell.owners.get(slot.index)
            assert slot.session == session
            assert list(slot.calls) == shell.calls_of(session)
        assert core.dispatcher.wanted == shell.wanted
        assert len(slots_held(core)) <= len(core.slots)
        assert core.dispatcher.waiting == len(shell.waiting)
        ahead = sum(max(0, len(jobs) - shell.width) for jobs in flights.values())
        assert core.balance.waiting == len(shell.waiting) + ahead
        assert core.balance.pipelining == (ahead > 0)
        assert core.dispatcher.idle == len(shell.free())
        if not shell.broken:  # then nobody is given anything
            assert core.dispatcher.free == shell.lanes()
        assert (core.broken is not None, core.closing.over) == (
            shell.broken,
            shell.finished,
        )
        assert core.kills == shell.seen["Kill"]

    @invariant()
    def nobody_waits_while_somebody_is_idle(self) -> None:
        free = [*self.shell.free(), *self.shell.spacious()]
        assert not (self.shell.queue and free)
        stay = {slot.replaces for slot in self.shell.core.slots}
        assert not self.shell.wanted or {*self.shell.free()} <= stay
        assert not any(self.shell.slot_for(job) in free for job in self.shell.keyed)

    @invariant()
    def no_call_waits_while_its_worker_is_idle(self) -> None:
        shell = self.shell
        for slot, session in shell.owners.items():
            if slot not in shell.slots("idle") or shell.processes[slot].hung:
                continue
            calls = shell.calls_of(session)
            assert not calls or shell.rebuilding.get(session, calls[0]) != calls[0]
            assert not shell.errands_before(slot)

    @invariant()
    def who_waits_for_a_worker_is_in_its_line(self) -> None:
        lines = affinity_queues_of(self.shell.core)
        waiting = {
            entry.job: place
            for place, line in lines.open.items()
            for entry in line.entries()
        }
        assert sorted(waiting) == sorted(self.shell.keyed)
        for job, place in waiting.items():
            assert place == choose(self.shell.keys[job], self.shell.seats)
        assert all(lines.open.values()), "a line that nobody is in"

    @invariant()
    def a_broken_pool_holds_no_queued_job(self) -> None:
        assert not (self.shell.broken and self.shell.waiting)

    @invariant()
    def a_closing_pool_keeps_only_what_its_jobs_need(self) -> None:
        shell = self.shell
        if shell.closing is None:
            return
        if shell.nobody_is_needed:
            assert not shell.slots("starting", "idle")
        if not shell.core.replacements.stopped:
            states = [slot.state for slot in shell.core.slots]
            assert SlotState.RETIRED not in states, "it drains as an open pool works"
        assert not (shell.closing is Finish.NONE and shell.open)
        assert not (shell.closing >= Finish.RUNNING and shell.preparing)

    @invariant()
    def after_the_deadline_every_job_has_ended(self) -> None:
        if self.shell.now > self.shell.close_at:
            assert not self.shell.open
            assert all(
                p.told is StopStage.KILLED for p in self.shell.processes.values()
            )

    @invariant()
    def every_timer_is_ahead(self) -> None:
        deadline = self.shell.core.next_deadline()
        assert deadline is None or deadline >= self.shell.now
        if self.shell.finished:
            assert deadline is None

    @invariant()
    def who_is_being_loaded_is_the_last_and_has_the_next_place(self) -> None:
        for process in self.shell.processes.values():
            if process.loading is not None:
                job, width = process.loading, process.width
                assert list(process.hand.items())[-1] == (job, process.sent + 1)
                assert len(process.hand) <= width
                slot = self.shell.core.slots[process.slot]
                traits = self.shell.traits[job]
                if slot.in_flight.jobs:
                    place, cost, known = slot.in_flight.jobs[job]
                    assert (place, known) == (process.sent + 1, traits)
                    assert cost == (
                        UNKNOWN if job in process.stalled else UNKNOWN / width
                    )
                    assert self.shell.core.jobs.last(process.slot) == job
                    assert self.shell.core.jobs.runs(process.slot, job)

    # Safety says that nothing bad happens; a supervisor that does nothing at all
    # is perfectly safe.  The rest says that good things do happen.

    @invariant()
    def silence_of_a_process_is_noticed(self) -> None:
        for process in self.shell.processes.values():
            slot = self.shell.core.slots[process.slot]
            pressed = process.told is not StopStage.NO and not process.abandoned
            if pressed or (process.state == "starting" and not process.abandoned):
                since = process.told_at if pressed else process.born_at
                assert slot.due is not None
                assert slot.due <= since + START_TIMEOUT
            elif process.asked_to_end or process.doomed:
                dooms = [since + REVOKE_GRACE for since in process.doomed.values()]
                assert slot.due == min(*process.asked_to_end.values(), *dooms, math.inf)
            elif process.dies_at is not None:
                assert slot.due == process.dies_at
            else:
                assert slot.due is None

    @invariant()
    def who_is_to_end_is_told_once(self) -> None:
        assert self.shell.interrupts == 0

    @invariant()
    def nobody_works_for_a_caller_who_left(self) -> None:
        for process in self.shell.processes.values():
            if process.doomed and process.told is StopStage.NO:
                # Whoever waits behind it is being asked for, and not for long.
                due = self.shell.core.slots[process.slot].due
                assert due is not None
                assert due <= min(process.doomed.values()) + REVOKE_GRACE
            elif process.asked_to_end and process.told is StopStage.NO:
                assert self.shell.now < min(process.asked_to_end.values())
            elif process.told is StopStage.NO and any(
                mode.action != "wait" for mode in process.unwanted.values()
            ):
                assert process.questions or process.answers

    @invariant()
    def each_end_of_a_job_is_at_a_stage_that_fits(self) -> None:
        timed = {*BY_ITSELF, EndingStage.KILLING}
        for slot in self.shell.core.slots:
            if slot.state is not SlotState.BUSY:
                continue
            for job, ending in slot.job_endings.items():
                assert job in slot.in_flight.jobs
                assert (ending.due is not None) is (ending.stage in timed)
                if ending.stage is EndingStage.REVOKING:
                    assert slot.in_flight.is_revoking(job)
                if ending.stage is EndingStage.NONE:
                    assert ending.mode is not None, "nobody wants it to end"

    @invariant()
    def an_empty_slot_is_looked_at_again(self) -> None:
        shell = self.shell
        if shell.nobody_is_needed:
            return
        for slot in shell.core.slots:
            if slot.index in shell.processes or slot.state in UNUSED:
                continue
            assert (slot.state is SlotState.PARKED) is (slot.index in shell.parked)
            if slot.state is SlotState.PARKED:
                assert slot.due is None
            else:
                assert not shell.broken
                assert slot.due is not None
                assert slot.due == shell.not_before[slot.index]

    @invariant()
    def no_job_waits_for_a_worker_that_will_never_come(self) -> None:
        core = self.shell.core
        if self.shell.waiting and core._lifecycle._retry_at is None:
            breaks_pool = {SlotState.PARKED, *UNUSED}
            assert not all(slot.state in breaks_pool for slot in core.slots)

    @invariant()
    def a_roll_does_not_rest(self) -> None:
        shell = self.shell
        if not shell.rolling or shell.broken or shell.closing is not None:
            return
        some = shell.processes.values()
        moves = any(it.state == "starting" or it.leaving or it.told for it in some)
        empty = {it.index for it in shell.core.slots if it.due is not None}
        coming = shell.parked or empty - set(shell.processes)
        assert moves or coming or shell.owners or shell.now < shell.put_off

    @invariant()
    def somebody_tries_for_the_parked_slots(self) -> None:
        shell, lifecycle = self.shell, self.shell.core._lifecycle
        if shell.parked and not shell.gave_up and shell.closing is None:
            assert shell.trying or lifecycle._retry_at is not None

    def teardown(self) -> None:
        if not hasattr(self, "shell"):
            return
        shell = self.shell
        if shell.closing is None:
            get_well(shell)
            for _ in range(0 if shell.broken else 3):
                shell.submit()
                shell.prepare(math.inf)
        if not shell.finished:
            close_whatever_happens(shell, self.manners)
        self.seen.update(shell.seen)


# How often each thing must have happened.
_FLOOR = {
    "submit": 150,
    "completed": 100,
    "cancelled": 15,
    "lost": 3,
    "broken": 10,
    "closed": 15,
    "an answer to retry after": 3,
    "a late hello": 6,
    "a fault": 15,
    "close again": 1,
    "a broken pool recovered": 5,
    "parked": 30,
    "a restart behind the limit of forks": 10,
    "died busy, told no": 10,
    "died idle, told no": 6,
    "died starting, told no": 30,
    "died idle, told stopped": 15,
    "died starting, told terminated": 1,
    "died busy, told killed": 1,
    "a job that travels ahead": 100,
    "a job beside others": 100,
    "died beside others": 10,
    "killed beside others": 3,
    "a job that overtakes others": 30,
    "an urgent job that need not wait": 1,
    "a keyed job that need not wait": 30,
    "a keyed job that waits": 30,
    "a keyed job that waits while others are idle": 10,
    "a keyed job whom nobody is there for": 1,
    "a keyed job that had to wait": 30,
    "a keyed job that came back": 10,
    "places that changed": 30,
    "an errand": 100,
    "an errand that begins": 60,
    "an errand that nobody runs": 10,
    "a revoked job": 3,
    "a revoke in vain": 1,
    "a stall": 1,
    "an outcome that nobody wanted": 1,
    "an outcome of a job that was asked to end": 1,
    "Interrupt": 6,
    "WriteStacks": 6,
    "killed when it had said where it was": 1,
    "killed for a job": 1,
    "hung": 1,
    "hung without a job": 1,
    "hung while it was to end": 1,
    "hung no more": 1,
    "killed since it hung": 1,
    "left: worn": 1,
    "left: asked": 1,
    "left: max_jobs": 1,
    "left: max_age": 1,
    "left: idle": 1,
    "left: resize": 1,
    "left: roll": 1,
    "left a job behind": 1,
    "killed for its size": 1,
    "as many jobs as it may have": 30,
    "killed by order": 3,
    "killed by order, at work": 1,
    "killed since it would not leave": 1,
    "roll": 10,
    "a complete roll": 3,
    "a roll in vain": 1,
    "an early start that failed": 3,
    "an early replacement that came up": 3,
    "filled by a roll": 1,
    "resize": 10,
    "killed for a job, late": 1,
    "untouched by a death": 10,
    "requeued": 1,
    "prepared": 150,
    "submitted when prepared": 100,
    "submitted when prepared while the pool closes": 15,
    "refused": 3,
    "loaded": 100,
    "withdrawn": 6,
    "withdrawn, and another one sent": 3,
    "requeued before it was sent": 10,
    "closed before it was sent": 1,
    "unpacked": 30,
    "unpacked while the pool closes": 3,
    "closed while it was unpacked": 1,
    "Offer": 100,
    "a call of a session": 60,
    "a call whose session is over": 3,
    "a session that ends": 60,
    "a session that lost its worker": 30,
    "a session that is rebuilt": 3,
    "a worker of a pool that drains": 15,
    "held open while the pool closes": 6,
}

# Hypothesis takes numbers from the source of all modules that a process has imported, and so
# finds other stories beside other tests.  What is rare may need another round.
_ROUNDS = 12

# With fewer examples than that, the model keeps its promises, and what is rare does not happen.
_USUAL = 60


def test_the_model_does_all_that_it_is_for_and_keeps_its_promises() -> None:
    seen, rounds = SupervisionMachine.seen, 0
    seen.clear()
    examples = settings().max_examples
    brief = examples < _USUAL
    rare: dict[str, int] = {"": 0}
    while rare and rounds < _ROUNDS:
        rounds += 1
        if settings().derandomize:  # each round would tell the same stories
            seed(rounds)(SupervisionMachine)
        run_state_machine_as_test(
            SupervisionMachine,
            settings=settings(
                max_examples=2 * examples if brief else max(150, 2 * examples),
                stateful_step_count=60,
            ),
        )
        if brief:
            return
        rare = {
            what: seen[what] for what, least in _FLOOR.items() if seen[what] < least
        }
    assert not rare, f"hardly ever happened: {rare}"
    assert {command.__name__ for command in get_args(Command)} <= set(seen)
