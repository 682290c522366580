"""These tests run in an event loop, which must have nothing to report."""

from __future__ import annotations

import pytest

from tests.helpers.collecting import no_collector
from tests.helpers.executors import clock, executor, make, room
from tests.helpers.inside import fork_nothing_ahead
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


@pytest.fixture
def nothing_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have launchers fork no process ahead, so that each worker is asked of them."""
    fork_nothing_ahead(monkeypatch)
