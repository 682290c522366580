"""Have jobs sent ahead, to wait inside a worker, however long they really take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncpool import Pool
from asyncpool._core.supervision.endings import Endings
from tests.helpers.inside import traits_of
from tests.helpers.pools import idle

__all__ = ["expect", "never_revoke"]


async def expect(pool: Pool, function: Callable[..., Any], cost: float) -> None:
    """Have the pool believe that a call of *function* takes so many microseconds."""
    await idle(pool)
    traits = traits_of(pool, function)
    traits.cost = cost


def never_revoke(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the pool ask no worker for jobs that wait behind a long one there."""
    monkeypatch.setattr(Endings, "check_for_stalls", lambda _: None)
