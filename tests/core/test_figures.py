"""What is counted of jobs and requests, in bounds, and nothing twice."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.figures import (
    CLASSES,
    NUMBERS,
    OTHER,
    Durations,
    FunctionTotals,
    RequestFigures,
    class_of,
)
from asyncpool.enums import JobOutcome
from asyncpool.errors import ProtocolError

seconds = st.floats(0, 1e9)


def filled(*values: float) -> Durations:
    durations = Durations()
    for value in values:
        durations.note(value)
    return durations


def test_buckets_are_powers_of_two_of_a_microsecond() -> None:
    histogram = filled(3e-6, 3.9e-6, 4e-6, 17e-6).histogram()
    assert histogram.bounds == (4e-6, 8e-6, 16e-6, 32e-6)
    assert histogram.counts == (2, 1, 0, 1)
    assert histogram.total == pytest.approx(27.9e-6)


@given(st.lists(seconds, min_size=1))
def test_each_duration_is_in_the_bucket_below_whose_bound_it_is(
    values: list[float],
) -> None:
    histogram = filled(*values).histogram()
    assert histogram.count == len(values)
    assert histogram.total == pytest.approx(sum(values))
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        least = bound / 2 if bound > 1e-6 else 0.0
        assert count == sum(least <= int(value * 1e6) / 1e6 < bound for value in values)
    assert histogram.counts[0]
    assert histogram.counts[-1]


@given(st.lists(seconds, min_size=1), st.floats(0, 1))
def test_a_quantile_is_right_within_a_factor_of_two(
    values: list[float], share: float
) -> None:
    found = filled(*values).histogram().quantile(share)
    below = sum(value <= found * 2 + 1e-6 for value in values)
    above = sum(value >= found / 2 - 1e-6 for value in values)
    assert below >= share * len(values) - 1e-6
    assert above >= (1 - share) * len(values) - 1e-6


def test_later_functions_share_their_figures() -> None:
    totals = FunctionTotals(most=2)
    for name in ("a", "b", "c", "d"):
        totals.of(name, "submit").ok += 1
    totals.of("e", "map").ok += 1
    totals.of("a", "submit").ok += 1
    told = {(one.function, one.via): one.jobs[JobOutcome.OK] for one in totals.stats()}
    assert told == {
        ("a", "submit"): 2,
        ("b", "submit"): 1,
        (OTHER, "submit"): 2,
        (OTHER, "map"): 1,
    }


numbers = st.integers(0, (1 << 64) - 1)


def figures(**counts: int) -> RequestFigures:
    found = RequestFigures()
    for name, count in counts.items():
        setattr(found, name, count)
    return found


def answered(*responses: tuple[int, float]) -> RequestFigures:
    found = RequestFigures()
    for status, seconds in responses:
        found.responses[class_of(status)].note(seconds)
    return found


@given(
    st.lists(st.tuples(st.integers(0, 700), st.floats(0, 1e6)), max_size=30),
    st.lists(st.floats(0, 10), max_size=5),
    numbers,
)
def test_a_report_is_read_as_it_was_packed(
    responses: list[tuple[int, float]], lags: list[float], count: int
) -> None:
    told = answered(*responses)
    for lag in lags:
        told.lag.note(lag)
    told.open, told.cut, told.refused = count, 2, 3
    told.websockets, told.open_websockets = 5, 4
    packed = told.pack()
    assert len(packed) == NUMBERS
    read = RequestFigures.unpack(packed, RequestFigures())
    assert read.pack() == packed
    assert [each.counts for each in read.responses] == [
        each.counts for each in told.responses
    ]
    assert (read.open, read.open_websockets) == (count, 4)


@pytest.mark.parametrize("count", [0, 7, NUMBERS - 1, NUMBERS + 1])
def test_what_is_no_report_is_an_error(count: int) -> None:
    with pytest.raises(ProtocolError, match=f"its figures have {count} numbers"):
        RequestFigures.unpack([0] * count, RequestFigures())


@pytest.mark.parametrize(
    "before",
    [
        figures(cut=2),
        figures(refused=2),
        figures(websockets=2),
        answered((200, 0.1), (200, 0.1)),
        answered((500, 0.1)),
    ],
)
def test_no_worker_takes_back_what_it_has_told(before: RequestFigures) -> None:
    now = answered((200, 0.1))
    now.cut = now.refused = now.websockets = 1
    with pytest.raises(ProtocolError, match="its figures are less than before"):
        RequestFigures.unpack(now.pack(), before)


def test_figures_of_several_are_added() -> None:
    total = answered((200, 1.0), (404, 2.0))
    total.add(answered((204, 3.0)))
    total.add(figures(open=1, open_websockets=2, cut=3, refused=4, websockets=5))
    total.lag.note(0.5)
    found = {
        name: (each.histogram().count, each.histogram().total)
        for name, each in zip(CLASSES, total.responses, strict=True)
        if any(each.counts)
    }
    assert found == {"2xx": (2, 4.0), "4xx": (1, 2.0)}
    assert (total.open, total.open_websockets, total.cut) == (1, 2, 3)
    assert (total.refused, total.websockets) == (4, 5)
    assert total.lag.histogram().total == 0.5


def test_at_the_end_what_is_open_is_cut_off() -> None:
    found = figures(open=3, open_websockets=2, cut=1)
    found.end()
    assert (found.open, found.open_websockets, found.cut) == (0, 0, 6)
    assert found.ended
