"""What traces tell of events that are not about one job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from asyncpool.events import Broken, Crash, Crashed, Event


def told_of(event: Event) -> tuple[str, Mapping[str, object]]:
    """Return what the trace calls an event that is not about one job, and its data."""
    name = type(event).__name__.lower()
    if isinstance(event, Crashed):
        return name, _told_of_crash(event.crash)
    if isinstance(event, Broken):
        return name, {"reason": event.reason}
    told = {field.name: getattr(event, field.name) for field in fields(event)}
    return name, told


def _told_of_crash(crash: Crash) -> dict[str, object]:
    """Return what a trace tells of a crash."""
    told = {
        "what": crash.how,
        "worker": crash.pid,
        "kind": crash.kind,
        "signal": crash.signal,
        "exit_code": crash.exit_code,
        "job": crash.job_id,
        "function": crash.function,
        "stderr": "\n".join(crash.stderr_tail),
        "stack": crash.stack,
        "next": crash.next_step_text,
    }
    return {name: value for name, value in told.items() if value not in {None, ""}}
