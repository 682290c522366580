"""Jobs for pools with a codec: functions of a module, with and without annotations."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from asyncpool import current_job, heartbeat
from asyncpool._core.pickling.serializers import WorkerSerializer

HOME = "tests.helpers.data_jobs"


@dataclass
class Order:
    """What typed jobs take."""

    name: str
    pages: list[int]


class StockError(Exception):
    """An exception with arguments of its own."""

    def __init__(self, item: str, left: int) -> None:
        super().__init__(item, left)
        self.item = item
        self.left = left


class Reversed:
    """A codec of the user's, which is none that anybody should have."""

    name = "reversed"

    def encode(self, value: Any) -> bytes:
        return repr(value)[::-1].encode()

    def decode(self, data: bytes, kind: Any) -> Any:
        import ast

        value = ast.literal_eval(data.decode()[::-1])
        if kind is int and type(value) is not int:
            raise ValueError(f"{value!r} is no int")
        return value


def echo(value: Any) -> Any:
    return value


async def echo_later(value: Any) -> Any:
    return value


def count_pages(order: Order) -> int:
    return sum(order.pages)


def make_order(name: str, count: int) -> Order:
    return Order(name, list(range(count)))


def lie(value: Any) -> int:
    return value  # type: ignore[no-any-return]


def add(one: int, other: int = 1, /, *rest: int, scale: int = 1, **more: int) -> int:
    return (one + other + sum(rest) + sum(more.values())) * scale


def sell(item: str, left: int) -> None:
    error = StockError(item, left)
    error.add_note("The shop is closed.")
    raise error


def raise_value_error(text: str) -> None:
    raise ValueError(text)


def count_to(number: int) -> Iterator[list[int | str]]:
    for each in range(number):
        yield [each, "x" * each]


async def count_later(number: int) -> AsyncIterator[dict[str, int]]:
    for each in range(number):
        yield {"number": each}


def beat(details: Any) -> str:
    heartbeat(details)
    return current_job().function


def last_details(details: Any) -> Any:
    if current_job().attempt == 1:
        heartbeat(details)
        os._exit(3)
    return current_job().last_details


def log(text: str) -> None:
    logging.getLogger("data_jobs").warning("it says %s", text)


def die() -> None:
    os._exit(3)


def send_instead(payload: bytes, what: str = "pack_value") -> Any:
    """Have this worker send *payload* as the outcome of this job, whatever it returns."""
    for found in gc.get_objects():
        if type(found) is WorkerSerializer:
            setattr(found, what, lambda *_, **__: payload)
    if what == "pack_error":
        raise ValueError
    return None


def meeting(bits: int = 15) -> list[int]:
    """Return ints of different hashes that meet in a dict of ``2 ** bits`` slots.

    The first ones fill the slots that Python looks at one after the other.  The others are led
    there, and look at thousands of slots each.
    """
    mask, slot = (1 << bits) - 1, 0
    place: dict[int, int] = {}
    while len(place) <= mask // 3:
        place[slot] = len(place)
        slot = (5 * slot + 1) & mask
    keys, key = [*place], mask
    while len(keys) < mask * 5 // 8:
        key += 1
        slot, rest = key & mask, key
        while rest and slot in place:
            rest >>= 5
            slot = (5 * slot + rest + 1) & mask
        if not rest and place.get(slot, mask) < len(place) // 2:
            keys.append(key)
    return keys


def meet() -> Any:
    return dict.fromkeys(meeting(), 1)


def meet_as_said() -> dict[int, int]:
    return dict.fromkeys(meeting(), 1)


def meet_in_a_list() -> Any:
    return [[{"of one hash": {n * (2**61 - 1) for n in range(20_000)}}]]


def meet_in_a_stream() -> Iterator[Any]:
    yield dict.fromkeys(meeting(), 1)


def meet_in_an_error() -> None:
    raise ValueError({1: 2})


def give_lists(count: int) -> Any:
    return [[] for _ in range(count)]


def give_rows(count: int) -> list[list[int]]:
    return [[1] for _ in range(count)]
