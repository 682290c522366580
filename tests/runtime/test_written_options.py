"""What becomes of each option of a job on its way to an agent.

A new option has to be set in ``FULL`` or ``LIMITS``.  Then the tests tell whether an agent gets it.
It has three ways to get there: with jobs (``write_options``), with each single job
(``Node.put_job``, and ``_limited`` in ``relay.py``), and with a call for one worker or for all
workers (``write_limits``).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from typing import Any

import pytest

from asyncpool._core.base.job_traits import SessionTraits
from asyncpool._core.policies.attempts import AttemptPolicy
from asyncpool._core.policies.job_options import JobLimits, JobOptions
from asyncpool._runtime.remote.written_options import (
    read_limits,
    read_options,
    write_limits,
    write_options,
)
from asyncpool.errors import ProtocolError


class Keeper:
    """Keeps no lease."""

    def keep(self, _lease: Any, _holder: Any, /) -> None:
        raise AssertionError


class Hold:
    """Holds no pool."""

    held = True


LIMITS = JobLimits(
    timeout=1.0,
    queue_timeout=2.0,
    heartbeat_timeout=3.0,
    deadline=1004.0,
    on_cancel="wait",
    cancel_grace=5.0,
)
FULL = JobOptions(
    attempts=AttemptPolicy(max_attempts=3, retry_on=(ValueError,)),
    limits=LIMITS,
    priority=7,
    key=8,
    lease=(Keeper(), "message 9"),
    begun=2,
    via="stream",
    prefetch=3,
    hold=Hold(),
    bound=SessionTraits(4),
    name="app.work",
    codec="json",
)


@pytest.mark.parametrize("full", [FULL, LIMITS], ids=["options", "limits"])
def test_each_option_is_tried(full: Any) -> None:
    usual = type(full)()
    unset = [
        field.name
        for field in dataclasses.fields(full)
        if field.init and getattr(full, field.name) == getattr(usual, field.name)
    ]
    assert unset == []


def test_an_agent_gets_what_its_pool_enforces() -> None:
    keeper, codec = Keeper(), object()
    read = read_options(write_options(FULL), keeper, codec)
    assert read.bound is not None
    assert FULL.bound is not None
    assert read.bound.session == FULL.bound.session
    assert replace(read, bound=FULL.bound) == replace(
        FULL,
        # The client tries again, and knows which job is next and what holds it open.
        attempts=AttemptPolicy(),
        hold=None,
        # What is left of these comes with each job.
        limits=replace(LIMITS, queue_timeout=None, deadline=None),
        priority=0,
        begun=0,
        # The name of its function comes with the function.
        name="",
        # The agent has these of its own.
        lease=(keeper, 0),
        codec=codec,
    )


def test_usual_options_are_usual_there() -> None:
    codec = object()
    read = read_options(write_options(JobOptions()), Keeper(), codec)
    assert read == JobOptions(codec=codec, prefetch=1), "a stream says how many it has"


def test_a_call_for_a_worker_has_all_of_its_limits_on_the_agents_clock() -> None:
    written = json.loads(json.dumps(write_limits(LIMITS, now=1000.0)))
    assert read_limits(written, now=50.0) == replace(LIMITS, deadline=54.0)
    written = json.loads(json.dumps(write_limits(JobLimits(), now=1000.0)))
    assert read_limits(written, now=50.0) == JobLimits()


@pytest.mark.parametrize(
    ("told", "error"),
    [
        ({}, LookupError),
        ({"limits": {"timeout": -1}}, ValueError),
        ({"limits": {"timeout": "long"}}, TypeError),
        ({"limits": {"speed": 1}}, TypeError),
        ({"limits": {}, "key": "k"}, ProtocolError),
        ({"limits": {}, "key": True}, ProtocolError),
        ({"limits": {}, "prefetch": 0}, ValueError),
    ],
)
def test_what_no_client_writes(told: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        read_options(json.dumps(told).encode(), Keeper(), None)


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"left": float("nan")}, ValueError),
        ({"left": "soon"}, TypeError),
        ({"queue_timeout": 0}, ValueError),
        ({"speed": 1}, TypeError),
    ],
)
def test_limits_that_no_client_writes(
    changed: dict[str, Any], error: type[Exception]
) -> None:
    told = write_limits(LIMITS, now=0.0) | changed
    with pytest.raises(error):
        read_limits(told, now=0.0)
    del told["left"]
    with pytest.raises(LookupError):
        read_limits(told, now=0.0)
