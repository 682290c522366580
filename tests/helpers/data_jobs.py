"""Jobs for pools with a codec: functions of a module, with and without annotations."""

from __future__ import annotations

import gc
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal
from uuid import UUID

from asyncpool import current_job, heartbeat
from asyncpool._wire.pickling import WorkerSerializer
from tests.helpers.values import HoldsLockError

HOME = "tests.helpers.data_jobs"


@dataclass
class Order:
    """What typed jobs take."""

    name: str
    pages: list[int]


@dataclass
class Form:
    """What makes six objects of ``{}``."""

    one: list[int] = field(default_factory=list)
    two: list[int] = field(default_factory=list)
    three: list[int] = field(default_factory=list)
    four: list[int] = field(default_factory=list)
    five: list[int] = field(default_factory=list)


@dataclass
class Folder:
    """What has many of them, in one step."""

    forms: list[Form]
    ids: list[UUID]


@dataclass
class Diary:
    """What takes long in one step."""

    days: list[date]


class Kind(Enum):
    """What few texts are."""

    LETTER = "letter"
    BILL = "bill"


@dataclass
class Document:
    """What has a long text, and short ones that are looked at."""

    kind: Kind
    price: Decimal
    body: str


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


CONTROLS, SHOWN = "\x1b]0;owned\x07\u202e\n", "\\x1b]0;owned\\x07\\u202e\n"


def raise_controls(*, registered: bool = False) -> None:
    error = StockError(CONTROLS, 1) if registered else ValueError(CONTROLS)
    error.add_note(CONTROLS)
    raise error


def raise_unpicklable() -> None:
    raise HoldsLockError(CONTROLS)


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
        if isinstance(found, WorkerSerializer):
            setattr(found, what, lambda *_, **__: payload)
    if what == "pack_error":
        raise ValueError
    return None


def parts(program: list[Any], *texts: bytes) -> bytes:
    """Return a value in parts, as a worker may lie: instructions, and the texts of values."""
    told = [json.dumps(program).encode(), b"", *texts, b""]
    return b"\x02\x01" + bytes(8) + b"".join(len(t).to_bytes(4) + t for t in told)


PUSH, LIST, DICT, TEXT, SET, ARRAY, BYTES, BUFFER = 0, 1, 2, 3, 6, 8, 9, 11


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


def lie_of_forms(payload: bytes) -> list[Form]:
    return send_instead(payload)  # type: ignore[no-any-return]


def lie_of_ids(payload: bytes) -> list[UUID]:
    return send_instead(payload)  # type: ignore[no-any-return]


def lie_of_a_document(payload: bytes) -> Document:
    return send_instead(payload)  # type: ignore[no-any-return]


def lie_of_choices(payload: bytes) -> list[Literal["yes", "no"]]:
    return send_instead(payload)  # type: ignore[no-any-return]


def lie_of_prices(payload: bytes) -> list[Decimal]:
    return send_instead(payload)  # type: ignore[no-any-return]


def give_document(body: int, digits: int) -> Document:
    return Document(Kind.BILL, Decimal("1" * digits), "\u20ac" * body)


def give_forms(count: int) -> list[Form]:
    return [Form() for _ in range(count)]


def give_folder(forms: int, ids: int) -> Folder:
    return Folder([Form() for _ in range(forms)], [UUID(int=n) for n in range(ids)])


def give_alone(value: Any, count: int) -> Any:
    return [value] * count


def give_diary(days: int) -> Diary:
    return Diary([date(2026, 1, 1) + timedelta(n) for n in range(days)])


def give_table(rows: int, columns: int) -> Any:
    return [[f"{row}-{at}" for at in range(columns)] for row in range(rows)]


def give_texts(count: int) -> Any:
    return {f"{number}" for number in range(count)}


def give_numbers(at: int) -> dict[str, list[tuple[int, ...]]]:
    numbers: Any = [(1, 2)] * 20_000
    numbers[at] = (1, "2")
    return {"few": [], "many": numbers}


def _what_cannot_be_packed(what: str) -> ValueError:
    error = ValueError(
        {
            "surrogates": "\ud83d" + "\ude00",
            "long": "x" * (17 << 20),
            "lists": [[] for _ in range(150_000)],
        }.get(what, "no")
    )
    if what == "note":
        error.add_note("\ud83d")
    return error


def raise_odd(what: str) -> None:
    raise _what_cannot_be_packed(what)


async def raise_odd_later(what: str) -> None:
    raise _what_cannot_be_packed(what)


def give_times(times: list[datetime]) -> dict[str, datetime]:
    return {str(at): time for at, time in enumerate(times)}


def give_second_time() -> list[datetime | None]:
    return [datetime(2026, 10, 25, 2, 30, fold=1)]  # noqa: DTZ001 - of which none says the zone


def give_ints(count: int) -> Any:
    return [1] * count
