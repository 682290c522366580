"""Descriptors and processes, as both sides see them: how they are passed on, started and signalled.

A launcher, and a worker that is spawned, is a fresh interpreter.  A plain Python runs
``python -P -c BOOTSTRAP ROOT ROLE FD...``.  A frozen program is no Python: it runs its own script,
whatever its command line says.  What makes the tools that freeze programs do something else is the
command line of the standard library's spawn, ``--multiprocessing-fork pipe_handle=FD``.  They, or
``multiprocessing.freeze_support()`` in the script, call ``multiprocessing.spawn.spawn_main``, which
unpickles from the pipe what to call.

A worker handles two signals while it runs a job.  They are real-time signals where the system has
them, because jobs hardly ever use these.
"""

from __future__ import annotations

import array
import errno
import fcntl
import mmap
import os
import signal
import socket
import stat
import sys
from io import FileIO

TYPE_CHECKING = False  # see _wire/records.py

if TYPE_CHECKING:
    from typing import Any

_CLOEXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)

# The largest pickled value that may travel with a descriptor.  The bound keeps memory small:
# many of them may wait in the receiver until somebody reads them.
_MOST_BESIDE = 65_536

# What a file may be used for.
_MODES = {os.O_RDONLY: "rb", os.O_WRONLY: "wb"}

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
        return ReceivedFile(fd, _MODES.get(access, "rb+"))
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
    """Return a packed value that is to travel with a descriptor.

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
    fds = array.array("i")
    room = socket.CMSG_SPACE(fds.itemsize * most)
    data, ancillary, flags, _ = sock.recvmsg(size, room, _CLOEXEC)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
    for fd in fds:
        os.set_inheritable(fd, False)
    return data, fds.tolist(), bool(flags & socket.MSG_CTRUNC)


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


# The environment of a fresh interpreter has it until the process has become what it was started for.
# The value is the descriptor of its channel.  A process that runs a program, and still has it,
# was started for another purpose, and must not start others in turn.
STARTS = "ASYNCPOOL_STARTS"

# What such a process answers on its channel instead of a greeting.
REFUSAL = b"refused\n"

# How the command line of a frozen program begins, behind the program.
FROZEN = "--multiprocessing-fork"

_FIRST = getattr(signal, "SIGRTMIN", None)

# Its handler raises JobCancelled in the main thread, if that still runs the cancelled job.
INTERRUPT_SIGNAL = int(signal.SIGUSR1 if _FIRST is None else _FIRST + 11)

# Its handler writes the stacks of all threads to the worker page.
STACKS_SIGNAL = int(signal.SIGUSR2 if _FIRST is None else _FIRST + 12)


def greeting() -> bytes:
    """Return the first line on a launcher's channel: whether it can run what this Python runs."""
    threaded = "t" * ("t" in sys.abiflags)
    tag, version = sys.implementation.cache_tag, sys.version.split()[0]
    folder = os.path.realpath(os.path.dirname(getattr(os, "__file__", "")))  # noqa: PTH120 - as the other side
    return f"{tag}{threaded} {version} in {folder!a}\n".encode()


def command_line(
    program: tuple[str, ...], role: str, fds: tuple[int, ...]
) -> list[str]:
    """Return the command line of a process in a *role*, which inherits these descriptors.

    If there is one more in it, ``pipe_handle``, the process inherits that too.

    Args:
        program: The beginning of the command line.
        role: ``"launcher"`` or ``"worker"``.
        fds: The descriptors.
    """
    if program[-1] != FROZEN:
        return [*program, role, *map(str, fds)]
    reading, writing = os.pipe()
    os.set_inheritable(reading, True)
    # Two pickles, as spawn_main reads them: an empty dictionary, and the object that it is to
    # call, by its name, since not both sides may import it.
    numbers = "".join(f"I{fd}\n" for fd in fds)
    start = f"casyncpool._worker.process\nStart\n(V{role}\n{numbers}tR."
    os.write(writing, b"}." + start.encode())
    os.close(writing)
    return [*program, f"pipe_handle={reading}"]


def signal_name(number: int) -> str:
    """Return the name of a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, which has a number and no name
        return f"signal {number}"


def read(path: str) -> bytes:
    """Return what is in a file of Linux; nothing if its process is gone, or if this is no Linux."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - workers import this
            return file.read()
    except OSError:
        return b""


def memory_at_most(pid: int) -> int:
    """Return an upper bound, in 8 us; 0 if the process is gone.

    Pages that it shares since a fork count in, and shared memory that others have mapped too.
    """
    return sum(_resident(pid))


def private_memory(pid: int) -> int:
    """Return how many bytes of memory a process has to itself; 0 if it is gone.

    What it has of its parent, and has not written to, is not its own.  Nor is memory that other
    processes have mapped too, or files.  This goes through its pages: 6 to 40 us for each
    MiB that is resident.
    """
    anonymous, shared = _resident(pid)
    rollup = read(f"/proc/{pid}/smaps_rollup")
    if not rollup:  # an older kernel, or gVisor
        return anonymous
    wanted = b"Private_", b"Pss_File:"
    rows = (row.split() for row in rollup.splitlines() if row.startswith(wanted))
    sizes = {name: int(kib) << 10 for name, kib, *_ in rows}
    private = sum(size for name, size in sizes.items() if name.startswith(b"Private_"))
    files = sizes.get(b"Pss_File:", 0)
    # Shared memory that nobody else has mapped, such as mmap(-1, ...), is private here; but so is
    # a file.  Pss_File also has a part of the libraries, hence the larger of the two figures.
    return min(anonymous + shared, max(min(anonymous, private), private - files))


def _resident(pid: int) -> tuple[int, int]:
    """Return how much anonymous memory, and how much shared memory that is no file, is resident."""
    status = read(f"/proc/{pid}/status")
    found = [status.partition(name)[2] for name in (b"\nRssAnon:", b"\nRssShmem:")]
    if all(found):
        anonymous, shared = (int(rest.split(None, 1)[0]) << 10 for rest in found)
        return anonymous, shared
    # gVisor has only this.
    _, resident, shared, *_ = *map(int, read(f"/proc/{pid}/statm").split()), 0, 0, 0
    return (resident - shared) * mmap.PAGESIZE, 0
