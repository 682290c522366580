"""A profile as text, and as a table."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st

from asyncpool._core.profile.stack_counts import Stack
from asyncpool.profile import collapse, count_frames

NAMES = st.text(st.sampled_from("ab;: \n<"), min_size=1, max_size=4)
STACKS = st.dictionaries(
    st.tuples(NAMES, st.lists(NAMES, max_size=4).map(tuple)), st.integers(1, 9)
).map(lambda counts: list(counts.items()))


def test_each_stack_is_a_line() -> None:
    stacks = [(("shop.sort", ("a:1", "b:2")), 7), (("time.sleep", ()), 2)]
    assert collapse(stacks) == "shop.sort;a:1;b:2 7\ntime.sleep 2\n"
    assert collapse([]) == ""


@given(STACKS)
def test_the_text_has_every_sample_and_nothing_that_breaks_it(
    stacks: list[tuple[Stack, int]],
) -> None:
    lines = collapse(stacks).split("\n")
    assert lines.pop() == ""
    found = [re.fullmatch(r"(.+) (\d+)", line) for line in lines]
    assert all(found)
    assert sum(int(each[2]) for each in found if each) == sum(n for _, n in stacks)
    depths = {len(frames) + 1 for (_, frames), _ in stacks}
    assert {each[1].count(";") + 1 for each in found if each} == depths


def test_a_call_that_calls_itself_counts_once() -> None:
    stacks: list[tuple[Stack, int]] = [
        (("f", ("f:1", "f:1", "g:5")), 3),
        (("f", ("f:1",)), 4),
        (("time.sleep", ()), 1),
    ]
    assert count_frames(stacks) == [
        ("f:1", 4, 7),
        ("g:5", 3, 3),
        ("time.sleep", 1, 1),
    ]


@given(STACKS)
def test_each_sample_has_one_innermost_call(stacks: list[tuple[Stack, int]]) -> None:
    found = count_frames(stacks)
    assert sum(own for _, own, _ in found) == sum(n for _, n in stacks)
    assert all(own <= total for _, own, total in found)
    assert [own for _, own, _ in found] == sorted(
        (o for _, o, _ in found), reverse=True
    )
