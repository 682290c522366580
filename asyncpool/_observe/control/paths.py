"""Where the control sockets of a user's pools and clusters are, and who may use them.

They are in a folder that no other user can enter: ``$XDG_RUNTIME_DIR/asyncpool``, or
``/tmp/asyncpool-UID``.  In ``/tmp`` somebody else may have taken that name before.  So it is
used only if it is a folder, is no link, and belongs to this user alone.  Both sides check each
connection: the kernel tells which user the other process belongs to.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import struct
import sys
from contextlib import suppress
from pathlib import Path

from asyncpool._observe.control.socket_files import try_connect
from asyncpool._wire.text import NAMES, is_name

_SUFFIX = ".sock"
_TMP = Path("/tmp")  # noqa: S108 - the folder in it is checked

_WAY_OUT = "have it removed, or set XDG_RUNTIME_DIR to a folder of your own"

_UCRED = struct.Struct("=iII")  # pid, uid, gid

# Darwin's: the level and the option, and the size of a structure of which the second number counts.
_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_SIZE = 0, 1, 76


def private_folder(*, make: bool) -> Path:
    """Return the folder of this user's control sockets.

    Args:
        make: Whether to create it if it does not exist.

    Raises:
        OSError: If it cannot be created.
        PermissionError: If it could be another user's.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if _is_ours(runtime):
        folder = Path(runtime, "asyncpool")
    else:
        folder = _TMP / f"asyncpool-{os.geteuid()}"
    if make:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
    try:
        found = os.lstat(folder)
    except FileNotFoundError:
        if make:
            raise
        return folder
    # If it passes these checks, no other user can change that later.
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(
            f"{folder} is no folder: somebody else has taken the name; {_WAY_OUT}"
        )
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"{folder} belongs to user {found.st_uid}, not to {os.geteuid()}; {_WAY_OUT}"
        )
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        raise PermissionError(
            f"others may enter {folder}: its permissions are {mode:o}, and must be 700: "
            f"chmod 700 {folder}"
        )
    return folder


def _is_ours(runtime: str) -> bool:
    """Return whether the folder is this user's: with sudo it may be another user's."""
    try:
        return runtime.startswith("/") and os.stat(runtime).st_uid == os.geteuid()  # noqa: PTH116
    except OSError:
        return False


def path_of(name: str, *, make: bool = False) -> str:
    """Return the path of the control socket of a pool or cluster.

    Args:
        name: Its name, or a path if there is a slash in it.
        make: Whether to create the folder of names.

    Raises:
        ValueError: If *name* is neither.
        OSError: If the folder of names cannot be created, or could be another user's.
    """
    return name if "/" in name else path_of_name(name, make=make)


def path_of_name(name: str, *, make: bool = False) -> str:
    """Do the same as :func:`path_of` for what must be a name, and is no path."""
    if not is_name(name):
        raise ValueError(f"{name!r} is no name that commands find, which is {NAMES}")
    return str(private_folder(make=make) / f"{name}{_SUFFIX}")


def live_names() -> list[str]:
    """Return the names of this user's pools and clusters that answer, sorted.

    Raises:
        PermissionError: If the folder of names could be somebody else's.
    """
    # A program that is too busy to accept a connection counts as alive.
    alive = {0, errno.EAGAIN, errno.EINPROGRESS}
    return [name for name in socket_names() if try_connect(path_of(name)) in alive]


def socket_names() -> list[str]:
    """Return the names that have a control socket, sorted; nobody may listen there any more.

    Raises:
        PermissionError: If the folder of names could be somebody else's.
    """
    folder = private_folder(make=False)
    names = (path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))
    return sorted(name for name in names if is_name(name))


def peer_uid(sock: socket.socket) -> int:
    """Return the user at the other end of a Unix socket.

    Raises:
        OSError: If the system does not say.
    """
    if sys.platform == "darwin":
        found = sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_SIZE)
        return int.from_bytes(found[4:8], sys.byteorder)
    if not hasattr(socket, "SO_PEERCRED"):  # FreeBSD
        raise OSError(errno.ENOTSUP, "the system does not say who the other process is")
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(found)[1])


def peer_pid(sock: socket.socket) -> int | None:
    """Return the pid of the process that listens at the other end, if the system says so.

    A process outside of this process's container has no pid here.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    found = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    return int(_UCRED.unpack(found)[0]) or None
