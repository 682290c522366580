"""A count that fades."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.base.deadlines import RecentCount


def test_what_happened_fades() -> None:
    recent = RecentCount(0.1)
    for _ in range(100):
        recent.add()
    assert [recent.at(10.0 + at / 10) for at in range(6)] == [100, 36, 13, 4, 1, 0]


def test_at_a_constant_rate_it_is_what_happens_in_a_span() -> None:
    recent = RecentCount(0.5)
    counts = []
    for step in range(5000):
        recent.add()
        counts.append(recent.at(step / 1000))
    assert abs(counts[-1] - 500) <= 1


def test_a_time_that_is_older_changes_nothing() -> None:
    recent = RecentCount(0.1)
    recent.add()
    assert [recent.at(now) for now in (10.0, 9.0, 10.0)] == [1, 1, 1]


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(0, 50)), max_size=50))
def test_it_has_what_is_new_and_no_more_than_there_was(
    turns: list[tuple[float, int]],
) -> None:
    recent, now, all_of_them = RecentCount(0.1), 0.0, 0
    for seconds, count in turns:
        now, all_of_them = now + seconds, all_of_them + count
        for _ in range(count):
            recent.add()
        assert count <= recent.at(now) <= all_of_them
