"""What the soak's jobs do, in the workers.  Nothing heavy is imported here.

Each of them signs first, in a file: so it is known which attempts have begun, whatever
becomes of them.  Those that end well return what :func:`sign` does, and something more.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import zlib
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, NamedTuple, NoReturn

import asyncpool
from tests.helpers.large import Block

__all__: list[str] = []

# Seconds after which whatever hangs has been forgotten by the pool.
FOR_EVER = 3600.0

Signature = tuple[int, int]


class OwnError(Exception):
    """What jobs raise on purpose; *key* tells whose it is."""

    def __init__(self, key: int) -> None:
        super().__init__(key)
        self.key = key


def sign(book: str, key: int) -> Signature:
    """Leave a line: which attempt has begun, where, and what was broadcast there."""
    attempt = asyncpool.current_job().attempt
    told = getattr(asyncpool.worker_state(), "told", 0)
    fd = os.open(book, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{key} {attempt} {os.getpid()} {told}\n".encode())
    os.close(fd)
    return key, attempt


# As an initializer.


def prepare() -> None:
    asyncpool.worker_state().prepared = os.getpid()


def stumble(one_in: int) -> None:
    """Fail in some workers."""
    if os.getpid() % one_in == 0:
        raise LookupError("an initializer that stumbles")


# What ends well.


def square(book: str, key: int, number: int) -> tuple[Signature, int]:
    return sign(book, key), number * number


def nap(book: str, key: int, seconds: float) -> tuple[Signature, float]:
    signature = sign(book, key)
    time.sleep(seconds)
    return signature, seconds


def compute(book: str, key: int, seconds: float) -> tuple[Signature, float]:
    signature = sign(book, key)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass
    return signature, seconds


def turn_round(book: str, key: int, block: Block) -> tuple[Signature, int, Block]:
    """Return the checksum of what has come, and something as large."""
    signature = sign(book, key)
    return signature, zlib.crc32(block.data), Block(bytearray(block.data)[::-1])


def exchange(book: str, key: int, table: dict[int, str]) -> Any:
    signature = sign(book, key)
    return signature, {value: number for number, value in table.items()}


def talk(book: str, key: int, lines: int) -> tuple[Signature, int]:
    import logging

    signature = sign(book, key)
    for number in range(lines):
        logging.getLogger("tests.soak.job").info("line %d of job %d", number, key)
        os.write(1, b"out\n")
        os.write(2, b"err\n")
    return signature, lines


def retire(book: str, key: int) -> tuple[Signature, str]:
    signature = sign(book, key)
    asyncpool.retire_worker()
    return signature, "retired"


def leak(book: str, key: int, size: int, seconds: float) -> tuple[Signature, int]:
    """Keep *size* bytes for as long as the worker lives."""
    signature = sign(book, key)
    _leaks.append(b"x" * size)
    time.sleep(seconds)
    return signature, size


_leaks: list[bytes] = []


def fork(book: str, key: int, new_session: int) -> tuple[Signature, str]:
    """Leave a process behind, besides one that ends."""
    signature = sign(book, key)
    ends = os.fork()
    if ends == 0:
        os._exit(0)
    os.waitpid(ends, 0)
    if os.fork() == 0:
        if new_session:
            os.setsid()
        time.sleep(FOR_EVER)
        os._exit(0)
    return signature, "forked"


def raise_in_thread(book: str, key: int) -> tuple[Signature, str]:
    """Return, and have the worker replaced nevertheless."""

    def body() -> NoReturn:
        raise OwnError(key)

    signature = sign(book, key)
    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return signature, "raised"


# What is tried again.


def fail_before(book: str, key: int, attempt: int) -> tuple[Signature, str]:
    """Raise in all attempts before this one."""
    signature = sign(book, key)
    if signature[1] < attempt:
        raise OwnError(key)
    return signature, "passed"


def die_before(book: str, key: int, attempt: int, how: str) -> tuple[Signature, str]:
    signature = sign(book, key)
    if signature[1] < attempt:
        DEATHS[how]()
    return signature, "survived"


def hang_before(book: str, key: int, attempt: int, how: str) -> tuple[Signature, str]:
    signature = sign(book, key)
    if signature[1] < attempt:
        HANGS[how]()
    return signature, "moved"


def count(book: str, key: int, steps: int, die_at: int) -> tuple[Signature, int, int]:
    """Beat at each step, and go on after a death where the last attempt was."""
    signature = sign(book, key)
    start = asyncpool.current_job().last_details or 0
    for step in range(start + 1, steps + 1):
        asyncpool.heartbeat(step)
        time.sleep(0.001)
        if step == die_at and signature[1] == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    return signature, start, steps


def clean_up(book: str, key: int, seconds: float) -> NoReturn:
    """Take some time to end when asked to."""
    sign(book, key)
    try:
        time.sleep(FOR_EVER)
    finally:
        time.sleep(seconds)
    raise AssertionError


# What is awaited; few workers need asyncio.


async def a_nap(book: str, key: int, seconds: float) -> tuple[Signature, float]:
    import asyncio

    signature = sign(book, key)
    await asyncio.sleep(seconds)
    return signature, seconds


async def a_many(book: str, key: int, tasks: int) -> tuple[Signature, int]:
    import asyncio

    async def pass_on(number: int) -> int:
        await asyncio.sleep(0.001 * (number % 3))
        return number

    signature = sign(book, key)
    numbers = await asyncio.gather(*map(pass_on, range(tasks)))
    return signature, len(set(numbers))


async def a_fail_before(book: str, key: int, attempt: int) -> tuple[Signature, str]:
    signature, _ = await a_nap(book, key, 0.01)
    if signature[1] < attempt:
        raise OwnError(key)
    return signature, "passed"


async def a_die_before(book: str, key: int, attempt: int) -> tuple[Signature, str]:
    signature, _ = await a_nap(book, key, 0.01)
    if signature[1] < attempt:
        os._exit(3)
    return signature, "survived"


async def a_wait(book: str, key: int, seconds: float) -> NoReturn:
    """Wait for ever, and take some time to end when asked to."""
    import asyncio

    try:
        await a_nap(book, key, FOR_EVER)
    finally:
        await asyncio.sleep(seconds)
    raise AssertionError


# What does not get through.


def return_lock(book: str, key: int) -> Any:
    sign(book, key)
    return threading.Lock()


def leave_politely(book: str, key: int) -> NoReturn:
    sign(book, key)
    sys.exit(key)


# How to die, and how to hang.


def _die_by(number: signal.Signals) -> Callable[[], None]:
    def die() -> None:
        os.kill(os.getpid(), number)
        time.sleep(FOR_EVER)

    return die


DEATHS: dict[str, Callable[[], None]] = {
    "SIGKILL": _die_by(signal.SIGKILL),
    "SIGSEGV": _die_by(signal.SIGSEGV),
    "SIGTERM": _die_by(signal.SIGTERM),
    "abort": os.abort,
    "exit": lambda: os._exit(3),
}


def _loop() -> NoReturn:
    while True:
        pass


def _deadlock() -> None:
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def _swallow() -> None:
    while True:
        try:
            time.sleep(FOR_EVER)
        except asyncpool.errors.JobCancelled:
            continue


HANGS: dict[str, Callable[[], Any]] = {
    "loop": _loop,
    "sleep": lambda: time.sleep(FOR_EVER),
    "deadlock": _deadlock,
    "swallow": _swallow,
    "gil": lambda: pow(3, 10**8),  # takes years, and no other thread ever runs
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}


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
