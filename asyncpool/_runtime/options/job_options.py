"""What :meth:`asyncpool.Pool.options` makes of its arguments."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from asyncpool._core.base.validation import several
from asyncpool._core.dispatch.affinity_queues import hash_of
from asyncpool._core.policies.attempts import RETRIED, AttemptPolicy
from asyncpool._core.policies.job_limits import JobLimits, JobOptions, Options

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
    if "retry_on" in given:
        given["retry_on"] = several(
            "retry_on", given["retry_on"], RETRIED, single=(str, type)
        )
    if given.get("key") is not None:
        given["key"] = hash_of(given["key"])
    attempts = {name: given.pop(name) for name in changes if name in _ATTEMPTS}
    if attempts:
        given["attempts"] = replace(options.attempts, **attempts)
    limits = {name: given.pop(name) for name in changes if name in _LIMITS}
    if limits:
        given["limits"] = replace(options.limits, **limits)
    return replace(options, **given)
