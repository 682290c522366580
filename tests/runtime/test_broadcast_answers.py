"""What agents answer to a broadcast, and what of it a client refuses."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from asyncpool._core.pickling.serializers import PICKLE
from asyncpool._core.policies.job_options import JobLimits
from asyncpool._runtime.remote.agent_errors import AgentErrors, read_broadcast
from asyncpool.enums import TimeLimit
from asyncpool.errors import BroadcastError, JobTimeoutError, ProtocolError
from tests.helpers.values import nested

LIMITS = JobLimits(timeout=5.0, deadline=100.0)


def late(limit: Any) -> JobTimeoutError:
    error = JobTimeoutError(
        job_id=3,
        attempt=1,
        limit=TimeLimit.DEADLINE,
        seconds=9000.0,
        stack="somewhere",
        function="f",
    )
    error.limit = limit
    return error


def read(answer: object) -> dict[int, Any]:
    errors = AgentErrors("f", LIMITS, PICKLE, itertools.count(7).__next__)
    return read_broadcast([(10, answer)], errors)


def test_a_limit_has_the_value_that_the_caller_has_set() -> None:
    with pytest.raises(BroadcastError) as caught:
        read(({}, {1: late(TimeLimit.DEADLINE), 2: late(TimeLimit.TIMEOUT)}))
    first, second = caught.value.errors[11], caught.value.errors[12]
    assert isinstance(first, JobTimeoutError)
    assert isinstance(second, JobTimeoutError)
    assert (first.seconds, second.seconds) == (100.0, 5.0)
    assert (first.attempt, first.stack) == (1, "somewhere")
    assert str(first).startswith("job 7 (f) missed its deadline, in attempt 1")
    assert (first.job_id, second.job_id) == (7, 8)


@pytest.mark.parametrize(
    "answer",
    [
        None,
        nested(),
        ({}, {0: nested()}),
        ({}, {0: late(TimeLimit.QUEUE_TIMEOUT)}),
        ({}, {0: late("on_cancel")}),
        ({}, {0: late(nested())}),
    ],
)
def test_lies_are_refused(answer: object) -> None:
    with pytest.raises(ProtocolError, match="an agent"):
        read(answer)
