"""The zoo of faults: what can go wrong in a worker, and how that looks from outside.

The functions run in workers.  Those that abuse the channels find them among the
locals of the worker's own frames: no interface leads to them, on purpose.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from asyncpool._wire.frames import HEADER_SIZE, VERSION, FrameKind, header
from asyncpool._wire.messages import pack_numbers
from asyncpool._wire.page import JOB_KEY
from tests.helpers.inside import socket_of
from tests.helpers.jobs import arrive, spin, wait_at


@dataclass(frozen=True)
class Fault:
    """A way to die, and what the pool must make of it.

    Attributes:
        name: What it is.
        commit: Does it; does not return.
        kind: Of the crash.
        signal: The name of the signal that ends the process.
        exit_code: Its exit status otherwise.
        detail: A part of the crash's detail.
        tail: A part of the last lines of its stderr.
    """

    name: str
    commit: Callable[[], None]
    kind: str = "crash"
    signal: str | None = None
    exit_code: int | None = None
    detail: str = ""
    tail: str = ""


# How to commit them.


def commit(name: str) -> None:
    by_name(name).commit()


def commit_at(gate: str, name: str) -> None:
    """Commit it when let go; that the visitor is gone says that it is done."""
    with arrive(gate, name) as sock:
        sock.recv(4096)
        commit(name)


def commit_later(gate: str, name: str) -> None:
    """Return, and commit it from another thread when let go."""
    threading.Thread(target=commit_at, args=(gate, name), daemon=True).start()


def commit_at_exit(name: str) -> None:
    atexit.register(commit, name)


def first(token: str) -> bool:
    """Tell whether this is the first call with *token*, in any process."""
    try:
        os.close(os.open(token, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def stop_first(token: str) -> None:
    """Stop, as an initializer, in one worker only."""
    if first(token):
        Path(token).write_text(f"{os.getpid()}")
        os.kill(os.getpid(), signal.SIGSTOP)


def stopped_by(token: str) -> int | None:
    """Return the pid of the worker that :func:`stop_first` has stopped, if there is one."""
    with suppress(FileNotFoundError, ValueError):
        return int(Path(token).read_text())
    return None


def commit_first(token: str, name: str) -> None:
    """Commit it as an initializer, in one worker only, whose number *token* tells."""
    if first(token):
        Path(token).write_text(f"{os.getpid()}")
        commit(name)


def commit_next(folder: str, names: Sequence[str]) -> None:
    """Commit, as an initializer, one of these, each in one worker, whose number is in *folder*."""
    if name := _next(folder, names):
        commit(name)


def commit_next_at_hello(folder: str, names: Sequence[str]) -> None:
    """Have one of these committed where the worker would say hello, each in one worker."""
    from asyncpool._worker.channels import Control

    def send(self: Control, kind: FrameKind, *_: object, **__: object) -> None:
        commit(str(name))

    if name := _next(folder, names):
        Control.send = send  # type: ignore[method-assign] # on purpose


def _next(folder: str, names: Sequence[str]) -> str | None:
    for name in names:
        token = os.path.join(folder, name)
        if first(token):
            Path(token).write_text(f"{os.getpid()}")
            return name
    return None


def commit_in_result(name: str, size: int) -> bytes:
    """Have it committed when half of the result has been written."""
    from asyncpool._worker import runner

    def send(jobs: socket.socket, head: bytes, payload: bytes) -> None:
        jobs.sendall((head + payload)[: size // 2])
        commit(name)

    vars(runner)["send"] = send
    return bytes(size)


class Trap:
    """Commits a fault where it is unpickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return commit, (self.name,)


class TrapAt(Trap):
    """Commits a fault where it is unpickled, when it is let go there."""

    def __init__(self, gate: str, name: str) -> None:
        super().__init__(name)
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        return commit_at, (self.gate, self.name)


class Bomb:
    """Commits a fault where it is pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        commit(self.name)
        return Bomb, (self.name,)


def make_bomb(name: str) -> Bomb:
    return Bomb(name)


class BombAt(Bomb):
    """Commits a fault where it is pickled, when it is let go there."""

    def __init__(self, gate: str, name: str) -> None:
        super().__init__(name)
        self.gate = gate

    def __reduce__(self) -> tuple[Any, ...]:
        commit_at(self.gate, self.name)
        return BombAt, (self.gate, self.name)


def make_bomb_at(gate: str, name: str) -> Bomb:
    return BombAt(gate, name)


# The faults.


def channels() -> tuple[socket.socket, socket.socket]:
    """Return the job channel and the control channel of this worker."""
    main = threading.main_thread().ident
    assert main is not None
    frame = sys._current_frames().get(main)
    while frame is not None:
        found = dict(frame.f_locals)  # since 3.13 it only looks like one
        if frame.f_code.co_name == "work" and "control" in found:
            return found["control"].job_socket, socket_of(found["control"])
        frame = frame.f_back
    raise LookupError("this is no worker")


def wait_for_idleness() -> None:
    """If this is not the main thread, wait until that one waits for a job."""
    main = threading.main_thread().ident
    assert main is not None
    if main != threading.get_ident():
        while sys._current_frames()[main].f_code.co_name != "receive":
            time.sleep(0)  # it has just sent an outcome, and is on its way


def linger() -> NoReturn:
    while True:
        threading.Event().wait()


def die_by(number: signal.Signals) -> NoReturn:
    os.kill(os.getpid(), number)
    linger()


def say(data: bytes) -> None:
    """Write on the job channel, and go on as if nothing were the matter."""
    channels()[0].sendall(data)
    linger()


def say_to_control(data: bytes) -> None:
    channels()[1].sendall(data)
    linger()


def say_half(size: int, channel: int = 0) -> NoReturn:
    """Write a frame's beginning and die."""
    data = header(FrameKind.VALUE, 1000, 1, 1) + bytes(1000)
    channels()[channel].sendall(data[:size])
    os._exit(4)


def shut_down() -> NoReturn:
    """Tell the pool that nothing more comes, and go on."""
    channels()[0].shutdown(socket.SHUT_RDWR)
    linger()


def close_everything() -> NoReturn:
    wait_for_idleness()
    os.closerange(3, 256)
    linger()


def leave_threads_behind() -> NoReturn:
    """Exit while another thread is in the middle of something."""
    threading.Thread(target=linger, daemon=False).start()
    os._exit(5)


def offence(name: str, commit: Callable[[], None], detail: str) -> Fault:
    return Fault(name, commit, kind="protocol", signal="SIGKILL", detail=detail)


DEATHS = (
    Fault("SIGKILL", lambda: die_by(signal.SIGKILL), signal="SIGKILL"),
    Fault("SIGTERM", lambda: die_by(signal.SIGTERM), signal="SIGTERM"),
    Fault(
        "SIGSEGV",
        lambda: die_by(signal.SIGSEGV),
        signal="SIGSEGV",
        tail="Fatal Python error: Segmentation fault",
    ),
    Fault("SIGABRT", os.abort, signal="SIGABRT", tail="Fatal Python error: Aborted"),
    Fault("exit 0", lambda: os._exit(0), exit_code=0),
    Fault("exit 3", lambda: os._exit(3), exit_code=3),
    Fault("exit with threads", leave_threads_behind, exit_code=5),
)
OFFENCES = (
    Fault("half a header", lambda: say_half(7), exit_code=4),
    Fault("half a frame", lambda: say_half(500), exit_code=4),
    Fault("half a frame on control", lambda: say_half(500, channel=1), exit_code=4),
    offence("garbage", lambda: say(b"\xff" * 999), "version 255"),
    offence(
        "unknown kind",
        lambda: say(bytes([VERSION, 99]) + bytes(HEADER_SIZE - 2)),
        "unknown kind of frame",
    ),
    offence(
        "oversized frame",
        lambda: say(header(FrameKind.VALUE, 1 << 62, 1, 1)),
        "exceeds the limit",
    ),
    offence("wrong kind", lambda: say(header(FrameKind.JOB, 0, 1, 1)), "sent JOB"),
    offence(
        "a job that it has not",
        lambda: say(header(FrameKind.VALUE, 0, 999_999, 1)),
        "job 999999",
    ),
    offence("garbage on control", lambda: say_to_control(b"\xff" * 999), "version 255"),
    offence(
        "value on control",
        lambda: say_to_control(header(FrameKind.VALUE, 0, 1, 1)),
        "sent VALUE",
    ),
    offence(
        "what nobody asked for",
        lambda: say_to_control(header(FrameKind.REVOKED, 8) + pack_numbers([1])),
        "gave back the job with sequence number 1, which nobody has asked back",
    ),
    offence(
        "half a place",
        lambda: say_to_control(header(FrameKind.REVOKED, 3) + b"abc"),
        "a list of numbers cannot be read",
    ),
    offence("shut channel", shut_down, "closed its channel"),
    offence("closed descriptors", close_everything, "closed its channel"),
)
FAULTS = DEATHS + OFFENCES


# The hangs: faults that nothing shows but time.


def repeat(hang: Callable[[], None], times: int) -> None:
    """Hang as often; not at all for 0."""
    for _ in range(times):
        hang()


def hold_the_gil() -> None:
    pow(3, 10**8)


def stop() -> NoReturn:
    """Be stopped, as by a debugger or Ctrl-Z."""
    while True:
        os.kill(os.getpid(), signal.SIGSTOP)


def deadlock() -> None:
    """Wait for a thread that waits for this one."""
    mine, other = threading.Lock(), threading.Lock()

    def body() -> None:
        with other, mine:
            pass

    with mine:
        thread = threading.Thread(target=body, daemon=True)
        thread.start()
        while not other.locked():
            time.sleep(0)
        with other:
            pass


def sleep_for_ever() -> NoReturn:
    while True:
        time.sleep(3600)


HANGS = (
    Fault("python loop", spin),
    Fault("sleep", sleep_for_ever),
    Fault("held gil", hold_the_gil),
    Fault("stopped", stop),
    Fault("deadlock", deadlock),
)


def by_name(name: str) -> Fault:
    return next(fault for fault in (*FAULTS, *HANGS) if fault.name == name)


# Where others wait in the same worker.


def sign(
    path: str, number: int, function: Callable[..., Any] | None = None, *args: Any
) -> Any:
    """Leave a line that says that this ran, and where; then call a function, if any."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{number} {os.getpid()}\n".encode())
    os.close(fd)
    return number if function is None else function(*args)


def grow(size: int) -> NoReturn:
    """Have so much memory for ever."""
    _grown.append(b"x" * size)
    linger()


_grown: list[bytes] = []

# Between the outcome of one job and the next one.
MOMENTS = ("written", "turn", "before its note", "behind its note")


class _Note:
    """Stands in for what notes that a job begins, and dies there."""

    def __init__(self, moment: str) -> None:
        self._moment = moment

    def pack_into(self, *args: Any) -> None:
        if self._moment == "behind its note":
            JOB_KEY.pack_into(*args)
        os._exit(3)


def die_between(moment: str) -> str:
    """Return, and die on the way to the next job."""
    from asyncpool._worker import channels as ends, runner

    def send(jobs: socket.socket, head: bytes, payload: bytes) -> None:
        ends.send(jobs, head, payload)
        if moment == "written":
            os._exit(3)

    def take(self: ends.EndRequests) -> bool:
        os._exit(3)

    vars(runner)["send"] = send
    if moment == "turn":
        ends.EndRequests.claim = take  # type: ignore[method-assign] # on purpose
    vars(runner)["JOB_KEY"] = _Note(moment)
    return "answered"


# Faults that need more than a moment.


def answer_and_die(gate: str) -> str:
    """Return, and die before the next job; the gate is closed by that alone."""
    _visits.append(arrive(gate))
    _visits[-1].recv(100)
    return die_between("written")


_visits: list[socket.socket] = []


def raise_later(gate: str) -> None:
    def body() -> None:
        wait_at(gate)
        raise LookupError

    threading.Thread(target=body, daemon=True).start()
