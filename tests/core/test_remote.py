"""Clients and agents: what they tell each other, what is refused, and whose turn it is."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from asyncpool._core.functions import JobTraits
from asyncpool._remote.messages import (
    LENT,
    MAX_BATCH,
    PLAIN,
    Kind,
    Message,
    pack_batches,
    pack_lent,
    pack_parts,
    split_parts,
    unpack_batch,
    unpack_headers,
    unpack_lent,
    unpack_question,
)
from asyncpool._remote.options import read_call, read_options
from asyncpool._remote.turns import Turns
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.messages import MAX_TRACE
from asyncpool.errors import ProtocolError

TOO_MANY = {"a": "b" * MAX_TRACE}
MESSAGE = Message(Kind.CANCEL, 5).pack()
PICKLED = pickle.dumps(TOO_MANY, 5)
OTHER_THINGS = "^a trace context has other things than headers$"


@pytest.mark.parametrize(
    ("unpack", "data", "why"),
    [
        *(
            (Message.unpack, data, "cannot be read")
            for data in (b"", b"\x03", Message(Kind.JOB).pack()[:-1], bytes(99))
        ),
        (split_parts, b"", "a call or a value cannot be read"),
        (split_parts, b"\0\0\0\1", "a call or a value cannot be read"),
        (
            split_parts,
            pack_parts(OutOfBandPickle([b"a"], []))[:-1],
            "do not fit together",
        ),
        (unpack_question, b"", "a question"),
        (unpack_question, bytes(3), "a question"),
        (unpack_question, b"\0\0\0\2{", "a question"),
        (unpack_question, b"\0\0\0\2[]", "a question"),
        (unpack_question, b"\0\0\0\2{}", "a question"),
        (unpack_question, b"\0\1\0\0" + b"[" * (1 << 16), "a question"),
        (unpack_lent, LENT, "what is lent cannot be read"),
        (
            unpack_lent,
            pack_lent(7, [1 << 20] * 3, b"")[:-1],
            "is lent cannot",
        ),
        # More than a call may have.
        (unpack_lent, pack_lent(7, [1 << 30, 1 << 30], b""), "too many"),
        # Small ones belong in the stream.
        (unpack_lent, pack_lent(7, [1] * 17, b""), "too many"),
        (unpack_lent, LENT + (7).to_bytes(4) + (1 << 31).to_bytes(4), "parts$"),
        (unpack_batch, b"", "a batch is cut off"),
        (unpack_batch, b"short", "a batch is cut off"),
        (unpack_batch, b"".join(pack_batches([MESSAGE])) + b"a", "a batch has"),
        (unpack_headers, b"{", "a trace context cannot be read: Expecting"),
        (unpack_headers, b"\xff", "a trace context cannot be read: 'utf-8'"),
        (unpack_headers, b"[" * 60_000, "a trace context cannot be read: "),
        (unpack_headers, pickle.dumps({}), "a trace context cannot be read"),
        (unpack_headers, b"[]", OTHER_THINGS),
        (unpack_headers, b'{"a": 1}', OTHER_THINGS),
        (unpack_headers, b'{"a": {"b": "c"}}', OTHER_THINGS),
        (
            unpack_headers,
            json.dumps(TOO_MANY).encode(),
            rf"^a trace context has {len(PICKLED)} bytes$",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(
    unpack: Callable[[bytes], object], data: bytes, why: str
) -> None:
    with pytest.raises(ProtocolError, match=why):
        unpack(data)


def test_it_is_read_as_it_was_written_and_looks_like_nothing_else() -> None:
    parts = 7, [1 << 20, 1 << 16], b"stream"
    assert unpack_lent(pack_lent(*parts)) == parts
    assert pack_lent(*parts).startswith(LENT)
    assert pack_parts(b"stream").startswith(PLAIN)


class Keeper:
    """The keeper of an agent, or of a client."""

    def keep(self, lease: Any, holder: Any, /) -> None:
        raise NotImplementedError


KEEPER = Keeper()
LARGE = 10**400  # JSON has such ints, and no float is as large
FOR_BOTH: list[tuple[Any, str]] = [
    (None, "without limits"),
    ([], "without limits"),
    ({}, "without limits"),
    ({"limits": [1]}, "without limits"),
    ({"limits": {"timeout": LARGE}}, "no time"),
    ({"limits": {"heartbeat_timeout": LARGE}}, "no time"),
    ({"limits": {"cancel_grace": LARGE}}, "no time"),
    ({"limits": {"timeout": -1}}, "timeout must be > 0"),
    ({"limits": {"timeout": True}}, "timeout must be a number"),
    ({"limits": {"timeout": [1]}}, "timeout must be a number"),
    ({"limits": {"cancel_grace": float("nan")}}, "cancel_grace must be >= 0"),
    ({"limits": {"on_cancel": "stop"}}, "on_cancel must be one of"),
    ({"limits": {"timed": False}}, "timed"),
    ({"limits": {}, "attempts": {}}, "options with 'attempts'"),
    ({"limits": {"retire_on": "builtins.OSError"}}, "retire_on takes several"),
    ({"limits": {"retire_on": [1]}}, "retire_on takes types of exceptions"),
    ({"limits": {"retire_on": ["x." * 10_000]}}, "16384 is the most"),
]


@pytest.mark.parametrize(
    ("told", "why"),
    [
        *FOR_BOTH,
        ({"limits": {"deadline": 1.0}}, "the time of one job"),
        ({"limits": {"queue_timeout": 1.0}}, "the time of one job"),
        ({"limits": {}, "key": "k"}, "key of type str"),
        ({"limits": {}, "key": 1 << 64}, "key that is too large"),
        ({"limits": {}, "session": [1]}, "session of type list"),
        ({"limits": {}, "prefetch": 0}, "prefetch must be >= 1"),
        ({"limits": {}, "prefetch": "1"}, "prefetch must be an int"),
    ],
)
def test_false_options_of_jobs_are_refused(told: Any, why: str) -> None:
    with pytest.raises((ProtocolError, ValueError, TypeError), match=why):
        read_options(told, KEEPER)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        *FOR_BOTH,
        ({"limits": {"queue_timeout": LARGE}}, "no time"),
        ({"limits": {"deadline": LARGE}}, "no time"),
        ({"limits": {"deadline": float("nan")}}, "deadline must be a point"),
        ({"limits": {"deadline": "1"}}, "deadline must be a number"),
        ({"limits": {"queue_timeout": 0}}, "queue_timeout must be > 0"),
        ({"limits": {}, "via": "stream"}, "options with 'via'"),
        ({"limits": {}, "key": 1}, "options with 'key'"),
        ({"limits": {}, "prefetch": 1}, "options with 'prefetch'"),
        ({"limits": {}, "session": 1}, "options with 'session'"),
        ({"limits": {}, "leased": True}, "options with 'leased'"),
    ],
)
def test_false_options_of_calls_are_refused(told: Any, why: str) -> None:
    with pytest.raises((ProtocolError, ValueError, TypeError), match=why):
        read_call(told, 10.0)


def test_only_a_single_message_may_be_large() -> None:
    large = Message(Kind.CANCEL, 5, payload=bytes(4 * MAX_BATCH))
    packed = [MESSAGE, large.pack(), MESSAGE, MESSAGE]
    batches = [*pack_batches(packed, 7)]
    assert [len(unpack_batch(each)[1]) for each in batches] == [1, 1, 2]
    assert unpack_batch(batches[1]) == (7, [large])
    head = batches[0][:8]
    for several in ([large.pack(), MESSAGE], [MESSAGE] * MAX_BATCH):
        told = b"".join(len(each).to_bytes(4) + each for each in several)
        with pytest.raises(ProtocolError, match="a batch of"):
            unpack_batch(head + len(several).to_bytes(4) + told)


UNKNOWN = JobTraits()


def test_clients_have_their_turns() -> None:
    turns, one, two = Turns(), 1, 2
    turns.open(one)
    turns.open(two)
    turns.look(0, 0)
    for client, job in ((one, 1), (one, 2), (one, 3), (two, 1)):
        assert not turns.begins(client, job, UNKNOWN)
        turns.add(client, job, 0, UNKNOWN)
    turns.look(0, 3)
    assert turns.release(two.__eq__) == [(two, 1)], "the other one is not heard"
    assert turns.release(bool) == [(one, 1), (one, 2)]
    assert turns.cancel(one, 3)
    assert not turns.cancel(one, 2)
    assert turns.waiting == 0
    turns.look(0, 1)
    assert turns.begins(two, 2, UNKNOWN)
    for client in (one, two):
        turns.close(client)
    assert turns.backlog == 0.0
