"""Unix sockets: their files, where commands find them, and who is at the other end.

A server that was killed leaves its file behind.  Nobody can bind to that path until the file is
removed.  To find out whether a server listens, this module connects.  Who makes a file locks its
folder, so that two servers that start at once cannot remove each other's file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import AsyncGenerator, Generator, Iterable
from pathlib import Path
from typing import NamedTuple

from asyncpool._wire.text import NAMES, is_name

# Seconds between two tries to connect.
_CONNECT_EVERY = 0.01

# How many times in succession nobody must answer.  A live server with too many waiting clients may
# refuse one, except on Linux.
_REFUSALS = 1 if sys.platform == "linux" else 20

# The most bytes of the path of a socket.
_MOST_BYTES = 107 if sys.platform == "linux" else 103


class SocketFile(NamedTuple):
    """A file that this process has made.

    Attributes:
        path: Its absolute path.
        identity: Its device and inode, by which it is recognized.
    """

    path: str
    identity: tuple[int, int]

    def remove(self) -> None:
        """Remove the file, if it is still the same; call this while its socket is open.

        An open socket keeps its inode, so no other file can have the same number.
        """
        with contextlib.suppress(OSError):
            if file_number(os.lstat(self.path)) == self.identity:
                Path(self.path).unlink()


@contextlib.contextmanager
def closed_on_error(sock: socket.socket) -> Generator[None]:
    """Close a socket if the code in this context fails."""
    try:
        yield
    except BaseException:
        sock.close()
        raise


def folder_of(path: str) -> str:
    """Return the folder of a socket, by its absolute path."""
    return os.path.dirname(os.path.abspath(path))  # noqa: PTH100, PTH120 - links are to stay links


def listen_at(
    sock: socket.socket, path: str, *, mode: int | None, backlog: int
) -> SocketFile:
    """Make a Unix socket listen at a path, whose folder is locked; see :func:`folders_locked`.

    Args:
        sock: The socket.
        path: The path; the file of a dead server is replaced.
        mode: The permissions of the file; ``None`` leaves them to the umask.
        backlog: How many connections may wait.

    Raises:
        OSError: If a server listens there, if something else is there, or if the file
            cannot be made; the text says what.
    """
    path = clear_path(path)
    if mode is not None and sys.platform == "linux":
        # On Linux the new file has the mode of the descriptor, without the bits of the umask.
        # So the file is never open to others, and seldom needs another mode later, when
        # somebody may have put another file at the path.
        with contextlib.suppress(OSError):
            os.fchmod(sock.fileno(), mode)
    sock.bind(path)
    found = os.lstat(path)
    # In a folder that others may write, they may have replaced it.
    if not stat.S_ISSOCK(found.st_mode):
        raise _replaced()
    made = SocketFile(path, file_number(found))
    try:
        # Nobody can connect before the socket listens.
        if mode is not None:
            _set_mode(made, mode)
        sock.listen(backlog)
    except OSError:
        made.remove()
        raise
    return made


def clear_path(path: str) -> str:
    """Remove the file of a dead server, and return the absolute path; the folder is locked.

    Raises:
        OSError: If no server can listen there; the text says why.
    """
    path = os.path.abspath(path)  # noqa: PTH100 - links are to stay links
    folder = folder_of(path)
    if not os.path.isdir(folder):  # noqa: PTH112
        raise FileNotFoundError(
            errno.ENOENT, f"there is no folder {folder}: make it first", folder
        )
    check_length(path)
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return path
    if not stat.S_ISSOCK(kind):
        raise OSError(
            errno.EADDRINUSE, "there is a file of that name, which is no socket"
        )
    answer = try_connect(path)
    for _ in range(_REFUSALS - 1):
        if answer != errno.ECONNREFUSED:
            break
        time.sleep(_CONNECT_EVERY)
        answer = try_connect(path)
    if answer == errno.ECONNREFUSED:
        Path(path).unlink(missing_ok=True)
    elif answer in {0, errno.EAGAIN, errno.EINPROGRESS, errno.EPROTOTYPE}:
        raise OSError(errno.EADDRINUSE, "another process listens there")
    elif answer != errno.ENOENT:
        raise OSError(
            answer, f"the socket there cannot be tried: {os.strerror(answer)}"
        )
    return path


def check_length(path: str) -> None:
    """Check that a socket may have that path.

    Raises:
        OSError: If it is too long.
    """
    length = len(os.fsencode(path))
    if length > _MOST_BYTES:
        raise OSError(
            errno.ENAMETOOLONG,
            f"the path has {length} bytes, and a socket's may have {_MOST_BYTES}",
        )


def is_socket(path: str) -> bool:
    """Tell whether there is the file of a socket, or none at all."""
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)  # noqa: PTH116
    except OSError:
        return True


def _set_mode(file: SocketFile, mode: int) -> None:
    """Give a new socket's file its permissions, if it has others.

    Raises:
        OSError: If that is not allowed, or if the file is not there any more.
    """
    if sys.platform != "linux":
        os.chmod(file.path, mode)  # noqa: PTH101
        return
    if stat.S_IMODE(os.lstat(file.path).st_mode) == mode:
        return
    # The umask has taken some bits away.
    fd = os.open(file.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if file_number(os.fstat(fd)) != file.identity:
            raise _replaced()
        # Not by the path, which may be another file's by now, and not by fchmod(), which
        # refuses such a descriptor.
        os.chmod(f"/proc/self/fd/{fd}", mode)  # noqa: PTH101
    finally:
        os.close(fd)


def _replaced() -> OSError:
    return OSError(
        errno.EADDRINUSE, "another process has replaced the socket that was just made"
    )


def try_connect(path: str) -> int:
    """Return the error of a connection, 0 if somebody listens; a full backlog is an error too."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # Non-blocking, since a server with a full backlog would make this wait.
        probe.setblocking(False)
        return probe.connect_ex(path)


def file_number(found: os.stat_result) -> tuple[int, int]:
    """Return the device and inode of a file, which no other open file has."""
    return found.st_dev, found.st_ino


# Locks of the folders in which Unix sockets are made.

# Seconds to wait for locks, and between two tries: a program may keep a folder locked for ever.
_LOCK_PATIENCE = 1.0
_LOCK_EVERY = 0.01


@contextlib.asynccontextmanager
async def folders_locked(paths: Iterable[str]) -> AsyncGenerator[None]:
    """Lock the folders in which sockets are about to be made; the event loop goes on meanwhile.

    A folder that stays locked for a second, or that this process may not read, is left unlocked.
    Without its lock it is only less likely that two servers notice each other which start at once.

    Args:
        paths: The paths of the sockets.

    Cancellation:
        Safe.
    """
    import asyncio  # noqa: PLC0415 - commands, which make no socket, do without it

    give_up_at = time.monotonic() + _LOCK_PATIENCE
    with contextlib.ExitStack() as stack:
        for fd in _folders_of(paths, stack):
            # Nothing tells of the end of another's lock, but in a thread that waits for it.
            while not _is_locked(fd) and time.monotonic() < give_up_at:  # noqa: ASYNC110
                await asyncio.sleep(_LOCK_EVERY)
        yield


def _folders_of(paths: Iterable[str], stack: contextlib.ExitStack) -> list[int]:
    """Open each folder once, whatever it is called, and have *stack* close them."""
    found: dict[tuple[int, int], int] = {}
    for path in paths:
        # Whatever is wrong with a folder, bind() says it, unless it may only not be read.
        with contextlib.suppress(OSError):
            fd = os.open(folder_of(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            found.setdefault(file_number(os.fstat(fd)), fd)
    # In one order, or two servers with two folders would wait for each other.
    return [found[number] for number in sorted(found)]


def _is_locked(fd: int) -> bool:
    """Lock a folder, if nobody else has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


# Where the control sockets of a user's pools and clusters are, and who may use them.
#
# They are in a folder that no other user can enter: ``$XDG_RUNTIME_DIR/asyncpool``, or
# ``/tmp/asyncpool-UID``.  In ``/tmp`` somebody else may have taken that name before.  So it is
# used only if it is a folder, is no link, and belongs to this user alone.  Both sides check each
# connection: the kernel tells which user the other process belongs to.

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
        with contextlib.suppress(FileExistsError):
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
