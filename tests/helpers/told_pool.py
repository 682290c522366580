"""A pool without a process, whose figures are given."""

from __future__ import annotations

import dataclasses

from asyncpool import Pool, PoolStats, SlotStats
from asyncpool.enums import CrashKind, JobOutcome, RunState, SlotState
from asyncpool.stats import FunctionStats, Histogram, NodeStats, RunningJob

__all__ = ["NODE", "SLOT", "STATS", "ToldPool", "told"]


class ToldPool(Pool):
    """A pool whose figures are given."""

    told: PoolStats

    def stats(self) -> PoolStats:
        return self.told


RUN = Histogram(
    bounds=(64e-6, 128e-6, 256e-6, 1.048576), counts=(3, 4, 0, 5), total=2.5
)
WAIT = Histogram(bounds=(2e-6,), counts=(12,), total=1e-6)
SLOT = SlotStats(
    slot=1,
    generation=3,
    pid=4711,
    state=SlotState.BUSY,
    seconds=2.0,
    job_id=815,
    job_ids=(815,),
    running=(RunningJob(job_id=815, function="shop.resize", attempt=1, seconds=2.0),),
    jobs=7,
    uptime=9.0,
    cpu=1.5,
    memory=1 << 20,
)
NODE = NodeStats(
    name="10.0.0.1",
    first_slot=0,
    suspected=False,
    silent=0.5,
    jobs=3,
    age=0.25,
    workers=4,
    idle=1,
    busy=3,
    queued=2,
    crashes=5,
    restarts=5,
    cpu=61.5,
    memory=5_000_000,
    clock_ahead=3600.0,
    clock_error=0.0015,
)
STATS = PoolStats(
    state=RunState.RUNNING,
    workers=3,
    queued=17,
    oldest_queued=0.25,
    submitted=40,
    refused=2,
    timeouts=3,
    retries=4,
    takeovers=5,
    restarts=6,
    spawned=9,
    crashes=7,
    crash_kinds={CrashKind.HUNG: 1, CrashKind.OUT_OF_MEMORY: 6},
    started=Histogram(bounds=(0.032768,), counts=(9,), total=0.2),
    exited_cpu=10.0,
    loop_lag=Histogram(bounds=(0.002048,), counts=(2,), total=0.003),
    dropped_events=8,
    lost_nodes=1,
    lost_clients=2,
    refused_clients=3,
    shared_memory=4096,
    functions=(
        FunctionStats(
            function="shop.resize",
            via="submit",
            jobs={JobOutcome.OK: 10, JobOutcome.RAISED: 2},
            retries=4,
            takeovers=5,
            items=0,
            run=RUN,
            wait=WAIT,
        ),
        FunctionStats(
            function="shop.resize",
            via="map",
            jobs={JobOutcome.OK: 3},
            retries=0,
            takeovers=0,
            items=300,
            run=WAIT,
            wait=RUN,
        ),
    ),
    slots=(
        SLOT,
        dataclasses.replace(
            SLOT,
            slot=0,
            pid=None,
            state=SlotState.PARKED,
            cpu=0.0,
            job_ids=(),
            running=(),
        ),
    ),
)


def told(stats: PoolStats = STATS, *, name: str = "images") -> ToldPool:
    """Return a pool with these figures."""
    pool = ToldPool(1, name=name)
    pool.told = stats
    return pool
