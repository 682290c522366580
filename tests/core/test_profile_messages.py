"""What a pool and a sampler tell each other."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool import ProtocolError
from asyncpool._core.base.names import MAX_NAME
from asyncpool._core.profile.profile_messages import (
    MAX_CHUNK,
    MAX_COUNT,
    MAX_DEPTH,
    ProfileRequest,
    SampleChunk,
    SampleFigures,
    as_name,
)
from asyncpool._core.profile.stack_counts import Stack

NAMES = st.text(max_size=30).map(as_name)
STACKS = st.tuples(NAMES, st.lists(NAMES, max_size=6).map(tuple))
COUNTS = st.integers(0, MAX_COUNT - 1)


def test_a_request_arrives_as_it_was() -> None:
    request = ProfileRequest(2.5, 100.0, "shop.sort")
    assert ProfileRequest.unpack(request.pack()) == request


@pytest.mark.parametrize(
    ("wanted", "function", "is_wanted"),
    [
        ("", "shop.sort", True),
        ("shop.sort", "shop.sort", True),
        ("sort", "shop.sort", True),
        ("ort", "shop.sort", False),
        ("shop", "shop.sort", False),
    ],
)
def test_which_functions_a_request_wants(
    wanted: str, function: str, *, is_wanted: bool
) -> None:
    assert ProfileRequest(1, 1, wanted).wants(function) is is_wanted


@given(
    st.dictionaries(STACKS, COUNTS, max_size=5),
    st.builds(SampleFigures, COUNTS, COUNTS, COUNTS),
    st.text(st.characters(categories=["L"]), max_size=9),
)
def test_a_chunk_arrives_as_it_was(
    stacks: dict[Stack, int], figures: SampleFigures, error: str
) -> None:
    chunk = SampleChunk(stacks, figures, error)
    [payload] = chunk.pack()
    assert SampleChunk.unpack(payload) == chunk


def test_many_stacks_arrive_in_several_chunks() -> None:
    widest = as_name("\U0001f40d" * 300)
    assert (len(widest), len(widest.encode())) == (MAX_NAME, 4 * (MAX_NAME - 3) + 3)
    stacks: dict[Stack, int] = {
        (f"f{i}", tuple(f"{j}{widest[:-9]}{i}" for j in range(MAX_DEPTH))): i + 1
        for i in range(20)
    }
    payloads = list(SampleChunk(stacks, SampleFigures(3, 2, 1), "late").pack())
    assert len(payloads) == 20
    assert max(map(len, payloads)) <= MAX_CHUNK
    chunks = [SampleChunk.unpack(payload) for payload in payloads]
    found = Counter[Stack]()
    for chunk in chunks:
        found.update(chunk.stacks)
    assert found == stacks
    assert (chunks[0].figures, chunks[0].error) == ((3, 2, 1), "late")
    assert {(chunk.figures, chunk.error) for chunk in chunks[1:]} == {((0, 0, 0), "")}


def test_a_name_is_printable_and_not_too_long() -> None:
    assert as_name("a\x1b[2J\n\udc80") == "a\\x1b[2J\\n?"
    assert as_name("x" * 201) == "x" * 197 + "..."
    assert as_name("x" * 200) == "x" * 200


FINE: list[Any] = [["f", "g"], [[1, 0, 1]], [0, 0, 0], ""]


def test_the_fine_one_of_the_next_test_can_be_read() -> None:
    chunk = SampleChunk.unpack(json.dumps(FINE).encode())
    assert chunk.stacks == {("f", ("g",)): 1}


@pytest.mark.parametrize(
    "message",
    [
        None,
        {},
        [],
        FINE[:3],
        [*FINE, 1],
        [[1], *FINE[1:]],
        [["x" * (MAX_NAME + 1), "g"], *FINE[1:]],
        [FINE[0], [[]], *FINE[2:]],
        [FINE[0], [[1]], *FINE[2:]],
        [FINE[0], [[1, 2]], *FINE[2:]],
        [FINE[0], [[1, -1]], *FINE[2:]],
        [FINE[0], [[1, True]], *FINE[2:]],
        [FINE[0], [[1.5, 0]], *FINE[2:]],
        [FINE[0], [[-1, 0]], *FINE[2:]],
        [FINE[0], [[MAX_COUNT, 0]], *FINE[2:]],
        [FINE[0], [[1, *[0] * (MAX_DEPTH + 2)]], *FINE[2:]],
        [FINE[0], 7, *FINE[2:]],
        [*FINE[:2], [0, 0, 0, 0], ""],
        [*FINE[:2], [0, "0", 0], ""],
    ],
)
def test_what_a_worker_makes_up_is_refused(message: object) -> None:
    with pytest.raises(ProtocolError, match="samples of stacks cannot be read"):
        SampleChunk.unpack(json.dumps(message).encode())


@pytest.mark.parametrize(
    "payload",
    [b"", b"{", b"\xff", b"[" * 5000, b" " * MAX_CHUNK + json.dumps(FINE).encode()],
)
def test_what_is_no_json_or_too_large_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="samples of stacks cannot be read"):
        SampleChunk.unpack(payload)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_chunk_or_an_error(payload: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        SampleChunk.unpack(payload)
