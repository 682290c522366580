"""What :meth:`asyncpool.Pool.options` makes of its arguments."""

from __future__ import annotations

from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from asyncpool._core.base.validation import several
from asyncpool._core.dispatch.affinity_queues import hash_of
from asyncpool._core.policies.attempts import RETRIED, AttemptPolicy
from asyncpool._core.policies.job_limits import JobLimits, JobOptions, Options

_NAMES = Options.__annotations__.keys()

# What is chosen for a job, and in which part of it an option is that is not there itself.
_FIELDS = tuple(field.name for field in fields(JobOptions) if field.init)
_values = attrgetter(*_FIELDS)
_PARTS = {
    **{field.name: "attempts" for field in fields(AttemptPolicy)},
    **{field.name: "limits" for field in fields(JobLimits)},
}


def changed(options: JobOptions, changes: Options) -> JobOptions:
    """Return *options*, but for the *changes*.

    Raises:
        ValueError: If a value is out of range.
        TypeError: If there is no such option, or it takes something else.
    """
    # As dataclasses.replace does, which takes a microsecond more.
    chosen: dict[str, Any] = dict(zip(_FIELDS, _values(options), strict=True))
    parts: dict[str, dict[str, Any]] = {}
    value: Any
    for name, value in changes.items():
        if name not in _NAMES:
            known = ", ".join(_NAMES)
            raise TypeError(f"there is no option {name!r}; there are: {known}")
        if name == "retry_on":
            value = several("retry_on", value, RETRIED, single=(str, type))  # noqa: PLW2901
        elif name == "key" and value is not None:
            value = hash_of(value)  # noqa: PLW2901
        part = _PARTS.get(name)
        if part is None:
            chosen[name] = value
        else:
            parts.setdefault(part, {})[name] = value
    for part, values in parts.items():
        chosen[part] = replace(chosen[part], **values)
    return JobOptions(**chosen)
