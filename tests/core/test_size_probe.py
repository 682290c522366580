"""The contract of the lookout: what stalls a loop is found before it is copied."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

from asyncpool._core.pickling.calls import SizeProbe, load_job, pack_job
from asyncpool._core.pickling.out_of_band import (
    HEAVY,
    OutOfBandPickle,
    StreamTooLongError,
)
from tests.core.specimens import add
from tests.helpers.parcels import arrived, plain

LIMIT = 1_000
LONG = "x" * (LIMIT + 1)


class Box:
    """Has attributes, and counts how often anything like it is pickled."""

    pickled = 0

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)

    def __reduce__(self) -> tuple[Any, ...]:
        Box.pickled += 1
        return Box, (), self.__dict__


class Shy:
    """Does not show its attributes."""

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("not to be seen")

    def __reduce__(self) -> tuple[Any, ...]:
        return Shy, ()


class Block(bytearray):
    """Somebody else's array."""

    nbytes = property(len)


class Row(tuple[Any, ...]):
    __slots__ = ()


class Rows(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


class Text(str):
    __slots__ = ()


class Number(int):
    pass


@pytest.mark.parametrize(
    "giant",
    [
        {"a": {"b": [LONG]}},
        [[[[1 << 8 * LIMIT]]]],
        Text(LONG),
        Number(1 << 8 * LIMIT),
        array.array("b", bytes(LIMIT + 1)),
        np.zeros(4 * LIMIT, "u1")[::2],
        np.ma.masked_array(np.zeros(LIMIT), mask=False),
        np.zeros(LIMIT, "M8[ns]"),
        np.zeros(LIMIT, object),
        np.zeros(LIMIT).view(np.recarray),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_giant_is_found_at_once_wherever_it_is(giant: object) -> None:
    with pytest.raises(StreamTooLongError):
        SizeProbe(LIMIT).search([1, giant])
    holders = (Box(a=giant), Box(a=[giant]), Row([giant]), Rows([giant]))
    for holder in (*holders, Table(a=giant)):
        assert SizeProbe(LIMIT).search([holder]) is False
        with pytest.raises(StreamTooLongError):
            SizeProbe(LIMIT).watch(holder)
    # Not even the second one of a class has it pickled.
    Box.pickled = 0
    with pytest.raises(StreamTooLongError):
        pack_job(add, (Box(a=1), Box(a=giant)), {}, number=1, limit=LIMIT)
    assert Box.pickled == 1


@pytest.mark.parametrize(
    "value",
    [
        "x" * LIMIT,
        (1 << 8 * LIMIT) - 1,
        bytes(2 * LIMIT),
        array.array("b", bytes(LIMIT)),
        np.zeros(10 * LIMIT),
        np.asfortranarray(np.zeros((LIMIT, 10))),
        np.zeros(LIMIT // 8, "M8[ns]"),
        np.float64(1.0),
        Block(10 * LIMIT),
        Box(),
        Shy(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_giant_is_left_to_the_pickler(value: object) -> None:
    lookout = SizeProbe(LIMIT)
    lookout.search([value, [value]])
    lookout.watch(value)
    lookout.watch(Box(a=value))


def test_an_array_that_goes_beside_the_stream_is_no_giant_in_an_object() -> None:
    payload = pack_job(add, (Box(a=np.zeros(HEAVY)),), {}, number=1, limit=HEAVY)
    assert isinstance(payload, OutOfBandPickle)
    assert [len(view) for view in payload.buffers] == [8 * HEAVY]


def test_there_is_nothing_to_watch_in_what_was_seen_to_the_end() -> None:
    plains = [1, 2.5, True, None, "text", b"bytes", (), [1, {"key": [2]}]]
    assert SizeProbe(LIMIT).search(plains) is True
    assert SizeProbe(LIMIT).search([*plains, Box()]) is False
    assert SizeProbe(LIMIT).search([[[Box()]]]) is False
    assert SizeProbe(LIMIT).search([{1}]) is False
    loop: list[object] = []
    loop.append(loop)
    assert SizeProbe(LIMIT).search([loop]) is False


@pytest.mark.parametrize("crowd", [[1] * 100, [[1] * 98]], ids=["many", "inside"])
def test_there_are_a_hundred_looks(crowd: list[Any]) -> None:
    assert SizeProbe(LIMIT).search([*crowd, [LONG]]) is False
    assert SizeProbe(LIMIT).search([crowd] * 200) is False
    with pytest.raises(StreamTooLongError):
        SizeProbe(LIMIT).search([LONG, *crowd])


def test_of_more_than_400_objects_none_is_pickled_in_vain() -> None:
    Box.pickled = 0
    payload = plain(pack_job(add, ([Box()] * 1_000,), {}, number=1, limit=HEAVY))
    assert (Box.pickled, len(load_job(arrived(payload), add)[1][0])) == (1, 1_000)
    # The class of all of them is the 400th.
    Box.pickled = 0
    pack_job(add, ([Box() for _ in range(399)],), {}, number=1, limit=HEAVY)
    assert Box.pickled == 399
    Box.pickled = 0
    with pytest.raises(StreamTooLongError):
        pack_job(add, ([Box() for _ in range(1_000)],), {}, number=1, limit=HEAVY)
    assert Box.pickled == 399


@pytest.mark.parametrize("number", [0, 1])
def test_a_call_by_value_is_watched_too(number: int) -> None:
    args = (lambda: None, Box(a=LONG))
    Box.pickled = 0
    with pytest.raises(StreamTooLongError):
        pack_job(add, args, {}, number=number, limit=LIMIT)
    assert Box.pickled == 0
    assert len(pack_job(add, args, {}, number=number)) > LIMIT
