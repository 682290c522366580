"""A worker that hostile input has taken over.

:func:`attack` is a job.  It takes the worker's place: it finds the channels and the page among
what its process has open, and lies on them.  The worker's own code runs no more: its main
thread never comes back, and what its control thread says is in between the lies.
"""

from __future__ import annotations

import array
import fcntl
import gc
import json
import mmap
import os
import pickle
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from asyncpool import current_job
from asyncpool._wire.frames import MAX_PAYLOAD, FrameKind, header
from asyncpool._wire.messages import pack_numbers
from asyncpool._wire.page import (
    JOB_KEY,
    LOG_HEAD,
    NOTED,
    Beat,
    PageLayout,
    beat_offset,
    note,
)
from asyncpool._worker.channels import LargeBuffers
from tests.helpers.faults import channels, linger, say_to_control
from tests.helpers.inside import segments_mapped

_PAGE = "memfd:asyncpool-page"


class Touch:
    """Unpickled, it makes a file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.open, (self.path, os.O_CREAT | os.O_WRONLY)


class Place:
    """What a worker has.

    Attributes:
        jobs: Its job channel.
        control: Its control channel.
        job: The job that runs.
        attempt: The attempt at it.
        victim: A job of another worker.
    """

    def __init__(self, victim: int = 0) -> None:
        self.jobs, self.control = channels()
        self.job, self.attempt = current_job().id, current_job().attempt
        self.victim = victim

    def say(
        self, kind: FrameKind, payload: bytes = b"", job: int = 0, tag: int = 0
    ) -> None:
        """Send a frame on the job channel."""
        head = header(kind, len(payload), job, self.attempt if job else 0, tag)
        self.jobs.sendall(head + payload)

    def tell(
        self, kind: FrameKind, payload: bytes = b"", job: int = 0, tag: int = 0
    ) -> None:
        """Send a frame on the control channel."""
        self.control.sendall(header(kind, len(payload), job, 0, tag) + payload)

    def page(self) -> mmap.mmap:
        """Return the page, mapped anew."""
        for fd in _open_files(_PAGE):
            return mmap.mmap(fd, 0)
        raise LookupError("there is no page")


def _open_files(name: str) -> Iterator[int]:
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            if name in str(link.readlink()):
                yield int(link.name)


def attack(name: str, victim: int = 0, path: str = "") -> None:
    """Do what *name* says, and never come back."""
    place = Place(victim)
    if name in PICKLES:
        PICKLES[name](place, pickle.dumps(Touch(path)))
        place.jobs.sendall(b"\xff" * 24)  # if that alone was no offence
    elif name in CUT_SHORT:
        place.jobs.sendall(CUT_SHORT[name](place))
    else:
        {**LIES, **FLOODS}[name][0](place)
    linger()


def attack_stream(path: str) -> Iterator[int]:
    """Yield an item, and send more than was asked for, each a pickle."""
    yield 1
    place, evil = Place(), pickle.dumps(Touch(path))
    for _ in range(10_000):
        place.say(FrameKind.ITEM, evil, place.job)
    linger()


def forge_from_lane(victim: int) -> None:
    """Note outcomes of a job of another worker in all lanes, and die."""
    place, layout = Place(victim), PageLayout(2)
    page = place.page()
    for lane in range(2):
        NOTED.pack_into(
            page, layout.outcome_offset(lane), victim, 1, FrameKind.VALUE, 0, 1
        )
    JOB_KEY.pack_into(page, layout.begun_offset(1), victim, 1)
    os._exit(3)


def give(size: int) -> Any:
    import numpy as np  # not for the others, which have no use for it

    return np.full(size, ord("A"), "u1")


def overwrite() -> int:
    """Write into all memory that this worker and the service share; return how many there are."""
    found = [
        memory
        for buffers in gc.get_objects()
        if isinstance(buffers, LargeBuffers)
        for memory in segments_mapped(buffers).values()
    ]
    for memory in found:
        memory.write(0, [b"Z" * memory.size])
    return len(found)


# Lies, each with what the pool says of it.


def _either(data: bytes) -> tuple[Callable[[Place], None], Callable[[Place], None]]:
    return lambda it: it.jobs.sendall(data), lambda it: it.control.sendall(data)


def _on_both() -> Iterator[tuple[str, tuple[Callable[[Place], None], str]]]:
    """Yield what is wrong on any channel."""
    for name, data, detail in (
        ("another version", b"\xff" * 24, "the peer speaks version 255, not 2"),
        (
            "HTTP",
            b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "the peer speaks version 71",
        ),
        ("an unknown kind", b"\2\xc8" + bytes(22), "unknown kind of frame: 200"),
        ("no kind", b"\2\0" + bytes(22), "unknown kind of frame: 0"),
        ("2**64 bytes", b"\2\x08" + bytes(14) + b"\xff" * 8, "exceeds the limit of"),
        (
            "2**63 bytes",
            header(FrameKind.VALUE, MAX_PAYLOAD + 1),
            "exceeds the limit of",
        ),
    ):
        for channel, lie in zip(("jobs", "control"), _either(data), strict=True):
            yield f"{name} on {channel}", (lie, detail)


# What workers do say there, so that it may be right by chance.
_ON_JOBS = {"VALUE", "ERROR", "AREA", "WANT"}
_ON_CONTROL = {"STACKS", "RETIRE", "HEARTBEAT", "WHERE", "SAMPLES", "TRACKER"}


def _kinds() -> Iterator[tuple[str, tuple[Callable[[Place], None], str]]]:
    """Yield each kind of frame where it does not belong, or with a payload that is none."""
    for kind in FrameKind:
        if kind.name not in _ON_JOBS:

            def say(it: Place, kind: FrameKind = kind) -> None:
                it.say(kind, b"\xff" * 7, it.job, 99)

            yield f"a forged {kind.name} on jobs", (say, "")
        if kind.name not in _ON_CONTROL:

            def tell(it: Place, kind: FrameKind = kind) -> None:
                it.tell(kind, b"\xff" * 7, it.job, 99)

            yield f"a forged {kind.name} on control", (tell, "")


def _beat_of(job: int, attempt: int = 1, details: bytes = b"1") -> bytes:
    return Beat(1, job, attempt, 1.0, details).pack()


def _wrong_sum() -> bytes:
    data = bytearray(_beat_of(1))
    data[-1] ^= 1
    return bytes(data)


def _two_values(it: Place) -> None:
    # The first may be right, so it is of the other's job: both outcomes come as one.
    value = header(FrameKind.VALUE, 1, it.victim, 1) + b"\0"
    it.jobs.sendall(value * 2)


def _other_attempt(it: Place) -> None:
    it.jobs.sendall(header(FrameKind.VALUE, 1, it.job, it.attempt + 1) + b"\0")


def _two_wishes(it: Place) -> None:
    for _ in range(2):
        it.say(FrameKind.WANT, job=9)


_DESCRIPTORS = 200


def _send_descriptors(it: Place) -> None:
    """Send descriptors of all sorts along, and then a lie."""
    with open("/dev/zero", "rb") as zero, socket.socket() as sock:
        fds = array.array("i", [zero.fileno(), sock.fileno()] * (_DESCRIPTORS // 2))
        for channel in (it.control, it.jobs):
            head = header(FrameKind.HEARTBEAT, 0)
            channel.sendmsg([head], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])


def _scribble(seed: int) -> Callable[[Place], None]:
    def scribble(it: Place) -> None:
        page = it.page()
        for fd in _open_files(_PAGE):
            for size in (0, 1 << 30):
                try:
                    os.ftruncate(fd, size)
                except PermissionError:
                    continue
                os._exit(99)
            for seal in (fcntl.F_SEAL_SEAL, 0x10):  # and no writes from now on
                with suppress(OSError):
                    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seal)
        page[:] = random.Random(seed).randbytes(len(page)) if seed else bytes(len(page))
        for _ in range(50):
            it.tell(FrameKind.HEARTBEAT)
            it.tell(FrameKind.STACKS)
        it.tell(FrameKind.HELLO)

    return scribble


def _no_arguments(it: Place) -> None:
    """Raise an error whose arguments are missing, which fuzzing has found."""
    fields = {"type": "ValueError", "text": "no", "traceback": "T", "notes": []}
    data = b"\1\0" + json.dumps(fields).encode()
    head = header(FrameKind.ERROR, len(data), it.job, it.attempt)
    it.jobs.sendall(head + data + b"\xff" * 24)


LIES: dict[str, tuple[Callable[[Place], None], str]] = {
    **dict(_on_both()),
    **dict(_kinds()),
    "a second HELLO": (lambda it: it.tell(FrameKind.HELLO), "it sent HELLO on"),
    "the end of another": (
        lambda it: it.tell(FrameKind.EXITED, bytes(20), it.victim),
        "it sent EXITED on its control channel",
    ),
    "an outcome of another": (
        lambda it: it.say(FrameKind.VALUE, b"\2\0\xc0", it.victim),
        "it sent an outcome of job",
    ),
    "an error without arguments": (_no_arguments, "the peer speaks version 255"),
    "an error of another": (
        lambda it: it.say(FrameKind.ERROR, b"[]", it.victim),
        "it sent an outcome of job",
    ),
    "two outcomes of another": (_two_values, "it sent an outcome of job"),
    "an outcome of no job": (
        lambda it: it.say(FrameKind.VALUE, b"\2\0\xc0", 2**63),
        "it sent an outcome of job 9223372036854775808",
    ),
    "an outcome of another attempt": (_other_attempt, "it sent attempt 2 of"),
    "an item of another": (
        lambda it: it.say(FrameKind.ITEM, b"\2\0\xc0", it.victim),
        "it sent an item of job",
    ),
    "an item of what is no stream": (
        lambda it: it.say(FrameKind.ITEM, b"\2\0\xc0", it.job),
        "it sent an item of attempt",
    ),
    "a heartbeat of another": (
        lambda it: it.say(FrameKind.LAST_HEARTBEAT, _beat_of(it.victim)),
        "it sent a heartbeat of attempt 1 of job",
    ),
    "a heartbeat with a wrong checksum": (
        lambda it: it.say(FrameKind.LAST_HEARTBEAT, _wrong_sum()),
        "a heartbeat cannot be read",
    ),
    "jobs that nobody wants back": (
        lambda it: it.tell(FrameKind.REVOKED, pack_numbers((1, 2, it.victim))),
        "",
    ),
    "an answer to no ping": (lambda it: it.tell(FrameKind.PONG), "it answered a ping"),
    "a deep record": (
        lambda it: it.tell(FrameKind.RECORD, b"[" * 200_000),
        "a record of a logger cannot be read",
    ),
    "a record of wrong types": (
        lambda it: it.tell(FrameKind.RECORD, json.dumps([[]] * 17).encode()),
        "a record of a logger cannot be read",
    ),
    "a segment that there is not": (
        lambda it: it.say(FrameKind.LENT, pack_numbers((100_000,)), tag=1),
        "it named segment 1, which it does not have",
    ),
    "2**64 bytes in a segment": (
        lambda it: it.say(FrameKind.LENT, pack_numbers((2**64 - 1, 2**64 - 1)), tag=1),
        "exceeds the limit of",
    ),
    "parts of nothing": (
        lambda it: it.say(FrameKind.LENT, pack_numbers([0] * 100_000), tag=1),
        "it sent an outcome in more parts than an outcome can have",
    ),
    "half a size": (
        lambda it: it.say(FrameKind.LENT, b"\0" * 9, tag=1),
        "a list of numbers cannot be read",
    ),
    "a wish for 2**40 bytes": (
        lambda it: it.say(FrameKind.WANT, job=2**40),
        "it asked for 1099511627776 bytes when it was not allowed to",
    ),
    "two wishes": (_two_wishes, "it asked for 9 bytes when it was not allowed to"),
    "descriptors": (_send_descriptors, "it sent HEARTBEAT on its job channel"),
    "zeros on the page": (_scribble(0), "it sent HELLO on its control channel"),
    **{
        f"noise {seed} on the page": (_scribble(seed), "it sent HELLO on")
        for seed in (1, 2, 3)
    },
}


def _flood(
    kind: FrameKind, payload: bytes = b"", number: int = 0, *, control: bool = True
) -> Callable[[Place], None]:
    def flood(it: Place) -> None:
        channel = it.control if control else it.jobs
        frame = header(kind, len(payload), it.job, 0, number) + payload
        some = frame * (1 + 200_000 // len(frame))
        for _ in range(4):
            channel.sendall(some)
        channel.sendall(b"\xff" * 24)

    return flood


_RECORD = json.dumps(
    ["a", 10, "DEBUG", "text", 1.0, "p", 1, "f", 1, "P", 1, "T", "", 0, 0, "", "", {}]
).encode()

# The worker's own control thread may write between two parts of a flood, so that what is wrong
# with it may look like anything.
FLOODS: dict[str, tuple[Callable[[Place], None], str]] = {
    "RETIRE": (_flood(FrameKind.RETIRE), ""),
    "RETIRE, later": (_flood(FrameKind.RETIRE, number=1), ""),
    "REVOKED": (_flood(FrameKind.REVOKED), ""),
    "HEARTBEAT": (_flood(FrameKind.HEARTBEAT), ""),
    "STACKS": (_flood(FrameKind.STACKS), ""),
    "WHERE": (_flood(FrameKind.WHERE, b"a\x1b" * 30_000), ""),
    "SAMPLES": (_flood(FrameKind.SAMPLES, b"[" * 60_000), ""),
    "FAILED": (_flood(FrameKind.FAILED, b'["a", "b", "c"]'), ""),
    "RECORD": (_flood(FrameKind.RECORD, _RECORD), ""),
    "AREA": (
        _flood(FrameKind.AREA, b"a", control=False),
        "in more parts than an outcome can have",
    ),
    "AREA of nothing": (
        _flood(FrameKind.AREA, control=False),
        "it sent an outcome in more parts than an outcome can have",
    ),
    "WANT": (_flood(FrameKind.WANT, control=False), "when it was not allowed to"),
}


def ask_for_tracker() -> None:
    """Ask for what can unlink the shared memory of the whole program."""
    say_to_control(header(FrameKind.TRACKER, 0))


# Frames that are begun and never finished.
CUT_SHORT: dict[str, Callable[[Place], bytes]] = {
    "half a header": lambda _: header(FrameKind.VALUE, 9)[:11],
    "a header alone": lambda it: header(FrameKind.VALUE, 1000, it.job, it.attempt),
    "1 GiB announced": lambda it: header(FrameKind.VALUE, 1 << 30, it.job, it.attempt),
}


# Pickles, wherever something of a worker is read.


def _in_log(it: Place, evil: bytes) -> None:
    page, layout = it.page(), PageLayout(1)
    at = layout.log_offset(0)
    data = LOG_HEAD.pack(1, 0, it.job, it.attempt)
    data += note((evil,))
    page[at : at + len(data)] = data
    os._exit(3)


def _in_heartbeat(it: Place, evil: bytes) -> None:
    page, at = it.page(), PageLayout(1).beats_offset(0)
    for number in (1, 2):
        beat = Beat(number, it.job, it.attempt, 1.0, evil).pack()
        where = at + beat_offset(number)
        page[where : where + len(beat)] = beat
    it.tell(FrameKind.HEARTBEAT)


def _as_area(it: Place, evil: bytes) -> None:
    it.say(FrameKind.WANT, job=200_000)
    it.say(FrameKind.AREA, evil + bytes(200_000 - len(evil)))
    it.say(FrameKind.VALUE, b"", it.job)


PICKLES: dict[str, Callable[[Place, bytes], None]] = {
    "as a value": lambda it, evil: it.say(FrameKind.VALUE, evil, it.job),
    "as an error": lambda it, evil: it.say(FrameKind.ERROR, evil, it.job),
    "as a large value": _as_area,
    "as a last heartbeat": lambda it, evil: it.say(
        FrameKind.LAST_HEARTBEAT, _beat_of(it.job, it.attempt, evil)
    ),
    "as a heartbeat on the page": _in_heartbeat,
    "as a record": lambda it, evil: it.tell(FrameKind.RECORD, evil),
    "as a failure": lambda it, evil: it.tell(FrameKind.FAILED, evil),
    "in the log of a chunk": _in_log,
}
