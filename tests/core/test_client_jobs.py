"""Which agent gets a client's jobs; ``test_remote_model.py`` has both sides together."""

from __future__ import annotations

from asyncpool._core.base.job_traits import JobTraits
from asyncpool._core.remote.agent_window import AgentWindow
from asyncpool._core.remote.client_jobs import ClientJobs, LostJob
from asyncpool.enums import Delivery

TRAITS = JobTraits()


def test_only_jobs_that_began_lose_an_attempt_with_their_agent() -> None:
    client = ClientJobs()
    assert client.join(0, 2, AgentWindow(2)) == []
    assert [client.submit(job, TRAITS, key=None, priority=0) for job in (1, 2, 3)] == [
        0,
        0,
        None,
    ]
    assert client.began(0, [1, 3]) == [1]
    losses, pairs = client.lose(0)
    assert losses == [LostJob(1, Delivery.STARTED), LostJob(2, Delivery.SENT)]
    assert pairs == []
    assert client.join(1, 4, AgentWindow(4)) == [2, 3]  # what came back is first


def test_a_suspected_agent_gets_nothing_until_it_is_heard_again() -> None:
    client = ClientJobs()
    client.join(0, 2, AgentWindow(2))
    client.suspect(0)
    assert client.submit(1, TRAITS, key=None, priority=0) is None
    assert client.refill(0) == []
    assert client.trust(0) == [1]
    assert client.trust(0) == []


def test_an_agent_gets_nothing_before_it_is_ready() -> None:
    client = ClientJobs()
    assert client.submit(1, TRAITS, key=None, priority=0) is None
    assert client.submit(2, TRAITS, key=7, priority=0) is None
    assert client.join(0, 2, AgentWindow(2), is_ready=False) == []
    assert client.refill(0) == []
    client.suspect(0)
    assert client.trust(0) == []
    assert client.submit(3, TRAITS, key=None, priority=0) is None
    assert client.ready(0) == [1, 2]
    client.ended(0, 1)
    assert client.refill(0) == [3]


def test_one_that_is_ready_and_suspected_gets_nothing() -> None:
    client = ClientJobs()
    client.join(0, 2, AgentWindow(2), is_ready=False)
    client.suspect(0)
    client.submit(1, TRAITS, key=None, priority=0)
    assert client.ready(0) == []
    assert client.trust(0) == [1]


def test_an_agent_that_ends_gets_nothing_more_and_finishes_what_it_has() -> None:
    client = ClientJobs()
    client.join(0, 1, AgentWindow(1))
    assert client.submit(1, TRAITS, key=None, priority=0) == 0
    client.leave(0)
    assert client.submit(2, TRAITS, key=None, priority=0) is None
    assert client.ended(0, 1)
    assert client.refill(0) == []
    client.suspect(0)
    assert client.trust(0) == []  # though it is heard again
    assert client.agent_of(2) is None


def test_jobs_with_a_key_stay_together_and_priorities_count() -> None:
    client = ClientJobs()
    client.join(0, 4, AgentWindow(4))
    client.join(1, 4, AgentWindow(4))
    agents = {client.submit(job, TRAITS, key=5, priority=0) for job in (1, 2, 3)}
    assert len(agents) == 1
    only = ClientJobs()
    only.submit(1, TRAITS, key=None, priority=0)
    only.submit(2, TRAITS, key=None, priority=-1)
    assert only.join(0, 1, AgentWindow(1)) == [2]


def submit(client: ClientJobs, traits: JobTraits, *jobs: int) -> list[int | None]:
    return [client.submit(job, traits, key=None, priority=0) for job in jobs]


def test_an_agent_gets_no_more_than_its_window_allows_if_that_counts() -> None:
    client, window = ClientJobs(), AgentWindow(1)
    assert client.join(0, 8, window, is_limited=True) == []
    assert submit(client, TRAITS, *range(1, 8)) == [0, 0, *[None] * 5]
    window.lanes = 2
    client.limit(0, is_limited=True)
    assert client.refill(0) == [3, 4]
    window.lanes = 1
    client.limit(0, is_limited=True)
    for job in (1, 2):
        client.ended(0, job)
        assert client.refill(0) == []
    client.ended(0, 3)
    assert client.refill(0) == [5]
    client.limit(0, is_limited=False)
    assert client.refill(0) == [6, 7]
    assert submit(client, TRAITS, *range(8, 15)) == [*[0] * 4, *[None] * 3]


def test_an_agent_gets_as_many_more_of_a_function_as_it_has_ended_of_it() -> None:
    client, window = ClientJobs(), AgentWindow(1)
    client.join(0, 100, window, is_limited=True)
    short, long = JobTraits(), JobTraits()
    jobs = range(1, 30)
    assert submit(client, short, *jobs) == [0, 0, *[None] * 27]
    for job in jobs:
        client.ended(0, job)
        client.refill(0)
    window.look(1.0)
    client.limit(0, is_limited=True)
    assert submit(client, short, *range(101, 140)) == [*[0] * (2 + 29), *[None] * 8]
    for job in range(101, 140):
        client.give_up(job)
        client.ended(0, job)
    assert submit(client, long, 201, 202, 203, 204) == [0, 0, None, None]
    assert submit(client, short, 205) == [None], "it passes nobody"
    client.ended(0, 201)
    window.look(1.0)
    assert client.refill(0) == [203, 204, 205]


def test_all_functions_together_get_no_more_than_all_have_ended() -> None:
    client, window = ClientJobs(), AgentWindow(1)
    client.join(0, 100, window, is_limited=True)
    one, other = JobTraits(), JobTraits()
    for job in range(1, 11):
        submit(client, one if job % 2 else other, job)
        client.ended(0, job)
    window.look(1.0)
    assert submit(client, one, *range(11, 20)) == [*[0] * 7, None, None]
    for job in (18, 19):
        client.give_up(job)
    assert submit(client, other, *range(21, 30)) == [*[0] * 5, *[None] * 4]


def test_an_agent_gets_no_more_than_it_takes_whatever_it_has_ended() -> None:
    client, window = ClientJobs(), AgentWindow(1)
    client.join(0, 5, window, is_limited=True)
    for job in range(1, 101):
        submit(client, TRAITS, job)
        client.ended(0, job)
    window.look(1.0)
    assert submit(client, TRAITS, *range(200, 207)) == [*[0] * 5, None, None]


def test_jobs_with_a_key_count_as_those_of_their_function() -> None:
    client, window = ClientJobs(), AgentWindow(1)
    client.join(0, 100, window, is_limited=True)
    for key in range(5):
        assert client.submit(key, TRAITS, key=key, priority=0) == 0
        client.ended(0, key)
    window.look(1.0)
    found = [client.submit(job, TRAITS, key=job, priority=0) for job in range(10, 20)]
    assert found == [*[0] * 7, *[None] * 3]


def test_a_job_that_is_given_up_comes_back_from_nowhere() -> None:
    client = ClientJobs()
    client.join(0, 1, AgentWindow(1))
    client.submit(1, TRAITS, key=None, priority=0)
    client.submit(2, TRAITS, key=None, priority=0)
    assert client.give_up(2) is None
    assert client.give_up(1) == 0
    assert client.lose(0) == ([], [])
    assert client.waiting == 0


def test_a_call_for_a_lent_worker_takes_no_credit_and_is_lost_with_its_agent() -> None:
    jobs = ClientJobs()
    jobs.join(1, 1, AgentWindow(1))
    assert jobs.submit(1, TRAITS, key=None, priority=0) == 1
    jobs.bind(1, 2)
    jobs.bind(1, 3)
    assert not jobs.is_alone(1)
    jobs.began(1, [2])
    assert jobs.ended(1, 1)
    assert jobs.refill(1) == []
    assert jobs.submit(4, TRAITS, key=None, priority=0) == 1
    jobs.prepare(5)
    assert jobs.waiting == 1
    losses, again = jobs.lose(1)
    fates = {loss.job: loss.delivery for loss in losses}
    assert fates == {2: Delivery.STARTED, 3: Delivery.SENT, 4: Delivery.SENT}
    assert not again
    assert jobs.join(2, 9, AgentWindow(9)) == [4]  # a lent worker is nowhere else
