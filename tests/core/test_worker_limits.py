"""When workers are worn, and which limits make sense."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.policies.worker_limits import NEVER, RecycleLimits, WorkerLimits

slots = st.integers(0, 1000)
generations = st.integers(1, 10**6)


@given(slots, generations)
def test_without_limits_nobody_is_ever_worn(slot: int, generation: int) -> None:
    assert WorkerLimits().recycle_limits(slot, generation) == RecycleLimits(
        NEVER, None, None
    )


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


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"max_jobs": 0}, ValueError, "max_jobs must be > 0 or None, not 0"),
        ({"max_jobs": 1.5}, TypeError, "max_jobs must be an int or None, not 1.5"),
        (
            {"max_age": "1"},
            TypeError,
            "max_age must be a number of seconds or None, not '1'",
        ),
        ({"max_age": 0.0}, ValueError, "max_age must be > 0 or None, not 0.0"),
        ({"max_memory": -1}, ValueError, "max_memory must be > 0 or None, not -1"),
        (
            {"max_memory": 2, "kill_memory": 2},
            ValueError,
            "kill_memory must be more than max_memory (2 bytes), not 2 bytes",
        ),
        ({"jitter": 1.0}, ValueError, "jitter must be at least 0 and below 1, not 1.0"),
        ({"jitter": None}, TypeError, "jitter must be a number, not None"),
        ({"rlimits": 3}, TypeError, "rlimits must be a mapping, not 3"),
        ({"rlimits": [3]}, TypeError, "rlimits must be a mapping, not [3]"),
        ({"nice": 0.5}, TypeError, "nice must be an int, not 0.5"),
        (
            {"cpu_affinity": []},
            ValueError,
            "cpu_affinity must be numbers of CPUs, not []",
        ),
        (
            {"cpu_affinity": 3},
            ValueError,
            "cpu_affinity must be numbers of CPUs, not 3",
        ),
        (
            {"cpu_affinity": [-1]},
            ValueError,
            "cpu_affinity must be numbers of CPUs, not [-1]",
        ),
        (
            {"rlimits": {"AS": 1}},
            ValueError,
            "rlimits takes names such as 'RLIMIT_AS', not 'AS'",
        ),
        (
            {"rlimits": {"RLIMIT_AS": (1, 2, 3)}},
            TypeError,
            "the limit of RLIMIT_AS must be an int or two, not (1, 2, 3)",
        ),
    ],
    ids=str,
)
def test_limits_that_make_no_sense_are_refused(
    given: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error) as caught:
        WorkerLimits(**given)
    assert str(caught.value) == text


def test_limits_do_not_change_with_what_they_were_made_of() -> None:
    rlimits: dict[str, int | tuple[int, int]] = {"RLIMIT_AS": 1}
    cpus = [0, 1]
    limits = WorkerLimits(rlimits=rlimits, cpu_affinity=cpus)
    rlimits["RLIMIT_CPU"] = 1
    cpus.append(2)
    assert dict(limits.rlimits) == {"RLIMIT_AS": 1}
    assert limits.cpus == (0, 1)
    assert WorkerLimits().cpus is None


def test_an_exact_limit_needs_one() -> None:
    assert WorkerLimits(max_jobs=1, exact=True).exact
    with pytest.raises(
        ValueError, match=r"^exact is about max_jobs, and there is none$"
    ):
        WorkerLimits(exact=True)
    with pytest.raises(TypeError, match=r"^exact must be True or False, not 1$"):
        WorkerLimits(max_jobs=1, exact=1)  # type: ignore[arg-type]
