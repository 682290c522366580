"""What the collector makes of the figures of a pool, and which pools it has."""

from __future__ import annotations

import dataclasses
import gc
import subprocess
import sys

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition, parser

from asyncpool import PoolStats
from asyncpool.enums import RunState
from asyncpool.prometheus import register, unregister
from tests.helpers.programs import find_program
from tests.helpers.scraping import Figures
from tests.helpers.told_pool import NODE, SLOT, STATS, told


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
    assert len(families) == 38
    for family in families:
        assert family.name.startswith("asyncpool_")
        assert family.documentation.endswith(".")
        assert all(sample.labels["pool"] == "images" for sample in family.samples)


def test_promtool_has_no_complaint(registry: CollectorRegistry) -> None:
    promtool = find_program("promtool")
    first, second = told(), told(name="mail")
    register(first, registry)
    register(second, registry)
    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=generate_latest(registry),
        capture_output=True,
        check=False,
    )
    assert (checked.returncode, checked.stderr, checked.stdout) == (0, b"", b"")


def test_cpu_time_never_goes_back(registry: CollectorRegistry) -> None:
    """Between the end of a worker and its report, nobody has its CPU time."""
    pool = told()
    register(pool, registry)
    found = []
    for exited, slots in ((10.0, (SLOT,)), (10.0, ()), (11.6, ()), (11.6, (SLOT,))):
        pool.told = dataclasses.replace(STATS, exited_cpu=exited, slots=slots)
        found.append(scrape(registry).get("worker_cpu_seconds_total"))
    assert found == [11.5, 11.5, 11.6, 13.1]


def test_several_pools_are_told_apart(registry: CollectorRegistry) -> None:
    first, second = told(), told(dataclasses.replace(STATS, queued=2), name="mail")
    register(first, registry)
    register(second, registry)
    found = scrape(registry)
    assert found.get("jobs_queued", pool="images") == 17
    assert found.get("jobs_queued", pool="mail") == 2
    assert found.text.count("# TYPE asyncpool_jobs_queued ") == 1


def test_registering_twice_is_an_error(registry: CollectorRegistry) -> None:
    pool = told()
    register(pool, registry)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - see below
        register(pool, registry)
    assert str(caught.value) == "pool images is already registered in this registry"
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - see below
        register(told(), registry)
    assert str(caught.value) == (
        "another pool called images is registered in this registry: "
        "give one of them another name, or unregister() the other one first"
    )
    assert scrape(registry).get("jobs_queued") == 17


def test_only_pools_and_clusters_are_registered(registry: CollectorRegistry) -> None:
    with pytest.raises(TypeError) as caught:
        register(told().options(timeout=1), registry)  # type: ignore[arg-type]
    assert str(caught.value) == "register() needs a Pool or a Cluster, not BoundPool"
    with pytest.raises(TypeError) as caught:
        register(told(), "shop")  # type: ignore[arg-type]
    assert str(caught.value) == "register() needs a CollectorRegistry, not str"


def test_a_closed_pool_leaves_its_name_to_a_new_one(
    registry: CollectorRegistry,
) -> None:
    closed = told(PoolStats(state=RunState.CLOSED, workers=1, submitted=7))
    register(closed, registry)
    assert scrape(registry).get("jobs_submitted_total", pool="images") == 7
    pool = told()
    register(pool, registry)
    assert scrape(registry).get("jobs_submitted_total", pool="images") == 40


def test_unregister(registry: CollectorRegistry) -> None:
    pool = told()
    not_there = "pool images is not registered in this registry"
    with pytest.raises(ValueError, match=f"^{not_there}$"):
        unregister(pool, registry)
    register(pool, registry)
    with pytest.raises(ValueError, match=f"^{not_there}$"):
        unregister(told(), registry)
    unregister(pool, registry)
    assert scrape(registry).labels("pool") == set()
    with pytest.raises(ValueError, match=f"^{not_there}$"):
        unregister(pool, registry)
    register(pool, registry)
    assert scrape(registry).labels("pool") == {"images"}


def test_a_pool_that_is_gone_drops_out(registry: CollectorRegistry) -> None:
    pool = told()
    register(pool, registry)
    del pool
    gc.collect()
    assert scrape(registry).labels("pool") == set()
    again = told()
    register(again, registry)
    assert scrape(registry).labels("pool") == {"images"}


def test_without_the_extra_the_import_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['prometheus_client'] = None\n"
        "import asyncpool.pool\n"
        "try:\n    import asyncpool.prometheus\n"
        "except ModuleNotFoundError as error:\n    print(error.name, error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert told.stdout == (
        "prometheus_client asyncpool.prometheus needs prometheus_client, which is not "
        "installed: pip install 'asyncpool-supervised[prometheus]'\n"
    )
