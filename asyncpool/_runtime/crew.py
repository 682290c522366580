"""What pools and clusters are told of their workers alike."""

from __future__ import annotations

from collections.abc import Iterable

from asyncpool._core.wear import WorkerLimits
from asyncpool._runtime.arguments import (
    check_callable,
    check_choice,
    check_seconds,
)
from asyncpool._runtime.machine import check_limits, check_loop

__all__ = ["check_crew"]


def check_crew(
    *,
    limits: WorkerLimits | None,
    launcher: str,
    loop: str,
    output: str,
    on_crash: object,
    preload: Iterable[str],
    start_timeout: float,
    health_timeout: float | None,
) -> WorkerLimits:
    """Check the arguments that a pool and a cluster have in common.

    Returns:
        The limits, which are none by default.

    Raises:
        TypeError: If one is of the wrong kind.
        ValueError: If one is out of range, or is not to be had here.
    """
    limits = WorkerLimits() if limits is None else limits
    if not isinstance(limits, WorkerLimits):
        raise TypeError(f"limits must be a WorkerLimits, not {limits!r}")
    check_limits(limits)
    check_choice("launcher", launcher, ("forkserver", "spawn"))
    check_loop(loop)
    check_choice("output", output, ("log", "inherit"))
    check_callable("on_crash", on_crash)
    if isinstance(preload, str):
        raise TypeError(f"preload takes names of modules: ({preload!r},)")
    check_seconds("start_timeout", start_timeout)
    check_seconds("health_timeout", health_timeout, optional=True)
    return limits
