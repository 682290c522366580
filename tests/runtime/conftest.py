"""These tests run in an event loop, which must have nothing to report."""

from __future__ import annotations

from tests.helpers.collecting import no_collector
from tests.helpers.reports import quiet_loop

__all__ = ["no_collector", "quiet_loop"]
