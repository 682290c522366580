"""The rights of Landlock, and which of its versions knows which of them.

See landlock(7).  A right that a sandbox *handles* is refused wherever no rule grants it.
"""

from __future__ import annotations

EXECUTE = 1 << 0
WRITE_FILE = 1 << 1
READ_FILE = 1 << 2
READ_DIR = 1 << 3
REMOVE_DIR = 1 << 4
REMOVE_FILE = 1 << 5
MAKE_CHAR = 1 << 6
MAKE_DIR = 1 << 7
MAKE_REG = 1 << 8
MAKE_SOCK = 1 << 9
MAKE_FIFO = 1 << 10
MAKE_BLOCK = 1 << 11
MAKE_SYM = 1 << 12
REFER = 1 << 13
TRUNCATE = 1 << 14
IOCTL_DEV = 1 << 15

BIND_TCP = 1 << 0
CONNECT_TCP = 1 << 1

SCOPE_ABSTRACT_SOCKETS = 1 << 0
SCOPE_SIGNALS = 1 << 1

# The first version that knows a right, and the kernel that has this version.
_FIRST_FILES = (1 << 13) - 1
_LATER_FILES = {2: REFER, 3: TRUNCATE, 5: IOCTL_DEV}
TCP_SINCE = 4
SCOPES_SINCE = 6
KERNELS = {1: "5.13", 3: "6.2", TCP_SINCE: "6.7", SCOPES_SINCE: "6.12"}

READ = READ_FILE | READ_DIR
WRITE = (
    READ
    | WRITE_FILE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SYM
    | REFER
    | TRUNCATE
)

# The rights that a rule may grant of what is no folder.
OF_A_FILE = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV


def files_handled(version: int) -> int:
    """Return all rights of files that this version of Landlock knows."""
    later = sum(right for since, right in _LATER_FILES.items() if since <= version)
    return _FIRST_FILES | later if version else 0


def network_handled(version: int) -> int:
    """Return all rights of the network that this version knows."""
    return BIND_TCP | CONNECT_TCP if version >= TCP_SINCE else 0


def scopes(version: int) -> int:
    """Return what of other processes this version keeps out of reach."""
    return SCOPE_ABSTRACT_SOCKETS | SCOPE_SIGNALS if version >= SCOPES_SINCE else 0
