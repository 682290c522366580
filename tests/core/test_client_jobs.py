"""Which agent gets a client's jobs; ``test_remote_model.py`` has both sides together."""

from __future__ import annotations

from asyncpool._core.remote.client_jobs import ClientJobs, LostJob
from asyncpool.enums import Delivery


def test_only_jobs_that_began_lose_an_attempt_with_their_agent() -> None:
    client = ClientJobs()
    assert client.join(0, 2) == []
    assert [client.submit(job, key=None, priority=0) for job in (1, 2, 3)] == [
        0,
        0,
        None,
    ]
    assert client.began(0, [1, 3]) == [1]
    losses, pairs = client.lose(0)
    assert losses == [LostJob(1, Delivery.STARTED), LostJob(2, Delivery.SENT)]
    assert pairs == []
    assert client.join(1, 4) == [2, 3]  # what came back is first


def test_a_suspected_agent_gets_nothing_until_it_is_heard_again() -> None:
    client = ClientJobs()
    client.join(0, 2)
    client.suspect(0)
    assert client.submit(1, key=None, priority=0) is None
    assert client.refill(0) == []
    assert client.trust(0) == [1]
    assert client.trust(0) == []


def test_an_agent_gets_nothing_before_it_is_ready() -> None:
    client = ClientJobs()
    assert client.submit(1, key=None, priority=0) is None
    assert client.submit(2, key=7, priority=0) is None
    assert client.join(0, 2, is_ready=False) == []
    assert client.refill(0) == []
    client.suspect(0)
    assert client.trust(0) == []
    assert client.submit(3, key=None, priority=0) is None
    assert client.ready(0) == [1, 2]
    client.ended(0, 1)
    assert client.refill(0) == [3]


def test_one_that_is_ready_and_suspected_gets_nothing() -> None:
    client = ClientJobs()
    client.join(0, 2, is_ready=False)
    client.suspect(0)
    client.submit(1, key=None, priority=0)
    assert client.ready(0) == []
    assert client.trust(0) == [1]


def test_jobs_with_a_key_stay_together_and_priorities_count() -> None:
    client = ClientJobs()
    client.join(0, 4)
    client.join(1, 4)
    agents = {client.submit(job, key=5, priority=0) for job in (1, 2, 3)}
    assert len(agents) == 1
    only = ClientJobs()
    only.submit(1, key=None, priority=0)
    only.submit(2, key=None, priority=-1)
    assert only.join(0, 1) == [2]


def test_an_agent_gets_no_more_than_it_is_allowed_whatever_it_takes() -> None:
    client = ClientJobs()
    assert client.join(0, 8, 2) == []
    places = [client.submit(job, key=None, priority=0) for job in range(1, 8)]
    assert places == [0, 0, *[None] * 5]
    client.allow(0, 4)
    assert client.refill(0) == [3, 4]
    client.allow(0, 1)
    assert client.refill(0) == []
    for job in (1, 2, 3):
        client.ended(0, job)
    assert client.refill(0) == []
    client.ended(0, 4)
    assert client.refill(0) == [5]
    client.allow(0, 100)
    assert client.refill(0) == [6, 7]
    assert [client.submit(job, key=None, priority=0) for job in range(8, 15)] == [
        *[0] * 5,
        None,
        None,
    ]


def test_an_agent_that_is_allowed_less_gets_no_new_job_either() -> None:
    client = ClientJobs()
    client.join(0, 8)
    client.submit(1, key=None, priority=0)
    client.allow(0, 1)
    assert client.refill(0) == []
    assert client.submit(2, key=None, priority=0) is None


def test_a_job_that_is_given_up_comes_back_from_nowhere() -> None:
    client = ClientJobs()
    client.join(0, 1)
    client.submit(1, key=None, priority=0)
    client.submit(2, key=None, priority=0)
    assert client.give_up(2) is None
    assert client.give_up(1) == 0
    assert client.lose(0) == ([], [])
    assert client.waiting == 0


def test_a_call_for_a_lent_worker_takes_no_credit_and_is_lost_with_its_agent() -> None:
    jobs = ClientJobs()
    jobs.join(1, 1)
    assert jobs.submit(1, key=None, priority=0) == 1
    jobs.bind(1, 2)
    jobs.bind(1, 3)
    assert not jobs.is_alone(1)
    jobs.began(1, [2])
    assert jobs.ended(1, 1)
    assert jobs.refill(1) == []
    assert jobs.submit(4, key=None, priority=0) == 1
    jobs.prepare(5)
    assert jobs.waiting == 1
    losses, again = jobs.lose(1)
    fates = {loss.job: loss.delivery for loss in losses}
    assert fates == {2: Delivery.STARTED, 3: Delivery.SENT, 4: Delivery.SENT}
    assert not again
    assert jobs.join(2, 9) == [4]  # a lent worker is nowhere else
