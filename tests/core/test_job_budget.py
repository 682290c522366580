"""How many jobs watchers hear of: all of few, and a steady rate of many."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._observe.control.watch import MOST_PER_SECOND, JobBudget


def heard(budget: JobBudget, seconds: float, rate: int, pause: float = 0.1) -> int:
    """Return of how many jobs a watcher hears, as a pool does that ends *rate* a second."""
    count, listens, again = 0, True, 0.0
    for number in range(int(seconds * rate)):
        now = number / rate
        if not listens and now >= again:
            listens, again = budget.fill(now), now + pause
        if listens:
            count += 1
            listens = budget.take() or budget.fill(now)
            again = now + pause
    return count


def of(jobs: int, every: float) -> JobBudget:
    budget = JobBudget()
    budget.add("watcher", jobs, every, 0.0)
    return budget


def test_few_jobs_are_all_heard_of() -> None:
    assert heard(of(200, 0.5), 10.0, rate=300) == 3000


def test_a_sudden_crowd_is_heard_of_too() -> None:
    budget = of(200, 0.5)
    assert sum(budget.take() for _ in range(200)) == 199
    assert not budget.take()
    assert budget.fill(0.5)


def test_of_many_jobs_there_is_a_sample() -> None:
    count = heard(of(200, 0.5), 10.0, rate=50_000)
    assert 3500 <= count <= 200 + 10 * 400


def test_nobody_can_ask_for_more_than_the_pool_gives() -> None:
    count = heard(of(1000, 0.1), 5.0, rate=50_000)
    assert count <= 1000 + 5 * MOST_PER_SECOND


def test_many_watchers_hear_of_the_same_jobs() -> None:
    budget = of(100, 1.0)
    for number in range(50):
        budget.add(number, 200, 0.5, 0.0)
    assert heard(budget, 10.0, rate=20_000) <= 200 + 10 * 400


def test_who_is_gone_wants_nothing() -> None:
    budget = of(200, 0.5)
    budget.add("other", 0, 1.0, 0.0)
    budget.remove("watcher")
    assert not budget.wanted
    assert not budget.fill(100.0)
    budget.remove("watcher")


@given(
    st.integers(0, 1000),
    st.floats(0.1, 60),
    st.lists(st.floats(0, 10), max_size=50),
)
def test_no_more_than_a_bucket_and_what_came_into_it(
    jobs: int, every: float, pauses: list[float]
) -> None:
    budget, now, count = of(jobs, every), 0.0, 0
    for pause in pauses:
        now += pause
        while budget.fill(now):
            budget.take()
            count += 1
    assert count <= jobs + now * min(jobs / every, MOST_PER_SECOND) + 1e-6
    assert not pauses or count >= jobs
