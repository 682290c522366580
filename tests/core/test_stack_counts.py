"""Samples are counted by stack, up to a bound."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.profile.stack_counts import OTHER, Stack, StackCounts

STACKS = st.tuples(
    st.sampled_from(["shop.sort", "shop.parse"]),
    st.lists(st.sampled_from("abc"), max_size=3).map(tuple),
)


@given(st.lists(st.tuples(STACKS, st.integers(1, 9))), st.integers(1, 8))
def test_no_sample_is_lost(found: list[tuple[Stack, int]], most: int) -> None:
    counts, kept = StackCounts(most), dict[Stack, int]()
    for stack, samples in found:
        counts.add(stack, samples)
        if stack in kept or len(kept) < most:
            kept[stack] = kept.get(stack, 0) + samples
    others = counts.counts.pop((OTHER, ()), 0)
    assert counts.counts == kept, "the first ones are counted by themselves"
    assert others + sum(kept.values()) == counts.total == sum(n for _, n in found)


def test_taking_begins_again() -> None:
    counts = StackCounts(1)
    counts.add(("f", ()), 2)
    assert counts.take() == {("f", ()): 2}
    assert (counts.counts, counts.total) == ({}, 0)
    counts.add(("g", ()), 1)
    assert counts.take() == {("g", ()): 1}
