"""Have the kernel refuse system calls to this process, as containers and sandboxes do."""

from __future__ import annotations

import ctypes
import platform
import struct
import sys

__all__ = ["CALLS", "available", "refuse"]

# By the machine: how audits name it, and the numbers of calls.
_MACHINES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "getpriority": 140,
            "sched_getaffinity": 204,
            "prlimit64": 302,
            "memfd_create": 319,
            "pidfd_send_signal": 424,
            "pidfd_open": 434,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "getpriority": 141,
            "sched_getaffinity": 123,
            "prlimit64": 261,
            "memfd_create": 279,
            "pidfd_send_signal": 424,
            "pidfd_open": 434,
        },
    ),
}
_AUDIT, CALLS = _MACHINES.get(platform.machine(), (0, {}))

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2
_LOAD, _IS_EQUAL, _RETURN = 0x20, 0x15, 0x06
_NUMBER, _ARCHITECTURE = 0, 4  # where these are in the data that a filter looks at
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000


def available() -> bool:
    """Tell whether there are filters here: the kernel says so without one."""
    return sys.platform == "linux" and bool(CALLS)


def refuse(number: int, *calls: str) -> None:
    """Have *calls* fail with this errno, in this process and those that it will start."""
    program = [(_LOAD, 0, 0, _ARCHITECTURE), (_IS_EQUAL, 1, 0, _AUDIT)]
    program += [(_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _NUMBER)]
    for call in calls:
        program += [(_IS_EQUAL, 0, 1, CALLS[call]), (_RETURN, 0, 0, _ERRNO | number)]
    program.append((_RETURN, 0, 0, _ALLOW))
    code = b"".join(struct.pack("=HBBI", *step) for step in program)
    steps = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(steps))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, header, 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{arguments[:2]}")
