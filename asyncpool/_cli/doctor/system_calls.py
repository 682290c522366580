"""System calls that sandboxes refuse although the kernel has them: each is tried."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Callable, Generator
from pathlib import Path
from typing import NamedTuple

from asyncpool._system.memory import available, create

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37


class UnavailableError(Exception):
    """The text says why, and what to allow."""


class Trial(NamedTuple):
    """Something that pools use where they can.

    Attributes:
        name: Its name.
        attempt: Uses it once; raises an :exc:`UnavailableError` if it is not there.
        gain: What pools use it for.
        loss: What pools do without it.
    """

    name: str
    attempt: Callable[[], None]
    gain: str
    loss: str


@contextlib.contextmanager
def _call(name: str) -> Generator[None]:
    try:
        yield
    except AttributeError as error:
        raise UnavailableError(f"this system has no {name}") from error
    except OSError as error:
        raise UnavailableError(
            f"{name} is refused ({error.strerror}): allow it in the sandbox, such as the "
            "container's seccomp profile"
        ) from error


def _hold_a_process() -> None:
    with _call("pidfd_open"):
        fd = os.pidfd_open(os.getpid())
    try:
        with _call("pidfd_send_signal"):
            signal.pidfd_send_signal(fd, 0)
    finally:
        os.close(fd)


def _share_memory() -> None:
    if not available():
        raise UnavailableError("this system has no memfd_create")
    with _call("memfd_create"):
        os.close(create(4096))


def _find_orphans() -> None:
    if not Path(f"/proc/{os.getpid()}/stat").exists():
        raise UnavailableError("there is no /proc, which lists processes")
    before = ctypes.c_int()
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    with _call("prctl"):
        if prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) or prctl(
            _PR_SET_CHILD_SUBREAPER, before, 0, 0, 0
        ):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _know_what_is_inherited() -> None:
    with _call("sched_getaffinity"):
        os.sched_getaffinity(0)
    with _call("getpriority"):
        os.getpriority(os.PRIO_PROCESS, 0)
    with _call("prlimit64"):
        resource.getrlimit(resource.RLIMIT_NOFILE)


TRIALS = (
    Trial(
        "pidfd",
        _hold_a_process,
        "no signal can hit a process that has inherited a number",
        "workers are known and signalled by their numbers",
    ),
    Trial(
        "shared memory",
        _share_memory,
        "large arrays are not copied twice, in memfd segments",
        "large arrays are sent through sockets, some ten times slower",
    ),
    Trial(
        "what jobs leave behind",
        _find_orphans,
        "detached processes are found, and end with the pool",
        "processes that jobs detach outlive the pool",
    ),
    Trial(
        "limits and niceness",
        _know_what_is_inherited,
        "pools whose workers inherit the same share a launcher",
        "they are taken for the same, and all cores for usable",
    ),
)
