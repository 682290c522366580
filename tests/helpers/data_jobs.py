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


def count_to(number: int) -> Iterator[tuple[int, bytes]]:
    for each in range(number):
        yield each, bytes(each)


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
