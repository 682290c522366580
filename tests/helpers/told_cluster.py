"""A cluster without a process, whose figures are given."""

from __future__ import annotations

from asyncpool import Cluster
from asyncpool.cluster import ClusterStats, RequestStats, WorkerStats
from asyncpool.enums import CrashKind, RunState
from asyncpool.stats import Histogram
from tests.helpers import serves

__all__ = ["STATS", "ToldCluster", "told_cluster"]


class ToldCluster(Cluster):
    """A cluster whose figures are given."""

    told: ClusterStats

    def stats(self) -> ClusterStats:
        return self.told


FAST = Histogram(bounds=(64e-6, 128e-6), counts=(30, 10), total=0.004)
SLOW = Histogram(bounds=(2.097152,), counts=(2,), total=3.0)

STATS = ClusterStats(
    state=RunState.RUNNING,
    workers=2,
    spread="handoff",
    addresses=("tcp://127.0.0.1:8000",),
    handed=100,
    lost=1,
    cut=4,
    requests=RequestStats(
        responses={"2xx": FAST, "5xx": SLOW},
        open=3,
        cut=5,
        refused=6,
        websockets=9,
        open_websockets=7,
    ),
    crashes=2,
    crash_kinds={CrashKind.HUNG: 2},
    exits={"crash": 2, "roll": 4},
    restarts=6,
    spawned=8,
    started=Histogram(bounds=(0.262144,), counts=(8,), total=1.5),
    exited_cpu=10.0,
    loop_lag=Histogram(bounds=(0.002048,), counts=(2,), total=0.003),
    worker_loop_lag=Histogram(bounds=(0.002048,), counts=(4,), total=0.005),
    dropped_events=8,
    slots=(
        WorkerStats(
            slot=1,
            generation=3,
            pid=4711,
            state="ready",
            ready=True,
            connections=11,
            handed=40,
            uptime=9.0,
            cpu=1.5,
            memory=1 << 20,
        ),
        WorkerStats(
            slot=2,
            generation=1,
            pid=None,
            state="parked",
            ready=False,
            connections=0,
            handed=0,
            uptime=0.0,
            memory=0,
        ),
    ),
)


def told_cluster(stats: ClusterStats = STATS, name: str = "shop") -> ToldCluster:
    """Return a cluster with these figures."""
    cluster = ToldCluster(serves.talk, name=name)
    cluster.told = stats
    return cluster
