"""The files of Unix sockets: made, replaced when their server is dead, and removed.

A server that was killed leaves its file behind, and nobody can bind to that path again until
it is removed.  Whether somebody listens is found out by connecting; a lock on the folder keeps
two servers that start at once from removing each other's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import sys
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

# Somebody else may have the folder locked for ever, for reasons of their own.
_LOCK_PATIENCE = 1.0
_LOCK_EVERY = 0.01

# How many times in a row nobody must answer.  Only on Linux a server that has too many
# clients waiting never refuses one.
_REFUSALS = 1 if sys.platform == "linux" else 20


@dataclass(frozen=True, slots=True)
class SocketFile:
    """A file that this process has made.

    Attributes:
        path: Where it is, absolute.
        identity: Its device and inode, by which it is known.
    """

    path: str
    identity: tuple[int, int]

    def remove(self) -> None:
        """Remove it, if it is still that; to be called while its socket is open.

        An open socket keeps its inode, so that nobody else's file can have the number.
        """
        with contextlib.suppress(OSError):
            if _identity(self.path) == self.identity:
                Path(self.path).unlink()


@contextlib.contextmanager
def closed_on_error(sock: socket.socket) -> Generator[None]:
    """Close a socket if what is done with it fails."""
    try:
        yield
    except BaseException:
        sock.close()
        raise


def listen_at(
    sock: socket.socket, path: str, *, mode: int | None, backlog: int
) -> SocketFile:
    """Let a Unix socket listen at a path.

    Args:
        sock: The socket.
        path: Where; the file of a server that is dead is replaced.
        mode: The permissions of the file; ``None`` leaves them to the umask.
        backlog: How many connections may wait.

    Raises:
        OSError: If somebody listens there, something else is there, or it cannot be made;
            the text says what.
    """
    path = os.path.abspath(path)  # noqa: PTH100 - links are to stay links
    with _locked(os.path.dirname(path)):  # noqa: PTH120
        _clear(path)
        try:
            sock.bind(path)
        except OSError as error:
            if error.errno is not None:
                raise
            raise OSError(  # the system was not even asked
                errno.ENAMETOOLONG,
                f"the path has {len(os.fsencode(path))} bytes, and a socket's may have "
                "107, or 103 on macOS",
            ) from error
        made = SocketFile(path, _identity(path))
        try:
            # Nobody can connect before it listens.
            if mode is not None:
                os.chmod(path, mode)  # noqa: PTH101
            sock.listen(backlog)
        except OSError:
            made.remove()
            raise
    return made


def _clear(path: str) -> None:
    """Remove the file of a dead server.

    Raises:
        OSError: If what is there must stay.
    """
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(kind):
        raise OSError(
            errno.EADDRINUSE, "there is a file of that name, which is no socket"
        )
    answer = _connect(path)
    for _ in range(_REFUSALS - 1):
        if answer != errno.ECONNREFUSED:
            break
        time.sleep(_LOCK_EVERY)
        answer = _connect(path)
    if answer == errno.ECONNREFUSED:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
    elif answer in {0, errno.EAGAIN, errno.EINPROGRESS, errno.EPROTOTYPE}:
        raise OSError(errno.EADDRINUSE, "another process listens there")
    elif answer != errno.ENOENT:
        raise OSError(
            answer, f"the socket there cannot be tried: {os.strerror(answer)}"
        )


def _connect(path: str) -> int:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        # One whose backlog is full would let this wait.
        probe.setblocking(False)
        return probe.connect_ex(path)


@contextlib.contextmanager
def _locked(folder: str) -> Generator[None]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except PermissionError:  # one may write to a folder that one may not read
        yield
        return
    try:
        give_up_at = time.monotonic() + _LOCK_PATIENCE
        while time.monotonic() < give_up_at:
            with contextlib.suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            time.sleep(_LOCK_EVERY)
        yield
    finally:
        os.close(fd)


def _identity(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino
