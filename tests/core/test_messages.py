"""Tests of asyncpool/_core/wire/messages.py."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.wire.messages import (
    MAX_BROADCASTS,
    MAX_CONFIG,
    MAX_INITIALIZER,
    MAX_TEXT,
    Failure,
    LauncherConfig,
    WorkerConfig,
    pack_exit,
    pack_numbers,
    pack_pid,
    unpack_exit,
    unpack_numbers,
    unpack_pid,
)
from asyncpool.errors import ProtocolError

# What a control channel accepts as one frame.
CONTROL_FRAME = 1 << 20

# Surrogates without a partner included: a worker may say anything.
texts = st.text(st.characters(), max_size=200)
numbers = st.integers(-(2**63), 2**63 - 1)


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


def test_the_longest_failure_fits_into_a_frame() -> None:
    # Each of these characters takes twelve bytes in JSON.
    long = "\N{PILE OF POO}" * (2 * MAX_TEXT)
    assert len(Failure("initializer", long, long).pack()) < CONTROL_FRAME


def test_a_failure_exactly_at_the_bound_is_not_cut() -> None:
    failure = Failure("x" * MAX_TEXT, "y" * MAX_TEXT, "z" * MAX_TEXT)
    assert Failure.unpack(failure.pack()) == failure


def test_a_failure_that_a_worker_made_too_long_is_cut() -> None:
    texts = [letter * (MAX_TEXT + 1) for letter in "xyz"]
    payload = json.dumps([*texts, 1]).encode()
    failure = Failure.unpack(payload)
    assert failure == Failure("x" * MAX_TEXT, "y" * MAX_TEXT, "z" * MAX_TEXT)


@pytest.mark.parametrize(
    "payload",
    {
        "nothing": b"",
        "null": b"null",
        "a number": b"17",
        "no field": b"[]",
        "two fields": b'["two", "fields"]',
        "five fields": b'["more", "than", "four", "fields", "here"]',
        "no text": b"\xff\xfe",
        "a pickle": pickle.dumps(("stage", "summary", "text")),
        "a very large number": b"[1, 2, " + b"9" * 5_000 + b"]",
        "lists in lists": b"[" * 100_000,
        "objects in objects": b'{"a":' * 100_000,
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_no_failure_is_a_protocol_error(payload: tuple[str, bytes]) -> None:
    with pytest.raises(ProtocolError, match="cannot be read"):
        Failure.unpack(payload[1])


@given(st.binary())
def test_hostile_bytes_are_a_protocol_error_or_a_failure_of_strings(
    payload: bytes,
) -> None:
    try:
        failure = Failure.unpack(payload)
    except ProtocolError:
        return
    for field in (failure.stage, failure.summary, failure.text):
        assert type(field) is str
        assert len(field) <= MAX_TEXT


def test_a_failure_on_the_wire() -> None:
    assert MAX_TEXT == 16_384
    assert Failure("thread", "é", "t").pack() == (b'["thread", "\\u00e9", "t", false]')


@given(pid=numbers, status=numbers, cpu=st.integers(0, 2**64 - 1), held=st.booleans())
def test_pids_and_exits_come_back_as_they_were(
    pid: int, status: int, cpu: int, *, held: bool
) -> None:
    assert unpack_pid(pack_pid(pid, held=held)) == (pid, held)
    assert unpack_exit(pack_exit(pid, status, cpu)) == (pid, status, cpu)


def test_pids_and_exits_on_the_wire() -> None:
    assert pack_pid(4242, held=True).hex() == "000000000000109201"
    assert pack_pid(4242, held=False).hex() == "000000000000109200"
    assert (
        pack_exit(4242, -9, 5).hex()
        == "0000000000001092fffffffffffffff70000000000000005"
    )


@given(st.binary())
def test_reports_of_another_length_are_a_protocol_error(payload: bytes) -> None:
    for unpack, size in ((unpack_pid, 9), (unpack_exit, 24)):
        if len(payload) == size:
            unpack(payload)
        else:
            with pytest.raises(ProtocolError, match="cannot be read"):
                unpack(payload)


@given(st.lists(st.integers(0, 2**64 - 1), max_size=130))
def test_places_come_back_as_they_were(places: list[int]) -> None:
    payload = pack_numbers(places)
    assert unpack_numbers(payload) == tuple(places)
    assert len(payload) == 8 * len(places)


def test_places_on_the_wire() -> None:
    assert pack_numbers((3, 0x0102)).hex(" ", 8) == "0000000000000003 0000000000000102"
    assert pack_numbers([]) == b""
    assert unpack_numbers(b"") == ()


@given(st.binary(max_size=40))
def test_a_list_of_places_has_a_length_that_eight_divides(payload: bytes) -> None:
    if len(payload) % 8 == 0:
        assert pack_numbers(unpack_numbers(payload)) == payload
        return
    with pytest.raises(ProtocolError) as caught:
        unpack_numbers(payload)
    assert str(caught.value) == "a list of numbers cannot be read"


@pytest.mark.parametrize("initializer", [None, b"", b"pickled"])
def test_a_worker_learns_how_to_begin(initializer: bytes | None) -> None:
    config = WorkerConfig(("", "/a", "/ü"), initializer, 1 << 40)
    assert WorkerConfig.unpack(config.pack()) == config


def test_the_largest_initializer_and_broadcasts_fit_into_a_configuration() -> None:
    assert (MAX_INITIALIZER, MAX_BROADCASTS) == (67_108_864, 67_108_864)
    assert MAX_CONFIG == 135_266_304
    sys_path = ("/a/path/of/some/length" * 10,) * 1_000
    calls = tuple(("shop.configure", bytes(MAX_BROADCASTS >> 8)) for _ in range(256))
    config = WorkerConfig(sys_path, bytes(MAX_INITIALIZER), 1 << 40, broadcasts=calls)
    assert MAX_INITIALIZER + MAX_BROADCASTS < len(config.pack()) <= MAX_CONFIG


@pytest.mark.parametrize("fork", [True, False])
def test_a_launcher_learns_how_to_begin(fork: bool) -> None:  # noqa: FBT001
    config = LauncherConfig(("", "/ü\udcff"), fork, ("json", "re"), ("python", "-c"))
    assert LauncherConfig.unpack(config.pack()) == config
