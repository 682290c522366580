"""What agents send of asyncpool's own: by value, however a Python or a library pickles."""

from __future__ import annotations

import copyreg
import enum
import json
import os
import struct
from typing import Any

import pytest

from asyncpool._runtime.remote.own_objects import load_own, pack_own
from asyncpool.enums import CrashKind, Delivery, RunState
from asyncpool.errors import JobNotPicklableError, PoolFullError, ProtocolError
from asyncpool.events import Parked, RollResult
from asyncpool.stats import Histogram, PoolStats

FULL = PoolFullError(waiting=3, max_queued=3)
FIGURES = PoolStats(
    state=RunState.NEW,
    workers=2,
    crash_kinds={CrashKind.HUNG: 1},
    started=Histogram(bounds=(0.5, 1.0), counts=(1, 2), total=float("inf")),
)
DEEP = b"[" * 100_000


def packed(head: object, more: bytes = b"") -> bytes:
    data = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack(">I", len(data)) + data + more


def by_its_name(member: enum.Enum, _protocol: int) -> tuple[Any, ...]:
    """Pickle a member of an enum as Python 3.11.2 does."""
    return getattr, (type(member), member.name)


@pytest.mark.parametrize(
    "value",
    [
        None,
        "a lone surrogate: \udc80",
        (True, {1: b"one", 2: b""}, {}),
        [1.5, -(2**70), False],
        FIGURES,
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
        (packed(DEEP), "recursion"),
    ],
)
def test_anything_else_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        load_own(data)
