"""Profiles: what samplers send, what is counted, and how it is shown."""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._wire.profile import (
    MAX_CHUNK,
    MAX_COUNT,
    MAX_DEPTH,
    OTHER,
    SampleChunk,
    Stack,
    as_name,
    count_stack,
)
from asyncpool._wire.text import MAX_NAME
from asyncpool.errors import ProtocolError
from asyncpool.profile import Profile, ProfileBook, Rectangle, StackSamples, lay_out

NAMES = st.text(max_size=30).map(as_name)
STACKS = st.tuples(NAMES, st.lists(NAMES, max_size=6).map(tuple))
COUNTS = st.integers(0, MAX_COUNT - 1)


@given(
    st.dictionaries(STACKS, COUNTS, max_size=5),
    st.tuples(COUNTS, COUNTS, COUNTS),
    st.text(st.characters(categories=["L"]), max_size=9),
)
def test_a_chunk_arrives_as_it_was(
    stacks: dict[Stack, int], figures: tuple[int, int, int], error: str
) -> None:
    chunk = SampleChunk(stacks, figures, error)
    [payload] = chunk.pack()
    assert SampleChunk.unpack(payload) == chunk


def test_many_stacks_arrive_in_several_chunks() -> None:
    widest = as_name("\U0001f40d" * 300)
    assert (len(widest), len(widest.encode())) == (MAX_NAME, 4 * (MAX_NAME - 3) + 3)
    stacks: dict[Stack, int] = {
        (f"f{i}", tuple(f"{j}{widest[:-9]}{i}" for j in range(MAX_DEPTH))): i + 1
        for i in range(20)
    }
    payloads = list(SampleChunk(stacks, (3, 2, 1), "late").pack())
    assert len(payloads) == 20
    assert max(map(len, payloads)) <= MAX_CHUNK
    chunks = [SampleChunk.unpack(payload) for payload in payloads]
    found = Counter[Stack]()
    for chunk in chunks:
        found.update(chunk.stacks)
    assert found == stacks
    assert (chunks[0].figures, chunks[0].error) == ((3, 2, 1), "late")
    assert {(chunk.figures, chunk.error) for chunk in chunks[1:]} == {((0, 0, 0), "")}


def test_a_name_is_printable_and_not_too_long() -> None:
    assert as_name("a\x1b[2J\n\udc80") == "a\\x1b[2J\\n\\udc80"
    assert as_name("x" * 201) == "x" * 197 + "..."
    assert as_name("x" * 200) == "x" * 200


FINE: list[Any] = [["f", "g"], [[1, 0, 1]], [0, 0, 0], ""]


WRONG: list[Any] = [
    None,
    {},
    [],
    FINE[:3],
    [*FINE, 1],
    [[1], *FINE[1:]],
    [["x" * (MAX_NAME + 1), "g"], *FINE[1:]],
    [FINE[0], [[]], *FINE[2:]],
    [FINE[0], [[1]], *FINE[2:]],
    [FINE[0], [[1, 2]], *FINE[2:]],
    [FINE[0], [[1, -1]], *FINE[2:]],
    [FINE[0], [[1, True]], *FINE[2:]],
    [FINE[0], [[1.5, 0]], *FINE[2:]],
    [FINE[0], [[-1, 0]], *FINE[2:]],
    [FINE[0], [[MAX_COUNT, 0]], *FINE[2:]],
    [FINE[0], [[1, *[0] * (MAX_DEPTH + 2)]], *FINE[2:]],
    [FINE[0], 7, *FINE[2:]],
    [*FINE[:2], [0, 0, 0, 0], ""],
    [*FINE[:2], [0, "0", 0], ""],
]


@pytest.mark.parametrize(
    "payload",
    [
        *(
            b"",
            b"{",
            b"\xff",
            b"[" * 5000,
            b" " * MAX_CHUNK + json.dumps(FINE).encode(),
        ),
        *(json.dumps(message).encode() for message in WRONG),
    ],
)
def test_what_a_worker_makes_up_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError, match="samples of stacks cannot be read"):
        SampleChunk.unpack(payload)


FEW_STACKS = st.tuples(
    st.sampled_from(["shop.sort", "shop.parse"]),
    st.lists(st.sampled_from("abc"), max_size=3).map(tuple),
)


@given(st.lists(st.tuples(FEW_STACKS, st.integers(1, 9))), st.integers(1, 8))
def test_no_sample_is_lost(found: list[tuple[Stack, int]], most: int) -> None:
    counts, kept = dict[Stack, int](), dict[Stack, int]()
    for stack, samples in found:
        count_stack(counts, stack, samples, most)
        if stack in kept or len(kept) < most:
            kept[stack] = kept.get(stack, 0) + samples
    others = counts.pop((OTHER, ()), 0)
    assert counts == kept, "the first ones are counted by themselves"
    assert others + sum(kept.values()) == sum(n for _, n in found)


def samples_of(stacks: list[tuple[Stack, int]]) -> tuple[StackSamples, ...]:
    return tuple(
        StackSamples(function=function, frames=frames, samples=samples)
        for (function, frames), samples in stacks
    )


def profile_of(stacks: list[tuple[Stack, int]]) -> Profile:
    about: Any = {"slot": None, "function": None, "workers": ()}
    return Profile(
        pool="pool shop", seconds=1, rate=9, stacks=samples_of(stacks), **about
    )


SHORT_STACKS = st.dictionaries(
    st.tuples(
        st.sampled_from("fgh"), st.lists(st.sampled_from("abc"), max_size=5).map(tuple)
    ),
    st.integers(1, 50),
).map(lambda counts: list(counts.items()))


@given(SHORT_STACKS, st.integers(1, 60))
def test_each_lies_within_its_caller_and_beside_the_others(
    stacks: list[tuple[Stack, int]], least: int
) -> None:
    above: list[Rectangle] = []
    ends = dict[int, int]()
    for found in lay_out(samples_of(stacks), least=least):
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


@given(SHORT_STACKS)
def test_every_stack_is_there_with_all_of_its_samples(
    stacks: list[tuple[Stack, int]],
) -> None:
    path: list[str] = []
    widths = dict[tuple[str, ...], int]()
    for found in lay_out(samples_of(stacks)):
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


ODD_NAMES = st.text(st.sampled_from("ab;: \n<"), min_size=1, max_size=4)
ODD_STACKS = st.dictionaries(
    st.tuples(ODD_NAMES, st.lists(ODD_NAMES, max_size=4).map(tuple)), st.integers(1, 9)
).map(lambda counts: list(counts.items()))


@given(ODD_STACKS)
def test_the_text_has_every_sample_and_nothing_that_breaks_it(
    stacks: list[tuple[Stack, int]],
) -> None:
    lines = profile_of(stacks).collapsed().split("\n")
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
    top = [(it.name, it.own, it.total) for it in profile_of(stacks).top()]
    assert top == [("f:1", 4, 7), ("g:5", 3, 3), ("time.sleep", 1, 1)]


# Whom a pool has asked for samples, and what they sent.

SORT: Stack = ("shop.sort", ("shop.sort:3",))
PARSE: Stack = ("shop.parse", ("shop.parse:9",))


def chunk(error: str = "", **stacks: int) -> SampleChunk:
    known = {"sort": SORT, "parse": PARSE}
    return SampleChunk(
        {known[name]: samples for name, samples in stacks.items()},
        (1, 2, 3),
        error,
    )


def test_the_samples_of_all_workers_are_counted_together() -> None:
    book = ProfileBook()
    book.ask(1, 1, 101)
    book.ask(0, 2, 100)
    book.hear(0, 2, chunk(sort=1), last=False)
    book.hear(1, 1, chunk(sort=4, parse=6), last=True)
    book.hear(0, 2, chunk(parse=2), last=True)
    assert not book.open
    assert book.stacks == samples_of([(PARSE, 8), (SORT, 5)])
    first, second = book.workers
    assert (first.slot, first.generation, first.pid) == (0, 2, 100)
    assert (first.samples, first.idle, first.skipped, first.missed) == (3, 2, 4, 6)
    assert (second.slot, second.samples, second.complete) == (1, 10, True)
