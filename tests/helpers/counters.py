"""What the kernel counts for a user or for the machine, and a service whose workers take all of it.

``python -m tests.helpers.counters`` is that service: for each counter it waits for a line, and prints
how many each of its two workers has got.  With the argument ``others`` it is
unrelated programs: for the number of a counter that it reads, a new one wants one of it, and whether
that got one is printed.  It needs nothing but the standard library for that.
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import fcntl
import functools
import itertools
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.helpers.escapes import system_call


class Counter(NamedTuple):
    """Something that is counted.

    Attributes:
        name: What is counted.
        make: Gets one, and returns what must be kept for it to stay.
        most: How many of it a worker in a sandbox can have.
        apart: Likewise if the service is root: for each of its workers the kernel counts apart.
    """

    name: str
    make: Callable[[], object]
    most: int = 0
    apart: int = 0


_held: list[object] = []
_libc = ctypes.CDLL(None, use_errno=True)


def take_all(number: int) -> int:
    """Take all that this process can get of a counter, and keep it; return how many that are."""
    _held.clear()
    try:
        while len(_held) < 100_000:
            _held.append(COUNTERS[number].make())
    except (OSError, RuntimeError, StopIteration):
        pass
    return len(_held)


def _in_flight() -> object:
    one, other = socket.socketpair()
    with one:
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [1] * 253))
        one.sendmsg([b"x"], [rights])
    return other


def _requests() -> object:
    context = ctypes.c_long()
    system_call("io_setup", 100, ctypes.byref(context))
    return context


def _timer() -> object:
    return system_call("timer_create", 1, None, ctypes.byref(ctypes.c_int()))


def _signal() -> object:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN])
    signal.pthread_kill(threading.get_ident(), signal.SIGRTMIN)
    return None


_names = itertools.count()


def _key() -> object:
    name = f"asyncpool-{os.getpid()}-{next(_names)}".encode()
    return system_call("add_key", b"user", name, b"x", 1, -2)  # of this process


def _pipe() -> object:
    ends = os.pipe()
    if fcntl.fcntl(ends[0], fcntl.F_GETPIPE_SZ) < 1 << 16:
        raise OSError("the user has too many pipes")
    return ends


def _large_pipe() -> object:
    ends = os.pipe()
    fcntl.fcntl(ends[0], fcntl.F_SETPIPE_SZ, 1 << 20)
    return ends


_end = threading.Event()


def _thread() -> object:
    threading.stack_size(1 << 16)
    thread = threading.Thread(target=_end.wait, daemon=True)
    thread.start()
    return thread


def _process() -> object:
    pid = os.fork()
    if pid == 0:
        os._exit(0)  # it stays in the table of processes
    return pid


def _queue() -> object:
    name = f"asyncpool-{os.getpid()}-{next(_names)}".encode()
    fd = system_call("mq_open", name, os.O_CREAT | os.O_RDWR, 0o600, None)
    system_call("mq_unlink", name)
    return fd


def _ipc(get: str, control: str, *arguments: int) -> Callable[[], object]:
    def make() -> object:
        number = system_call(get, 0, *arguments)  # with the key IPC_PRIVATE
        return system_call(control, number, 0, 0)  # IPC_RMID

    return make


def _namespace() -> object:
    failed: list[OSError] = []
    gone, ready = threading.Event(), threading.Event()

    def enter() -> None:
        try:
            system_call("unshare", 0x40000000)  # of the network: root needs no other
        except OSError as error:
            failed.append(error)
        ready.set()
        gone.wait()

    threading.Thread(target=enter, daemon=True).start()
    ready.wait()
    if failed:
        raise failed[0]
    return gone


def _watches() -> Iterator[None]:
    """Watch one descriptor more and more: each is counted by its file and its number."""
    files = [end for _ in range(30) for end in os.pipe()]
    epolls: list[select.epoll] = []
    while True:
        epolls.append(select.epoll())
        for file, number in itertools.product(files, range(150, 250)):
            os.dup2(file, number)
            epolls[-1].register(number)
            os.close(number)  # the watch stays, since the file is open
            yield


def _ring() -> object:
    return system_call("io_uring_setup", 8, ctypes.create_string_buffer(120))


def _events() -> object:
    attributes = struct.pack("=IIQQQQQ", 1, 128, 9, 0, 0, 0, 1).ljust(128, b"\0")
    return system_call("perf_event_open", attributes, 0, -1, -1, 0)


def _bpf_map() -> object:
    return system_call("bpf", 0, struct.pack("=IIII", 2, 4, 4, 1) + bytes(112), 128)


def _memory(flags: int) -> Callable[[], object]:
    both = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    return lambda: mmap.mmap(-1, 2 << 20, both | flags)


def _lease() -> object:
    path = f"/tmp/asyncpool-lease-{os.getpid()}"
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    os.unlink(path)
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    return fd


COUNTERS = [
    Counter("descriptors in flight", _in_flight),
    Counter("requests of asynchronous I/O", _requests),
    Counter("inotify", lambda: system_call("inotify_init1", os.O_CLOEXEC)),
    Counter("fanotify", lambda: system_call("fanotify_init", 0x200, 0)),
    Counter("timers", _timer),
    Counter("signals that wait", _signal, 128),
    Counter("keys", _key),
    Counter("pipes", _pipe, 127),
    Counter("pipes of 1 MiB", _large_pipe),
    Counter("threads", _thread, 255),
    Counter("processes", _process),
    Counter("message queues", _queue),
    Counter("shared memory of System V", _ipc("shmget", "shmctl", 4096, 0o1600)),
    Counter("semaphores of System V", _ipc("semget", "semctl", 1, 0o1600)),
    Counter("message queues of System V", _ipc("msgget", "msgctl", 0o1600)),
    Counter("namespaces", _namespace),
    Counter("watches of epoll", functools.partial(next, _watches()), 0, 100_000),
    Counter("io_uring", _ring),
    Counter("perf events", _events),
    Counter("bpf maps", _bpf_map),
    Counter("huge pages", _memory(0x40000)),
    Counter("locked pages", _memory(0x2000)),
    Counter("files of memory", lambda: os.memfd_create("asyncpool")),
    Counter("terminals", lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)),
    Counter("leases", _lease),
]


async def serve() -> None:
    """Be the service."""
    import asyncio

    from asyncpool import Pool, Sandbox

    sys.stdin.readline()
    for number in range(len(COUNTERS)):
        async with Pool(
            2, ready="all", preload=[__spec__.name], sandbox=Sandbox.parser()
        ) as pool:
            found = await pool.broadcast(take_all, number)
            sys.stdout.write(f"{' '.join(map(str, found.values()))}\n")
            sys.stdout.flush()
            await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for line in sys.stdin:
            if (pid := os.fork()) == 0:
                with contextlib.suppress(OSError, RuntimeError):
                    COUNTERS[int(line)].make()
                    os._exit(0)
                os._exit(1)
            sys.stdout.write(f"{os.waitpid(pid, 0)[1]}\n")
            sys.stdout.flush()
    else:
        import asyncio

        asyncio.run(serve())
