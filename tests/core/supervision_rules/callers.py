"""What callers do: they submit jobs, cancel them, and hold the pool open."""

from __future__ import annotations

import math

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.core.imaginary.books import COSTS
from tests.core.list_queue import PRIORITIES
from tests.core.pool_core import (
    KILL,
    UNKNOWN,
    CancelMode,
    Finish,
)
from tests.core.supervision_rules.base import (
    SupervisionRules,
    anything,
    coins,
    keys,
    ranks,
    rolls,
)

__all__ = ["CallerRules"]

MAPS = 2  # under way at once

# How a job is made to end.
PRESSES = (
    KILL,
    CancelMode("interrupt", 0.5),
    CancelMode("interrupt", 60.0),
    CancelMode("interrupt", 0.0),
    CancelMode("wait", 1.0),
)


class CallerRules(SupervisionRules):
    """What callers of a pool do."""

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
