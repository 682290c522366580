"""The clients of an agent: turns, bounds and leases."""

from __future__ import annotations

import pytest

from asyncpool._core.base.job_traits import LEAST, JobTraits
from asyncpool._core.remote.agent_jobs import AHEAD, AgentJobs
from asyncpool.errors import ProtocolError

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


def test_a_job_begins_at_once_only_if_none_waits_and_its_client_has_a_lease() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    one, two = agent.open(0.0), agent.open(0.0)
    assert one is not None
    assert two is not None
    agent.look(0, 4)
    assert agent.accept_at_once(one, 1, UNKNOWN, 3.9)
    assert not agent.accept_at_once(one, 2, UNKNOWN, 4.0)
    with pytest.raises(ProtocolError, match="job 1 twice"):
        agent.accept_at_once(one, 1, UNKNOWN, 1.0)
    agent.accept(two, 1, -1, UNKNOWN)
    agent.accept(two, 2, 0, UNKNOWN)
    assert not agent.accept_at_once(one, 2, UNKNOWN, 1.0)
    agent.accept(one, 2, 0, UNKNOWN)
    assert released(agent, 2, 1.0) == [(two, 1), (one, 2)]
    assert agent.close(two) == {1}  # and what waits is gone with it
    assert agent.waiting == 0
    agent.look(4, 4)
    assert not agent.accept_at_once(one, 3, UNKNOWN, 1.0), "the pool has enough"
    agent.look(3, 4)
    assert agent.accept_at_once(one, 3, UNKNOWN, 1.0)
    with pytest.raises(ProtocolError, match="more than 3 jobs"):
        agent.accept_at_once(one, 4, UNKNOWN, 1.0)
    assert agent.close(one) == {1, 2, 3}


def test_an_agent_begins_nothing_for_a_client_whose_lease_is_over() -> None:
    agent = AgentJobs(credits=3, most_clients=2, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    agent.accept(session, 1, 0, UNKNOWN)
    agent.accept(session, 2, 0, UNKNOWN)
    assert released(agent, 1, 3.9) == [(session, 1)]
    assert released(agent, 1, 4.0) == []
    agent.heard(session, 0.5)
    assert released(agent, 1, 4.0) == [(session, 2)]
    assert agent.lapsed(4.5) == [session]
    assert agent.close(session) == {1, 2}
    assert not agent.ended(session, 1)
    assert agent.open(5.0) != session


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


def test_a_job_begins_when_its_client_has_acknowledged_that_and_has_a_lease() -> None:
    agent = AgentJobs(credits=4, most_clients=2, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    for job in (1, 2, 3, 4):
        agent.accept(session, job, 0, UNKNOWN)
    assert released(agent, 4, 0.0) == [(session, job) for job in (1, 2, 3, 4)]
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
    agent.accept(session, 5, 0, UNKNOWN)
    assert released(agent, 1, 4.0) == [(session, 5)]
    agent.told(session, [5], 9)
    assert agent.close(session) == {1, 4}, "5 never begins"
    assert agent.pending == 0


def short(cost: float) -> JobTraits:
    """Return the traits of a function that takes *cost* microseconds."""
    traits = JobTraits()
    traits.note(cost)
    return traits


def test_of_a_function_that_is_not_known_as_many_wait_in_the_pool_as_it_runs() -> None:
    agent = AgentJobs(credits=100, most_clients=1, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    for job in range(20):
        agent.accept(session, job, 0, UNKNOWN)
    agent.look(0, 3)
    assert len(agent.release(0.0)) == 3
    agent.look(0, 3)  # they run
    assert len(agent.release(0.0)) == 3
    agent.look(3, 3)
    assert agent.release(0.0) == []
    assert agent.ended(session, 0)
    agent.look(2, 3)
    assert agent.release(0.0) == [(session, 6)]
    agent.look(2, 3)
    agent.told(session, [6], 1)
    agent.look(2, 3)
    assert agent.release(0.0) == [], "those that begin soon need room, too"


def test_of_short_jobs_the_pool_gets_as_many_as_take_some_milliseconds() -> None:
    agent = AgentJobs(credits=2000, most_clients=1, lease=4.0)
    session = agent.open(0.0)
    assert session is not None
    millisecond = short(1000.0)
    for job in range(100):
        agent.accept(session, job, 0, millisecond)
    agent.look(100, 2)
    assert len(agent.release(0.0)) == AHEAD * 2 / 1000 == 64
    assert agent.backlog == AHEAD * 2
    for job in range(10):
        agent.ended(session, job)
    agent.look(90, 2)
    assert len(agent.release(0.0)) == 10
    agent.close(session)
    assert agent.backlog == 0.0
    session = agent.open(0.0)
    assert session is not None
    for job in range(1000):
        agent.accept(session, job, 0, short(1.0))
    agent.look(1000, 1)
    assert len(agent.release(0.0)) == AHEAD / LEAST == 256, "however short they are"


def test_what_is_known_of_one_function_says_nothing_of_another_one() -> None:
    agent = AgentJobs(credits=100, most_clients=2, lease=4.0)
    one, two = agent.open(0.0), agent.open(0.0)
    assert one is not None
    assert two is not None
    agent.look(2, 2)
    assert agent.accept_at_once(one, 0, short(10.0), 0.0)
    assert not agent.accept_at_once(one, 1, UNKNOWN, 0.0)
    agent.accept(one, 1, 0, UNKNOWN)
    agent.accept(one, 2, 0, short(10.0))
    agent.accept(two, 3, 0, short(10.0))
    # Nobody passes it, or it might wait for ever.
    agent.look(2, 2)
    assert agent.release(0.0) == []
    assert not agent.accept_at_once(two, 4, short(10.0), 0.0)
    agent.look(1, 2)
    assert agent.release(0.0) == [(one, 1)]


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
