"""Tests of asyncpool._runtime.pool.supervisor.py."""

from __future__ import annotations

import asyncio
import logging

import pytest

from asyncpool import events
from asyncpool._runtime.base.pool_hub import EventStream
from asyncpool._runtime.pool.supervisor import PoolStatus
from asyncpool.errors import PoolBrokenError
from tests.helpers.loops import BOTH_LOOPS
from tests.runtime.pool_parts import parts_of

pytestmark = BOTH_LOOPS

BROKEN = PoolBrokenError(reason="no hope", crashes=(), retry_after=None)


def standing() -> tuple[PoolStatus, EventStream[events.Event]]:
    parts, _ = parts_of()
    return parts.status, parts.state.hub.listen(10)


def how(standing: PoolStatus) -> list[object]:
    """Return what became of what callers wait for: ready, outcome, ended."""
    return [
        "waits" if not future.done() else future.exception()
        for future in (standing.ready, standing.outcome, standing.ended)
    ]


async def test_from_the_first_worker_to_the_end() -> None:
    pool, _ = standing()
    assert how(pool) == ["waits", "waits", "waits"]
    for _ in range(2):
        pool.worker_ready()
        assert how(pool) == [None, "waits", "waits"]
    pool.note_ended()
    assert how(pool) == [None, None, None]


async def test_an_end_before_it_is_ready_is_no_error() -> None:
    pool, _ = standing()
    pool.note_ended()
    assert how(pool) == [None, None, None]


async def test_a_pool_that_breaks_tells_everybody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, heard = standing()
    pool.note_broken(BROKEN)
    assert how(pool) == [BROKEN, BROKEN, "waits"]
    assert await anext(heard) == events.Broken("no hope", ())
    await asyncio.sleep(0)  # it is told in the next turn
    assert caplog.record_tuples == [
        ("asyncpool", logging.ERROR, "pool x is broken: no hope; giving up")
    ]
    pool.note_ended()
    assert how(pool) == [BROKEN, BROKEN, None]


async def test_one_that_breaks_before_it_is_ready_has_no_next_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pool, _ = standing()
    pool.note_broken(PoolBrokenError(reason="no hope", crashes=(), retry_after=2.0))
    error = pool.ready.exception()
    assert isinstance(error, PoolBrokenError)
    assert (error.reason, error.retry_after) == ("no hope", None)
    assert pool.outcome.exception() is error
    await asyncio.sleep(0)
    assert caplog.messages == ["pool x is broken: no hope; giving up"]


async def test_one_that_was_ready_has_an_outcome_only_when_it_gives_up() -> None:
    pool, heard = standing()
    pool.worker_ready()
    soon = PoolBrokenError(reason="no hope", crashes=(), retry_after=2.0)
    pool.note_broken(soon)
    assert how(pool) == [None, "waits", "waits"]
    pool.note_recovered(3)
    assert how(pool) == [None, "waits", "waits"]
    assert isinstance(await anext(heard), events.Broken)
    assert await anext(heard) == events.Recovered(3)
    pool.note_broken(BROKEN)
    assert how(pool) == [None, BROKEN, "waits"]


async def test_a_supervisor_that_fails_breaks_the_pool_and_closes_it_for_jobs() -> None:
    pool, _ = standing()
    error = pool.note_failure(ValueError("a bug"))
    text = "the supervisor failed: ValueError('a bug')"
    assert str(error) == text
    ready, outcome, ended = how(pool)
    assert isinstance(ready, PoolBrokenError)
    assert (ready.reason, ready.crashes, ready.retry_after) == (text, (), None)
    assert (outcome, ended) == (ready, "waits")
