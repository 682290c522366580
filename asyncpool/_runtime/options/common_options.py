"""What pools and clusters are told of their workers alike."""

from __future__ import annotations

from typing import NamedTuple

from asyncpool._core.base.validation import TEXT, check_kind, or_none, several
from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._runtime.base.arguments import (
    check_callable,
    check_choice,
    check_seconds,
)
from asyncpool._runtime.base.machine import check_limits, check_loop

__all__ = ["Crew", "check_crew"]


class Crew(NamedTuple):
    """What of these arguments has a default, or a shape to be brought into."""

    limits: WorkerLimits
    restart: RestartPolicy
    preload: tuple[str, ...]


def check_crew(
    *,
    name: str | None,
    restart: RestartPolicy | None,
    limits: WorkerLimits | None,
    launcher: str,
    loop: str,
    output: str,
    on_crash: object,
    preload: object,
    start_timeout: float,
    health_timeout: float | None,
) -> Crew:
    """Check the arguments that a pool and a cluster have in common.

    Raises:
        TypeError: If one is of the wrong kind.
        ValueError: If one is out of range, or is not to be had here.
    """
    check_kind("name", name, or_none(TEXT))
    restart = RestartPolicy() if restart is None else restart
    check_kind("restart", restart, ((RestartPolicy,), "a RestartPolicy"))
    limits = WorkerLimits() if limits is None else limits
    check_kind("limits", limits, ((WorkerLimits,), "a WorkerLimits"))
    check_limits(limits)
    check_choice("launcher", launcher, ("forkserver", "spawn"))
    check_loop(loop)
    check_choice("output", output, ("log", "inherit"))
    check_callable("on_crash", on_crash)
    modules = several("preload", preload, "names of modules", each=str)
    check_seconds("start_timeout", start_timeout)
    check_seconds("health_timeout", health_timeout, optional=True)
    return Crew(limits, restart, modules)
