"""Frames: whole, in order, and bounded, however the stream is cut."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given, strategies as st

from asyncpool._wire.frames import (
    HEADER_SIZE,
    MAX_ATTEMPTS,
    MAX_NUMBER,
    Frame,
    FrameDecoder,
    FrameKind,
    header,
)
from asyncpool.errors import ProtocolError

LIMIT = 300
frames = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    job=st.integers(0, 2**64 - 1),
    attempt=st.integers(0, MAX_ATTEMPTS),
    number=st.integers(0, MAX_NUMBER),
    payload=st.binary(max_size=LIMIT),
)
cuts = st.lists(st.integers(0, 1500))


def encode(frame: Frame) -> bytes:
    payload = bytes(frame.payload)
    return header(frame.kind, len(payload), frame.job, frame.attempt, frame.number) + (
        payload
    )


def pieces(data: bytes, where: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(cut for cut in where if cut < len(data))})
    return [data[a:b] for a, b in itertools.pairwise(edges)]


def decode(parts: Sequence[bytes | memoryview]) -> tuple[list[Frame], str, int]:
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
    parts = pieces(b"".join(map(encode, sent)), where)
    assert decode(parts) == (sent, "", 0)
    assert decode([memoryview(part) for part in parts]) == (sent, "", 0)


@given(st.lists(frames, max_size=4), frames, st.data())
def test_a_frame_that_is_cut_short_is_silence(
    sent: list[Frame], last: Frame, data: st.DataObject
) -> None:
    whole = encode(last)
    kept = data.draw(st.integers(0, len(whole) - 1))
    stream = b"".join(map(encode, sent)) + whole[:kept]
    assert decode([stream]) == (sent, "", kept)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ((1, 7, 0, 0, 1, 0), "the peer speaks version 1, not 2"),
        ((3, 7, 0, 0, 1, 0), "the peer speaks version 3, not 2"),
        ((2, 0, 0, 0, 1, 0), "unknown kind of frame: 0"),
        ((2, 99, 0, 0, 1, 0), "unknown kind of frame: 99"),
        ((2, 7, 0, 0, 1, 301), "a payload of 301 bytes exceeds the limit of 300"),
        (
            (2, 7, 0, 0, 1, 2**64 - 1),
            "a payload of 18446744073709551615 bytes exceeds the limit of 300",
        ),
        # Of several things that are wrong, the one that explains the others.
        ((1, 0, 0, 0, 1, 301), "the peer speaks version 1, not 2"),
        ((2, 0, 0, 0, 1, 301), "unknown kind of frame: 0"),
    ],
)
def test_a_bad_header_is_refused_before_any_payload(
    head: tuple[int, ...], message: str
) -> None:
    data = struct.pack("!BBHIQQ", *head)
    assert len(data) == HEADER_SIZE
    decoder = FrameDecoder(max_payload=LIMIT)
    assert decoder.feed(data[:-1]) == []
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(data[-1:])
    assert str(caught.value) == message
    assert decoder.error is caught.value
    assert decoder.pending <= HEADER_SIZE


def test_after_an_error_nothing_more_is_taken() -> None:
    good = Frame(FrameKind.VALUE, 1, 1, 0, b"good")
    decoder = FrameDecoder(max_payload=LIMIT)
    with pytest.raises(ProtocolError):
        decoder.feed(header(FrameKind.VALUE, LIMIT + 1))
    kept = decoder.pending
    for data in (encode(good), bytes(1 << 16), b""):
        with pytest.raises(ProtocolError) as caught:
            decoder.feed(data)
        assert caught.value is decoder.error
        assert decoder.pending == kept


@pytest.mark.parametrize("cut", [0, 7])
def test_frames_before_an_error_are_returned_together_with_it(cut: int) -> None:
    good = [Frame(FrameKind.VALUE, n, 1, 0, b"good") for n in (1, 2)]
    stream = b"".join(map(encode, good)) + header(FrameKind.VALUE, LIMIT + 1)
    decoder = FrameDecoder(max_payload=LIMIT)
    assert decoder.feed(stream[:cut]) == []
    assert decoder.feed(stream[cut:]) == good
    message = "a payload of 301 bytes exceeds the limit of 300"
    assert str(decoder.error) == message
    with pytest.raises(ProtocolError, match=message) as caught:
        decoder.feed(b"")
    assert caught.value is decoder.error


def test_frames_do_not_change_with_the_buffer_they_came_from() -> None:
    buffer = bytearray(encode(Frame(FrameKind.VALUE, 1, 1, 0, b"first")) + b"\x02")
    decoder = FrameDecoder(max_payload=LIMIT)
    (frame,) = decoder.feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    decoder.feed(b"\x08")
    assert decoder.pending == 2
    assert decoder.error is None
    assert frame.payload == b"first"
    assert type(frame.payload) is bytes


def test_no_call_returns_more_than_it_may_and_the_rest_waits() -> None:
    decoder = FrameDecoder(max_payload=LIMIT, most=2)
    sent = [Frame(FrameKind.VALUE, number, 1, 0, b"12345") for number in range(5)]
    data = b"".join(map(encode, sent))
    assert (decoder.feed(data[:-1]), decoder.more) == (sent[:2], True)
    assert (decoder.feed(b""), decoder.more) == (sent[2:4], True)
    assert (decoder.feed(b""), decoder.more) == ([], False)  # it was but a part
    assert (decoder.feed(data[-1:]), decoder.more) == (sent[4:], False)
    assert decoder.pending == 0


# Long payloads, which are received where they stay.

MOST = 1 << 20  # of what is put together
NOISE = random.Random(7).randbytes(MOST + 70_000)


def long_frame(size: int, *, start: int = 0, job: int = 1) -> Frame:
    return Frame(FrameKind.AREA, job, 2, 3, NOISE[start : start + size])


class Receiver:
    """Does what a channel does: what there is a target for goes there."""

    def __init__(self, *, limit: int = 2 * MOST) -> None:
        self.decoder = FrameDecoder(max_payload=limit)
        self.frames: list[Frame] = []

    def take(self, data: bytes) -> int:
        """Take some of *data*, and return how much."""
        target = self.decoder.target
        if target is None:
            self.frames += self.decoder.feed(data)
            return len(data)
        size = min(len(data), len(target))
        target[:size] = data[:size]
        self.frames += self.decoder.fill(size)
        return size

    def take_all(self, data: bytes) -> None:
        start = 0
        while start < len(data):
            start += self.take(data[start : start + 65_536])


@given(
    before=st.lists(frames, max_size=2),
    after=st.lists(frames, max_size=2),
    extra=st.integers(1, 70_000),
    second=st.booleans(),
    data=st.data(),
)
def test_long_payloads_come_back_as_they_were_however_the_stream_is_cut(
    before: list[Frame],
    after: list[Frame],
    extra: int,
    second: bool,  # noqa: FBT001
    data: st.DataObject,
) -> None:
    long = [long_frame(MOST + extra)]
    if second:
        long.append(long_frame(MOST + 1, start=9, job=2))
    sent = [*before, *long, *after]
    stream = b"".join(map(encode, sent))
    edges = list(itertools.accumulate(len(encode(frame)) for frame in sent))
    near = st.builds(
        int.__add__, st.sampled_from(edges), st.integers(-2 * HEADER_SIZE, 30)
    )
    where = data.draw(st.lists(st.integers(0, len(stream)) | near, max_size=8))
    receiver = Receiver()
    taken = 0
    for part in pieces(stream, [max(cut, 0) for cut in where]):
        while part:
            size = receiver.take(part)
            taken, part = taken + size, part[size:]  # noqa: PLW2901
            whole = sum(edge <= taken for edge in edges)
            assert receiver.frames == sent[:whole]
            begun = taken - (edges[whole - 1] if whole else 0)
            assert receiver.decoder.pending == begun
    assert receiver.frames == sent
    assert receiver.decoder.target is None
    assert receiver.decoder.error is None


MMAP = "asyncpool._wire.frames.mmap"


def test_a_long_payload_stays_where_it_was_received(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[bytearray] = []

    def allocate(_: int, size: int) -> bytearray:
        made.append(bytearray(size))
        return made[-1]

    monkeypatch.setattr(MMAP, allocate)
    receiver, frame = Receiver(), long_frame(MOST + 1)
    stream = encode(frame)
    receiver.take(stream[: HEADER_SIZE + 5])
    assert [len(buffer) for buffer in made] == [MOST + 1]
    assert made[0][:6] == NOISE[:5] + b"\0"
    receiver.take_all(stream[HEADER_SIZE + 5 :] + encode(frame))
    assert receiver.frames == [frame, frame]
    for found, buffer in zip(receiver.frames, made, strict=True):
        assert type(found.payload) is memoryview
        assert found.payload.obj is buffer


def test_a_payload_is_put_together_up_to_1_mib_and_if_it_comes_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MMAP, lambda _, size: pytest.fail(f"{size} bytes of room"))
    receiver = Receiver()
    at_most, longer = long_frame(MOST), long_frame(MOST + 1)
    receiver.take_all(encode(at_most)[:-1])
    assert receiver.decoder.target is None
    assert receiver.decoder.pending == HEADER_SIZE + MOST - 1
    receiver.take_all(encode(at_most)[-1:])
    assert receiver.take(encode(longer)) == HEADER_SIZE + MOST + 1
    assert receiver.frames == [at_most, longer]
    assert [type(frame.payload) for frame in receiver.frames] == [bytes, bytes]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(12, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (MemoryError("too much"), "too much"),
    ],
)
@pytest.mark.parametrize("received", [0, 5])
def test_no_room_for_a_long_payload_is_a_protocol_error(
    monkeypatch: pytest.MonkeyPatch, received: int, error: Exception, text: str
) -> None:
    def allocate(_: int, size: int) -> bytearray:
        raise error

    monkeypatch.setattr(MMAP, allocate)
    decoder = FrameDecoder(max_payload=2 * MOST)
    small = Frame(FrameKind.VALUE, 1, 1, 0, b"small")
    begun = encode(long_frame(MOST + 1))[: HEADER_SIZE + received]
    assert decoder.feed(encode(small) + begun) == [small]
    assert decoder.target is None
    for data in (b"", encode(small)):
        with pytest.raises(ProtocolError) as caught:
            decoder.feed(data)
        assert str(caught.value) == (
            f"there is no memory for a payload of {MOST + 1} bytes: {text}"
        )
        assert caught.value is decoder.error
    # If nothing came before it, it is raised at once.
    decoder = FrameDecoder(max_payload=2 * MOST)
    with pytest.raises(ProtocolError, match="there is no memory for a payload of "):
        decoder.feed(begun)
    assert decoder.pending <= len(begun)


def test_there_is_no_room_for_a_long_payload_above_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def allocate(_: int, size: int) -> bytearray:
        asked.append(size)
        return bytearray(size)

    monkeypatch.setattr(MMAP, allocate)
    for length in (MOST + 2, 1 << 40):
        decoder = FrameDecoder(max_payload=MOST + 1)
        with pytest.raises(ProtocolError) as caught:
            decoder.feed(header(FrameKind.AREA, length))
        assert str(caught.value) == (
            f"a payload of {length} bytes exceeds the limit of {MOST + 1}"
        )
    assert asked == []
    decoder = FrameDecoder(max_payload=MOST + 1)
    assert decoder.feed(header(FrameKind.AREA, MOST + 1)) == []
    assert asked == [MOST + 1]
