"""The options of pools, clusters and executors: declared once, and the same for all."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from asyncpool import Cluster, Pool, ProcessPoolExecutor, RestartPolicy, WorkerLimits
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_options import JobLimits, JobOptions, Options
from asyncpool._futures.executor_options import EXECUTOR_CHECKS, ExecutorOptions
from asyncpool._runtime.options.checks import (
    Check,
    anything,
    at_least,
    checked,
    function,
    instance,
    items,
    name_or_number,
    one_of,
    path,
    seconds,
)
from asyncpool._runtime.options.job_options import changed
from asyncpool._runtime.options.pool_options import (
    JOB_LIMITS,
    POOL_CHECKS,
    PoolOptions,
    pool_options,
)
from asyncpool._runtime.options.worker_options import WORKER_CHECKS, WorkerOptions
from asyncpool._runtime.state.config import pool_config
from asyncpool.cluster import Worker
from asyncpool.cluster._options import CLUSTER_CHECKS, ClusterOptions
from tests.helpers.inside import config_of, options_of
from tests.helpers.scripts import ROOT

REFERENCE = (ROOT / "docs" / "reference.md").read_text()


async def serve(*_: Worker) -> None: ...


def parameters(kind: type[Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def names(record: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize(
    ("kind", "checks", "record"),
    [
        (Pool, POOL_CHECKS, PoolOptions),
        (Cluster, CLUSTER_CHECKS, ClusterOptions),
        (ProcessPoolExecutor, EXECUTOR_CHECKS, ExecutorOptions),
    ],
)
def test_each_option_of_a_signature_has_one_check_and_one_field(
    kind: type[Any], checks: Mapping[str, Check], record: type[Any]
) -> None:
    ours = parameters(kind).keys() - (set(JOB_LIMITS) if kind is Pool else set())
    assert ours == checks.keys()
    assert ours == names(record) - {"job_limits"}


def test_what_pools_and_clusters_share_is_checked_by_the_same_checks() -> None:
    shared = names(WorkerOptions)
    assert shared == WORKER_CHECKS.keys() | {"name", "max_surge"}
    assert shared == parameters(Pool).keys() & parameters(Cluster).keys() - {"workers"}
    for name, check in WORKER_CHECKS.items():
        assert POOL_CHECKS[name] is check
        # A cluster has the same, and asks more of its limits.
        assert (CLUSTER_CHECKS[name] is check) is (name != "worker_limits")


def test_pools_and_clusters_have_the_same_defaults() -> None:
    pool, cluster = parameters(Pool), parameters(Cluster)
    differ = {
        name: (pool[name].default, cluster[name].default)
        for name in pool.keys() & cluster.keys()
        if pool[name].default != cluster[name].default
    }
    # A server imports an application before it is ready.
    assert differ == {"start_timeout": (30.0, 60.0)}


def groups_of(docstring: str | None) -> dict[str, list[str]]:
    """Return the arguments of a docstring, by the titles of their sections."""
    sections = re.findall(
        r"^Args: (.*)\n((?:    .*\n|\n)+)", docstring or "", re.MULTILINE
    )
    return {
        title: re.findall(r"^    (\w+): ", text, re.MULTILINE)
        for title, text in sections
    }


def tables_of(part: str) -> dict[str, list[str]]:
    """Return the first columns of the tables of a document, by what stands before each."""
    tables = re.findall(
        r"^(\w[\w ]*)(?:,[^\n]*)?:\n\n\|.*\n\|[-|]*\n((?:\|.*\n)+)", part, re.MULTILINE
    )
    return {
        title: [
            name
            for line in rows.splitlines()
            for name in re.findall(r"`(\w+)`", line.split("|")[1])
        ]
        for title, rows in tables
    }


@pytest.mark.parametrize("kind", [Pool, Cluster])
def test_a_docstring_has_the_options_of_the_signature_in_groups(
    kind: type[Any],
) -> None:
    groups = groups_of(inspect.getdoc(kind))
    assert len(groups) > 1
    assert list(chain(*groups.values())) == list(parameters(kind))


def test_the_options_of_jobs_are_in_groups() -> None:
    groups = groups_of(inspect.getdoc(Pool.options))
    assert len(groups) > 1
    assert sorted(chain(*groups.values())) == sorted(Options.__annotations__)


def test_each_option_of_jobs_is_a_field_of_what_a_job_has() -> None:
    fields = names(JobOptions) | names(JobLimits) | names(AttemptPolicy)
    assert Options.__annotations__.keys() <= fields


def test_options_that_are_not_given_stay() -> None:
    first = changed(JobOptions(), {"priority": 7, "key": "k", "max_attempts": 4})
    second = changed(first, {"timeout": 2.0, "prefetch": 5})
    assert (second.priority, second.key) == (7, first.key)
    assert (second.attempts, second.limits.timeout) == (first.attempts, 2.0)
    assert changed(second, {}) == second
    assert changed(second, {"key": None}).key is None


def test_the_reference_has_the_same_groups() -> None:
    part = REFERENCE.partition("## The pool\n")[2].partition("What a pool does:")[0]
    assert tables_of(part) == groups_of(inspect.getdoc(Pool))


def given(**changes: Any) -> dict[str, Any]:
    """Return what a pool is given that is told no more than *changes*."""
    defaults = {name: it.default for name, it in parameters(Pool).items()}
    return {**defaults, **changes}


def test_what_was_given_is_in_shape() -> None:
    options = pool_options(given(workers=3, preload=["re"], initargs=[1], timeout=5.0))
    assert options.workers == (3, 3)
    assert options.restart_policy == RestartPolicy()
    assert options.worker_limits == WorkerLimits()
    assert (options.preload, options.initargs) == (("re",), (1,))
    assert options.job_limits.timeout == 5.0
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_surge = 2  # type: ignore[misc]


def test_a_supervisor_is_told_what_the_pool_was() -> None:
    limits = WorkerLimits(nice=3, rlimits={"RLIMIT_CORE": 0})
    options = pool_options(
        given(
            worker_limits=limits,
            launcher="spawn",
            ready="all",
            concurrency=4,
            max_message_size=None,
            propagate=(),
        )
    )
    config = pool_config(options)
    assert config.shared() == options.shared()
    assert (config.fork, config.wait_for_all) == (False, True)
    assert config.worker.rlimits == (("RLIMIT_CORE", 0),)
    assert (config.worker.nice, config.worker.concurrency) == (3, 4)
    assert config.worker.max_payload > 1 << 30
    assert config.propagation is None


def test_a_pool_that_is_refused_takes_no_number() -> None:
    number = int(Pool(1).name.removeprefix("pool-"))
    for wrong in ({"max_surge": -1}, {"initializer": 3}, {"name": 3}):
        with pytest.raises((TypeError, ValueError)):
            pool_options(given(**wrong))
    assert Pool(1).name == f"pool-{number + 1}"
    assert Pool(1, name="shop").name == "shop"
    assert Pool(1, name="").name == f"pool-{number + 2}"


def test_a_pool_can_replace_workers_somehow() -> None:
    text = r"^max_surge and max_unavailable cannot both be 0$"
    with pytest.raises(ValueError, match=text):
        Pool(1, max_surge=0)
    assert config_of(Pool(1, max_surge=0, max_unavailable=1)).max_unavailable == 1


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"workers": (2, 4)}, TypeError, "workers must be an int, not (2, 4)"),
        ({"max_surge": 0}, ValueError, "max_surge must be at least 1, not 0"),
        ({"backlog": 0}, ValueError, "backlog must be at least 1, not 0"),
        (
            {"spread": "all"},
            ValueError,
            "spread must be one of handoff, shared, not 'all'",
        ),
        (
            {"reload_drain_timeout": 0},
            ValueError,
            "reload_drain_timeout must be > 0 seconds or None, not 0",
        ),
        (
            {"worker_limits": WorkerLimits(drain_timeout=3.0)},
            ValueError,
            "worker_limits of a cluster take no drain_timeout: give it to the cluster itself",
        ),
        (
            {"worker_limits": WorkerLimits(max_jobs=1, exact=True)},
            ValueError,
            "worker_limits of a cluster cannot be exact: a worker serves until there is another",
        ),
    ],
)
def test_a_cluster_refuses_what_it_cannot_have(
    options: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        Cluster(serve, **options)


def test_a_cluster_has_as_long_for_a_reload_as_for_its_end() -> None:
    options = options_of(Cluster(serve, drain_timeout=7.0))
    assert options.reload_drain_timeout == 7.0
    cluster = Cluster(serve, reload_drain_timeout=9.0)
    assert options_of(cluster).reload_drain_timeout == 9.0


def test_without_an_address_there_is_nothing_to_spread() -> None:
    assert options_of(Cluster(serve, spread="shared")).spread == "handoff"
    cluster = Cluster(serve, bind="127.0.0.1:0", spread="shared")
    assert options_of(cluster).spread == "shared"


@pytest.mark.parametrize(
    ("check", "value", "shape"),
    [
        (anything, 3, 3),
        (at_least(0), 0, 0),
        (at_least(5, optional=True), None, None),
        (seconds(), 0.1, 0.1),
        (seconds(optional=True), None, None),
        (one_of(("any", "all")), "all", "all"),
        (path, None, None),
        (path, Path("a/b"), "a/b"),
        (function, None, None),
        (function, abs, abs),
        (instance(RestartPolicy, "a RestartPolicy"), None, RestartPolicy()),
        (items("names", each=str), ["a", "b"], ("a", "b")),
        (name_or_number("fleet"), None, "fleet-1"),
    ],
)
def test_a_check_returns_the_value_in_shape(
    check: Check, value: object, shape: object
) -> None:
    assert checked({"it": check}, {"it": value, "other": 3}) == {"it": shape}


@pytest.mark.parametrize(
    ("check", "value", "kind", "text"),
    [
        (at_least(5), 4, ValueError, "it must be at least 5, not 4"),
        (at_least(5), None, TypeError, "it must be an int, not None"),
        (
            at_least(5, optional=True),
            "5",
            TypeError,
            "it must be an int or None, not '5'",
        ),
        (seconds(), None, TypeError, "it must be a number of seconds, not None"),
        (one_of(("any", "all")), 3, ValueError, "it must be one of any, all, not 3"),
        (function, 3, TypeError, "it must be callable, not 3"),
        (
            instance(WorkerLimits, "worker_limits"),
            {},
            TypeError,
            "it must be worker_limits, not {}",
        ),
        (items("names", each=str), [3], TypeError, "it takes names, not 3"),
        (name_or_number("pool"), 3, TypeError, "it must be a str or None, not 3"),
    ],
)
def test_a_check_names_the_option(
    check: Check, value: object, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        checked({"it": check}, {"it": value})


def test_the_first_wrong_option_of_the_table_is_told() -> None:
    table = {"one": at_least(1), "two": at_least(1)}
    with pytest.raises(ValueError, match=r"^one must be at least 1, not 0$"):
        checked(table, {"two": 0, "one": 0})
