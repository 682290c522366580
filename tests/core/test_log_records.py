"""Tests of asyncpool/_core/wire/log_records.py."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.wire.log_records import (
    MAX_ENTRY,
    MAX_LEVEL,
    LogEntry,
    plain_fields,
)
from asyncpool.errors import ProtocolError

# Surrogates without a partner included: a job may log anything.
texts = st.text(st.characters(), max_size=100)
numbers = st.integers(0, 2**63 - 1)
plain = (
    st.none()
    | st.booleans()
    | texts
    | st.integers(-(10**17), 10**17)
    | st.floats(-1e17, 1e17)
)
entries = st.builds(
    LogEntry,
    name=texts,
    level=st.integers(0, MAX_LEVEL),
    level_name=texts,
    message=texts,
    path=texts,
    line=numbers,
    function=texts,
    created=st.floats(0, 1e10),
    process=numbers,
    process_name=texts,
    thread=numbers,
    thread_name=texts,
    task_name=texts,
    trace=texts,
    stack=texts,
    job=st.none() | numbers,
    attempt=st.integers(0, 65_535),
    fields=st.dictionaries(texts, plain, max_size=10),
)

ENTRY = LogEntry(
    name="shop",
    level=20,
    level_name="INFO",
    message="sold",
    path="/shop.py",
    line=7,
    function="sell",
    created=1000.5,
    process=1,
    process_name="MainProcess",
    thread=2,
    thread_name="MainThread",
    task_name="",
    trace="",
    stack="",
    job=3,
    attempt=1,
    fields={"price": 4.5},
)


@given(entries)
def test_an_entry_comes_back_as_it_was(entry: LogEntry) -> None:
    assert LogEntry.unpack(entry.pack()) == entry


long = st.text(st.characters(), min_size=90, max_size=100).map(lambda text: text * 300)


@given(long, long, st.integers(-(10**9), 10**9))
def test_whatever_is_too_long_is_cut(one: str, other: str, level: int) -> None:
    huge = ENTRY._replace(
        name=one,
        level=level,
        level_name=other,
        message=one,
        path=other,
        function=one,
        process_name=other,
        thread_name=one,
        task_name=other,
        trace=one,
        stack=other,
        fields=plain_fields((f"{n}", one[:1000]) for n in range(32)),
    )
    data = huge.pack()
    assert len(data) <= MAX_ENTRY
    entry = LogEntry.unpack(data)
    assert one.startswith(entry.message.rpartition("... (")[0])
    assert one.endswith(entry.trace)
    assert entry.trace
    assert other.endswith(entry.path)
    assert entry.level == max(0, min(level, MAX_LEVEL))
    assert (entry.line, entry.job, entry.created) == (7, 3, 1000.5)


def test_the_worst_characters_fit_too() -> None:
    worst = "\0" * 100_000
    names: dict[str, Any] = dict.fromkeys(
        [name for name in ENTRY._fields if isinstance(getattr(ENTRY, name), str)], worst
    )
    data = ENTRY._replace(**names).pack()
    assert len(data) <= MAX_ENTRY
    assert LogEntry.unpack(data).message.startswith("\0" * 1000 + "... (99000 char")


def test_a_long_message_says_what_is_missing() -> None:
    entry = LogEntry.unpack(ENTRY._replace(message="m" * 10_000).pack())
    assert entry.message == "m" * 8192 + "... (1808 characters are left out here)"
    exact = ENTRY._replace(message="m" * 8192)
    assert LogEntry.unpack(exact.pack()) == exact


def test_a_long_trace_keeps_its_end_beside_the_rest() -> None:
    trace = "frame\n" * 5000 + "the error"
    entry = LogEntry.unpack(ENTRY._replace(trace=trace).pack())
    assert entry == ENTRY._replace(trace=trace[-12_288:])


def test_of_a_record_that_is_too_large_the_small_fields_stay() -> None:
    small = {"order": 7, "shop": "Ulm", "paid": None}
    large = {f"body {n}": "\0" * 1000 for n in range(6)}
    entry = LogEntry.unpack(ENTRY._replace(fields={**large, **small}).pack())
    assert (entry.message, entry.trace) == (ENTRY.message, ENTRY.trace)
    assert list(entry.fields) == [*large, *small]
    assert {name: entry.fields[name] for name in small} == small
    texts = [entry.fields[name] for name in large]
    assert all(
        re.fullmatch(r"\0{800,}\.{3} \(.* are left out here\)", it) for it in texts
    )
    assert max(map(len, texts)) - min(map(len, texts)) < 50


def test_the_largest_field_is_cut_first() -> None:
    fields = {"a": "\0" * 200, "b": "\0" * 900, "c": "x" * 300}
    message, trace = "\0" * 2000, "\0" * 2500
    big = ENTRY._replace(message=message, trace=trace, fields=fields)
    entry = LogEntry.unpack(big.pack())
    assert (entry.message, entry.trace) == (message, trace)
    assert (entry.fields["a"], entry.fields["c"]) == (fields["a"], fields["c"])
    assert entry.fields["b"].startswith("\0" * 300)
    assert entry.fields["b"].endswith(" characters are left out here)")


def test_long_texts_leave_room_for_fields() -> None:
    fields = {f"{n}": n for n in range(32)}
    worst = ENTRY._replace(
        message="\0" * 3000, trace="\0" * 2300, name="\0" * 200, fields=fields
    )
    entry = LogEntry.unpack(worst.pack())
    assert entry.fields == fields
    assert entry.trace == "\0" * 1000


@given(
    st.dictionaries(
        st.text(st.characters(), max_size=200),
        st.one_of(st.text(st.characters(), max_size=1000), st.integers(0, 10**17)),
        max_size=32,
    ),
    st.integers(0, 20_000),
)
def test_fields_that_are_kept_begin_as_they_were(
    fields: dict[str, Any], size: int
) -> None:
    data = ENTRY._replace(fields=fields, message="\0" * size, trace="ü" * size).pack()
    assert len(data) <= MAX_ENTRY
    entry = LogEntry.unpack(data)
    for name, value in entry.fields.items():
        whole = fields[name]
        if value != whole:
            assert whole.startswith(value.rpartition("... (")[0])


class Silent:
    """An object that cannot be told as a text."""

    def __str__(self) -> str:
        raise LookupError


@pytest.mark.parametrize(
    "value",
    [None, True, "x" * 1000, 10**17, 1.5],
    ids=lambda value: repr(value)[:20],
)
def test_fields_that_are_plain_and_small_stay_as_they_are(value: object) -> None:
    found = plain_fields([("field", value)])["field"]
    assert found is value


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 1001, "x" * 900 + "... (101 characters are left out here)"),
        ("x" * 10**6, "x" * 900 + "... (999100 characters are left out here)"),
        (-(10**18), "-1000000000000000000"),
        (10**5000, "a int without a text: ValueError"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (b"bytes", "b'bytes'"),
        ([1], "[1]"),
        ({1}, "{1}"),
        (Decimal("1.50"), "1.50"),
        (datetime(2026, 11, 22, tzinfo=UTC), "2026-11-22 00:00:00+00:00"),
        (PurePosixPath("/x"), "/x"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (ValueError("no"), "no"),
        (Silent(), "a Silent without a text: LookupError"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_of_other_fields_there_is_the_text(value: object, text: str) -> None:
    found = plain_fields([("field", value)])
    assert found == {"field": text}
    assert plain_fields(found.items()) == found


def test_fields_are_bounded() -> None:
    fields = plain_fields((f"field {n}", n) for n in range(100))
    assert fields == {f"field {n}": n for n in range(32)}
    assert plain_fields([("n" * 200, 1), ("n" * 201, 2)]) == {"n" * 200: 1}


def changed(**fields: Any) -> bytes:
    return json.dumps(ENTRY._replace(**fields)).encode()


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"7",
        b"{}",
        b"[]",
        b"[" * 10_000,
        json.dumps([*ENTRY, 1]).encode(),
        json.dumps(ENTRY[:-1]).encode(),
        changed(name=7),
        changed(message=None),
        changed(level="20"),
        changed(level=-1),
        changed(level=MAX_LEVEL + 1),
        changed(line=1.5),
        changed(job="3"),
        changed(attempt=None),
        changed(created="now"),
        changed(created=-1.0),
        changed(created=math.nan),
        changed(created=math.inf),
        changed(created=1e300),
        changed(created=10**400),
        changed(fields=[]),
        changed(fields={"deep": []}),
        changed(fields={"x": math.nan}),
        changed(fields={f"{n}": n for n in range(33)}),
        changed(message="m" * MAX_ENTRY),
    ],
)
def test_what_cannot_be_read(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        LogEntry.unpack(payload)
    assert str(caught.value) == "a record of a logger cannot be read"


def test_these_are_refused_for_what_was_changed() -> None:
    assert LogEntry.unpack(changed()) == ENTRY
    assert LogEntry.unpack(changed(job=None)).job is None


@given(st.binary(max_size=100) | st.text(max_size=100).map(str.encode))
def test_any_bytes_are_an_entry_or_an_offence(payload: bytes) -> None:
    try:
        LogEntry.unpack(payload)
    except ProtocolError:
        return
    pytest.fail("there is no entry as short as this")
