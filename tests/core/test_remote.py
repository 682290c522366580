"""Clients and agents: what they tell each other, what is refused, and whose turn it is."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.functions import JobTraits
from asyncpool._remote.agent_jobs import AgentJobs
from asyncpool._remote.client_jobs import SignsOfLife, Silence, Trust
from asyncpool._remote.lent_parts import LENT, LentParts
from asyncpool._remote.messages import (
    PLAIN,
    Kind,
    Message,
    pack_parts,
    split_parts,
    unpack_headers,
    unpack_question,
)
from asyncpool._remote.options import read_call, read_options
from asyncpool._remote.reliable_link import (
    DRIFT,
    MAX_BATCH,
    TICK,
    Batch,
    ClockBounds,
    ReliableLink,
)
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.messages import MAX_TRACE
from asyncpool.errors import ProtocolError

TOO_MANY = {"a": "b" * MAX_TRACE}
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
        (LentParts.unpack, LENT, "what is lent cannot be read"),
        (
            LentParts.unpack,
            LentParts(7, [1 << 20] * 3, b"").pack()[:-1],
            "is lent cannot",
        ),
        # More than a call may have.
        (LentParts.unpack, LentParts(7, [1 << 30, 1 << 30], b"").pack(), "too many"),
        # Small ones belong in the stream.
        (LentParts.unpack, LentParts(7, [1] * 17, b"").pack(), "too many"),
        (LentParts.unpack, LENT + (7).to_bytes(4) + (1 << 31).to_bytes(4), "parts$"),
        (Batch.unpack, b"", "a batch is cut off"),
        (Batch.unpack, b"short", "a batch is cut off"),
        (Batch.unpack, Batch(1, 1, 0, 0, 0, 0, [b"ab"]).pack()[:-1], "a batch has"),
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
    parts = LentParts(7, [1 << 20, 1 << 16], b"stream")
    assert LentParts.unpack(parts.pack()) == parts
    assert parts.pack().startswith(LENT)
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
    large = bytes(4 * MAX_BATCH)
    assert Batch.unpack(Batch(1, 1, 0, 0, 0, 0, [large]).pack()).messages == [large]
    for several in ([large, b""], [b""] * MAX_BATCH):
        with pytest.raises(ProtocolError, match="a batch of"):
            Batch.unpack(Batch(1, 1, 0, 0, 0, 0, several).pack())


def test_no_message_is_missing_where_none_can_be_lost() -> None:
    one, other = ReliableLink(1), ReliableLink(1, gapless=True)
    one.put(b"a")
    assert other.receive(one.next_batch()) == [b"a"]
    one.put(b"b")
    one.next_batch()
    one.put(b"c")
    with pytest.raises(ProtocolError, match=r"^1 messages are missing before 3$"):
        other.receive(one.next_batch())


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    link = ReliableLink(1)
    link.put(b"a")
    with pytest.raises(ProtocolError, match="acknowledges 1 messages of 0"):
        link.receive(Batch(1, 1, 1, 0, 0, 0, []))


def test_an_agent_says_when_it_took_what_it_acknowledges() -> None:
    client, agent = ReliableLink(1), ReliableLink(1)
    client.put(b"a")
    first = client.next_batch()
    agent.receive(first, 30)
    agent.receive(first, 50)  # there is nothing new in it
    batch = agent.next_batch(70)
    assert (batch.acknowledged, batch.taken_at, batch.stamp) == (1, 30, 70)
    client.receive(batch)
    assert client.next_batch().taken_at == 0


seconds = st.floats(0.0, 30.0)
way = st.floats(0.0, 3.0)


@given(
    ahead=st.floats(-1e6, 1e6),
    drift=st.floats(-DRIFT, DRIFT),
    rounds=st.lists(st.tuples(seconds, way, way, way), min_size=1, max_size=20),
)
def test_the_clock_is_where_the_bounds_say(
    ahead: float, drift: float, rounds: list[tuple[float, float, float, float]]
) -> None:
    """Whatever the messages and batches take on their way, and however long they wait there."""
    bounds, now, first = ClockBounds(), 0.0, 0.0

    def theirs(at: float) -> float:
        return at + ahead + drift * (at - first)

    for number, (pause, there, waits, back) in enumerate(rounds, 1):
        now += pause
        bounds.sent(number, now)
        taken = now + there
        made = taken + waits
        now = made + back
        bounds.heard(theirs(made), theirs(taken), number, now)
        offset = bounds.offset(now)
        wrong = abs(offset.ahead - (theirs(now) - now))
        assert wrong <= offset.error + 1e-6
        assert offset.error <= (there + back) / 2 + TICK + DRIFT * 3 * 20


def test_an_agent_cannot_be_lost_while_it_may_still_begin_jobs() -> None:
    with pytest.raises(ValueError, match="node_timeout must be at least 4 s"):
        SignsOfLife(lease=4.0, patience=3.0, now=0.0)


def test_a_process_that_hears_nobody_takes_that_for_no_silence() -> None:
    signs = SignsOfLife(lease=4.0, patience=6.0, now=0.0)
    signs.held_up(90.0)
    assert [signs.trust(now) for now in (91.9, 92.0, 96.0)] == [*Trust]
    signs.heard(96.0)
    assert signs.trust(102.0) is Trust.LOST, "after a sign of life it counts as ever"


def test_a_process_that_was_silent_itself_is_told_so() -> None:
    signs = SignsOfLife(lease=4.0, patience=6.0, now=0.0)
    signs.heard(90.0)
    assert signs.silence(90.5, 1.9) == Silence(0.5, 0.0)
    assert signs.silence(90.5, 89.0) == Silence(0.5, 89.0)
    signs.held_up(
        89.0
    )  # it has said something since, and the agent had given it up before
    assert signs.silence(90.5, -0.5) == Silence(0.5, 89.0)
    signs.held_up(0.1)
    assert signs.silence(91.0, 0.1) == Silence(1.0, 0.0)


UNKNOWN = JobTraits()


def released(agent: AgentJobs, room: int, now: float) -> list[tuple[int, int]]:
    """Return what goes to a pool that has room for so many jobs."""
    agent.look(0, room + agent.pending)
    return agent.release(now)


def test_clients_have_their_turns_and_their_bounds() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    one, two = agent.open(0.0), agent.open(0.0)
    assert one is not None
    assert two is not None
    assert agent.open(0.0) is None
    for job in (1, 2, 3):
        agent.accept(one, job, 0, UNKNOWN)
    agent.accept(two, 1, 0, UNKNOWN)
    with pytest.raises(ProtocolError, match="more than 3 jobs"):
        agent.accept(one, 4, 0, UNKNOWN)
    with pytest.raises(ProtocolError, match="job 1 twice"):
        agent.accept(two, 1, 0, UNKNOWN)
    assert released(agent, 3, 1.0) == [(one, 1), (two, 1), (one, 2)]
    assert agent.cancel(one, 3)
    assert not agent.cancel(one, 2)
    assert agent.waiting == 0


def test_an_agent_that_was_held_up_gives_its_clients_time_to_answer() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    agent.accept(session, 1, 0, UNKNOWN)
    agent.held_up(60.0)
    assert agent.lapsed(60.0) == agent.lapsed(63.9) == []
    assert released(agent, 1, 63.9) == [], "but it begins nothing meanwhile"
    assert agent.lapsed(64.0) == [session]
    agent.heard(session, 60.5)
    assert agent.lapsed(64.0) == []
    assert released(agent, 1, 64.0) == [(session, 1)]


def test_calls_of_sessions_wait_for_nothing_and_have_a_bound_of_their_own() -> None:
    jobs = AgentJobs(credits=1, most_clients=1, lease=1.0)
    session = jobs.open(0.0)
    assert session is not None
    jobs.accept(session, 1, 0, UNKNOWN)
    for number in (2, 3):
        jobs.accept_call(session, number)
    with pytest.raises(ProtocolError, match="more than 2 calls"):
        jobs.accept_call(session, 4)
    with pytest.raises(ProtocolError, match="job 2 twice"):
        jobs.accept_call(session, 2)
    assert released(jobs, 5, 0.0) == [(session, 1)]
    assert jobs.ended(session, 2)
    jobs.accept_call(session, 5)
