"""What the soak's streams, maps and broadcasts do, in the workers; see ``work.py``."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NamedTuple

import asyncpool
from tests.helpers.large import Block
from tests.soak.work import DEATHS, FOR_EVER, OwnError, Signature, sign

__all__: list[str] = []


# Streams.  The first item is the signature.


class Course(NamedTuple):
    """What becomes of a stream.

    Attributes:
        length: How many items it has besides the first.
        size: How large they are; 0 for a few bytes.
        until: Before which attempt it comes to a bad end, behind them.
        then: To which.
    """

    length: int
    size: int
    until: int
    then: str


def block(key: int, number: int, size: int) -> Block:
    """Return what no other item is."""
    text = b"%d of %d " % (number, key)
    return Block((text * (size // len(text) + 1))[:size])


def item(key: int, attempt: int, number: int, size: int) -> Any:
    return block(key, number, size) if size else (key, attempt, number)


def items(
    book: str, key: int, course: Course
) -> Generator[Any, None, tuple[Signature]]:
    """Yield items."""
    signature = sign(book, key)
    yield signature
    for number in range(course.length):
        yield item(key, signature[1], number, course.size)
    if signature[1] < course.until:
        _end(key, course.then)
    return (signature,)


async def a_items(book: str, key: int, course: Course) -> AsyncIterator[Any]:
    import asyncio

    signature = sign(book, key)
    yield signature
    for number in range(course.length):
        await asyncio.sleep(0)
        yield item(key, signature[1], number, course.size)
    if signature[1] < course.until:
        if course.then == "hang":
            await asyncio.sleep(FOR_EVER)
        _end(key, course.then)


def _end(key: int, how: str) -> None:
    match how:
        case "raise":
            raise OwnError(key)
        case "hang":
            time.sleep(FOR_EVER)
        case _:
            DEATHS[how]()


# Maps.


class Task(NamedTuple):
    """An item of a map.

    Attributes:
        book: Where it signs.
        key: Its number there.
        until: Before which attempt it comes to a bad end.
        how: To which.
        seconds: How long it takes.
    """

    book: str
    key: int
    until: int
    how: str
    seconds: float


def do(task: Task) -> tuple[Signature, int]:
    signature = sign(task.book, task.key)
    if task.seconds:
        time.sleep(task.seconds)
    if signature[1] < task.until:
        _end(task.key, task.how)
    return signature, 2 * task.key


async def a_do(task: Task) -> tuple[Signature, int]:
    import asyncio

    await asyncio.sleep(0)
    return do(task)


def as_number(task: Task) -> int:
    """Do the same, and return a number, which maps hand over in another way."""
    return do(task)[1]


# Broadcasts.


def configure(number: int, token: str, how: str) -> tuple[int, int]:
    """Be told a number; the first worker that takes the token comes to a bad end."""
    if token and _take(token):
        _end(number, how)
    asyncpool.worker_state().told = number
    return os.getpid(), number


def _take(token: str) -> bool:
    try:
        os.close(os.open(token, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


# How the items of maps do what they do.
DOINGS: tuple[Callable[[Task], Any], ...] = (do, do, as_number, a_do)
