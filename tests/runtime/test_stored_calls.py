"""The calls that an engine brings to an agent by itself: each comes once, or is forgotten."""

from __future__ import annotations

import asyncio

import pytest

from asyncpool._runtime.remote.stored_calls import StoredPayloads
from tests.helpers.loops import BOTH_LOOPS

pytestmark = BOTH_LOOPS


async def test_a_call_may_come_before_its_job_or_after_it_or_twice() -> None:
    stored = StoredPayloads()
    stored.put(1, b"one")
    assert await stored.get(1) == b"one"
    waiting = asyncio.create_task(stored.get(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    stored.put(2, b"two")
    stored.put(2, b"again")
    assert await waiting == b"two"


@pytest.mark.parametrize("comes_first", [True, False])
async def test_nothing_is_kept_of_a_job_that_nobody_wants(*, comes_first: bool) -> None:
    stored = StoredPayloads()
    if comes_first:
        stored.put(1, b"one")
        stored.forget(1)
    else:
        waiting = asyncio.create_task(stored.get(1))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        stored.put(1, b"one")
    other = asyncio.create_task(stored.get(1))
    await asyncio.sleep(0)
    assert not other.done()
    stored.put(1, b"new")
    assert await other == b"new"
