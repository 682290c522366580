"""What clients and agents say, and what is refused."""

from __future__ import annotations

import pytest

from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._core.remote_wire.remote_messages import (
    Kind,
    Message,
    pack_numbers,
    pack_parts,
    pack_question,
    split_parts,
    unpack_numbers,
    unpack_question,
)
from asyncpool.errors import ProtocolError


def test_a_message_is_read_as_it_was_written() -> None:
    message = Message(Kind.JOB, 1 << 40, 2, 3, 4, -5, 0.5, 2.5, 6, b"call")
    assert Message.unpack(message.pack()) == message


@pytest.mark.parametrize(
    "data", [b"", b"\x03", Message(Kind.JOB).pack()[:-1], bytes(99)]
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        Message.unpack(data)


def test_large_buffers_travel_with_their_stream() -> None:
    assert split_parts(pack_parts(b"flat")) == (b"flat", [])
    large = OutOfBandPickle([b"ab", b"c"], [memoryview(b"1234"), memoryview(b"")])
    stream, buffers = split_parts(pack_parts(large))
    assert (stream, [bytes(each) for each in buffers]) == (b"abc", [b"1234", b""])
    assert not buffers[0].readonly


@pytest.mark.parametrize(
    "data", [b"", b"\0\0\0\1", pack_parts(OutOfBandPickle([b"a"], []))[:-1]]
)
def test_parts_that_do_not_fit_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        split_parts(data)


def test_many_jobs_begin_in_one_message() -> None:
    assert unpack_numbers(pack_numbers([1, 1 << 50])) == (1, 1 << 50)
    with pytest.raises(ProtocolError, match="list of jobs"):
        unpack_numbers(b"123")


def test_a_question_is_read_as_it_was_written() -> None:
    packed = pack_question("stacks", b"beside", {"slot": 3})
    assert unpack_question(packed) == ({"what": "stacks", "slot": 3}, b"beside")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        bytes(3),
        b"\0\0\0\2{",
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b"\0\1\0\0" + b"[" * (1 << 16),
    ],
)
def test_what_is_no_question_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError, match="a question"):
        unpack_question(data)
