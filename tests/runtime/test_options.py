"""Options: signatures, tables, records and docstrings agree; and what is made of some."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re
import sys
from collections.abc import Mapping
from contextvars import ContextVar, copy_context
from itertools import chain
from types import ModuleType
from typing import Any

import pytest

from asyncpool import Cluster, Pool
from asyncpool._core import checks
from asyncpool._core.options import CHECKS, OPTIONS, JobOptions, Options
from asyncpool._engine.options import POOL_CHECKS, EngineConfig
from asyncpool._engine.propagation import Propagation
from asyncpool._wire.messages import MAX_VARIABLES, JobContext
from asyncpool.cluster import Worker
from asyncpool.cluster._master import CLUSTER_CHECKS
from asyncpool.errors import JobNotPicklableError
from tests.helpers import tracing
from tests.helpers.inside import config_of, options_of


async def serve(*_: Worker) -> None: ...


def parameters(kind: type[Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(kind).parameters)


def names(record: type[Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(record)}


@pytest.mark.parametrize(
    ("kind", "checks"), [(Pool, POOL_CHECKS), (Cluster, CLUSTER_CHECKS)]
)
def test_each_option_of_a_signature_has_one_check(
    kind: type[Any], checks: Mapping[str, checks.Check]
) -> None:
    ours = parameters(kind).keys() - (OPTIONS - {"codec"} if kind is Pool else set())
    # The record of a cluster has the defaults of what is for pools alone.
    alone = parameters(Pool).keys() - ours if kind is Cluster else set()
    assert ours == checks.keys() - alone


def test_pools_and_clusters_share_their_checks_and_defaults() -> None:
    pool, cluster = parameters(Pool), parameters(Cluster)
    shared = pool.keys() & cluster.keys()
    assert shared <= names(EngineConfig)
    own = {name for name in shared if POOL_CHECKS[name] is not CLUSTER_CHECKS[name]}
    assert own == {"workers", "worker_limits", "max_surge", "name"}
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


def test_docstrings_have_the_options_in_groups() -> None:
    for kind in (Pool, Cluster):
        groups = groups_of(inspect.getdoc(kind))
        assert len(groups) > 1
        assert list(chain(*groups.values())) == list(parameters(kind))
    groups = groups_of(inspect.getdoc(Pool.options))
    assert len(groups) > 1
    assert sorted(chain(*groups.values())) == sorted(Options.__annotations__)
    assert Options.__annotations__.keys() == CHECKS.keys() <= names(JobOptions)


def test_a_pool_that_is_refused_takes_no_number() -> None:
    number = int(Pool(1).name.removeprefix("pool-"))
    wrongs: list[dict[str, Any]] = [{"max_surge": -1}, {"initializer": 3}, {"name": 3}]
    for wrong in wrongs:
        with pytest.raises((TypeError, ValueError)):
            Pool(1, **wrong)
    assert Pool(1).name == f"pool-{number + 1}"
    assert Pool(1, name="shop").name == "shop"
    assert Pool(1, name="").name == f"pool-{number + 2}"


def test_what_depends_on_another_option() -> None:
    text = r"^max_surge and max_unavailable cannot both be 0$"
    with pytest.raises(ValueError, match=text):
        Pool(1, max_surge=0)
    assert config_of(Pool(1, max_surge=0, max_unavailable=1)).max_unavailable == 1
    # A cluster has as long for a reload as for its end.
    assert options_of(Cluster(serve)).reload_drain_timeout == 30.0
    cluster = Cluster(serve, drain_timeout=7.0, reload_drain_timeout=None)
    assert options_of(cluster).reload_drain_timeout == 7.0
    cluster = Cluster(serve, reload_drain_timeout=9.0)
    assert options_of(cluster).reload_drain_timeout == 9.0
    # Without an address there is nothing to spread.
    assert options_of(Cluster(serve, spread="shared")).spread == "handoff"
    cluster = Cluster(serve, bind="127.0.0.1:0", spread="shared")
    assert options_of(cluster).spread == "shared"


# Context variables.

NAMES = ["tests.helpers.tracing:request", "tests.helpers.tracing:tenant"]


def carried(propagation: Propagation, context: bytes = b"") -> dict[str, Any]:
    packed = propagation.add_to(context)
    variables = JobContext.unpack(packed).variables
    return dict(pickle.loads(variables)) if variables else {}


def test_what_cannot_be_carried_is_named_and_the_pool_goes_on() -> None:
    propagation = Propagation([tracing.request])

    def look() -> None:
        tracing.request.set(bytes(MAX_VARIABLES))
        with pytest.raises(JobNotPicklableError, match=f"and {MAX_VARIABLES} is the"):
            propagation.add_to(b"")
        tracing.request.set([1])
        assert carried(propagation) == {NAMES[0]: [1]}
        tracing.request.get().append(2)
        assert carried(propagation) == {NAMES[0]: [1, 2]}

    copy_context().run(look)


def test_a_variable_is_looked_up_where_it_is_defined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine: ContextVar[int] = ContextVar("mine")
    main, service = ModuleType("__main__"), ModuleType("aaa_service")
    vars(main).update(mine=mine, request=tracing.request)
    vars(service).update({f"name_{n}": n for n in range(1000)}, request=tracing.request)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setitem(sys.modules, "aaa_service", service)
    with pytest.raises(ValueError, match="'mine' lives in __main__"):
        Pool(1, propagate=[mine])

    def look() -> None:
        tracing.request.set(1)
        assert carried(Propagation([tracing.request])) == {NAMES[0]: 1}

    copy_context().run(look)
