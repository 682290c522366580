"""Jobs that send heartbeats, and what abuses them."""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Any, NoReturn

import asyncpool
from asyncpool import heartbeat
from asyncpool._wire.frames import FrameKind, header
from asyncpool._wire.page import Beat, PageLayout, beat_offset
from asyncpool._wire.posix import INTERRUPT_SIGNAL
from asyncpool.errors import JobCancelled
from tests.helpers import faults
from tests.helpers.faults import say, say_to_control
from tests.helpers.inside import worker_page
from tests.helpers.jobs import arrive, sleep, wait_at


def count(stop: int, size: int = 0) -> bytes:
    for number in range(stop):
        heartbeat(number)
    return bytes(size)


def count_at(gate: str, start: int = 0) -> NoReturn:
    """Beat a number each time that it is let go; never end by itself."""
    number = start
    while True:
        heartbeat(number)
        answer = wait_at(gate, f"beat {number}")
        if answer == "fail":
            raise LookupError(number)
        if answer == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        number += 1


def resume_at(gate: str) -> tuple[Any, int]:
    """Go on where the last attempt was; return what it has said, and the attempt."""
    job = asyncpool.current_job()
    last = job.last_details
    if job.attempt < 3:
        count_at(gate, 0 if last is None else last + 1)
    return last, job.attempt


def beat_and_raise() -> NoReturn:
    """Beat as often as it takes until nobody has seen the last one."""
    job = asyncpool.current_job()
    for number in range(1000):
        heartbeat((job.attempt, job.last_details, number))
    raise LookupError


def beat_value(value: Any) -> None:
    heartbeat(value)


class Trapped:
    """Cannot be unpickled but in a worker."""

    def __init__(self) -> None:
        self.home = os.getpid()

    def __reduce__(self) -> tuple[Any, ...]:
        return unpack_at, (self.home,)


def unpack_at(home: int) -> str:
    if os.getpid() != home:
        raise LookupError("not here")
    return "here"


def beat_trapped(gate: str) -> None:
    heartbeat(Trapped())
    wait_at(gate)
    heartbeat("plain")


def beat_deaf(gate: str) -> NoReturn:
    """Beat for ever, and hear no signal."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [INTERRUPT_SIGNAL])
    with arrive(gate, "deaf"):
        while True:
            heartbeat()


def beat_in_thread(gate: str) -> str:
    """Have another thread beat while this one waits."""
    done = threading.Event()

    def beat() -> None:
        while not done.wait(0.01):
            heartbeat("thread")

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        return wait_at(gate)
    finally:
        done.set()
        thread.join()


# Ways to be silent.


def beat_and(gate: str, word: str, work: Any) -> None:
    heartbeat("last")
    work(gate, word)


def hang_once(gate: str, work: Any) -> str:
    """Hang in the first attempt, after some beats."""
    job = asyncpool.current_job()
    if job.attempt == 1:
        beat_and(gate, "", work)
    return f"resumed from {job.last_details}"


def deadlock(gate: str, word: str) -> None:
    with arrive(gate, word):
        faults.deadlock()


def log_without_end(gate: str, word: str) -> NoReturn:
    import logging

    with arrive(gate, word):
        while True:
            logging.getLogger("tests.flood").warning("x" * 1000)


# What no worker does.


def _beat(number: int = 1, job: int | None = None, attempt: int | None = None) -> Beat:
    mine = asyncpool.current_job()
    return Beat(
        number=number,
        job=mine.id if job is None else job,
        attempt=mine.attempt if attempt is None else attempt,
        at=time.monotonic(),
        details=b"\x80\x05N.",
    )


def send_beat(**changes: int) -> None:
    record = _beat(**changes).pack()
    say(header(FrameKind.LAST_HEARTBEAT, len(record)) + record)


def send_garbage() -> None:
    say(header(FrameKind.LAST_HEARTBEAT, 100) + bytes(100))


def send_a_large_beat() -> None:
    say(header(FrameKind.LAST_HEARTBEAT, 1 << 20) + bytes(1 << 20))


def beat_on_control() -> None:
    say_to_control(header(FrameKind.LAST_HEARTBEAT, 0))


def ring_for_nothing(times: int) -> str:
    control().sendall(header(FrameKind.HEARTBEAT, 0) * times)
    return "rung"


def control() -> Any:
    from tests.helpers.faults import channels

    return channels()[1]


def write_on_page(what: str) -> str:
    """Fill the room for beats with what is none of this job's; ring."""
    page = worker_page()
    for number in (1, 2):
        record = {
            "garbage": os.urandom(1000),
            "ones": b"\xff" * 1000,
            "of nobody": _beat(number, job=2**63).pack(),
            "of another attempt": _beat(number, attempt=7).pack(),
        }[what]
        start = PageLayout(1).beats_offset(0) + beat_offset(number)
        page[start : start + len(record)] = record
    return ring_for_nothing(10)


def claim_and_sleep(gate: str, at: float) -> None:
    """Beat at that time, and then no more."""
    page = worker_page()
    record = _beat()._replace(at=at).pack()
    start = PageLayout(1).beats_offset(0) + beat_offset(1)
    page[start : start + len(record)] = record
    ring_for_nothing(1)
    sleep(gate, "")


def clean_up_beating(gate: str) -> NoReturn:
    """Beat while being cancelled."""
    try:
        with arrive(gate, "work"):
            time.sleep(3600)
    except JobCancelled:
        heartbeat("cleaning up")
        wait_at(gate, "cleaning up")
        raise
    raise AssertionError
