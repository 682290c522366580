"""The rectangles of a flame graph."""

from __future__ import annotations

from hypothesis import given, strategies as st

from asyncpool._core.profile.stack_counts import Stack
from asyncpool.profile import Rectangle, lay_out

STACKS = st.dictionaries(
    st.tuples(
        st.sampled_from("fgh"), st.lists(st.sampled_from("abc"), max_size=5).map(tuple)
    ),
    st.integers(1, 50),
).map(lambda counts: list(counts.items()))


def test_a_call_is_below_its_caller_and_the_widest_is_on_the_left() -> None:
    stacks: list[tuple[Stack, int]] = [
        (("sort", ("a",)), 2),
        (("parse", ("x", "y")), 3),
        (("parse", ("x",)), 4),
    ]
    assert lay_out(stacks, "all") == [
        Rectangle("all", 0, 0, 9),
        Rectangle("parse", 1, 0, 7),
        Rectangle("x", 2, 0, 7),
        Rectangle("y", 3, 0, 3),
        Rectangle("sort", 1, 7, 2),
        Rectangle("a", 2, 7, 2),
    ]


def test_no_samples_have_a_root_alone() -> None:
    assert lay_out([], "all") == [Rectangle("all", 0, 0, 0)]


@given(STACKS, st.integers(1, 60))
def test_each_lies_within_its_caller_and_beside_the_others(
    stacks: list[tuple[Stack, int]], least: int
) -> None:
    above: list[Rectangle] = []
    ends = dict[int, int]()
    for found in lay_out(stacks, "all", least=least):
        del above[found.depth :]
        assert len(above) == found.depth, "each comes after the one above it"
        if above:
            caller = above[-1]
            assert found.samples >= least
            assert caller.start <= found.start
            assert found.start + found.samples <= caller.start + caller.samples
            assert found.start >= ends.get(found.depth, 0), "no two overlap"
        ends[found.depth] = found.start + found.samples
        above.append(found)


@given(STACKS)
def test_every_stack_is_there_with_all_of_its_samples(
    stacks: list[tuple[Stack, int]],
) -> None:
    path: list[str] = []
    widths = dict[tuple[str, ...], int]()
    for found in lay_out(stacks, "all"):
        path[found.depth :] = [found.name]
        assert tuple(path) not in widths, "what begins alike is one"
        widths[tuple(path)] = found.samples
    for path_of_one in widths:
        below = path_of_one[1:]
        assert widths[path_of_one] == sum(
            samples
            for (function, frames), samples in stacks
            if (function, *frames)[: len(below)] == below
        )
    assert all(("all", function, *frames) in widths for (function, frames), _ in stacks)
