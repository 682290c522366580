"""The contract of events: every listener on its own, and nobody held up."""

from __future__ import annotations

import asyncio

import pytest

from asyncpool._runtime.base.pool_hub import EventHub
from asyncpool.events import Event, QueueEmptied, QueueFull, Recovered
from tests.helpers.loops import BOTH_LOOPS
from tests.helpers.patience import patience

pytestmark = BOTH_LOOPS


async def test_listeners_get_what_comes_after_them() -> None:
    hub: EventHub[Event] = EventHub()
    first = hub.listen(10)
    hub.publish(QueueFull(1))
    second = hub.listen(10)
    hub.publish(QueueEmptied())
    hub.end()
    async with patience():
        assert [event async for event in first] == [QueueFull(1), QueueEmptied()]
        assert [event async for event in second] == [QueueEmptied()]
        assert [event async for event in hub.listen(10)] == []


async def test_a_full_buffer_drops_the_oldest_and_counts_them() -> None:
    hub: EventHub[Event] = EventHub()
    small, large = hub.listen(2), hub.listen(10)
    for n in range(5):
        hub.publish(Recovered(n))
    hub.end()
    async with patience():
        assert [event async for event in small] == [Recovered(3), Recovered(4)]
        assert [event async for event in large] == [Recovered(n) for n in range(5)]
    assert (small.dropped, large.dropped, hub.dropped) == (3, 0, 3)


async def test_a_cancelled_wait_loses_no_event() -> None:
    hub: EventHub[Event] = EventHub()
    stream = hub.listen(10)
    waiting = asyncio.create_task(anext(stream))
    await asyncio.sleep(0)
    # Both in the same turn, and the event first.
    hub.publish(QueueEmptied())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with patience():
        assert await anext(stream) == QueueEmptied()


async def test_an_end_wakes_those_who_wait() -> None:
    hub: EventHub[Event] = EventHub()
    stream = hub.listen(10)
    waiting = [asyncio.ensure_future(anext(stream, None)) for _ in range(3)]
    await asyncio.sleep(0)
    hub.end()
    async with patience():
        assert await asyncio.gather(*waiting) == [None] * 3


async def test_a_listener_that_nobody_holds_costs_nothing() -> None:
    hub: EventHub[Event] = EventHub()
    hub.listen(1)
    for n in range(5):
        hub.publish(Recovered(n))
    assert hub.dropped == 0
