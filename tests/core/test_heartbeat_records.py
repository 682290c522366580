"""The records of heartbeats: whole, or not there at all."""

from __future__ import annotations

import math
import struct

from hypothesis import given, strategies as st

from asyncpool._core.wire.heartbeat_records import (
    BEATS_SIZE,
    MAX_DETAILS,
    Beat,
    offset_of,
    read,
    unpack,
)

NUMBERS = st.integers(1, 2**64 - 1)
BEATS = st.builds(
    Beat,
    number=NUMBERS,
    job=NUMBERS,
    attempt=NUMBERS,
    at=st.floats(allow_nan=False),
    details=st.binary(max_size=200),
)
START = 100  # of the room, in a larger memory
OLDER = Beat(number=6, job=3, attempt=1, at=1.5, details=b"older, and a bit longer")
OLD = Beat(number=7, job=3, attempt=2, at=2.5, details=b"old")
NEW = Beat(number=8, job=4, attempt=1, at=3.5, details=b"the new one")


def memory(*beats: Beat) -> bytearray:
    """Return a room in which these were written in turn."""
    found = bytearray(START + BEATS_SIZE + 10)
    for beat in beats:
        write(found, beat, len(beat.pack()))
    return found


def write(memory: bytearray, beat: Beat, size: int) -> None:
    """Write the beginning of a record."""
    start = START + offset_of(beat.number)
    part = beat.pack()[:size]
    memory[start : start + len(part)] = part


@given(BEATS)
def test_a_beat_comes_back(beat: Beat) -> None:
    assert unpack(beat.pack()) == beat
    assert unpack(bytes(5) + beat.pack() + b"more", 5) == beat


@given(BEATS, st.data())
def test_a_record_in_which_anything_is_changed_is_none(
    beat: Beat, data: st.DataObject
) -> None:
    record = bytearray(beat.pack())
    index = data.draw(st.integers(0, len(record) - 1))
    record[index] ^= data.draw(st.integers(1, 255))
    assert unpack(bytes(record)) is None
    assert unpack(beat.pack()[:index]) is None


@given(st.binary(max_size=200))
def test_garbage_is_no_beat(garbage: bytes) -> None:
    assert unpack(garbage) is None


def test_an_empty_room_has_none() -> None:
    assert read(bytes(memory()), START) == []


def test_the_newest_two_are_there_in_their_order() -> None:
    assert read(bytes(memory(OLDER)), START) == [OLDER]
    assert read(bytes(memory(OLDER, OLD)), START) == [OLDER, OLD]
    assert read(bytes(memory(OLDER, OLD, NEW)), START) == [OLD, NEW]


def test_torn_at_any_byte_the_one_before_is_the_newest() -> None:
    size = len(NEW.pack())
    for end in range(size):
        torn = memory(OLDER, OLD)
        write(torn, NEW, end)
        found = read(bytes(torn), START)
        assert found in ([OLD], [OLDER, OLD]), end
    whole = memory(OLDER, OLD)
    write(whole, NEW, size)
    assert read(bytes(whole), START) == [OLD, NEW]


@given(BEATS, BEATS, BEATS, st.integers(0, 300))
def test_whatever_is_torn_nothing_is_made_up(
    one: Beat, two: Beat, three: Beat, end: int
) -> None:
    beats = [
        beat._replace(number=10 + index) for index, beat in enumerate((one, two, three))
    ]
    room = memory(*beats[:2])
    write(room, beats[2], end)
    found = read(bytes(room), START)
    assert found == sorted(found)
    assert all(beat in beats for beat in found)
    assert beats[1] in found


def test_the_longest_details_fit() -> None:
    one, two = (
        Beat(number=number, job=1, attempt=1, at=0.0, details=b"x" * MAX_DETAILS)
        for number in (1, 2)
    )
    room = memory(one, two)
    assert read(bytes(room), START) == [one, two]
    assert len(room) == START + BEATS_SIZE + 10, "nothing was written beyond the room"


def test_what_claims_to_be_longer_is_no_record() -> None:
    beat = Beat(number=1, job=1, attempt=1, at=0.0, details=b"x" * (MAX_DETAILS + 1))
    assert unpack(beat.pack()) is None
    claim = struct.pack("=IQQQdI", 0, 1, 1, 1, 0.0, 2**32 - 1)
    assert unpack(claim + bytes(1000)) is None


def test_a_time_may_be_no_number() -> None:
    beat = unpack(Beat(number=1, job=1, attempt=1, at=math.nan, details=b"").pack())
    assert beat is not None
    assert math.isnan(beat.at)
