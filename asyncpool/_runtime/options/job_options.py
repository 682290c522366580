"""The options of :meth:`asyncpool.Pool.options`, as users write them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import fields, replace
from typing import Any, TypedDict

from asyncpool._core.base.validation import several
from asyncpool._core.dispatch.affinity_queues import hash_of
from asyncpool._core.policies.attempts import RETRIED, AttemptPolicy
from asyncpool._core.policies.job_limits import JobLimits, JobOptions, Keeper, OnCancel
from asyncpool.events import CrashKind


class Options(TypedDict, total=False):
    """What may be given; see :meth:`asyncpool.Pool.options`."""

    max_attempts: int
    retry_on: Iterable[CrashKind | type[BaseException]]
    timeout: float | None
    queue_timeout: float | None
    heartbeat_timeout: float | None
    deadline: float | None
    on_cancel: OnCancel
    cancel_grace: float
    priority: int
    key: Hashable
    lease: tuple[Keeper, Hashable] | None
    prefetch: int


_ATTEMPTS = frozenset(field.name for field in fields(AttemptPolicy))
_LIMITS = frozenset(field.name for field in fields(JobLimits))


def changed(options: JobOptions, changes: Options) -> JobOptions:
    """Return *options*, but for the *changes*.

    Raises:
        ValueError: If a value is out of range.
        TypeError: If there is no such option, or it takes something else.
    """
    for name in changes:
        if name not in Options.__annotations__:
            known = ", ".join(Options.__annotations__)
            raise TypeError(f"there is no option {name!r}; there are: {known}")
    given: dict[str, Any] = dict(changes)
    attempts = {name: value for name, value in given.items() if name in _ATTEMPTS}
    limits = {name: value for name, value in given.items() if name in _LIMITS}
    if "retry_on" in attempts:
        attempts["retry_on"] = several(
            "retry_on", attempts["retry_on"], RETRIED, single=(str, type)
        )
    key = options.key
    if "key" in given:
        key = None if given["key"] is None else hash_of(given["key"])
    return JobOptions(
        attempts=replace(options.attempts, **attempts)
        if attempts
        else options.attempts,
        limits=replace(options.limits, **limits) if limits else options.limits,
        priority=given.get("priority", options.priority),
        key=key,
        lease=given.get("lease", options.lease),
        prefetch=given.get("prefetch", options.prefetch),
    )
