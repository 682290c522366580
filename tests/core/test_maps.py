"""How many items of a map go together, and what is found in the log of a dead worker."""

from __future__ import annotations

import pickle
import tracemalloc
from binascii import crc32
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._engine.batches import Pace
from asyncpool._wire.page import (
    CHUNK_SIZE,
    ENTRY,
    LOG_HEAD,
    LOG_SIZE,
    LOST,
    ChunkResult,
    ItemError,
    copy_log,
    note,
    read_log,
)
from asyncpool._wire.pickling import FLAT, pack_error
from asyncpool.errors import JobNotPicklableError


def test_short_items_go_together_as_far_as_a_millisecond_goes() -> None:
    some = Pace()
    some.note(1, 62.5)
    assert (some.size(2), some.window(2)) == (16, 2 * 512)
    some.note(16, 16.0)
    some.note(1, 1.0)
    # One that is faster than expected is believed bit by bit, and no leap is too large.
    assert some.size(2) == 28
    for _ in range(60):
        some.note(16, 16.0)
    assert some.size(2) == 16 * 16
    for _ in range(60):
        some.note(256, 256.0)
    assert some.size(2) == pytest.approx(1000, rel=0.01)
    for _ in range(60):
        some.note(1000, 10.0)
    assert some.size(2) == pytest.approx(4000, rel=0.01)
    assert CHUNK_SIZE == 4096


def test_who_is_slower_than_expected_is_believed_at_once() -> None:
    some = Pace()
    for _ in range(60):
        some.note(100, 100.0)
    assert some.size(1) == 1000
    some.note(100, 40_000.0)
    assert some.size(1) == 2
    some.note(1, 501.0)
    assert some.size(1) == 1, "a half would be a few microseconds' gain"


def test_if_nobody_knows_how_long_they_take_as_many_are_under_way_as_end_lately() -> (
    None
):
    some = Pace(chunksize=1)
    for step in range(2000):
        some.ended(step / 1000)
    assert some.window(2) == pytest.approx(8 + 100, abs=1)
    some.ended(60.0)
    assert some.window(2) == 8 + 1
    assert some.size(2) == 1
    some.note(1, 5_000_000.0)
    assert some.window(2) == 8


def test_what_is_given_counts() -> None:
    assert Pace(chunksize=7).size(2) == 2, "of 8 that may be under way"
    assert Pace(chunksize=7, buffersize=100).size(2) == 7
    assert Pace(chunksize=5000, buffersize=100_000).size(2) == CHUNK_SIZE
    some = Pace(buffersize=30)
    some.note(1, 1.0)
    some.weigh(1 << 30)
    assert (some.window(2), some.size(2)) == (30, 7)
    assert Pace(buffersize=1).size(8) == 1
    large = Pace()
    large.weigh(1 << 30)
    assert (large.window(3), large.size(3)) == (6, 1)


@given(
    st.lists(st.tuples(st.integers(1, CHUNK_SIZE), st.floats(0, 1e9)), max_size=30),
    st.none() | st.integers(1, 10_000),
    st.none() | st.integers(1, 100_000),
    st.integers(1, 64),
)
def test_its_answers_are_in_their_bounds(
    notes: list[tuple[int, float]], chunk: int | None, window: int | None, workers: int
) -> None:
    some = Pace(chunksize=chunk, buffersize=window)
    for items, microseconds in notes:
        some.note(items, microseconds)
        assert 1 <= some.size(workers) <= min(CHUNK_SIZE, chunk or CHUNK_SIZE)
        assert some.size(workers) <= max(1, some.window(workers) // (2 * workers))
        assert some.window(workers) == window or some.window(workers) >= 4 * workers


@pytest.mark.parametrize("workers", [1, 2, 16])
def test_each_worker_may_have_several_jobs_under_way(workers: int) -> None:
    some = Pace()
    for _ in range(100):
        some.note(some.size(workers), 0.4 * some.size(workers))
    assert some.window(workers) // some.size(workers) >= 8 * workers


# The log of a chunk.


flat = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=()))  # halves of surrogate pairs, too
    | st.binary()
)


def log_of(*outcomes: Any, done: int | None = None, job: int = 7) -> bytearray:
    """Return memory with a log at 64, of the first attempt at *job*."""
    memory = bytearray(64 + LOG_SIZE)
    LOG_HEAD.pack_into(memory, 64, len(outcomes) if done is None else done, 0, job, 1)
    data = b"".join(map(note, outcomes))
    memory[64 + LOG_HEAD.size : 64 + LOG_HEAD.size + len(data)] = data
    return memory


def found(memory: bytearray, job: int = 7, attempt: int = 1) -> list[Any] | None:
    log = copy_log(bytes(memory), 64, job, attempt)
    return None if log is None else read_log(log)


def test_other_values_and_errors_are_found() -> None:
    error = pack_error(ValueError("mine"))
    outcomes = [(pickle.dumps([1, {2: 3}]),), (error, True), 5]
    for load in (found(log_of(*outcomes)), ChunkResult(outcomes, []).load()):
        assert load is not None
        value, failure, last = load
        assert (value, last) == ([1, {2: 3}], 5)
        assert type(failure) is ItemError
        assert repr(failure.error) == "ValueError('mine')"
    assert ChunkResult([1], [{"large": 2}]).load() == [1, {"large": 2}]


def test_a_value_that_cannot_be_unpickled_here_is_a_failure() -> None:
    load = ChunkResult([(b"no pickle",)], []).load()
    assert isinstance(load[0].error, JobNotPicklableError)


@pytest.mark.parametrize(("job", "attempt"), [(8, 1), (7, 2), (0, 0)])
def test_the_log_of_another_attempt_says_nothing(job: int, attempt: int) -> None:
    assert found(log_of(1, 2), job, attempt) is None


def test_what_makes_no_sense_is_lost_and_what_is_before_it_is_not() -> None:
    memory = log_of(1, 2, 3)
    size = len(note(1))
    memory[64 + LOG_HEAD.size + size] = 0x63  # as if it were code
    assert found(memory) == [1, LOST, LOST]
    assert found(log_of(1, done=3)) == [1, LOST, LOST]
    assert found(log_of(1, done=CHUNK_SIZE + 1)) == [1, *[LOST] * (CHUNK_SIZE - 1)]


wild = st.lists(
    st.tuples(st.integers(0, 400), st.binary(min_size=1, max_size=16)), max_size=6
)


@given(st.lists(flat | st.lists(st.integers()), min_size=1, max_size=20), wild)
def test_what_was_written_over_is_lost_and_nothing_is_made_up(
    values: list[Any], writes: list[tuple[int, bytes]]
) -> None:
    outcomes = [one if type(one) in FLAT else (pickle.dumps(one),) for one in values]
    memory = log_of(*outcomes)
    start = 64 + LOG_HEAD.size
    good = bytes(memory)
    for place, data in writes:
        memory[start + place : start + place + len(data)] = data
    tracemalloc.start()
    load = found(memory)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert load is not None
    intact, end = 0, start
    for outcome in outcomes:
        end += len(note(outcome))
        if memory[start:end] != good[start:end]:
            break
        intact += 1
    lost = len(values) - intact
    assert list(map(repr, load)) == list(map(repr, values[:intact] + [LOST] * lost))
    assert peak < 8 * LOG_SIZE


@pytest.mark.parametrize(
    "data",
    [
        ENTRY.pack(2, crc32(b"ab")) + b"ab",
        ENTRY.pack(1, crc32(b"\xff")) + b"\xff",
        ENTRY.pack(0, crc32(b"")),
    ],
)
def test_an_entry_that_nobody_writes_is_lost(data: bytes) -> None:
    memory = log_of("first", done=2)
    start = 64 + LOG_HEAD.size + len(note("first"))
    memory[start : start + len(data)] = data
    assert found(memory) == ["first", LOST]
