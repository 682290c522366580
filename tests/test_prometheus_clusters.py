"""What the collector makes of the figures of a cluster."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from asyncpool.cluster import RequestStats
from asyncpool.enums import RunState
from asyncpool.prometheus import register, unregister
from asyncpool.stats import Histogram
from tests.helpers.programs import find_program
from tests.helpers.scraping import Figures
from tests.helpers.told_cluster import STATS, told_cluster
from tests.helpers.told_pool import told


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def scrape(registry: CollectorRegistry) -> Figures:
    return Figures(generate_latest(registry).decode())


def test_each_figure_is_exported(registry: CollectorRegistry) -> None:
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
    cluster = told_cluster(dataclasses.replace(STATS, requests=requests))
    register(cluster, registry)
    found = scrape(registry)
    assert found.labels("status") == {"2xx", "3xx", "4xx", "5xx", "other"}
    assert found.get("cluster_requests_total", status="other") == 3


def test_promtool_has_no_complaint(registry: CollectorRegistry) -> None:
    cluster = told_cluster()
    register(cluster, registry)
    checked = subprocess.run(
        [find_program("promtool"), "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


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
    one.told = dataclasses.replace(STATS, state=RunState.CLOSED)
    register(other, registry)
    with pytest.raises(
        ValueError, match=r"^cluster shop is not registered in this registry$"
    ):
        unregister(one, registry)
