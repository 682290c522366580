"""The options of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from asyncpool._cluster.addresses import parse_all
from asyncpool._cluster.link import MAX_MESSAGE
from asyncpool._cluster.service import Spread
from asyncpool._core import checks
from asyncpool._core.checks import option
from asyncpool._core.options import WorkerLimits
from asyncpool._dataclass import dataclass
from asyncpool._engine.machine import check_limits, usable_cpus
from asyncpool._engine.options import (
    EngineConfig,
    anything,
    name_or_number,
    worker_config,
)
from asyncpool._wire.messages import MAX_INITIALIZER
from asyncpool._wire.pickling import dumps_call
from asyncpool.errors import JobNotPicklableError

# Seconds that a worker which is drained has beyond its own time.
_GRACE = 1.0

_ADDRESSES = "an address, or several, such as '127.0.0.1:8000'"


def _workers(name: str, value: int | None) -> tuple[int, int]:
    workers = usable_cpus() if value is None else value
    checks.at_least(1)(name, workers)
    return workers, workers


def _bind(name: str, value: object) -> tuple[str, ...]:
    addresses = (value,) if isinstance(value, str) else value
    return checks.several(_ADDRESSES, each=str)(name, addresses)


def _limits(name: str, value: object) -> WorkerLimits:
    limits = check_limits(name, value)
    if limits.drain_timeout != WorkerLimits().drain_timeout:
        raise ValueError(
            "worker_limits of a cluster take no drain_timeout: give it to the cluster itself"
        )
    return limits


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions(EngineConfig):
    """What a cluster is told, checked and in shape; see :class:`asyncpool.Cluster`.

    It is what its supervisor is told, too, before the cluster listens.

    Attributes:
        spread: How connections get to workers; without an address there are none, and
            nothing but ``"handoff"`` makes sense.
    """

    target: str | Callable[..., object] = option(anything)  # pack_target() checks it
    bind: tuple[str, ...] = option(_bind)
    spread: Spread = option(checks.one_of(get_args(Spread)))
    backlog: int = option(checks.at_least(1))
    drain_timeout: float = option(checks.PERIOD)
    reload_drain_timeout: float = option(checks.PERIOD_OR_NONE)


CLUSTER_CHECKS: dict[str, checks.Check] = {
    **checks.table_of(ClusterOptions),
    "workers": _workers,
    "worker_limits": _limits,
    "max_surge": checks.at_least(1),  # a worker serves until there is another
    "name": name_or_number("cluster"),  # last: one that is refused takes no number
}


def cluster_options(given: Mapping[str, Any]) -> ClusterOptions:
    """Return the options of a cluster, which its constructor was given.

    Raises:
        TypeError: If one is of the wrong type.
        ValueError: If one is out of range, or an address makes no sense.
    """
    values = checks.apply(CLUSTER_CHECKS, given)
    if values["reload_drain_timeout"] is None:
        values["reload_drain_timeout"] = values["drain_timeout"]
    if values["bind"]:
        parse_all(values["bind"])
    else:
        values["spread"] = "handoff"
    return ClusterOptions(
        **values,
        worker=worker_config(values, MAX_MESSAGE),
        stop_grace=values["reload_drain_timeout"] + _GRACE,  # while others serve on
        end_grace=values["drain_timeout"] + _GRACE,
    )


def pack_target(target: str | Callable[..., object]) -> str | bytes:
    """Bring what workers are to run into the form in which they are told.

    Raises:
        ValueError: If it is a name of nothing.
        TypeError: If it is neither a name nor callable.
        JobNotPicklableError: If it cannot be pickled, or is too large.
    """
    checks.function("target", target)
    if isinstance(target, str):
        return target
    try:
        payload = dumps_call(target)
    except Exception as error:
        raise JobNotPicklableError(
            f"target cannot be pickled: {error}", direction="arguments", name="target"
        ) from error
    if len(payload) > MAX_INITIALIZER:
        raise JobNotPicklableError(
            f"target has {len(payload)} bytes when pickled, and {MAX_INITIALIZER} is "
            "the most",
            direction="arguments",
            name="target",
        )
    return payload
