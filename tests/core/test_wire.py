"""What the service and its workers tell each other, in frames and on the page."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import re
import struct
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given, strategies as st

from asyncpool._wire.log_records import (
    MAX_RECORD,
    NUMBERS,
    TEXTS,
    pack_record,
    plain_fields,
    read_record,
)
from asyncpool._wire.messages import (
    COROUTINE,
    MAX_DETAILS,
    MAX_TEXT,
    PARTS,
    Failure,
    JobContext,
    are_whole,
    tidy,
    with_parts,
)
from asyncpool._wire.page import (
    BEATS_SIZE,
    JOB_KEY,
    LANE_OUTCOME_SIZE,
    LANE_STACK_SIZE,
    LOG_SIZE,
    MAX_LANES,
    STACKS_SIZE,
    Beat,
    PageLayout,
    beat_offset,
    read_beats,
    unpack_beat,
)
from asyncpool.errors import ProtocolError
from tests.fuzz import targets

# Surrogates without a partner included: a worker may say, and a job log, anything.
texts = st.text(st.characters(), max_size=200)


@given(texts, texts, texts)
def test_a_failure_comes_back_as_it_was(stage: str, summary: str, text: str) -> None:
    failure = Failure(stage, summary, text)
    assert Failure.unpack(failure.pack()) == failure


def test_of_a_long_failure_the_telling_ends_are_kept() -> None:
    summary = "the reason" + "." * MAX_TEXT
    text = "." * MAX_TEXT + "the last line"
    failure = Failure.unpack(Failure("thread", summary, text).pack())
    assert failure.stage == "thread"
    assert (failure.summary, failure.text) == (summary[:MAX_TEXT], text[-MAX_TEXT:])


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"17",
        b"[]",
        b'["two", "fields"]',
        b'["more", "than", "four", "fields", "here"]',
        b"\xff\xfe",
        pickle.dumps(("stage", "summary", "text")),
        b"[1, 2, " + b"9" * 5_000 + b"]",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
    ids=lambda payload: payload[:20],
)
def test_what_is_no_failure_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        Failure.unpack(payload)


@pytest.mark.parametrize("decoder", range(len(targets.NAMES)), ids=targets.NAMES)
@given(data=st.binary(max_size=100))
def test_any_bytes_are_a_message_or_an_offence(decoder: int, data: bytes) -> None:
    targets.run(bytes([decoder]) + data)


# Contexts of jobs.

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


@given(contexts, st.binary(max_size=100))
def test_one_part_is_changed_and_the_others_stay(
    context: JobContext, data: bytes
) -> None:
    packed, unpack = context.pack(), JobContext.unpack
    for name in PARTS:
        part: Any = {name: data}
        assert unpack(with_parts(packed, **part)) == context._replace(**part)


@pytest.mark.parametrize(
    ("timeout", "deadline", "end"),
    [
        (None, None, None),
        (2.0, None, 12.0),
        (None, 0.0, 0.0),
        (2.0, 11.0, 11.0),
        (2.0, 99.0, 12.0),
    ],
)
def test_until_when_an_attempt_may_run(
    timeout: float | None, deadline: float | None, end: float | None
) -> None:
    assert JobContext(timeout=timeout, deadline=deadline).end(10.0) == end


# Heartbeats.

NATURALS = st.integers(1, 2**64 - 1)
BEATS = st.builds(
    Beat,
    number=NATURALS,
    job=NATURALS,
    attempt=NATURALS,
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
    start = START + beat_offset(beat.number)
    part = beat.pack()[:size]
    memory[start : start + len(part)] = part


@given(BEATS)
def test_a_beat_comes_back(beat: Beat) -> None:
    assert unpack_beat(beat.pack()) == beat
    assert unpack_beat(bytes(5) + beat.pack() + b"more", 5) == beat


@given(BEATS, st.data())
def test_a_record_in_which_anything_is_changed_is_none(
    beat: Beat, data: st.DataObject
) -> None:
    record = bytearray(beat.pack())
    index = data.draw(st.integers(0, len(record) - 1))
    record[index] ^= data.draw(st.integers(1, 255))
    assert unpack_beat(bytes(record)) is None
    assert unpack_beat(beat.pack()[:index]) is None


def test_torn_at_any_byte_the_one_before_is_the_newest() -> None:
    size = len(NEW.pack())
    for end in range(size):
        torn = memory(OLDER, OLD)
        write(torn, NEW, end)
        found = read_beats(bytes(torn), START)
        assert found in ([OLD], [OLDER, OLD]), end
    whole = memory(OLDER, OLD)
    write(whole, NEW, size)
    assert read_beats(bytes(whole), START) == [OLD, NEW]


def test_what_claims_to_be_longer_is_no_record() -> None:
    beat = Beat(number=1, job=1, attempt=1, at=0.0, details=b"x" * (MAX_DETAILS + 1))
    assert unpack_beat(beat.pack()) is None
    claim = struct.pack("=IQQQdI", 0, 1, 1, 1, 0.0, 2**32 - 1)
    assert unpack_beat(claim + bytes(1000)) is None


# The page.


def assert_apart(parts: list[tuple[int, int]], size: int) -> None:
    ends = [(start, start + length) for start, length in sorted(parts)]
    for (_, end), (start, _) in itertools.pairwise(ends):
        assert end <= start
    assert ends[-1][1] == size, "faulthandler writes as much as there is room for"


@given(width=st.integers(1, MAX_LANES))
def test_each_lane_has_its_room(width: int) -> None:
    layout = PageLayout(width)
    parts = [(layout.stacks, STACKS_SIZE)]
    for lane in range(width):
        parts += [
            (layout.begun_offset(lane), JOB_KEY.size),
            (layout.beats_offset(lane), BEATS_SIZE),
            (layout.log_offset(lane), LOG_SIZE),
            (layout.stack_offset(lane), LANE_STACK_SIZE),
            (layout.outcome_offset(lane), LANE_OUTCOME_SIZE),
        ]
    assert_apart(parts, layout.size)


# Records of loggers.

plain = (
    st.none()
    | st.booleans()
    | texts
    | st.integers(-(10**17), 10**17)
    | st.floats(-1e17, 1e17)
)
attributes = st.fixed_dictionaries(
    {
        **{name: st.integers(0, int(most)) for name, most in NUMBERS.items()},
        **dict.fromkeys(TEXTS, texts),
        "created": st.floats(0, 1e11),
    }
)
GIVEN = dict.fromkeys(NUMBERS, 7) | dict.fromkeys(TEXTS, "sold")


@given(attributes, st.dictionaries(texts, plain, max_size=10))
def test_a_record_comes_back_as_it_was(given: Any, fields: Any) -> None:
    assert read_record(pack_record(given, fields)) == (given, fields)


def test_what_a_record_lacks_is_nothing() -> None:
    found = read_record(pack_record({"thread": None}, {}))
    assert found == ({**dict.fromkeys(NUMBERS, 0), **dict.fromkeys(TEXTS, "")}, {})


long = st.text(st.characters(), min_size=90, max_size=100).map(lambda text: text * 300)


@given(long, st.integers(-(10**9), 10**9))
def test_whatever_is_too_long_is_cut(text: str, level: int) -> None:
    fields = plain_fields((f"{n}{text[:198]}", text[:1000]) for n in range(32))
    given = GIVEN | dict.fromkeys(TEXTS, text) | {"levelno": level}
    data = pack_record(given, fields)
    assert len(data) <= MAX_RECORD
    found, _ = read_record(data)
    assert text.startswith(found["msg"].rpartition("... (")[0])
    assert text.endswith(found["exc_text"])
    assert found["exc_text"]
    assert text.endswith(found["pathname"])
    assert found["levelno"] == max(0, min(level, NUMBERS["levelno"]))
    assert (found["lineno"], found["job_id"], found["created"]) == (7, 7, 7)


def test_of_a_record_that_is_too_large_the_small_fields_stay() -> None:
    small = {"order": 7, "shop": "Ulm", "paid": None}
    large = {f"body {n}": "\0" * 1000 for n in range(6)}
    data = pack_record(GIVEN | {"exc_text": "t" * 12_288}, {**large, **small})
    found, fields = read_record(data)
    assert (found["msg"], found["exc_text"]) == ("sold", "t" * 12_288)
    assert list(fields) == [*large, *small]
    assert {name: fields[name] for name in small} == small
    cut = [fields[name] for name in large]
    assert all(
        re.fullmatch(r"\0{500,}\.{3} \(.* are left out here\)", it) for it in cut
    )
    assert max(map(len, cut)) - min(map(len, cut)) < 50


class Silent:
    """An object that cannot be told as a text."""

    def __str__(self) -> str:
        raise LookupError


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


def test_numbers_of_numpy_are_numbers() -> None:
    given = {"loss": np.float64(1.5), "n": np.int64(5), "ok": np.bool_(True)}
    found = plain_fields(given.items())
    assert found == {"loss": 1.5, "n": 5, "ok": True}
    assert [*map(type, found.values())] == [float, int, bool]


def changed(fields: object = None, **given: Any) -> bytes:
    values = GIVEN | given
    numbers, texts = ([values[name] for name in part] for part in (NUMBERS, TEXTS))
    return json.dumps([numbers, texts, {} if fields is None else fields]).encode()


NOTHING = json.loads(changed())


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"7",
        b"{}",
        b"[]",
        b"[" * 10_000,
        json.dumps([*NOTHING, 1]).encode(),
        json.dumps(NOTHING[:-1]).encode(),
        json.dumps([NOTHING[0][1:], *NOTHING[1:]]).encode(),
        json.dumps([NOTHING[0], [*NOTHING[1], ""], {}]).encode(),
        changed(name=7),
        changed(msg=None),
        *(changed(levelno=it) for it in ("20", -1, 1001)),
        changed(lineno=1.5),
        *(changed(job_id=it) for it in ("3", None)),
        changed(attempt=None),
        *(changed(created=it) for it in ("now", -1.0, math.nan, math.inf)),
        *(changed(created=it) for it in (1e300, 10**400)),
        changed([]),
        changed({"deep": []}),
        changed({"x": math.nan}),
        changed({f"{n}": n for n in range(33)}),
        changed(msg="m" * MAX_RECORD),
    ],
)
def test_what_cannot_be_read(payload: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_record(payload)
    assert str(caught.value) == "a record of a logger cannot be read"


# Stacks.

OURS = '  File "/somewhere/asyncpool/_worker/worker.py", line 20 in _serve'
BEATING = '  File "/somewhere/asyncpool/_worker/api.py", line 9 in heartbeat'
MAIN = "Thread 0x00007f (most recent call first):"
NOW = "Current thread 0x00007f (most recent call first):"
OTHER = "Thread 0x00007e (most recent call first):"
USER = '  File "/home/user/job.py", line 3 in work'
LIBRARY = '  File "/usr/lib/python3.11/socket.py", line 1 in recv'


@pytest.mark.parametrize(
    ("lines", "shown"),
    [
        ([], []),
        ([MAIN, USER, OURS], [MAIN, USER]),
        ([MAIN, LIBRARY, USER, OURS, LIBRARY], [MAIN, LIBRARY, USER]),
        # The worker's own function that the job has called.
        ([MAIN, OURS, USER, OURS], [MAIN, USER]),
        ([MAIN, LIBRARY, BEATING, USER, OURS, LIBRARY], [MAIN, LIBRARY, USER]),
        ([OTHER, LIBRARY, OURS, "", MAIN, USER, OURS], [MAIN, USER]),
        (
            [OTHER, USER, LIBRARY, "", MAIN, USER, OURS],
            [MAIN, USER, OTHER, USER, LIBRARY],
        ),
        ([MAIN, OURS], [MAIN]),
        # It waits in an event loop.
        (
            [OTHER, OURS, "", MAIN, LIBRARY, OURS, "", COROUTINE, USER],
            [COROUTINE, USER, MAIN, LIBRARY],
        ),
        ([COROUTINE, USER], [COROUTINE, USER]),
        (
            [OTHER, OURS, "", MAIN, LIBRARY, OURS, OTHER, OURS, "", NOW, USER, OURS],
            [NOW, USER],
        ),
        ([OTHER, MAIN, USER], [MAIN, USER, OTHER]),
        (["  whatever it wrote"], ["  whatever it wrote"]),
    ],
)
def test_the_main_thread_comes_first_and_ours_not_at_all(
    lines: list[str], shown: list[str]
) -> None:
    assert tidy("\n".join(lines)) == "\n".join(shown)


OUTERMOST = '  File "<string>", line 1 in <module>'


@pytest.mark.parametrize(
    ("lines", "unchanged", "whole"),
    [
        ([], True, False),
        ([MAIN], True, False),
        ([OTHER, LIBRARY, OURS, ""], True, False),
        ([MAIN, USER, OURS], True, False),
        ([OTHER, LIBRARY, OURS, "", MAIN, USER, OURS, OUTERMOST], True, True),
        ([OTHER, LIBRARY, OURS, "", MAIN, USER, OURS, OUTERMOST], False, True),
        ([OTHER, LIBRARY, "  ..."], False, False),
        ([MAIN, USER, "  ..."], True, True),
    ],
)
def test_they_are_whole_with_the_outermost_call_of_the_main_thread(
    lines: list[str], *, unchanged: bool, whole: bool
) -> None:
    written = "".join(f"{line}\n" for line in lines).encode()
    before = written if unchanged else written[:-1]
    assert are_whole(written, before) is whole
    assert not are_whole(written[:-1], written[:-1])
