"""Clients and agents: what they tell each other, what is refused, and whose turn it is."""

from __future__ import annotations

import itertools
import json
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from asyncpool._core.dispatcher import choose
from asyncpool._core.functions import JobTraits, KeyedTraits
from asyncpool._remote.messages import (
    LENT,
    MAX_BATCH,
    PLAIN,
    Kind,
    Message,
    pack_batches,
    pack_lent,
    pack_parts,
    read_call,
    read_options,
    split_parts,
    unpack_batch,
    unpack_headers,
    unpack_lent,
    unpack_question,
)
from asyncpool._remote.router import Router, Window
from asyncpool._remote.turns import AHEAD, Turns
from asyncpool._wire.buffers import OutOfBandPickle
from asyncpool._wire.messages import MAX_TRACE
from asyncpool.errors import ProtocolError
from tests.core.models import run_until_seen

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


INDEX = st.integers(min_value=0, max_value=1000)
PRIORITY = st.sampled_from([0, 0, 0, -1, 1])


class RouterModel(RuleBasedStateMachine):
    """The jobs of a client whose agents come and go: none is lost, and none waits beside room."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.router, self.now = Router(), 0.0
        self.functions = [JobTraits() for _ in range(3)]
        self.numbers, self.names = itertools.count(1), itertools.count(1)
        self.windows: dict[int, Window] = {}
        self.resting: set[int] = set()
        self.waiting: dict[int, JobTraits] = {}

    def refill(self, agents: Iterable[int]) -> None:
        """Do what a client does when it hears of agents, or looks at them."""
        for agent in agents:
            window = self.windows[agent]
            window.look(self.now, is_limited=len(self.windows) > 1)
            self.sent((agent, job) for job in self.router.refill(agent))

    def sent(self, pairs: Iterable[tuple[int, int]]) -> None:
        for agent, job in pairs:
            traits = self.waiting.pop(job)
            assert self.windows[agent].traits_of(job) is traits
            assert agent not in self.resting
            if traits.key is not None:
                assert agent == choose(traits.key, self.windows)

    def any_job(self, index: int) -> tuple[int, int]:
        pairs = [(agent, job) for agent, it in self.windows.items() for job in it.jobs]
        return pairs[index % len(pairs)]

    def any_agent(self, index: int) -> int:
        return [*self.windows][index % len(self.windows)]

    @rule(most=st.integers(1, 9), lanes=st.integers(0, 3), is_ready=st.booleans())
    def join(self, most: int, lanes: int, *, is_ready: bool) -> None:
        agent, window = next(self.names), Window(most, lanes)
        self.windows[agent] = window
        window.look(self.now, is_limited=len(self.windows) > 1)
        if not is_ready:
            self.resting.add(agent)
        self.sent(self.router.join(agent, window, is_ready=is_ready))
        self.refill(self.windows)

    @rule(function=INDEX, priority=PRIORITY, key=st.none() | st.integers(0, 4))
    def submit(self, function: int, priority: int, key: int | None) -> None:
        job, traits = next(self.numbers), self.functions[function % 3]
        if key is not None:
            traits = KeyedTraits(traits, key)
        self.waiting[job] = traits
        agent = self.router.submit(job, traits, priority)
        if agent is not None:
            self.sent([(agent, job)])
        self.seen["waits"] += agent is None and bool(self.windows)

    @precondition(lambda self: any(it.jobs for it in self.windows.values()))
    @rule(index=INDEX, ended=st.booleans())
    def end(self, index: int, *, ended: bool) -> None:
        agent, job = self.any_job(index)
        window = self.windows[agent]
        window.note_end(job) if ended else window.remove(job)
        self.refill([agent])
        self.seen["more than its lanes"] += len(window.jobs) > window.concurrency

    @precondition(lambda self: self.waiting)
    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        job = [*self.waiting][index % len(self.waiting)]
        del self.waiting[job]
        self.router.remove(job)

    @precondition(lambda self: self.windows)
    @rule(index=INDEX)
    def lose(self, index: int) -> None:
        agent = self.any_agent(index)
        jobs = {job: it[2] for job, it in self.windows.pop(agent).jobs.items()}
        self.resting.discard(agent)
        self.sent(self.router.lose(agent))
        self.waiting |= jobs
        self.sent(self.router.requeue(jobs))
        self.seen["lost with jobs"] += bool(jobs)
        self.refill(self.windows)

    @precondition(lambda self: self.windows)
    @rule(index=INDEX, rests=st.booleans())
    def rest(self, index: int, *, rests: bool) -> None:
        agent = self.any_agent(index)
        if rests:
            self.resting.add(agent)
            self.router.rest(agent)
        else:
            self.resting.discard(agent)
            self.router.resume(agent)
            self.refill([agent])

    @rule(seconds=st.sampled_from([0.001, 0.1, 1.0]))
    def later(self, seconds: float) -> None:
        self.now += seconds
        self.refill(self.windows)

    @invariant()
    def no_job_waits_beside_room(self) -> None:
        assert self.router.unassigned == len(self.waiting)
        keys = {traits.key for traits in self.waiting.values()}
        for agent, window in self.windows.items():
            assert len(window.jobs) <= window.credits
            if agent in self.resting or len(window.jobs) >= window.concurrency:
                continue
            assert None not in keys
            assert agent not in {choose(key, self.windows) for key in keys if key}


class TurnsModel(RuleBasedStateMachine):
    """The clients of an agent: each has its turn, and the pool has no more than it soon begins."""

    seen: ClassVar[Counter[str]] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.turns, self.lanes = Turns(), 2
        self.costs = [JobTraits() for _ in range(3)]
        for traits, cost in zip(self.costs, (1.0, AHEAD / 4), strict=False):
            traits.cost = cost
        self.numbers = itertools.count(1)
        self.waiting: dict[int, dict[int, float]] = {}
        self.released: dict[int, dict[int, float]] = {}

    @rule()
    def open(self) -> None:
        client = next(self.numbers)
        self.turns.open(client)
        self.waiting[client], self.released[client] = {}, {}

    @precondition(lambda self: self.waiting)
    @rule(
        index=INDEX, kind=st.integers(0, 2), priority=PRIORITY, times=st.integers(1, 4)
    )
    def come(self, index: int, kind: int, priority: int, times: int) -> None:
        client = [*self.waiting][index % len(self.waiting)]
        for _ in range(times):
            job, traits = next(self.numbers), self.costs[kind]
            self.look()
            if self.turns.begins(client, job, traits):
                assert not any(self.waiting.values())
                self.released[client][job] = traits.cost
            else:
                self.turns.add(client, job, priority, traits)
                self.waiting[client][job] = traits.cost

    def look(self) -> None:
        in_pool = sum(map(len, self.released.values()))
        self.turns.look(max(0, in_pool - self.lanes), self.lanes)

    @rule(silent=st.integers(0, 5))
    def release(self, silent: int) -> None:
        self.look()
        heard = [it for place, it in enumerate(self.waiting) if place != silent]
        had = Counter[int]()
        for client, job in self.turns.release(heard.__contains__):
            self.released[client][job] = self.waiting[client].pop(job)
            had[client] += 1
        left = [client for client in heard if self.waiting[client]]
        most = max(had.values(), default=0)
        assert all(had[client] >= most - 1 for client in left)
        assert not left or any(self.released.values()), "the pool has nothing to do"
        self.seen["several had a turn"] += len(had) > 1
        self.seen["some wait on"] += bool(left) and bool(had)

    @precondition(lambda self: any(self.released.values()))
    @rule(index=INDEX)
    def end(self, index: int) -> None:
        pairs = [(it, job) for it, jobs in self.released.items() for job in jobs]
        client, job = pairs[index % len(pairs)]
        del self.released[client][job]
        self.turns.ended(client, job)

    @precondition(lambda self: any(self.waiting.values()))
    @rule(index=INDEX)
    def cancel(self, index: int) -> None:
        pairs = [(it, job) for it, jobs in self.waiting.items() for job in jobs]
        client, job = pairs[index % len(pairs)]
        del self.waiting[client][job]
        assert self.turns.cancel(client, job)
        assert not self.turns.cancel(client, job)

    @precondition(lambda self: self.waiting)
    @rule(index=INDEX)
    def close(self, index: int) -> None:
        client = [*self.waiting][index % len(self.waiting)]
        self.seen["left with jobs"] += bool(self.waiting[client])
        del self.waiting[client], self.released[client]
        self.turns.close(client)

    @invariant()
    def counts_are_right(self) -> None:
        assert self.turns.waiting == sum(map(len, self.waiting.values()))
        costs = [cost for jobs in self.released.values() for cost in jobs.values()]
        known = [cost for cost in costs if cost < 1e9]
        if len(known) == len(costs):
            assert abs(self.turns.backlog - sum(costs)) < 1.0


def test_no_job_is_lost_and_none_waits_beside_room() -> None:
    run_until_seen(RouterModel, {"waits", "lost with jobs", "more than its lanes"})


def test_each_client_has_its_turn() -> None:
    wanted = {"several had a turn", "some wait on", "left with jobs"}
    run_until_seen(TurnsModel, wanted)
