"""Pass descriptors on, over Unix sockets and in pickles; and the sockets for that."""

from __future__ import annotations

import array
import errno
import fcntl
import os
import socket
import stat
from io import FileIO

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Any

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

# The largest pickled value that may travel with a descriptor.  The bound keeps memory small:
# many of them may wait in the receiver until somebody reads them.
_MOST_BESIDE = 65_536

# What a file may be used for.
_MODES = {os.O_RDONLY: "rb", os.O_WRONLY: "wb"}
_BOTH = "rb+"

# The descriptors that came with what this process unpickles; None where one was lost.
HANDED: list[int | None] = []


class Handed:
    """Stands for a descriptor in a pickle.

    Args:
        number: Its index among the descriptors that travel with the pickle.
    """

    __slots__ = ("_number",)

    def __init__(self, number: int) -> None:
        self._number = number

    def detach(self) -> int:
        """Return the descriptor, which belongs to the caller.

        Raises:
            OSError: If it was lost on its way, because this process may open no more files.
        """
        fd = HANDED[self._number]
        if fd is None:
            text = "a descriptor for the initializer cannot be received"
            raise OSError(errno.EMFILE, f"{os.strerror(errno.EMFILE)}: {text}")
        return fd


class ReceivedSocket(socket.socket):
    """A socket that another process has sent.

    Attributes:
        value: What it was sent with.
    """

    value: Any = None


class ReceivedFile(FileIO):
    """A file, a pipe or another object with a descriptor, which another process has sent.

    It is a raw binary file; its offset and its flags are shared with the sender's.

    Attributes:
        value: What it was sent with.
    """

    value: Any = None


def received(fd: int) -> ReceivedSocket | ReceivedFile:
    """Return what a descriptor stands for, which owns it.

    Raises:
        OSError: If the object cannot be made.  The descriptor is closed then.
    """
    try:
        if stat.S_ISSOCK(os.fstat(fd).st_mode):
            return ReceivedSocket(fileno=fd)
        access = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
        return ReceivedFile(fd, _MODES.get(access, _BOTH))
    except OSError:
        os.close(fd)
        raise


def socket_descriptor(sock: Any) -> int:
    """Return the descriptor of a socket that is to be sent.

    Raises:
        TypeError: If it is no socket.
        OSError: If it is closed.
    """
    text = f"sock must be a socket, not {sock!r}"
    if not hasattr(sock, "fileno"):  # asyncio's transports return such a socket
        raise TypeError(text)
    fd: int = sock.fileno()
    if not stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise TypeError(f"{text}: send_file() takes files and pipes")
    return fd


def file_descriptor(file: Any) -> int:
    """Return the descriptor of a file that is to be sent.

    Raises:
        TypeError: If it is no file, or is a socket or a directory.
        OSError: If it is closed.
    """
    if not isinstance(file, int) and not hasattr(file, "fileno"):
        raise TypeError(f"file must be a file or a descriptor, not {file!r}")
    fd: int = file if isinstance(file, int) else file.fileno()
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        text = "file must not be a socket: send_socket() takes those"
        raise TypeError(f"{text}, such as {file!r}")
    if stat.S_ISDIR(mode):
        raise TypeError(f"file must not be a directory: send the path of {file!r}")
    return fd


def check_beside(payload: bytes) -> bytes:
    """Pickle a value that is to travel with a descriptor.

    Raises:
        ValueError: If it is too large.
    """
    if len(payload) > _MOST_BESIDE:
        raise ValueError(
            f"a value of {len(payload)} bytes is longer than the {_MOST_BESIDE} that may "
            "go beside a socket or a file: send it as a message"
        )
    return payload


def receive_fds(
    sock: socket.socket, size: int, most: int
) -> tuple[bytes, list[int], bool]:
    """Return data, the descriptors that came with it, and whether some were lost.

    :func:`socket.recv_fds` would not do: it ignores its flags, so every program that a
    job starts would inherit the descriptors.  If this process may open no more files,
    the kernel drops descriptors, but the data still arrives.
    """
    room = array.array("i", [0] * most)
    data, ancillary, flags, _ = sock.recvmsg(
        size, socket.CMSG_SPACE(room.itemsize * most), _CLOEXEC
    )
    fds: list[int] = []
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found = array.array("i")
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
            fds += found
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds, bool(flags & socket.MSG_CTRUNC)


# These sockets block, whatever default timeout the program has set: socket.setdefaulttimeout() makes
# each later socket of Python's non-blocking in the kernel.  The process that inherits such a socket
# knows nothing of the timeout, and fails at its first read.
def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Return two sockets that are connected to each other."""
    one, other = socket.socketpair()
    one.settimeout(None)
    other.settimeout(None)
    return one, other


def socket_of(fd: int) -> socket.socket:
    """Return a socket that owns the descriptor *fd*."""
    sock = socket.socket(fileno=fd)
    sock.settimeout(None)
    return sock
