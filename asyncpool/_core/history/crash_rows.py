"""What is shown of a crash; all of its text comes from a process that has failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Characters: of a text that may be anything, and of a stack.
_MOST_TEXT = 500
_MOST_STACK = 20_000
_MOST_LINES = 80
_PLAIN = ("slot", "generation", "pid", "exit_code", "uptime", "job_id", "attempt")
_TEXTS = ("kind", "signal", "detail", "function", "next_step")


def crash_row(at: float, crash: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is shown of a crash.

    Args:
        at: When it was, in Unix time.
        crash: The fields of an :class:`asyncpool.events.Crash`.
    """
    lines = [clip(line) for line in crash["stderr_tail"][-_MOST_LINES:]]
    return {
        "at": at,
        **{name: crash[name] for name in _PLAIN},
        **{name: clip(crash[name] or "") for name in _TEXTS},
        "stack": clip(crash["stack"], _MOST_STACK),
        "stderr": lines,
    }


def clip(text: str, most: int = _MOST_TEXT) -> str:
    """Return a text, or its beginning if it is longer than *most* characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"
