"""Have jobs sent ahead, to wait inside a worker, however long they really take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import Job, Pool
from asyncpool._runtime.traffic import stall_watch as rounds
from tests.helpers.large import supervisor_of
from tests.helpers.pools import idle

__all__ = ["expect", "in_hand", "never_look"]


async def expect(pool: Pool, function: Callable[..., Any], cost: float) -> None:
    """Have the pool believe that a call of *function* takes so many microseconds."""
    await idle(pool)
    profile = supervisor_of(pool).traffic._functions.find(function).profile
    profile.cost = profile.least = cost


def never_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no rounds, so that what waits behind a long job stays there."""
    monkeypatch.setattr(rounds, "EVERY", 3600.0)
    monkeypatch.setattr(rounds, "REST", 3600.0)


def in_hand(pool: Pool, slot: int = 0, job: Job[Any] | None = None) -> int:
    """Return how many jobs a worker has in hand, or how many times it has *job*."""
    flight = supervisor_of(pool)._state.core.slots[slot].in_flight.jobs
    return len(flight) if job is None else int(job.id in flight)
