"""What a client writes of options, what an agent reads of it, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_options import JobLimits, JobOptions
from asyncpool._core.remote.remote_options import (
    read_call,
    read_options,
    write_options,
)
from asyncpool.errors import ProtocolError


class Keeper:
    """The keeper of an agent, or of a client."""

    def keep(self, lease: Any, holder: Any, /) -> None:
        raise NotImplementedError


KEEPER = Keeper()
LIMITS = JobLimits(
    timeout=1.0,
    queue_timeout=2.0,
    heartbeat_timeout=3.0,
    deadline=104.0,
    on_cancel="kill",
    cancel_grace=5.0,
)
# What stays with the client.
KEPT = JobOptions(
    attempts=AttemptPolicy(max_attempts=3), priority=4, begun=1, name="it"
)


def sent(told: object) -> Any:
    return json.loads(json.dumps(told))


def test_the_options_of_jobs_are_read_as_they_were_written() -> None:
    options = JobOptions(
        limits=LIMITS,
        attempts=KEPT.attempts,
        priority=KEPT.priority,
        begun=KEPT.begun,
        name=KEPT.name,
        key=-5,
        via="stream",
        prefetch=6,
        bound=SessionTraits(7),
        lease=(Keeper(), "mine"),
    )
    limits = JobLimits(
        timeout=1.0, heartbeat_timeout=3.0, on_cancel="kill", cancel_grace=5.0
    )
    found = read_options(sent(write_options(options)), KEEPER)
    assert found.bound is not None
    assert found.bound.session == 7
    assert replace(found, bound=None) == JobOptions(
        limits=limits, key=-5, via="stream", prefetch=6, lease=(KEEPER, 0)
    )


def test_a_call_that_the_client_does_not_watch_has_all_limits() -> None:
    options = JobOptions(limits=LIMITS, attempts=KEPT.attempts, prefetch=6)
    told = sent(write_options(options, 100.0))
    limits = JobLimits(
        timeout=1.0,
        queue_timeout=2.0,
        heartbeat_timeout=3.0,
        deadline=9004.0,  # by the agent's clock, as far from now
        on_cancel="kill",
        cancel_grace=5.0,
    )
    assert read_call(told, 9000.0) == JobOptions(limits=limits)
    over = JobOptions(limits=JobLimits(deadline=90.0))
    assert read_call(sent(write_options(over, 100.0)), 5.0).limits.deadline == -5.0


def test_what_is_not_set_stays_so() -> None:
    assert read_options(sent(write_options(JobOptions())), KEEPER) == JobOptions(
        prefetch=1
    )
    assert read_call(sent(write_options(JobOptions(), 1.0)), 2.0) == JobOptions()


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
