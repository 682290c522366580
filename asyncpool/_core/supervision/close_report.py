"""Say in words what a closing pool waits for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

# Seconds between two log records of a closing pool.
REPORT_EVERY = 10.0

_MOST = 5  # how many functions are named


def describe_waiting(
    *, jobs: int, queued: int, names: Counter[str], holds: Sequence[str]
) -> str:
    """Say in words what a closing pool waits for.

    Args:
        jobs: How many jobs are open.
        queued: How many of them have not begun.
        names: The functions of the oldest of them, and how many jobs call each.
        holds: What else holds the pool open, maps and sessions, each as a text.
    """
    parts: list[str] = []
    if jobs:
        in_queue = f", {min(queued, jobs)} of them in the queue" if queued else ""
        oldest = "" if names.total() == jobs else f"of the oldest {names.total()}: "
        parts.append(f"{_count(jobs)}{in_queue} ({oldest}{list_functions(names)})")
    parts += holds[:_MOST]
    if len(holds) > _MOST:
        parts.append(f"{len(holds) - _MOST} more maps and sessions")
    return "; ".join(parts) or "its workers to end"


def list_functions(names: Counter[str]) -> str:
    """Return the names of functions, the most frequent first, with how many jobs call each."""
    parts = [f"{count} x {name}" for name, count in names.most_common(_MOST)]
    others = names.total() - sum(count for _, count in names.most_common(_MOST))
    return ", ".join([*parts, f"{others} of others"] if others else parts)


def _count(jobs: int) -> str:
    return "1 job" if jobs == 1 else f"{jobs} jobs"
