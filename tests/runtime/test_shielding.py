"""Tests of asyncpool/_runtime/base/event_loop.py."""

from __future__ import annotations

import asyncio

import pytest

from asyncpool._runtime.base.event_loop import shielded
from tests.helpers.loops import BOTH_LOOPS

pytestmark = BOTH_LOOPS


async def waiter_of(future: asyncio.Future[int]) -> asyncio.Task[int]:
    task = asyncio.create_task(shielded(future))
    await asyncio.sleep(0)
    return task


async def test_it_returns_what_comes_of_a_future() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = await waiter_of(future)
    future.set_result(3)
    assert await task == 3
    assert await shielded(future) == 3


async def test_it_raises_what_a_future_raises() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = await waiter_of(future)
    future.set_exception(LookupError("none"))
    with pytest.raises(LookupError, match="none"):
        await task


async def test_what_is_raised_after_its_waiter_has_gone_is_nobodys() -> None:
    """Else the fixture quiet_loop has something to say."""
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = await waiter_of(future)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not future.done()
    future.set_exception(LookupError("none"))
    await asyncio.sleep(0)
