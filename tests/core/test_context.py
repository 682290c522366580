"""Tests of asyncpool/_core/wire/context.py."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.wire.context import (
    MAX_CONTEXT,
    MAX_TRACE,
    MAX_VARIABLES,
    PARTS,
    PLAIN,
    JobContext,
    with_details,
    with_trace,
    with_variables,
)
from asyncpool._core.wire.heartbeat_records import MAX_DETAILS
from asyncpool.errors import ProtocolError

times = st.none() | st.floats(allow_nan=False)
contexts = st.builds(
    JobContext,
    timeout=times,
    deadline=times,
    details=st.binary(max_size=100),
    variables=st.binary(max_size=100),
    trace=st.binary(max_size=100),
)


@given(contexts)
def test_a_context_comes_back_as_it_was(context: JobContext) -> None:
    again = JobContext.unpack(context.pack())
    assert again == context
    assert (type(again.details), type(again.variables)) == (bytes, bytes)


@given(contexts, contexts)
def test_equal_contexts_are_equal_bytes_and_others_are_not(
    one: JobContext, other: JobContext
) -> None:
    assert (one.pack() == other.pack()) is (repr(one) == repr(other))


def test_the_plain_context_has_no_bytes() -> None:
    assert JobContext() == PLAIN
    assert PLAIN.pack() == b""
    assert JobContext.unpack(b"") == PLAIN
    assert JobContext(timeout=0.0).pack() != b""


@given(contexts, st.binary(max_size=100))
def test_one_part_is_changed_and_the_others_stay(
    context: JobContext, data: bytes
) -> None:
    packed = context.pack()
    changed = with_details(packed, data)
    assert JobContext.unpack(changed) == context._replace(details=data)
    changed = with_variables(packed, data)
    assert JobContext.unpack(changed) == context._replace(variables=data)
    changed = with_trace(packed, data)
    assert JobContext.unpack(changed) == context._replace(trace=data)


def test_without_its_parts_a_context_is_plain_again() -> None:
    packed = with_variables(with_details(b"", b"details"), b"variables")
    packed = with_trace(packed, b"trace")
    assert with_trace(with_variables(with_details(packed, b""), b""), b"") == b""


@pytest.mark.parametrize(
    ("timeout", "deadline", "end"),
    [
        (None, None, None),
        (2.0, None, 12.0),
        (None, 11.0, 11.0),
        (2.0, 11.0, 11.0),
        (2.0, 99.0, 12.0),
        (2.0, 5.0, 5.0),
        (math.inf, 99.0, 99.0),
        (None, 0.0, 0.0),
    ],
)
def test_until_when_an_attempt_may_run(
    timeout: float | None, deadline: float | None, end: float | None
) -> None:
    assert JobContext(timeout=timeout, deadline=deadline).end(10.0) == end


def test_the_largest_context_has_the_most_bytes_and_none_is_larger() -> None:
    parts = {name: bytes(most) for name, most in PARTS.items()}
    largest = JobContext(1.0, None, **parts)
    packed = largest.pack()
    assert len(packed) == MAX_CONTEXT
    assert JobContext.unpack(packed) == largest
    with pytest.raises(ValueError, match=r".") as caught:
        with_details(packed, bytes(MAX_DETAILS + 1))
    assert str(caught.value) == (
        f"details have {MAX_DETAILS + 1} bytes, and {MAX_DETAILS} is the most"
    )
    with pytest.raises(ValueError, match=r".") as caught:
        with_variables(b"", bytes(MAX_VARIABLES + 1))
    assert str(caught.value) == (
        f"variables have {MAX_VARIABLES + 1} bytes, and {MAX_VARIABLES} is the most"
    )
    with pytest.raises(ValueError, match=r".") as caught:
        with_trace(b"", bytes(MAX_TRACE + 1))
    assert str(caught.value) == (
        f"trace have {MAX_TRACE + 1} bytes, and {MAX_TRACE} is the most"
    )


def test_what_cannot_be_read() -> None:
    packed = JobContext(timeout=1.0, details=b"details").pack()
    with pytest.raises(ProtocolError, match=r"^a context cannot be read$"):
        JobContext.unpack(packed[:3])
    with pytest.raises(ProtocolError, match=r"^a context is cut short$"):
        JobContext.unpack(packed[:-1])


@given(st.binary(max_size=60))
def test_any_bytes_are_a_context_or_an_offence(payload: bytes) -> None:
    try:
        context = JobContext.unpack(payload)
    except ProtocolError:
        return
    assert len(context.details + context.variables + context.trace) <= len(payload)


def test_a_context_travels_with_other_data() -> None:
    context = JobContext(timeout=1.0, details=b"details")
    assert pickle.loads(pickle.dumps(context)) == context
