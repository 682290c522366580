"""What the collector makes of the figures of pools and clusters."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser

from asyncpool import Cluster, PoolStats
from asyncpool.cluster import ClusterStats, RequestStats, WorkerStats
from asyncpool.enums import CrashKind, RunState
from asyncpool.prometheus import register, unregister
from asyncpool.stats import Histogram
from tests.helpers import serves
from tests.helpers.programs import find_program
from tests.helpers.scraping import Figures
from tests.helpers.told_pool import NODE, STATS, told


class ToldCluster(Cluster):
    """A cluster whose figures are given."""

    told: ClusterStats

    def stats(self) -> ClusterStats:
        return self.told


FAST = Histogram(bounds=(64e-6, 128e-6), counts=(30, 10), total=0.004)
SLOW = Histogram(bounds=(2.097152,), counts=(2,), total=3.0)

CLUSTER_STATS = ClusterStats(
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


def told_cluster(
    stats: ClusterStats = CLUSTER_STATS, name: str = "shop"
) -> ToldCluster:
    """Return a cluster with these figures."""
    cluster = ToldCluster(serves.talk, name=name)
    cluster.told = stats
    return cluster


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scrape(registry: CollectorRegistry) -> Figures:
    return Figures(generate_latest(registry).decode())


def test_each_figure_is_exported(registry: CollectorRegistry) -> None:
    pool = told()
    register(pool, registry)
    found = scrape(registry)
    plain = {
        "jobs_submitted_total": 40,
        "jobs_refused_total": 2,
        "job_timeouts_total": 3,
        "job_retries_total": 4,
        "job_takeovers_total": 5,
        "jobs_running": 1,
        "jobs_longest_running_seconds": 2.0,
        "jobs_queued": 17,
        "queue_oldest_seconds": 0.25,
        "workers_wanted": 3,
        "worker_starts_total": 9,
        "worker_restarts_total": 6,
        "worker_cpu_seconds_total": 11.5,
        "shared_memory_bytes": 4096,
        "events_dropped_total": 8,
        "nodes_lost_total": 1,
        "clients_lost_total": 2,
        "clients_refused_total": 3,
    }
    assert {name: found.get(name, pool="images") for name in plain} == plain
    by_outcome = {
        (via, outcome): found.get(
            "jobs_total",
            pool="images",
            function="shop.resize",
            via=via,
            outcome=outcome,
        )
        for via, outcome in (("submit", "ok"), ("submit", "raised"), ("map", "ok"))
    }
    assert list(by_outcome.values()) == [10, 2, 3]
    assert found.get("map_items_total", function="shop.resize") == 300
    assert [found.get("pool_state", state=state) for state in RunState] == [
        0,
        1,
        0,
        0,
        0,
    ]
    assert found.get("workers", state="busy") == 1
    assert found.get("workers", state="parked") == 1
    assert found.get("workers", state="idle") == 0
    assert found.get("worker_memory_bytes", slot="1") == 1 << 20
    assert found.get("worker_crashes_total", kind="hung") == 1
    assert found.get("worker_crashes_total", kind="out of memory") == 6
    assert found.get("worker_crashes_total", kind="protocol") == 0
    assert found.get("worker_start_seconds_count") == 9
    assert found.get("loop_lag_seconds_sum") == 0.003


def test_nodes_are_exported_one_by_one(registry: CollectorRegistry) -> None:
    other = dataclasses.replace(
        NODE, name="10.0.0.2", suspected=True, clock_error=None, silent=40.0
    )
    pool = told(dataclasses.replace(STATS, nodes=(NODE, other)))
    register(pool, registry)
    found = scrape(registry)
    plain = {
        "node_trusted": 1,
        "node_silent_seconds": 0.5,
        "node_jobs": 3,
        "node_jobs_queued": 2,
        "node_worker_crashes_total": 5,
        "node_worker_cpu_seconds_total": 61.5,
        "node_worker_memory_bytes": 5_000_000,
        "node_clock_error_seconds": 0.0015,
    }
    ours = {"pool": "images", "node": "10.0.0.1"}
    assert {name: found.get(name, **ours) for name in plain} == plain
    assert found.get("node_workers", node="10.0.0.1", state="busy") == 3
    assert found.get("node_workers", node="10.0.0.1", state="idle") == 1
    assert found.get("node_trusted", node="10.0.0.2") == 0
    assert found.get("node_silent_seconds", node="10.0.0.2") == 40.0
    text = generate_latest(registry).decode()
    assert text.count("asyncpool_node_clock_error_seconds{") == 1


def test_histograms_are_cumulative_and_always_have_the_same_bounds(
    registry: CollectorRegistry,
) -> None:
    pool = told()
    register(pool, registry)
    found = scrape(registry)
    submitted = {"function": "shop.resize", "via": "submit"}
    below = {
        le: found.get("job_run_seconds_bucket", le=le, **submitted)
        for le in ("6.4e-05", "0.000256", "0.001024", "0.262144", "1.048576", "+Inf")
    }
    assert list(below.values()) == [3, 7, 7, 7, 12, 12]
    assert found.get("job_run_seconds_sum", **submitted) == 2.5
    assert found.get("job_run_seconds_count", **submitted) == 12
    assert found.get("job_wait_seconds_bucket", le="6.4e-05", **submitted) == 12
    bounds = found.labels("le")
    pool.told = PoolStats(state=RunState.NEW, workers=1)
    assert scrape(registry).labels("le") == bounds
    assert len(bounds) == 15


def test_the_conventions_of_prometheus_are_kept(registry: CollectorRegistry) -> None:
    pool = told()
    register(pool, registry)
    strict = exposition.generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    families = list(
        parser.text_string_to_metric_families(strict)  # type: ignore[no-untyped-call]
    )
    assert len(families) == 42
    for family in families:
        assert family.name.startswith("asyncpool_")
        assert family.documentation.endswith(".")
        assert all(sample.labels["pool"] == "images" for sample in family.samples)


def test_promtool_has_no_complaint(registry: CollectorRegistry) -> None:
    there = told(), told(name="mail"), told_cluster()
    for each in there:
        register(each, registry)
    checked = subprocess.run(
        [find_program("promtool"), "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr, checked.stdout) == (0, b"", b"")


def test_only_pools_and_clusters_are_registered(registry: CollectorRegistry) -> None:
    with pytest.raises(TypeError) as caught:
        register(told().options(timeout=1), registry)  # type: ignore[arg-type]
    assert str(caught.value) == "register() needs a Pool or a Cluster, not BoundPool"
    with pytest.raises(TypeError) as caught:
        register(told(), "shop")  # type: ignore[arg-type]
    assert str(caught.value) == "register() needs a CollectorRegistry, not str"


# Clusters.


def test_each_figure_of_a_cluster_is_exported(registry: CollectorRegistry) -> None:
    cluster = told_cluster()
    register(cluster, registry)
    found = scrape(registry)
    plain = {
        "requests_open": 3,
        "requests_cut_total": 5,
        "requests_refused_total": 6,
        "websockets_total": 9,
        "websockets_open": 7,
        "connections_total": 100,
        "connections_open": 11,
        "connections_cut_total": 4,
        "connections_lost_total": 1,
        "workers_wanted": 2,
        "worker_starts_total": 8,
        "worker_restarts_total": 6,
        "worker_start_seconds_count": 8,
        "worker_start_seconds_sum": 1.5,
        "worker_cpu_seconds_total": 11.5,
        "worker_loop_lag_seconds_count": 4,
        "loop_lag_seconds_count": 2,
        "events_dropped_total": 8,
    }
    exported = {name: found.get(f"cluster_{name}", cluster="shop") for name in plain}
    assert exported == plain
    by_label = {
        ("state", "state", "running"): 1,
        ("state", "state", "broken"): 0,
        ("requests_total", "status", "2xx"): 40,
        ("requests_total", "status", "3xx"): 0,
        ("requests_total", "status", "5xx"): 2,
        ("request_seconds_count", "status", "5xx"): 2,
        ("request_seconds_sum", "status", "5xx"): 3.0,
        ("workers", "state", "ready"): 1,
        ("workers", "state", "parked"): 1,
        ("workers", "state", "stopping"): 0,
        ("worker_exits_total", "cause", "crash"): 2,
        ("worker_exits_total", "cause", "roll"): 4,
        ("worker_exits_total", "cause", "max_memory"): 0,
        ("worker_crashes_total", "kind", "hung"): 2,
        ("worker_crashes_total", "kind", "crash"): 0,
        ("worker_memory_bytes", "slot", "1"): 1 << 20,
    }
    assert {
        (name, label, value): found.get(f"cluster_{name}", **{label: value})
        for name, label, value in by_label
    } == by_label
    assert found.get("cluster_request_seconds_bucket", status="2xx", le="6.4e-05") == 30
    assert found.get("cluster_request_seconds_bucket", status="2xx", le="+Inf") == 40


def test_a_status_that_http_does_not_know_is_exported_if_there_is_one(
    registry: CollectorRegistry,
) -> None:
    odd = Histogram(bounds=(1.048576,), counts=(3,), total=2.0)
    requests = RequestStats(responses={"other": odd})
    cluster = told_cluster(dataclasses.replace(CLUSTER_STATS, requests=requests))
    register(cluster, registry)
    found = scrape(registry)
    assert found.labels("status") == {"2xx", "3xx", "4xx", "5xx", "other"}
    assert found.get("cluster_requests_total", status="other") == 3


def test_a_pool_and_a_cluster_may_have_one_name(registry: CollectorRegistry) -> None:
    cluster, pool = told_cluster(name="shop"), told(name="shop")
    register(cluster, registry)
    register(pool, registry)
    found = scrape(registry)
    assert found.get("workers_wanted", pool="shop") == 3
    assert found.get("cluster_workers_wanted", cluster="shop") == 2
    unregister(cluster, registry)
    assert scrape(registry).labels("cluster") == set()
    assert scrape(registry).labels("pool") == {"shop"}


def test_two_clusters_need_two_names(registry: CollectorRegistry) -> None:
    one, other = told_cluster(), told_cluster()
    register(one, registry)
    with pytest.raises(ValueError, match="another cluster called shop is registered"):
        register(other, registry)
    one.told = dataclasses.replace(CLUSTER_STATS, state=RunState.CLOSED)
    register(other, registry)
    with pytest.raises(
        ValueError, match=r"^cluster shop is not registered in this registry$"
    ):
        unregister(one, registry)
