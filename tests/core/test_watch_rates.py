"""How much watchers and samplers get: of few things all, of many a steady rate."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.profile.sampling_times import SamplingTimes
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


def test_of_many_jobs_there_is_a_sample() -> None:
    count = heard(of(200, 0.5), 10.0, rate=50_000)
    assert 3500 <= count <= 200 + 10 * 400


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


# When a sampler looks at the stacks.


RATES = st.floats(1, 1000)
STARTS = st.floats(0, 1e6)


@given(RATES, st.floats(0.01, 3), STARTS)
def test_one_that_is_always_in_time_misses_nothing(
    rate: float, seconds: float, now: float
) -> None:
    times, end, looks = SamplingTimes(rate, seconds, now), now + seconds, 0
    while (wait := times.wait(now)) is not None:
        assert 0 <= wait <= 1.5 / rate + 1e-6
        now += wait + 1e-9
        due = times.take(now)
        assert due <= 1
        looks += due
    assert now < end + 1e-6
    assert seconds * rate / 1.5 - 2 <= looks <= seconds * rate * 2 + 2


@given(RATES, st.floats(0.01, 3), STARTS, st.data())
def test_each_look_is_due_once_however_late_it_is_taken(
    rate: float, seconds: float, now: float, data: st.DataObject
) -> None:
    late, in_time = (SamplingTimes(rate, seconds, now) for _ in range(2))
    wanted = in_time.take(now + seconds)
    taken = 0
    while late.wait(now) is not None:
        now += data.draw(st.floats(0.5 / rate, seconds))
        taken += late.take(now)
    assert taken == wanted


def test_the_distances_differ() -> None:
    times, now, waits = SamplingTimes(100, 1, 0.0), 0.0, set[int]()
    while (wait := times.wait(now)) is not None:
        waits.add(int(wait * 1000))
        now += wait + 1e-9
        times.take(now)
    assert waits == set(range(5, 15))
