"""Who hears what of a pool: streams and listeners, with jobs and without."""

from __future__ import annotations

import gc
import logging

import pytest

from asyncpool._runtime.base.pool_hub import PoolHub
from asyncpool.enums import JobOutcome
from asyncpool.events import Event, JobEnded, JobEvent, JobStarted, Recovered

pytestmark = pytest.mark.asyncio

SOME = Recovered(0)
OF_A_JOB = JobStarted(job_id=1, function="f", attempt=1, slot=0, at=0.0)

END = JobEnded(
    job_id=1,
    function="f",
    outcome=JobOutcome.OK,
    attempts=1,
    slot=0,
    wait=0.0,
    run=0.0,
    at=0.0,
)


async def test_jobs_are_only_for_those_who_ask_for_them() -> None:
    hub, heard, heard_jobs = PoolHub(), list[Event](), list[Event | JobEvent]()
    stream, job_stream = hub.listen(10), hub.listen_to_jobs(10)
    hub.add_listener(heard.append)
    hub.add_job_listener(heard_jobs.append)
    hub.publish(SOME)
    hub.publish_job(OF_A_JOB)
    hub.end()
    assert heard == [event async for event in stream] == [SOME]
    assert heard_jobs == [event async for event in job_stream] == [SOME, OF_A_JOB]


async def test_jobs_are_watched_as_long_as_somebody_listens() -> None:
    hub = PoolHub()
    watched = [hub.watched]
    stream = hub.listen_to_jobs(10)
    hub.publish_job(OF_A_JOB)
    watched.append(hub.watched)
    del stream
    gc.collect()
    hub.publish_job(OF_A_JOB)
    watched.append(hub.watched)
    hub.add_job_listener(repr)
    watched.append(hub.watched)
    assert hub.remove_listener(repr) == 1
    hub.publish(SOME)
    watched.append(hub.watched)
    assert watched == [False, True, False, True, False]


async def test_a_stream_that_begins_after_the_end_is_empty() -> None:
    hub = PoolHub()
    hub.end()
    assert [event async for event in hub.listen_to_jobs(10)] == []


async def test_a_slow_stream_of_jobs_drops_the_oldest() -> None:
    hub = PoolHub()
    stream = hub.listen_to_jobs(1)
    hub.publish_job(OF_A_JOB)
    hub.publish_job(SOME)
    hub.end()
    assert [event async for event in stream] == [SOME]
    assert (stream.dropped, hub.dropped) == (1, 1)


@pytest.mark.logs("listener-failed")
async def test_a_listener_that_fails_disturbs_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub, heard = PoolHub(), list[Event | JobEvent]()

    def fail(_: object) -> None:
        raise ZeroDivisionError

    hub.add_listener(fail)
    hub.add_listener(heard.append)
    hub.publish(SOME)
    assert heard == [SOME]
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert "failed at Recovered(slot=0)" in record.getMessage()


async def test_a_listener_may_remove_itself() -> None:
    hub, heard = PoolHub(), list[Event]()

    def once(event: Event) -> None:
        heard.append(event)
        assert hub.remove_listener(once) == 1

    hub.add_listener(once)
    hub.add_listener(heard.append)
    hub.publish(SOME)
    hub.publish(SOME)
    assert heard == [SOME, SOME, SOME]
    assert hub.remove_listener(once) == 0


async def test_nobody_is_called_behind_the_end() -> None:
    hub, heard = PoolHub(), list[Event]()
    hub.add_listener(heard.append)
    hub.end()
    hub.publish(SOME)
    assert heard == []


class Reading:
    """Hears what a pool tells, and may fail at its end."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.heard: list[object] = []
        self._failure = failure

    def hear(self, event: Event | JobEvent) -> None:
        self.heard.append(event)

    def end(self) -> None:
        self.heard.append("end")
        if self._failure is not None:
            raise self._failure


async def test_a_reader_hears_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    hub, bad, good = PoolHub(), Reading(OSError("no")), Reading()
    hub.add_reader(bad)
    hub.add_reader(good)
    assert not hub.watched
    hub.publish(SOME)
    hub.publish_job(OF_A_JOB)
    hub.end()
    hub.end()
    assert bad.heard == good.heard == [SOME, "end"]
    (record,) = caplog.records
    assert record.getMessage().endswith("failed at the end of the pool")


async def test_a_reader_that_wants_no_more_still_hears_of_the_end() -> None:
    hub, reader = PoolHub(), Reading()
    hub.add_reader(reader)
    hub.remove_reader(reader)
    hub.publish(SOME)
    hub.end()
    assert reader.heard == ["end"]
    assert not hub.watched


async def test_who_listens_to_ends_hears_of_nothing_else() -> None:
    hub, ends, all_of_it = PoolHub(), list[JobEnded](), list[Event | JobEvent]()
    hub.add_end_listener(ends.append)
    assert (hub.watched, hub.followed) == (True, False)
    hub.publish(SOME)
    hub.publish_end(END)
    hub.add_job_listener(all_of_it.append)
    assert hub.followed
    hub.publish_end(END)
    assert hub.remove_listener(ends.append) == 1
    hub.publish_end(END)
    assert ends == all_of_it == [END, END]


async def test_the_end_of_all_listening_is_noticed_once() -> None:
    hub, times = PoolHub(), list[str]()
    hub.set_watch(repr, lambda: times.append("unwatched"))
    hub.add_end_listener(repr)
    hub.add_job_listener(print)
    hub.remove_listener(repr)
    assert times == []
    hub.remove_listener(print)
    hub.remove_listener(print)
    assert times == ["unwatched"]


class Beside:
    """Lives beside a pool, and may fail at its end."""

    def __init__(self, closed: list[str], name: str) -> None:
        self._closed = closed
        self._name = name

    async def close(self) -> None:
        self._closed.append(self._name)
        if self._name == "bad":
            raise OSError("no")


async def test_companions_are_closed_once(caplog: pytest.LogCaptureFixture) -> None:
    hub, closed = PoolHub(), list[str]()
    for name in ("first", "bad", "last"):
        hub.add_companion(Beside(closed, name))
    await hub.close_companions()
    await hub.close_companions()
    assert closed == ["last", "bad", "first"]
    (record,) = caplog.records
    assert record.getMessage().endswith("failed at the end of the pool")
