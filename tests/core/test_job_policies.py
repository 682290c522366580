"""What the options of jobs and workers come to: attempts, limits of time, wear, and cost."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.functions import (
    BUDGET,
    REFILL_BELOW,
    UNKNOWN_COST,
    JobTraits,
    KeyedTraits,
)
from asyncpool._core.options import (
    KILL,
    MAX_FREE_RETURNS,
    CancelMode,
    JobOptions,
    RestartPolicy,
    WorkerLimits,
    changed,
    costs_attempt,
)
from asyncpool.enums import CrashKind, Delivery

# Whether a job is tried again.


ONCE = JobOptions()
THRICE = JobOptions(max_attempts=3)
OOM_TOO = JobOptions(max_attempts=2, retry_on=("crash", "out of memory"))
NEVER = JobOptions(max_attempts=9, retry_on=())
ERROR = ValueError("x")
ON_LOOKUP = JobOptions(max_attempts=2, retry_on=(LookupError, SystemExit))


@pytest.mark.parametrize(
    ("policy", "kind", "delivery", "attempt", "times_suspected", "again"),
    [
        # A job that may have had effects is never run twice unasked.
        (ONCE, "crash", "started", 1, 0, False),
        (ONCE, "hung", "started", 1, 0, False),
        # Up to max_attempts starts, and not one more.
        (THRICE, "crash", "started", 1, 0, True),
        (THRICE, "crash", "started", 2, 0, True),
        (THRICE, "crash", "started", 3, 0, False),
        # By default after a crash or a hang; an OOM kill would happen again.
        (THRICE, "hung", "started", 1, 0, True),
        (THRICE, "out of memory", "started", 1, 0, False),
        (THRICE, "protocol", "started", 1, 0, False),
        (THRICE, "failed start", "started", 1, 0, False),
        (OOM_TOO, "out of memory", "started", 1, 0, True),
        (OOM_TOO, "hung", "started", 1, 0, False),
        (OOM_TOO, "out of memory", "started", 2, 0, False),
        (NEVER, "crash", "started", 1, 0, False),
        (ON_LOOKUP, "crash", "started", 1, 0, False),
        # A job that had not begun loses nothing, whatever the policy.
        (ONCE, "crash", "sent", 1, 0, True),
        (ONCE, "protocol", "never sent", 1, 0, True),
        (NEVER, "out of memory", "sent", 1, 0, True),
        # But not for ever.
        (ONCE, "crash", "sent", 1, MAX_FREE_RETURNS - 1, True),
        (ONCE, "crash", "sent", 1, MAX_FREE_RETURNS, False),
        (ONCE, "crash", "never sent", 1, MAX_FREE_RETURNS, False),
        (THRICE, "crash", "sent", 2, MAX_FREE_RETURNS, True),
        (THRICE, "crash", "sent", 3, MAX_FREE_RETURNS, False),
        (THRICE, "protocol", "sent", 1, MAX_FREE_RETURNS, False),
    ],
)
def test_whether_a_job_is_tried_again_after_a_crash(
    policy: JobOptions,
    kind: str,
    delivery: str,
    attempt: int,
    times_suspected: int,
    again: bool,  # noqa: FBT001
) -> None:
    costs = costs_attempt(delivery=Delivery(delivery), times_suspected=times_suspected)
    answer = not costs or policy.after_crash(CrashKind(kind), attempt=attempt)
    assert answer is again


@pytest.mark.parametrize(
    ("policy", "error", "attempt", "again"),
    [
        # What the function raises is its answer, unless the caller says otherwise.
        (THRICE, ValueError("x"), 1, False),
        (NEVER, ValueError("x"), 1, False),
        (ON_LOOKUP, KeyError("x"), 1, True),
        (ON_LOOKUP, KeyError("x"), 2, False),
        (ON_LOOKUP, SystemExit(1), 1, True),
        (ON_LOOKUP, ValueError("x"), 1, False),
        (JobOptions(retry_on=(LookupError,)), KeyError("x"), 1, False),
    ],
)
def test_whether_a_job_is_tried_again_after_it_raised(
    policy: JobOptions,
    error: BaseException,
    attempt: int,
    again: bool,  # noqa: FBT001
) -> None:
    assert policy.after_exception(error, attempt=attempt) is again


def of_jobs(**options: Any) -> JobOptions:
    return changed(JobOptions(), options)


@pytest.mark.parametrize(
    ("policy", "options", "error", "text"),
    [
        (of_jobs, {"max_attempts": -1}, ValueError, "1 and 65535, not -1"),
        (of_jobs, {"max_attempts": 65_536}, ValueError, "65535, not 65536"),
        (of_jobs, {"max_attempts": 2.0}, TypeError, "must be an int, not 2.0"),
        (of_jobs, {"retry_on": (int,)}, TypeError, "not <class 'int'>"),
        (of_jobs, {"retry_on": (ERROR,)}, TypeError, "not ValueError('x')"),
        (of_jobs, {"retire_on": (int,)}, TypeError, "of such, not <class 'int'>"),
        (of_jobs, {"retire_on": (ERROR,)}, TypeError, "not ValueError('x')"),
        (of_jobs, {"retire_on": ["OSError"]}, ValueError, "such as 'shop.DeviceError'"),
        (of_jobs, {"retire_on": OSError}, TypeError, "retire_on takes several: ("),
        (of_jobs, {"retire_on": None}, TypeError, "names of such, not None"),
        (of_jobs, {"retire_on": [OSError] * 2000}, ValueError, "retire_on have"),
        (of_jobs, {"timeout": -1.5}, ValueError, "must be > 0 seconds, not -1.5"),
        (of_jobs, {"timeout": math.nan}, ValueError, "must be > 0 seconds, not nan"),
        (of_jobs, {"heartbeat_timeout": 0}, ValueError, "be > 0 seconds, not 0"),
        (of_jobs, {"queue_timeout": 0.0}, ValueError, "be > 0 seconds, not 0.0"),
        (of_jobs, {"deadline": math.nan}, ValueError, "the loop's clock, not nan"),
        (of_jobs, {"cancel_grace": -1}, ValueError, "must be >= 0 seconds, not -1"),
        (of_jobs, {"cancel_grace": math.nan}, ValueError, ">= 0 seconds, not nan"),
        (WorkerLimits, {"max_jobs": 0}, ValueError, "must be > 0 or None, not 0"),
        (WorkerLimits, {"max_jobs": 1.5}, TypeError, "must be an int or None, not 1.5"),
        (WorkerLimits, {"max_age": "1"}, TypeError, "of seconds or None, not '1'"),
        (WorkerLimits, {"max_age": 0.0}, ValueError, "must be > 0 or None, not 0.0"),
        (WorkerLimits, {"max_memory": -1}, ValueError, "must be > 0 or None, not -1"),
        (
            WorkerLimits,
            {"kill_memory": 2, "max_memory": 2},
            ValueError,
            "must be more than max_memory (2 bytes), not 2 bytes",
        ),
        (WorkerLimits, {"jitter": 1.0}, ValueError, "at least 0 and below 1, not 1.0"),
        (WorkerLimits, {"jitter": None}, TypeError, "must be a number, not None"),
        (WorkerLimits, {"rlimits": 3}, TypeError, "must be a mapping, not 3"),
        (WorkerLimits, {"rlimits": [3]}, TypeError, "must be a mapping, not [3]"),
        (WorkerLimits, {"rlimits": {"AS": 1}}, ValueError, "'RLIMIT_AS', not 'AS'"),
        (WorkerLimits, {"nice": 0.5}, TypeError, "must be an int, not 0.5"),
        (WorkerLimits, {"cpu_affinity": []}, ValueError, "numbers of CPUs, not []"),
        (WorkerLimits, {"cpu_affinity": 3}, ValueError, "numbers of CPUs, not 3"),
        (WorkerLimits, {"cpu_affinity": [-1]}, ValueError, "of CPUs, not [-1]"),
        (RestartPolicy, {"initial_delay": -0.1}, ValueError, "delay (30), not -0.1"),
        (RestartPolicy, {"initial_delay": 31.0}, ValueError, "max_delay (30), not 31"),
        (RestartPolicy, {"initial_delay": math.nan}, ValueError, "(30), not nan"),
        (RestartPolicy, {"initial_delay": 0.0}, ValueError, "without any pause"),
        (RestartPolicy, {"initial_delay": "x"}, TypeError, "of seconds, not 'x'"),
        (RestartPolicy, {"max_delay": 0.04}, ValueError, "delay (0.04), not 0.05"),
        (RestartPolicy, {"max_delay": None}, TypeError, "of seconds, not None"),
        (RestartPolicy, {"period": 0.0}, ValueError, "must be > 0, not 0"),
        (RestartPolicy, {"period": math.nan}, ValueError, "must be > 0, not nan"),
        (RestartPolicy, {"period": None}, TypeError, "number of seconds, not None"),
        (RestartPolicy, {"max_failed_starts": 0}, ValueError, ">= 1 or None, not 0"),
        (RestartPolicy, {"max_failed_starts": "x"}, TypeError, "int or None, not 'x'"),
        (RestartPolicy, {"max_restarts": 0}, ValueError, ">= 1 or None, not 0"),
        (RestartPolicy, {"max_restarts": [3]}, TypeError, "int or None, not [3]"),
    ],
    ids=lambda it: getattr(it, "__name__", str(it)),
)
def test_a_wrong_value_is_refused(
    policy: Callable[..., object],
    options: dict[str, Any],
    error: type[Exception],
    text: str,
) -> None:
    with pytest.raises(error, match=re.escape(text)) as caught:
        policy(**options)
    name, *_ = options
    assert name in str(caught.value)


def test_a_limit_of_the_kernel_is_one_number_or_two() -> None:
    with pytest.raises(
        TypeError, match=r"RLIMIT_AS must be an int or two, not \(1, 2, 3\)"
    ):
        WorkerLimits(rlimits={"RLIMIT_AS": (1, 2, 3)})  # type: ignore[dict-item]


def test_a_job_that_comes_back_too_often_loses_an_attempt_each_time() -> None:
    free = [
        not costs_attempt(delivery=Delivery.SENT, times_suspected=times)
        for times in range(MAX_FREE_RETURNS + 2)
    ]
    assert free == [True] * MAX_FREE_RETURNS + [False] * 2
    assert costs_attempt(delivery=Delivery.STARTED, times_suspected=0)


# When a job has to end, and how.


@pytest.mark.parametrize(
    ("limits", "queue_end", "run_end"),
    [
        (JobOptions(timeout=2.0), None, 12.0),
        (JobOptions(queue_timeout=3.0), 13.0, None),
        (JobOptions(deadline=11.0), 11.0, 11.0),
        (JobOptions(deadline=11.0, timeout=2.0, queue_timeout=3.0), 11.0, 11.0),
        (JobOptions(deadline=99.0, timeout=2.0, queue_timeout=3.0), 13.0, 12.0),
    ],
)
def test_each_stage_has_its_end(
    limits: JobOptions, queue_end: float | None, run_end: float | None
) -> None:
    assert limits.timed
    assert limits.queue_end(10.0) == queue_end
    assert limits.run_end(10.0) == run_end
    assert limits.next_check(10.0, 90.0) == run_end


@pytest.mark.parametrize(
    ("limits", "looks"),
    [
        (JobOptions(), (None, None)),
        (JobOptions(heartbeat_timeout=3.0), (13.0, 17.0)),
        (JobOptions(heartbeat_timeout=3.0, timeout=5.0), (13.0, 15.0)),
        (JobOptions(heartbeat_timeout=3.0, timeout=2.0), (12.0, 12.0)),
        (JobOptions(heartbeat_timeout=3.0, deadline=16.0), (13.0, 16.0)),
    ],
)
def test_who_was_heard_of_late_is_looked_at_later(
    limits: JobOptions, looks: tuple[float | None, float | None]
) -> None:
    assert limits.timed is (limits != JobOptions())
    assert (limits.next_check(10.0, 10.0), limits.next_check(10.0, 14.0)) == looks
    assert limits.queue_end(10.0) == limits.deadline


def test_which_limit_it_was() -> None:
    limits = JobOptions(timeout=2.0, queue_timeout=3.0, deadline=20.0)
    assert limits.exceeded(19.9, running=True) == "timeout"
    assert limits.exceeded(19.9, running=False) == "queue_timeout"
    assert limits.exceeded(20.0, running=True) == "deadline"
    assert limits.exceeded(20.0, running=False) == "deadline"


def test_how_it_is_made_to_end() -> None:
    assert JobOptions().cancel_mode == CancelMode("interrupt", 2.0)
    assert JobOptions(cancel_grace=0.5).cancel_mode == CancelMode("interrupt", 0.5)
    assert JobOptions(on_cancel="kill", cancel_grace=9.0).cancel_mode == KILL
    assert JobOptions(on_cancel="wait").cancel_mode.action == "wait"


# When workers are worn.


slots = st.integers(0, 1000)
generations = st.integers(1, 10**6)


@given(slots, generations, st.sampled_from([0.0, 0.1, 0.5]))
def test_limits_are_lowered_by_the_jitter_at_the_most(
    slot: int, generation: int, jitter: float
) -> None:
    limits = WorkerLimits(max_jobs=1000, max_age=60.0, max_memory=10**9, jitter=jitter)
    jobs, age, rss = limits.recycle_limits(slot, generation)
    assert age is not None
    assert rss is not None
    assert 1000 * (1 - jitter) <= jobs <= 1000
    assert 60.0 * (1 - jitter) <= age <= 60.0
    assert 10**9 * (1 - jitter) <= rss <= 10**9
    if not jitter:
        assert (jobs, age, rss) == (1000, 60.0, 10**9)


@given(st.integers(0, 100), generations)
def test_whoever_starts_together_is_not_worn_together(
    first: int, generation: int
) -> None:
    limits = WorkerLimits(max_age=1000.0, jitter=0.1)
    ages = sorted(
        limits.recycle_limits(first + n, generation).age or 0.0 for n in range(16)
    )
    gaps = [after - before for before, after in itertools.pairwise(ages)]
    # Chance would leave two of sixteen within a second of each other, as a rule.
    assert min(gaps) > 1.0


def test_a_worker_runs_at_least_one_job() -> None:
    limits = WorkerLimits(max_jobs=1, jitter=0.9)
    assert {limits.recycle_limits(slot, 1).jobs for slot in range(16)} == {1}


# How long calls take, as far as is known.


FLOOR = 125.0  # the least that a call counts for
durations = st.integers(0, 2**32 - 1)


def after(*durations: float) -> float:
    traits = JobTraits()
    for duration in durations:
        traits.note(duration)
    return traits.cost


@pytest.mark.parametrize(
    ("calls", "cost"),
    [
        ((), UNKNOWN_COST),
        ((62.5,), FLOOR),
        ((0, 0), FLOOR),
        ((FLOOR + 8, 7), FLOOR + 7),
        ((160, 320), 180.0),
        ((320, 160), 300.0),
        ((128, 256, 128, 256), 156.25),
        ((160, 160, 20160), 2660.0),
    ],
)
def test_each_further_call_counts_for_an_eighth(
    calls: tuple[float, ...], cost: float
) -> None:
    assert after(*calls) == cost


@given(st.lists(durations, min_size=1, max_size=30), durations)
def test_the_average_moves_towards_each_call(calls: list[int], last: int) -> None:
    before, cost = after(*calls), after(*calls, last)
    counted = max(last, FLOOR)
    if before != UNKNOWN_COST:
        assert min(before, counted) <= cost <= max(before, counted)
        assert (cost == before) is (counted == before)


def test_one_long_call_among_short_ones_is_noticed_at_once_and_forgotten() -> None:
    traits = JobTraits()
    for _ in range(100):
        traits.note(200)
    assert traits.cost == 200.0
    traits.note(160_200)
    assert traits.cost == 20_200.0, "nothing travels ahead for a while"
    costs = []
    for _ in range(60):
        costs.append(traits.cost)
        traits.note(200)
    assert costs == sorted(costs, reverse=True)
    assert sum(cost > BUDGET for cost in costs) == 2
    assert sum(cost > REFILL_BELOW for cost in costs) == 8
    assert sum(cost > 202 for cost in costs) == 60
    assert traits.cost < 210


def test_a_job_with_a_key_costs_what_its_function_does_by_now() -> None:
    function = JobTraits()
    first, second = KeyedTraits(function, 7), KeyedTraits(function, 8)
    assert (first.key, second.key, function.key) == (7, 8, None)
    assert first.cost == UNKNOWN_COST
    function.note(250)
    assert (first.cost, second.cost) == (250, 250)
    first.note(1050)
    assert function.cost == second.cost == 350
