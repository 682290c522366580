"""What workers tell of their requests: read as it was packed, and no less than before."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.figures.request_figures import (
    CLASSES,
    MOST_NUMBERS,
    RequestFigures,
    class_of,
)
from asyncpool.errors import ProtocolError

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


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (100, "1xx"),
        (200, "2xx"),
        (399, "3xx"),
        (499, "4xx"),
        (599, "5xx"),
        (99, "other"),
        (600, "other"),
        (-200, "other"),
        ("200", "other"),
        (None, "other"),
    ],
)
def test_each_status_has_a_class(status: object, name: str) -> None:
    assert CLASSES[class_of(status)] == name


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
    assert len(packed) <= MOST_NUMBERS
    read = RequestFigures.unpack(packed, RequestFigures())
    assert read.pack() == packed
    assert [each.counts for each in read.responses] == [
        each.counts for each in told.responses
    ]
    assert (read.open, read.open_websockets) == (count, 4)


@given(st.lists(numbers, max_size=60))
def test_anything_is_a_report_or_an_error(garbage: list[int]) -> None:
    try:
        read = RequestFigures.unpack(garbage, RequestFigures())
    except ProtocolError:
        return
    assert len(read.pack()) <= MOST_NUMBERS


@pytest.mark.parametrize(
    ("garbage", "text"),
    [
        ([], "durations are cut short"),
        ([0] * 7, "durations are cut short"),
        ([0] * 7 + [0, 60, 5, 1, 1, 1, 1, 1], "durations cannot be read"),
        ([0] * 7 + [0, 0, 9], "durations cannot be read"),
        ([0] * 29, "its figures have 29 numbers"),
    ],
)
def test_what_is_no_report_is_an_error(garbage: list[int], text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        RequestFigures.unpack(garbage, RequestFigures())


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


def test_what_is_open_may_become_less() -> None:
    before = figures(open=3, open_websockets=2)
    now = RequestFigures.unpack(RequestFigures().pack(), before)
    assert (now.open, now.open_websockets) == (0, 0)


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
