"""These tests run in an event loop, which must have nothing to report."""

from __future__ import annotations

from tests.helpers.collecting import no_collector
from tests.helpers.executors import clock, executor, make, room
from tests.helpers.reports import no_stray_tasks, quiet_loop

__all__ = [
    "clock",
    "executor",
    "make",
    "no_collector",
    "no_stray_tasks",
    "quiet_loop",
    "room",
]
