"""The calls that an engine brings to an agent by itself: each comes once, or is forgotten."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from asyncpool._core.remote_wire.remote_messages import Kind, Message
from asyncpool._runtime.agent.agent_client import ComingCalls
from asyncpool._runtime.agent.relay import Call
from asyncpool._runtime.remote.stored_calls import STORED, StoredPayloads
from asyncpool.errors import ProtocolError
from tests.helpers.loops import BOTH_LOOPS

pytestmark = BOTH_LOOPS


async def test_a_call_may_come_before_its_job_or_after_it() -> None:
    stored = StoredPayloads()
    early = asyncio.create_task(stored.put(1, b"one"))
    assert await stored.get(1) == b"one"
    waiting = asyncio.create_task(stored.get(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    late = asyncio.create_task(stored.put(2, b"two"))
    assert await waiting == b"two"
    # They use memory until the pool has them.
    assert not early.done()
    assert not late.done()
    stored.taken(1)
    stored.taken(2)
    await asyncio.gather(early, late)


@pytest.mark.parametrize("end", ["taken", "forget"])
async def test_nothing_is_kept_of_a_call_that_comes_again(end: str) -> None:
    stored = StoredPayloads()
    putting = asyncio.create_task(stored.put(1, b"one"))
    assert await stored.get(1) == b"one"
    getattr(stored, end)(1)
    await putting
    await stored.put(1, b"again")  # or it would wait
    asking = asyncio.create_task(stored.get(1))
    await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()


async def test_a_job_that_nobody_wants_takes_no_call_that_comes_later() -> None:
    stored = StoredPayloads()
    stored.forget(1)
    await stored.put(1, b"one")


def call(number: int, deadline: float = math.inf, wait: float = math.inf) -> Call:
    nothing: Any = None
    message = Message(Kind.JOB, number, deadline=deadline, wait=wait)
    return Call(nothing, nothing, message, b"", STORED)


async def test_time_passes_for_a_job_whose_call_has_not_come() -> None:
    accepted: asyncio.Queue[Call] = asyncio.Queue()
    stored = StoredPayloads()
    coming = ComingCalls(stored, accepted.put_nowait)
    coming.wait_for(call(1, deadline=100.0, wait=0.001))
    coming.wait_for(call(2))
    assert (len(coming), coming.get(1) is not None, coming.get(3)) == (2, True, None)
    never = asyncio.get_running_loop().create_future()
    await asyncio.wait([never], timeout=0.01)  # more than its job may wait
    putting = [asyncio.create_task(stored.put(n, bytes([n]))) for n in (1, 2)]
    one, two = await accepted.get(), await accepted.get()
    assert len(coming) == 0
    assert (one.payload, one.message.wait) == (b"\x01", 0.0)
    assert 90.0 < one.message.deadline < 100.0
    assert (two.message.deadline, two.message.wait) == (math.inf, math.inf)
    stored.taken(1)
    coming.forget(2)
    await asyncio.gather(*putting)


async def test_a_job_may_be_cancelled_as_soon_as_it_is_awaited() -> None:
    accepted: list[Call] = []
    stored = StoredPayloads()
    coming = ComingCalls(stored, accepted.append)
    coming.wait_for(call(1))
    with pytest.raises(ProtocolError, match="job 1, whose call nobody brings"):
        coming.wait_for(call(1))
    found = coming.cancel(1)
    assert found is not None
    assert found.message.job == 1
    assert coming.cancel(1) is None
    coming.forget(1)
    await stored.put(1, b"one")
    assert (len(coming), accepted) == (0, [])
    coming.close()


async def test_an_agent_whose_engine_has_no_store_refuses_such_jobs() -> None:
    coming = ComingCalls(None, lambda _: None)
    with pytest.raises(ProtocolError, match="job 7, whose call nobody brings"):
        coming.wait_for(call(7))
