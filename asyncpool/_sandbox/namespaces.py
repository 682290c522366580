"""The system calls by which a process of Linux shuts itself in, for good.

Landlock, seccomp, namespaces and capabilities have no functions in the standard library, and of the
libraries that wrap Landlock none does the rest; see ``docs/decisions/sandbox.md``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct

from asyncpool._sandbox.plan import CONNECT_TCP, OF_A_FILE

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Iterable

_libc = ctypes.CDLL(None, use_errno=True)

# The same numbers on every machine.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_PATH_BENEATH, _NET_PORT = 1, 2

_PR_GET_SECCOMP, _PR_SET_SECCOMP, _FILTER = 21, 22, 2
_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 24, 38
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITIES_3 = 0x20080522
_MOST_CAPABILITIES = 64


class _Program(ctypes.Structure):
    """``struct sock_fprog``."""

    _fields_ = (("count", ctypes.c_ushort), ("code", ctypes.c_char_p))  # type: ignore[mutable-override] # nobody changes it


def landlock_version() -> int:
    """Return which version of Landlock the kernel has; 0 for none."""
    answer = _syscall(_CREATE_RULESET, None, 0, _VERSION)
    return max(answer, 0)


def can_filter() -> bool:
    """Return whether this process may filter its system calls."""
    # Asks for a filter that lies nowhere: a kernel that has filters finds no fault but that.
    if _prctl(_PR_GET_SECCOMP) < 0:
        return False
    _prctl(_PR_SET_SECCOMP, _FILTER, 0)
    return ctypes.get_errno() in {errno.EFAULT, errno.EACCES}


def forbid_new_privileges() -> None:
    """Let no program that this process runs have more rights than it has.

    Raises:
        OSError: If the kernel refuses it.
    """
    _checked("prctl(PR_SET_NO_NEW_PRIVS)", _prctl(_PR_SET_NO_NEW_PRIVS, 1))


def restrict(
    files: int,
    network: int,
    scopes: int,
    paths: Iterable[tuple[str, int]],
    ports: Iterable[int],
) -> None:
    """Let this thread, and all that it starts, do only what the rules grant; by Landlock.

    Args:
        files: The rights of files that are refused but where a rule grants them.
        network: Likewise of the network.
        scopes: What is out of reach of other processes.
        paths: Rights, at a path and below it; a path that is not there grants nothing.
        ports: The TCP ports that may be connected to.

    Raises:
        OSError: If the kernel refuses it.
    """
    layout = struct.pack("=QQQ", files, network, scopes)
    size = 24 if scopes else 16 if network else 8
    ruleset = _checked(
        "landlock_create_ruleset", _syscall(_CREATE_RULESET, layout, size, 0)
    )
    try:
        for path, rights in paths:
            _allow_path(ruleset, path, rights & files)
        for port in ports:
            rule = struct.pack("=QQ", CONNECT_TCP, port)
            _checked(
                "landlock_add_rule", _syscall(_ADD_RULE, ruleset, _NET_PORT, rule, 0)
            )
        _checked("landlock_restrict_self", _syscall(_RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:  # the caller has checked those that must be there
        return
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= OF_A_FILE
        rule = struct.pack("=Qi", rights, fd)
        _checked(
            f"landlock_add_rule of {path}",
            _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0),
        )
    finally:
        os.close(fd)


def filter_calls(program: bytes) -> None:
    """Filter the system calls of this thread, and of all that it starts.

    Raises:
        OSError: If the kernel refuses it.
    """
    code = _Program(len(program) // 8, program)
    done = _prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(code))
    _checked("prctl(PR_SET_SECCOMP)", done)


def forbid_capabilities() -> None:
    """Let no program that this process runs have what makes root more than any other user."""
    for number in range(_MOST_CAPABILITIES):
        if _prctl(_PR_CAPBSET_DROP, number):
            break  # the kernel has no more of them
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)


def drop_capabilities() -> None:
    """Give up what makes root more than any other user, for good.

    Raises:
        OSError: If the kernel refuses it.
    """
    header = struct.pack("=Ii", _CAPABILITIES_3, 0)
    _checked("capset", int(_libc.capset(header, bytes(24))))


def new_namespaces(flags: int) -> None:
    """Move this process into new namespaces.

    Raises:
        OSError: If the kernel refuses it.
    """
    _checked("unshare", int(_libc.unshare(flags)))


def _syscall(number: int, *arguments: object) -> int:
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return int(_libc.syscall(ctypes.c_long(number), *words))


def _prctl(option: int, *arguments: object) -> int:
    words = [ctypes.c_ulong(a) if isinstance(a, int) else a for a in arguments]
    words += [ctypes.c_ulong(0)] * (4 - len(words))
    return int(_libc.prctl(option, *words))


def _checked(call: str, answer: int) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return answer
