"""What clients and agents believe of each other, and keep for each other."""

from __future__ import annotations

import asyncio
import copyreg
import enum
import itertools
import json
import math
import os
import struct
from typing import Any

import pytest

from asyncpool._core.options import JobOptions
from asyncpool._core.slots import JobText
from asyncpool._remote.agent_answers import event_for_client
from asyncpool._remote.agent_client import AgentClient, ClientKeeper, ComingCalls
from asyncpool._remote.agent_errors import AgentErrors, read_broadcast
from asyncpool._remote.agent_jobs import AgentJobs
from asyncpool._remote.client_jobs import crash_at_client
from asyncpool._remote.messages import Kind, Message
from asyncpool._remote.objects import load_own, pack_own
from asyncpool._remote.relay import Call
from asyncpool._remote.reliable_link import ReliableLink
from asyncpool._remote.stored_calls import STORED, StoredPayloads
from asyncpool._wire.pickling import PICKLE
from asyncpool.enums import CrashKind, Delivery, RunState, TimeLimit
from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    JobTimeoutError,
    PoolFullError,
    ProtocolError,
)
from asyncpool.events import (
    Broken,
    Crashed,
    Event,
    Exited,
    Parked,
    RollResult,
    TakenOver,
)
from asyncpool.stats import Histogram, PoolStats
from tests.helpers.carriers import Network
from tests.helpers.crashes import crash_with
from tests.helpers.values import nested

# Objects of the package, which are told in its own words.

FULL = PoolFullError(waiting=3, max_queued=3)
FIGURES = PoolStats(
    state=RunState.NEW,
    workers=2,
    crash_kinds={CrashKind.HUNG: 1},
    started=Histogram(bounds=(0.5, 1.0), counts=(1, 2), total=float("inf")),
)


def packed(head: object) -> bytes:
    data = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(data)) + data


@pytest.mark.parametrize(
    "value",
    [
        None,
        "a lone surrogate: \udc80",
        (True, {1: b"one", 2: b""}, {}),
        [1.5, -(2**70), False],
        Parked(slot=1, reason="it fails", probe_in=None),
        RollResult(replaced=1, reason="", crash=None),
        {"delivery": Delivery.SENT},
    ],
)
def test_values_arrive(value: object) -> None:
    found = load_own(pack_own(value))
    assert found == value
    assert type(found) is type(value)


def test_an_error_arrives_with_its_details_and_with_what_others_put_into_it() -> None:
    error = JobNotPicklableError("it is large", direction="result", name="f")
    error.add_note("a note")
    error.__dict__["mine"] = os
    found = load_own(pack_own((False, error)))[1]
    assert type(found) is JobNotPicklableError
    assert str(found) == "it is large"
    assert found.__dict__ == {**error.__dict__, "mine": "an object of type module"}


def test_nothing_depends_on_how_a_python_or_a_library_pickles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python 3.11.2 pickles enums in this way, and tblib, which Dask imports, errors."""

    def by_its_name(member: enum.Enum, _protocol: int) -> tuple[Any, ...]:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(enum.Enum, "__reduce_ex__", by_its_name)
    monkeypatch.setitem(copyreg.dispatch_table, PoolFullError, lambda _: "other")
    assert load_own(pack_own(FIGURES)) == FIGURES
    assert load_own(pack_own(FULL)).max_queued == 3


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "requires a buffer"),
        (b"cos\nsystem\n(S'false'\ntR.", "cannot be read"),
        (packed(b"no JSON"), "Expecting value"),
        (packed({"a": 1}), "a JSON object"),
        (packed(["system", "true"]), "system, which is none of asyncpool's"),
        (packed([["PoolStats"]]), "unhashable"),
        (packed(["RunState", "no state"]), "not a valid RunState"),
        (packed(["Histogram", 1]), "argument"),
        (packed(["PoolFullError", 1, 2]), "not iterable"),
        (packed(["dict", [["dict"], 1]]), "unhashable"),
        (packed(["JobText", "{}", "1", ""]), "a text about a job that is none"),
        (packed(b"[" * 100_000), "recursion"),
    ],
)
def test_anything_else_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        load_own(data)


# Numbers and limits are those of the client.


def exited(reason: str, detail: str = "") -> Exited:
    return Exited(slot=0, generation=1, pid=70, reason=reason, detail=detail)


# The client calls jobs 30 and 31 of the pool 1 and 2.  Job 40 is somebody else's.
MINE = crash_with(job_id=30, attempt=2, concurrent_jobs=(40, 31))
MINE_TOLD = crash_with(job_id=1, attempt=2, concurrent_jobs=(2,), other_jobs=1)
NOT_MINE = crash_with(job_id=40, attempt=2, concurrent_jobs=(31,))
NOT_MINE_TOLD = crash_with(concurrent_jobs=(2,))


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (Crashed(crash_with()), Crashed(crash_with())),
        (
            Broken("no start", (MINE, NOT_MINE)),
            Broken("no start", (MINE_TOLD, NOT_MINE_TOLD)),
        ),
        (TakenOver(31, 3), TakenOver(2, 3)),
        (TakenOver(40, 3), None),
        (exited(JobText("{}", 40, "cancellation")), exited("cancellation")),
        (
            exited(JobText("of {}", 31, ""), JobText("since {}", 31, "")),
            exited("of 2", "since 2"),
        ),
        (exited("retire(): out of job cards"), exited("retire(): out of job cards")),
    ],
)
def test_an_event(event: Event, told: Event | None) -> None:
    assert load_own(pack_own(event_for_client(event, {30: 1, 31: 2}))) == told


def test_a_crash_at_a_client_names_no_job_of_the_agent() -> None:
    text = JobText("since job {} did", 40, "since a job did")
    told = load_own(pack_own(crash_with(detail=text)))
    assert crash_at_client(told, 0, {}).detail == "since a job did"


def late(limit: Any) -> JobTimeoutError:
    error = JobTimeoutError(
        job_id=3,
        attempt=1,
        limit=TimeLimit.DEADLINE,
        seconds=9000.0,
        stack="somewhere",
        function="f",
    )
    error.limit = limit
    return error


def read(answer: object) -> dict[int, Any]:
    options, numbers = JobOptions(timeout=5.0, deadline=100.0), itertools.count(7)
    errors = AgentErrors("f", options, PICKLE, numbers.__next__)
    return read_broadcast([(10, answer)], errors)


def test_a_limit_has_the_value_that_the_caller_has_set() -> None:
    with pytest.raises(BroadcastError) as caught:
        read(({}, {1: late(TimeLimit.DEADLINE), 2: late(TimeLimit.TIMEOUT)}))
    first, second = caught.value.errors[11], caught.value.errors[12]
    assert isinstance(first, JobTimeoutError)
    assert isinstance(second, JobTimeoutError)
    assert (first.seconds, second.seconds) == (100.0, 5.0)
    assert (first.attempt, first.stack) == (1, "somewhere")
    assert str(first).startswith("job 7 (f) missed its deadline, in attempt 1")
    assert (first.job_id, second.job_id) == (7, 8)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        nested(),
        ({}, {0: nested()}),
        ({}, {0: late(TimeLimit.QUEUE_TIMEOUT)}),
        ({}, {0: late("on_cancel")}),
        ({}, {0: late(nested())}),
    ],
)
def test_lies_are_refused(answer: object) -> None:
    with pytest.raises(ProtocolError, match="an agent"):
        read(answer)


# Calls that come by another way than their jobs.


@pytest.mark.asyncio
async def test_a_call_may_come_before_its_job_or_after_it() -> None:
    stored = StoredPayloads()
    early = asyncio.create_task(stored.put(1, b"one"))
    assert await stored.get(1) == b"one"
    waiting = asyncio.create_task(stored.get(2))
    await asyncio.sleep(0)
    assert not waiting.done()
    later = asyncio.create_task(stored.put(2, b"two"))
    assert await waiting == b"two"
    # They use memory until the pool has them.
    assert (early.done(), later.done()) == (False, False)
    stored.taken(1)
    stored.forget(2)
    await asyncio.gather(early, later)
    # Nothing is kept of one that comes again, or that nobody wants.
    stored.forget(3)
    for number in (1, 2, 3):
        await stored.put(number, b"again")  # or it would wait
    asking = asyncio.create_task(stored.get(1))
    await asyncio.sleep(0)
    assert not asking.done()
    asking.cancel()


def call(number: int, deadline: float = math.inf, wait: float = math.inf) -> Call:
    nothing: Any = None
    message = Message(Kind.JOB, number, deadline=deadline, wait=wait)
    return Call(nothing, nothing, message, b"", STORED)


@pytest.mark.asyncio
async def test_time_passes_for_a_job_whose_call_has_not_come() -> None:
    accepted: asyncio.Queue[Call] = asyncio.Queue()
    stored = StoredPayloads()
    coming = ComingCalls(stored, accepted.put_nowait)
    coming.wait_for(call(1, deadline=100.0, wait=0.001))
    coming.wait_for(call(2))
    assert [*coming.calls] == [1, 2]
    never = asyncio.get_running_loop().create_future()
    await asyncio.wait([never], timeout=0.01)  # more than its job may wait
    putting = [asyncio.create_task(stored.put(n, bytes([n]))) for n in (1, 2)]
    one, two = await accepted.get(), await accepted.get()
    assert not coming.calls
    assert (one.payload, one.message.wait) == (b"\x01", 0.0)
    assert 90.0 < one.message.deadline < 100.0
    assert (two.message.deadline, two.message.wait) == (math.inf, math.inf)
    stored.taken(1)
    coming.forget(2)
    await asyncio.gather(*putting)


@pytest.mark.asyncio
async def test_a_job_may_be_cancelled_as_soon_as_it_is_awaited() -> None:
    accepted: list[Call] = []
    stored = StoredPayloads()
    coming = ComingCalls(stored, accepted.append)
    coming.wait_for(call(1))
    for there in (coming, ComingCalls(None, accepted.append)):  # twice, or no store
        with pytest.raises(ProtocolError, match="job 1, whose call nobody brings"):
            there.wait_for(call(1))
    found = coming.cancel(1)
    assert found is not None
    assert found.message.job == 1
    assert coming.cancel(1) is None
    coming.forget(1)
    await stored.put(1, b"one")
    assert (coming.calls, accepted) == ({}, [])
    coming.close()


@pytest.mark.asyncio
async def test_nothing_is_kept_of_a_lease_whose_job_is_not_here() -> None:
    """A lease is often extended while its job ends; the agent would keep each such word."""
    jobs, told = AgentJobs(credits=8, most_clients=1, lease=60.0), list[int]()
    assert jobs.open(0.0) == 1
    here, _ = Network(0, 0.0).way()

    class Keeper(ClientKeeper):
        def extend(self, number: int, until: float) -> None:
            del until
            told.append(number)

    class Nothing:
        """What the client asks for its turn, and has no store."""

        stored = None

        def look(self) -> None:
            pass

        turn = look

    nothing: Any = Nothing()
    client = AgentClient(
        1, here, jobs=jobs, relay=nothing, answers=nothing, turns=nothing, page=None
    )
    client.keeper = Keeper(nothing)
    link = ReliableLink(1)
    link.put(Message(Kind.FENCE, 7, deadline=1.0).pack())
    here.on_bytes(link.next_batch().pack())
    assert not told
