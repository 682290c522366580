"""However long a sequence is, what is kept of it is spread evenly."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.history.thinning import Thinned


@given(count=st.integers(0, 500), most=st.integers(2, 20))
def test_what_is_kept_is_evenly_spread_and_bounded(count: int, most: int) -> None:
    kept = Thinned[int](most)
    for number in range(count):
        kept.add(number)
    items = kept.items
    assert len(items) <= most
    if count <= most:
        assert items == list(range(count))
    else:
        step = items[1] - items[0]
        assert items == list(range(0, count, step))
        assert len(items) > most // 2 - 1
