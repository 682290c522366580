"""The clients of an agent: turns, bounds and leases."""

from __future__ import annotations

import pytest

from asyncpool._core.remote.agent_jobs import AgentJobs, Lookahead
from asyncpool.errors import ProtocolError


def test_clients_have_their_turns_and_their_bounds() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    one, two = agent.open(0.0), agent.open(0.0)
    assert one is not None
    assert two is not None
    assert agent.open(0.0) is None
    for job in (1, 2, 3):
        agent.accept(one, job, 0)
    agent.accept(two, 1, 0)
    with pytest.raises(ProtocolError, match="more than 3 jobs"):
        agent.accept(one, 4, 0)
    with pytest.raises(ProtocolError, match="job 1 twice"):
        agent.accept(two, 1, 0)
    assert agent.release(3, 1.0) == [(one, 1), (two, 1), (one, 2)]
    assert agent.cancel(one, 3)
    assert not agent.cancel(one, 2)
    assert agent.waiting == 0


def test_a_job_begins_at_once_only_if_none_waits_and_its_client_has_a_lease() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    one, two = agent.open(0.0), agent.open(0.0)
    assert one is not None
    assert two is not None
    assert agent.accept_at_once(one, 1, 3.9)
    assert not agent.accept_at_once(one, 2, 4.0)
    with pytest.raises(ProtocolError, match="job 1 twice"):
        agent.accept_at_once(one, 1, 1.0)
    agent.accept(two, 1, -1)
    agent.accept(two, 2, 0)
    assert not agent.accept_at_once(one, 2, 1.0)
    agent.accept(one, 2, 0)
    assert agent.release(2, 1.0) == [(two, 1), (one, 2)]
    assert agent.close(two) == {1}  # and what waits is gone with it
    assert agent.waiting == 0
    assert agent.accept_at_once(one, 3, 1.0)
    with pytest.raises(ProtocolError, match="more than 3 jobs"):
        agent.accept_at_once(one, 4, 1.0)
    assert agent.close(one) == {1, 2, 3}


def test_an_agent_begins_nothing_for_a_client_whose_lease_is_over() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    agent.accept(session, 1, 0)
    agent.accept(session, 2, 0)
    assert agent.release(1, 3.9) == [(session, 1)]
    assert agent.release(1, 4.0) == []
    agent.heard(session, 0.5)
    assert agent.release(1, 4.0) == [(session, 2)]
    assert agent.lapsed(4.5) == [session]
    assert agent.close(session) == {1, 2}
    assert not agent.ended(session, 1)
    assert agent.open(5.0) != session


def test_an_agent_that_was_held_up_gives_its_clients_time_to_answer() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    agent.accept(session, 1, 0)
    agent.held_up(60.0)
    assert agent.lapsed(60.0) == agent.lapsed(63.9) == []
    assert agent.release(1, 63.9) == [], "but it begins nothing meanwhile"
    assert agent.lapsed(64.0) == [session]
    agent.heard(session, 60.5)
    assert agent.lapsed(64.0) == []
    assert agent.release(1, 64.0) == [(session, 1)]


def test_a_job_begins_when_its_client_has_acknowledged_that_and_has_a_lease() -> None:
    agent = AgentJobs(credits=4, most_clients=2, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    for job in (1, 2, 3, 4):
        agent.accept(session, job, 0)
    assert agent.release(4, 0.0) == [(session, job) for job in (1, 2, 3, 4)]
    agent.told(session, [1, 2], 7)
    agent.told(session, [3, 4], 8)
    assert agent.pending == 4
    assert agent.may_begin(session, 6, 1.0) == []
    assert agent.cancel(session, 2), "it never begins"
    assert agent.may_begin(session, 7, 4.0) == [], "the lease is over"
    agent.heard(session, 0.5)
    assert agent.may_begin(session, 7, 4.0) == [1]
    assert not agent.cancel(session, 1), "the pool has it"
    assert agent.pending == 2
    assert agent.may_begin(session, 8, 4.0) == [3, 4]
    assert agent.ended(session, 3)
    agent.accept(session, 5, 0)
    assert agent.release(1, 4.0) == [(session, 5)]
    agent.told(session, [5], 9)
    assert agent.close(session) == {1, 4}, "5 never begins"
    assert agent.pending == 0


def test_a_pool_gets_more_at_a_time_only_where_its_workers_take_all() -> None:
    ahead = Lookahead()
    rooms: list[int] = []
    assert ahead.has_room(1, 2)
    assert not ahead.has_room(2, 2)
    for _ in range(9):
        rooms.append(ahead.room(0, 2))
        ahead.released(rooms[-1], rooms[-1])
    assert rooms == [2, 4, 8, 16, 32, 64, 128, 256, 256]
    assert ahead.has_room(255, 2)
    ahead.released(256, 1)
    assert ahead.room(0, 2) == 256
    assert ahead.room(1, 2, 200) == 55, "those that begin soon need room, too"
    assert [ahead.room(5, 2) for _ in range(8)] == [123, 59, 27, 11, 3, 0, 0, 0]


def test_jobs_that_wait_in_the_pool_are_few() -> None:
    ahead = Lookahead()
    ahead.released(ahead.room(0, 2), 2)  # both run
    ahead.released(ahead.room(0, 2), 4)  # all of them wait
    assert ahead.room(4, 2) == 0


def test_calls_of_sessions_wait_for_nothing_and_have_a_bound_of_their_own() -> None:
    jobs = AgentJobs(credits=1, most_clients=1, lease=1.0)
    session = jobs.open(0.0)
    assert session is not None
    jobs.accept(session, 1, 0)
    for number in (2, 3):
        jobs.accept_call(session, number)
    with pytest.raises(ProtocolError, match="more than 2 calls"):
        jobs.accept_call(session, 4)
    with pytest.raises(ProtocolError, match="job 2 twice"):
        jobs.accept_call(session, 2)
    assert jobs.release(5, 0.0) == [(session, 1)]
    assert jobs.ended(session, 2)
    jobs.accept_call(session, 5)
