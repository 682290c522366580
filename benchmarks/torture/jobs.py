"""The functions that run in workers, and the values that travel to and from them.

Standard library only: what a worker imports is part of what a peer is measured by.
"""

import contextlib
import hashlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

TOKEN = "torture-culprit"
"""Part of every error that a culprit causes: who else gets it got another's."""


def add(left: int, right: int) -> int:
    return left + right


def echo(value: Any) -> Any:
    return value


async def as_coroutine(fn: Callable[..., Any], *args: Any) -> Any:
    """Call *fn* for a peer that takes coroutine functions only."""
    return fn(*args)


def nap(seconds: float) -> int:
    time.sleep(seconds)
    return os.getpid()


def sign(marker: str) -> None:
    """Write this worker's pid, so that the cell sees that the job has begun."""
    scratch = Path(f"{marker}.{os.getpid()}")
    scratch.write_text(str(os.getpid()))
    scratch.rename(marker)  # a reader must never see half a number


def sign_and_nap(marker: str, seconds: float, value: int) -> int:
    sign(marker)
    time.sleep(seconds)
    return value


def spin(marker: str, seconds: float) -> None:
    """Compute in Python: an interpreter can be interrupted between two bytecodes."""
    sign(marker)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        pass


def digest(marker: str, iterations: int) -> bytes:
    """Compute in one C call: no bytecode, so nothing that an exception can enter."""
    sign(marker)
    return hashlib.pbkdf2_hmac("sha256", b"torture", b"salt", iterations)


def die(delay: float) -> None:
    time.sleep(delay)
    os.kill(os.getpid(), signal.SIGKILL)


def leave() -> NoReturn:
    os._exit(0)


def fail_to_start(diary: str) -> NoReturn:
    """Fail as an initializer, after one line with the time in the *diary*."""
    with Path(diary).open("a") as lines:
        lines.write(f"{time.monotonic()}\n")
    raise RuntimeError(f"{TOKEN}: no licence server")


def start_unless(broken: str) -> None:
    """Fail as an initializer for as long as the file *broken* is there."""
    if Path(broken).exists():
        raise RuntimeError(f"{TOKEN}: no licence server")


class AwkwardError(Exception):
    """Pickles well and cannot be unpickled: two parameters, one argument."""

    def __init__(self, left: str, right: str) -> None:
        super().__init__(f"{TOKEN}: {left} and {right}")


def explode() -> NoReturn:
    raise RuntimeError(f"{TOKEN}: refuses to be unpickled")


class Grenade:
    """Pickles well and raises wherever it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return explode, ()


def make_lock() -> Any:
    return threading.Lock()


def make_grenade() -> Grenade:
    return Grenade()


def raise_awkward() -> NoReturn:
    raise AwkwardError("this", "that")


class Evil:
    """Unpickled, it makes a file: as well it could do anything."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.open, (self.path, os.O_CREAT | os.O_WRONLY)


def make_evil(path: str) -> Evil:
    return Evil(path)


def _lines_home() -> list[int]:
    """Return the pipes and sockets that this worker has, but the standard ones."""
    found = []
    for number in [int(link.name) for link in Path("/proc/self/fd").iterdir()]:
        with contextlib.suppress(OSError):
            mode = os.fstat(number).st_mode
            if number > 2 and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
                os.set_blocking(number, False)
                found.append(number)
    return found


def send_garbage(marker: str) -> None:
    """Write 24 bytes to whoever listens, and nothing more."""
    sign(marker)
    for number in _lines_home():
        with contextlib.suppress(OSError):
            os.write(number, b"\xff" * 24)
    time.sleep(60)


def send_flood(marker: str) -> None:
    """Write for a second to whoever listens, as fast as they read."""
    sign(marker)
    lines, until = _lines_home(), time.monotonic() + 1
    while time.monotonic() < until:
        for number in lines:
            with contextlib.suppress(OSError):
                os.write(number, bytes(range(256)) * 256)
    time.sleep(60)


def interrupt() -> NoReturn:
    raise KeyboardInterrupt(TOKEN)


def leave_politely() -> NoReturn:
    sys.exit(3)
