"""The options of a job, and its limits of time by themselves."""

from __future__ import annotations

import math
from typing import Any

import pytest

from asyncpool._core.policies.job_options import KILL, CancelMode, JobLimits, JobOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"timeout": 0}, "timeout must be > 0 seconds, not 0"),
        ({"timeout": -1.5}, "timeout must be > 0 seconds, not -1.5"),
        ({"timeout": math.nan}, "timeout must be > 0 seconds, not nan"),
        ({"heartbeat_timeout": 0}, "heartbeat_timeout must be > 0 seconds, not 0"),
        ({"queue_timeout": 0.0}, "queue_timeout must be > 0 seconds, not 0.0"),
        (
            {"deadline": math.nan},
            "deadline must be a point on the loop's clock, not nan",
        ),
        (
            {"on_cancel": "stop"},
            "on_cancel must be one of interrupt, kill, wait, not 'stop'",
        ),
        ({"cancel_grace": -1}, "cancel_grace must be >= 0 seconds, not -1"),
        ({"cancel_grace": math.nan}, "cancel_grace must be >= 0 seconds, not nan"),
    ],
)
def test_what_is_out_of_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        JobLimits(**given)
    assert str(caught.value) == message


def test_without_limits_there_is_no_end() -> None:
    limits = JobOptions().limits
    assert not limits.timed
    assert limits.queue_end(5.0) is None
    assert limits.run_end(5.0) is None


@pytest.mark.parametrize(
    ("limits", "queue_end", "run_end"),
    [
        (JobLimits(timeout=2.0), None, 12.0),
        (JobLimits(queue_timeout=3.0), 13.0, None),
        (JobLimits(deadline=11.0), 11.0, 11.0),
        (JobLimits(deadline=11.0, timeout=2.0, queue_timeout=3.0), 11.0, 11.0),
        (JobLimits(deadline=99.0, timeout=2.0, queue_timeout=3.0), 13.0, 12.0),
    ],
)
def test_each_stage_has_its_end(
    limits: JobLimits, queue_end: float | None, run_end: float | None
) -> None:
    assert limits.timed
    assert limits.queue_end(10.0) == queue_end
    assert limits.run_end(10.0) == run_end
    assert limits.next_check(10.0, 90.0) == run_end


@pytest.mark.parametrize(
    ("limits", "looks"),
    [
        (JobLimits(), (None, None)),
        (JobLimits(heartbeat_timeout=3.0), (13.0, 17.0)),
        (JobLimits(heartbeat_timeout=3.0, timeout=5.0), (13.0, 15.0)),
        (JobLimits(heartbeat_timeout=3.0, timeout=2.0), (12.0, 12.0)),
        (JobLimits(heartbeat_timeout=3.0, deadline=16.0), (13.0, 16.0)),
    ],
)
def test_who_was_heard_of_late_is_looked_at_later(
    limits: JobLimits, looks: tuple[float | None, float | None]
) -> None:
    assert limits.timed is (limits != JobLimits())
    assert (limits.next_check(10.0, 10.0), limits.next_check(10.0, 14.0)) == looks
    assert limits.queue_end(10.0) == limits.deadline


def test_which_limit_it_was() -> None:
    limits = JobLimits(timeout=2.0, queue_timeout=3.0, deadline=20.0)
    assert limits.exceeded(19.9, running=True) == "timeout"
    assert limits.exceeded(19.9, running=False) == "queue_timeout"
    assert limits.exceeded(20.0, running=True) == "deadline"
    assert limits.exceeded(20.0, running=False) == "deadline"


def test_how_it_is_made_to_end() -> None:
    assert JobLimits().cancel_mode == CancelMode("interrupt", 2.0)
    assert JobLimits(cancel_grace=0.5).cancel_mode == CancelMode("interrupt", 0.5)
    assert JobLimits(on_cancel="kill", cancel_grace=9.0).cancel_mode == KILL
    assert JobLimits(on_cancel="wait").cancel_mode.action == "wait"
