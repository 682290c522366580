"""A crash, for tests that tell of one."""

from __future__ import annotations

from typing import Any

from asyncpool.enums import CrashKind, NextStep
from asyncpool.events import Crash

__all__ = ["crash_with"]


def crash_with(**fields: Any) -> Crash:
    """Return the crash of an idle worker, but for these *fields*."""
    usual: dict[str, Any] = {
        "slot": 0,
        "generation": 1,
        "pid": 70,
        "exit_code": None,
        "signal": "SIGSEGV",
        "kind": CrashKind.CRASH,
        "uptime": 1.0,
        "job_id": None,
        "attempt": 0,
        "detail": "",
        "stderr_tail": ("first", "last"),
        "next_step": NextStep.RESTART,
    }
    return Crash(**usual | fields)
