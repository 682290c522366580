"""The options of workers that pools and clusters share."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from asyncpool._core.policies.restart import RestartPolicy
from asyncpool._core.policies.worker_limits import WorkerLimits
from asyncpool._runtime.base.callbacks import CrashCallback
from asyncpool._runtime.base.machine import check_limits, check_loop
from asyncpool._runtime.options.checks import (
    Check,
    function,
    instance,
    items,
    one_of,
    seconds,
)

LauncherKind = Literal["forkserver", "spawn"]
LoopKind = Literal["asyncio", "uvloop"]
OutputMode = Literal["log", "inherit"]
ReadyWhen = Literal["any", "all"]

_limits = instance(WorkerLimits, "a WorkerLimits")


def _limits_of_this_machine(name: str, value: object) -> WorkerLimits:
    limits: WorkerLimits = _limits(name, value)
    check_limits(limits)
    return limits


def _loop(_: str, value: str) -> str:
    check_loop(value)
    return value


WORKER_CHECKS: dict[str, Check] = {
    "restart_policy": instance(RestartPolicy, "a RestartPolicy"),
    "worker_limits": _limits_of_this_machine,
    "launcher": one_of(get_args(LauncherKind)),
    "worker_loop": _loop,
    "worker_output": one_of(get_args(OutputMode)),
    "on_crash": function,
    "preload": items("names of modules", each=str),
    "start_timeout": seconds(),
    "ping_timeout": seconds(optional=True),
    "ready": one_of(get_args(ReadyWhen)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerOptions:
    """The options of workers that pools and clusters share, checked and normalized.

    See :class:`asyncpool.Pool` for the meaning of each.  The defaults are in the
    signatures of the constructors, where editors show them.
    """

    name: str
    restart_policy: RestartPolicy
    worker_limits: WorkerLimits
    launcher: LauncherKind
    worker_loop: LoopKind
    worker_output: OutputMode
    on_crash: CrashCallback | None
    preload: tuple[str, ...]
    start_timeout: float
    ping_timeout: float | None
    ready: ReadyWhen
    max_surge: int

    def shared(self) -> dict[str, Any]:
        """Return the options of this class, by name, without those of a subclass."""
        return {
            field.name: getattr(self, field.name) for field in fields(WorkerOptions)
        }
