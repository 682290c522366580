"""What clients and agents believe of each other, and keep for each other."""

from __future__ import annotations

import copyreg
import enum
import itertools
import json
import os
import struct
from types import SimpleNamespace
from typing import Any

import pytest

from asyncpool._core.options import JobOptions
from asyncpool._core.slots import JobText
from asyncpool._engine.sessions import Broadcast
from asyncpool._remote.agent import ClientKeeper
from asyncpool._remote.client import read_broadcast
from asyncpool._remote.objects import load_own, pack_own
from asyncpool._wire.pickling import PICKLE
from asyncpool.enums import CrashKind, Delivery, RunState, TimeLimit
from asyncpool.errors import (
    BroadcastError,
    JobNotPicklableError,
    JobTimeoutError,
    PoolFullError,
    ProtocolError,
    WorkerGoneError,
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
        (packed(b"[" * 100_000), "recursion|Stack overflow"),
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
        (TakenOver(40, 3), TakenOver(0, 3)),
        (exited(JobText("{}", 40, "cancellation")), exited("cancellation")),
        (
            exited(JobText("of {}", 31, ""), JobText("since {}", 31, "")),
            exited("of 2", "since 2"),
        ),
        (exited("retire(): out of job cards"), exited("retire(): out of job cards")),
    ],
)
def test_an_event(event: Event, told: Event) -> None:
    assert load_own(pack_own(event, {30: 1, 31: 2})) == told


def test_a_crash_at_a_client_names_no_job_of_the_agent_and_its_own_slots() -> None:
    text = JobText("since job {} did", 40, "since a job did")
    told = load_own(pack_own(crash_with(detail=text), {}), 10_000)
    assert told.detail == "since a job did"
    assert told.slot == 10_000
    assert (
        load_own(pack_own(MINE, {30: 1, 31: 2})),
        load_own(pack_own(WorkerGoneError(slot=1, pid=2)), 10_000).slot,
    ) == (MINE_TOLD, 10_001)


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
    broadcast = Broadcast("f", b"", options, PICKLE)
    return read_broadcast(broadcast, [(10, answer)], numbers.__next__)


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


def test_nothing_is_kept_of_a_lease_whose_job_is_not_here() -> None:
    """A lease is often extended while its job ends; the agent would keep each such word."""
    free: list[int] = []
    keeper, holders = ClientKeeper(free.append), [SimpleNamespace(), SimpleNamespace()]
    keeper.extend(7, 1.0, is_coming=False)
    keeper.extend(8, 2.0, is_coming=True)
    for number, holder in enumerate(holders, 7):
        holder.add_done_callback = bool
        keeper.keep(number, holder)  # type: ignore[arg-type]
    assert [holder.until for holder in holders] == [None, 2.0]
    keeper.extend(9, 2.0, is_coming=True)
    keeper.forget(9)
    assert free == [9]
