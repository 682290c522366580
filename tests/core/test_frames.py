"""Tests of asyncpool/_core/frames.py."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.frames import (
    HEADER_SIZE,
    MAX_ATTEMPTS,
    VERSION,
    Frame,
    FrameDecoder,
    Kind,
    header,
)
from asyncpool.errors import ProtocolError

LIMIT = 300

frames = st.builds(
    Frame,
    kind=st.sampled_from(Kind),
    job=st.integers(0, 2**64 - 1),
    attempt=st.integers(0, MAX_ATTEMPTS),
    payload=st.binary(max_size=LIMIT),
)
cuts = st.lists(st.integers(0, 1500))


def encode(frame: Frame) -> bytes:
    kind, job, attempt, payload = frame
    return header(kind, len(payload), job, attempt) + payload


def pieces(data: bytes, where: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut for cut in where if cut < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def decode(parts: list[bytes]) -> tuple[list[Frame], str, int]:
    """Return the frames, the error's text, and what is pending."""
    decoder = FrameDecoder(max_payload=LIMIT)
    received: list[Frame] = []
    try:
        for part in (*parts, b""):
            received += decoder.feed(part)
    except ProtocolError as error:
        return received, str(error), 0
    return received, "", decoder.pending


@given(st.lists(frames), cuts)
def test_decoding_does_not_depend_on_how_the_stream_is_cut(
    sent: list[Frame], where: list[int]
) -> None:
    stream = b"".join(map(encode, sent))
    assert decode(pieces(stream, where)) == (sent, "", 0)


@given(st.lists(frames, max_size=4), frames, st.data())
def test_a_frame_that_is_cut_short_is_silence(
    sent: list[Frame], last: Frame, data: st.DataObject
) -> None:
    whole = encode(last)
    kept = data.draw(st.integers(0, len(whole) - 1))
    stream = b"".join(map(encode, sent)) + whole[:kept]
    assert decode([stream]) == (sent, "", kept)


@given(st.binary(max_size=100))
def test_garbage_is_a_protocol_error_or_silence(data: bytes) -> None:
    received, error, pending = decode([bytes([VERSION]) + data])
    assert all(len(frame.payload) <= LIMIT for frame in received)
    assert error or pending <= len(data) + 1


@given(st.lists(frames, max_size=3), st.binary(min_size=HEADER_SIZE, max_size=60))
def test_what_came_before_garbage_is_received_at_any_cut(
    sent: list[Frame], garbage: bytes
) -> None:
    stream = b"".join(map(encode, sent)) + bytes([VERSION + 1]) + garbage
    whole = decode([stream])
    assert whole == (sent, f"the peer speaks version {VERSION + 1}, not {VERSION}", 0)
    assert decode([bytes([byte]) for byte in stream]) == whole


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (struct.pack("!BBHQQ", 2, 7, 0, 1, 0), "speaks version 2, not 1"),
        (struct.pack("!BBHQQ", 0, 7, 0, 1, 0), "speaks version 0, not 1"),
        (struct.pack("!BBHQQ", 1, 0, 0, 1, 0), "unknown kind of frame: 0"),
        (struct.pack("!BBHQQ", 1, 10, 0, 1, 0), "unknown kind of frame: 10"),
        (struct.pack("!BBHQQ", 1, 7, 0, 1, 301), "301 bytes exceeds the limit of 300"),
        (struct.pack("!BBHQQ", 1, 7, 0, 1, 2**64 - 1), "exceeds the limit of 300"),
    ],
)
def test_a_bad_header_is_refused_before_any_payload(head: bytes, message: str) -> None:
    assert len(head) == HEADER_SIZE
    decoder = FrameDecoder(max_payload=LIMIT)
    assert decoder.feed(head[:-1]) == []
    with pytest.raises(ProtocolError, match=message):
        decoder.feed(head[-1:])
    assert decoder.pending <= HEADER_SIZE


def test_a_payload_exactly_at_the_limit() -> None:
    frame = Frame(Kind.VALUE, 1, 1, bytes(LIMIT))
    assert decode([encode(frame)]) == ([frame], "", 0)


def test_an_empty_payload_makes_a_frame_at_once() -> None:
    assert decode([header(Kind.HELLO, 0)]) == ([Frame(Kind.HELLO, 0, 0, b"")], "", 0)


def test_the_largest_numbers_fit_and_no_larger_ones() -> None:
    frame = Frame(Kind.JOB, 2**64 - 1, MAX_ATTEMPTS, b"x")
    assert decode([encode(frame)]) == ([frame], "", 0)
    with pytest.raises(struct.error):
        header(Kind.JOB, 0, 2**64)
    with pytest.raises(struct.error):
        header(Kind.JOB, 0, 1, MAX_ATTEMPTS + 1)


def test_the_bytes_on_the_wire() -> None:
    assert header(Kind.JOB, 2, 0x0102, 3).hex(" ") == (
        "01 07 00 03 00 00 00 00 00 00 01 02 00 00 00 00 00 00 00 02"
    )
    assert {kind.name: kind.value for kind in Kind} == {
        "CONFIG": 1,
        "HELLO": 2,
        "FAILED": 3,
        "LAUNCH": 4,
        "LAUNCHED": 5,
        "EXITED": 6,
        "JOB": 7,
        "VALUE": 8,
        "ERROR": 9,
    }
    assert (VERSION, HEADER_SIZE, MAX_ATTEMPTS) == (1, 20, 65_535)


def test_frames_do_not_change_with_the_buffer_they_came_from() -> None:
    buffer = bytearray(encode(Frame(Kind.VALUE, 1, 1, b"first")))
    decoder = FrameDecoder(max_payload=LIMIT)
    (frame,) = decoder.feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    decoder.feed(b"\x01\x08")
    assert frame.payload == b"first"
    assert type(frame.payload) is bytes


def test_pending_counts_what_waits_for_the_rest() -> None:
    decoder = FrameDecoder(max_payload=LIMIT)
    first, second = (Frame(Kind.VALUE, n, 1, b"12345") for n in (1, 2))
    assert decoder.feed(encode(first) + encode(second)[:7]) == [first]
    assert decoder.pending == 7
    assert decoder.feed(encode(second)[7:-1]) == []
    assert decoder.pending == HEADER_SIZE + 4
    assert decoder.feed(encode(second)[-1:]) == [second]
    assert decoder.pending == 0
