"""Which worker has a key, and what is a key."""

from __future__ import annotations

import enum
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, strategies as st

from asyncpool._core.dispatcher import choose
from asyncpool._core.options import hash_of

hashes = st.integers(-(1 << 63), (1 << 63) - 1)
places = st.sets(st.integers(0, 40), min_size=1, max_size=20)

# Keys that are much alike, as numbers of users are, and of tables.
FAMILIES = {
    "numbers": range(4000),
    "even numbers": range(0, 8000, 2),
    "multiples of a large power": range(0, 4000 << 32, 1 << 32),
    "numbers below zero": range(-1, -4001, -1),
    "texts": [f"user-{number}" for number in range(4000)],
    "pairs": [(f"tenant-{n % 7}", n) for n in range(4000)],
}


class Request:
    pass


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Point:
    x: int


@given(hashes, places, st.integers(0, 40))
def test_only_the_keys_of_a_place_that_comes_or_goes_move(
    key: int, there: set[int], new: int
) -> None:
    assert choose(key, there | {new}) in {choose(key, there), new}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [2, 3, 5, 16])
def test_places_have_equal_shares(family: str, count: int) -> None:
    keys = [hash_of(key) for key in FAMILIES[family]]
    shares = Counter(choose(key, range(count)) for key in keys)
    fair = len(keys) / count
    # Five standard deviations.  The texts are hashed anew in each run.
    room = 5 * (fair * (1 - 1 / count)) ** 0.5
    assert set(shares) == set(range(count))
    assert max(abs(share - fair) for share in shares.values()) < room


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("count", [1, 2, 5, 15])
def test_one_place_more_moves_no_more_than_its_share(family: str, count: int) -> None:
    keys = [hash_of(key) for key in FAMILIES[family]]
    moved = [
        key
        for key in keys
        if choose(key, range(count)) != choose(key, range(count + 1))
    ]
    share = 1 / (count + 1)
    room = 5 * (len(keys) * share * (1 - share)) ** 0.5
    assert abs(len(moved) - len(keys) * share) < room
    assert {choose(key, range(count + 1)) for key in moved} == {count}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ab", "a" + chr(98)),
        (b"a", bytes([97])),
        (("a", 1), ("a", 1)),
        (1, 1.0),
        (frozenset({1, 2}), frozenset({2, 1})),
        (UUID(int=7), UUID(int=7)),
        (Point(1), Point(1)),
        (Colour.RED, Colour.RED),
        (Fraction(1, 2), 0.5),
    ],
)
def test_equal_keys_have_equal_hashes(one: Any, other: Any) -> None:
    assert hash_of(one) == hash_of(other)


@pytest.mark.parametrize("key", [[1], {"a": 1}, (1, [2])])
def test_what_cannot_be_hashed_is_no_key(key: Any) -> None:
    with pytest.raises(TypeError) as caught:
        hash_of(key)
    assert str(caught.value) == (
        f"key must be hashable, such as a str, an int or a tuple of these, not {key!r}"
    )
    assert isinstance(caught.value.__cause__, TypeError)


@pytest.mark.parametrize("key", [object(), Request()])
def test_nor_is_what_is_equal_to_nothing_but_itself(key: Any) -> None:
    with pytest.raises(TypeError) as caught:
        hash_of(key)
    assert str(caught.value) == (
        "key must be a value, such as a str, an int or a tuple of these: "
        f"{type(key).__qualname__} has a hash by identity only"
    )


@pytest.mark.parametrize("key", [("eu", None), (int, 42), (len, "a"), (..., 1)])
def test_parts_may_be_what_there_is_only_one_of(key: Any) -> None:
    assert hash_of(key) == hash(key)


@pytest.mark.parametrize("nan", [float("nan"), Decimal("nan"), complex("nan")])
def test_nor_is_what_is_equal_to_nothing(nan: Any) -> None:
    with pytest.raises(TypeError) as caught:
        hash_of(nan)
    text = f"key must be a value that is equal to itself, not {nan!r}"
    assert str(caught.value) == text
