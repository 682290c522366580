"""These tests run in an event loop, which must have nothing to report."""

from __future__ import annotations

from tests.helpers.reports import quiet_loop

__all__ = ["quiet_loop"]
