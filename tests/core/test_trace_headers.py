"""Trace contexts on their way to an agent, and what an agent refuses."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.remote_wire.trace_headers import pack_headers, unpack_headers
from asyncpool._core.wire.context import MAX_TRACE
from asyncpool.errors import ProtocolError

TOO_MANY = {"a": "b" * MAX_TRACE}
PICKLED = pickle.dumps(TOO_MANY, 5)


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20), max_size=5))
def test_headers_arrive_as_they_were(headers: dict[str, str]) -> None:
    assert pickle.loads(unpack_headers(pack_headers(pickle.dumps(headers)))) == headers


def test_no_trace_stays_none() -> None:
    assert pack_headers(b"") == b""
    assert unpack_headers(b"") == b""


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "a trace context cannot be read: Expecting"),
        (b"\xff", "a trace context cannot be read: 'utf-8'"),
        (b"[" * 60_000, "a trace context cannot be read: "),
        (pickle.dumps({}), "a trace context cannot be read"),
        (b"[]", "^a trace context has other things than headers$"),
        (b'{"a": 1}', "^a trace context has other things than headers$"),
        (b'{"a": {"b": "c"}}', "^a trace context has other things than headers$"),
        (json.dumps(TOO_MANY).encode(), rf"^a trace context has {len(PICKLED)} bytes$"),
    ],
)
def test_what_are_no_headers_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(ProtocolError, match=why):
        unpack_headers(data)
