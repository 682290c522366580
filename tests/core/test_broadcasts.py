"""Which broadcasts a new worker gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.options import JobOptions
from asyncpool._engine.sessions import Broadcast, StartBroadcasts
from asyncpool._wire.pickling import PICKLE
from asyncpool._wire.text import function_name


def one() -> None: ...


def other() -> None: ...


def of(number: int, function: Callable[..., Any], payload: bytes) -> Broadcast:
    return Broadcast(number, function_name(function), payload, JobOptions(), PICKLE)


def test_who_took_longer_than_one_that_came_later_is_not_remembered() -> None:
    memory = StartBroadcasts(100)
    memory.add(of(2, one, b"new"))
    memory.add(of(1, one, b"old"))
    assert [each.payload for each in memory] == [b"new"]


def test_all_together_have_no_more_bytes_than_the_limit() -> None:
    memory = StartBroadcasts(10)
    memory.add(of(1, one, bytes(4)))
    running = [of(2, other, bytes(3))]
    memory.check(of(3, len, bytes(3)), running)
    # What it replaces does not count.
    memory.check(of(3, one, bytes(7)), running)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - all of it is compared
        memory.check(of(3, len, bytes(4)), running)
    assert str(caught.value) == (
        "the call of builtins.len has 4 bytes when pickled, the broadcasts before it "
        "have 7, and 10 is the most, since every new worker gets them: have the function "
        "load what is large, from a file for example"
    )


FUNCTIONS: list[Callable[..., Any]] = [one, other, len, print]


@given(st.lists(st.tuples(st.sampled_from(FUNCTIONS), st.booleans())))
def test_however_many_there_are_only_one_of_each_is_kept(
    told: list[tuple[Callable[..., Any], bool]],
) -> None:
    """The bound on what a start takes; some of them fail, and change nothing."""
    memory, last = StartBroadcasts(1000), dict[Any, int]()
    for number, (function, good) in enumerate(told):
        if good:
            memory.add(of(number, function, b"%d" % number))
            last.pop(function, None)
            last[function] = number
    assert [each.payload for each in memory] == [
        b"%d" % number for number in last.values()
    ]
