"""Move semaphores that only a fork could share into memory that has a descriptor.

The context ``"fork"`` of :mod:`multiprocessing` removes the name of a semaphore at once,
and the C library closes its descriptor.  What is left is a mapping, and Linux lets only
privileged processes open a mapping again.  But this process may replace the mapping by
one of memory that it has a descriptor of.  Another process that gets this descriptor can
map the same memory.

This depends on glibc on 64-bit Linux.  A semaphore that looks different is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import sys
import threading
import time
import weakref

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.synchronize import SemLock

    from asyncpool._wire.posix import Handed

_CURE = "make the object that has it with multiprocessing.get_context('forkserver')"

_PLACE = "/dev/shm/sem."  # noqa: S108 - glibc's
_SIZE = mmap.PAGESIZE
# Flags of mremap() and mmap() in Linux.
_MAYMOVE, _FIXED = 1, 0x10

# A semaphore begins with its value, and how many threads wait for it.  Its kind is behind them:
# whether processes share it.
_Counts = ctypes.c_uint32 * 2
_COUNTS = ctypes.sizeof(_Counts)

# How often other threads may take the semaphore while it is moved, if its value is high.
_SLACK = 1000

# Seconds until the processes are looked at again.  A process that has forked, and is about to
# execute another program, shares the semaphore only until then.
_EXEC = 0.002

# PyDLL, because its functions keep the GIL; those of ctypes.CDLL release it.
_libc = ctypes.PyDLL(None, use_errno=True)
_address, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

_lock = threading.Lock()
_descriptors: weakref.WeakKeyDictionary[SemLock, int] = weakref.WeakKeyDictionary()


def descriptor_of(lock: SemLock, mappings: dict[int, str]) -> int:
    """Return a descriptor of the memory that the semaphore of *lock* is in.

    It belongs to *lock*.  The semaphore may be in use meanwhile, in any thread.

    Args:
        lock: What has the semaphore.
        mappings: What processes have mapped, if somebody has looked; else this does.  To look
            takes milliseconds, so one look serves for all semaphores that are moved together.

    Raises:
        RuntimeError: If the semaphore cannot be moved.  The text says why, and what to do.
        OSError: If this process may open no more files, or there is not enough memory.
    """
    with _lock:
        fd = _descriptors.get(lock)
        if fd is None:
            fd = _move(lock._semlock.handle, mappings)  # type: ignore[attr-defined] # noqa: SLF001
            _own(lock, fd)
        return fd


def semaphore_at(
    cls: type[SemLock], kind: int, max_value: int, handed: Handed
) -> SemLock:
    """Return a lock of the class *cls*, whose semaphore is in the memory of a descriptor.

    The memory stays mapped for as long as this process lives, since a method of the lock
    may outlive the lock.
    """
    descriptor = handed.detach()
    address = _map(descriptor)
    lock = cls.__new__(cls)
    lock.__setstate__((address, kind, max_value, None))  # type: ignore[attr-defined]
    # It has no name by which another process could open it.
    lock._is_fork_ctx = True  # type: ignore[attr-defined] # noqa: SLF001
    _own(lock, descriptor)
    return lock


def _own(lock: SemLock, fd: int) -> None:
    _descriptors[lock] = fd
    weakref.finalize(lock, os.close, fd)


def _move(handle: int, mappings: dict[int, str]) -> int:
    """Move the semaphore at *handle* into new memory; return the descriptor of that."""
    known = sys.platform == "linux" and ctypes.sizeof(_address) == _COUNTS
    known = known and sys.byteorder == "little" and hasattr(os, "memfd_create")
    file = _file_at(handle) if known else None
    if file is None:
        raise RuntimeError(
            f"a lock or semaphore of the context 'fork' cannot be sent from here: {_CURE}"
        )
    process = _sharing(file, mappings)
    if process is not None:
        raise RuntimeError(
            f"a lock or semaphore of the context 'fork' is shared with process {process} "
            f"by a fork, and cannot be shared with workers as well: {_CURE}"
        )
    fd = os.memfd_create("semaphore")
    try:
        os.ftruncate(fd, _SIZE)
        _replace(handle, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _replace(handle: int, fd: int) -> None:
    """Replace the semaphore at *handle* by one in the memory of *fd*."""
    # One system call makes all threads use the new semaphore.  Its value is lower at first:
    # no thread may get what another one has taken from the old one.  Then it gets the rest.
    least = max(0, _counts(handle)[0] - _SLACK)
    kind = ctypes.string_at(handle + _COUNTS, _COUNTS)
    os.pwrite(fd, bytes(_Counts(least, 0)) + kind, 0)
    size = _size(_SIZE)
    old = _call("mremap", _address, handle, _size(0), size, _int(_MAYMOVE))
    _map(fd, handle)  # until now the old one was there twice
    # Threads that wait at the old semaphore are woken up, and then wait at the new one.
    value, waiting = _counts(old)
    if waiting:
        _counts(handle)[1] += waiting
    for _ in range(value - least):
        _call("sem_post", _int, handle)
    for _ in range(waiting):
        _call("sem_post", _int, old)
    _call("munmap", _int, old, size)


def _mappings(process: str) -> list[str]:
    """Return the lines that tell of semaphores."""
    with open(f"/proc/{process}/maps", errors="replace") as lines:  # noqa: PTH123 - workers import this
        return [line for line in lines if _PLACE in line]


def _file_at(handle: int) -> str | None:
    """Return the file of the semaphore at *handle*, as mappings show it."""
    for line in _mappings("self"):
        area, _, _, device, inode, *_ = line.split()
        if area.startswith(f"{handle:x}-"):
            return f" {device} {inode} "
    return None


def _sharing(file: str, mappings: dict[int, str]) -> int | None:
    """Return another process that has mapped *file*, if there is one."""
    others: list[int] = []
    for _ in range(2):
        mappings.update({} if mappings else _mappings_of_program())
        found = [pid for pid, text in mappings.items() if file in text]
        if not (others := [pid for pid in found if pid != os.getpid()]):
            return None
        mappings.clear()
        time.sleep(_EXEC)
    return others[0]


def _mappings_of_program() -> Iterator[tuple[int, str]]:
    """Yield who runs the same program, and so may share a semaphore by a fork."""
    program = os.readlink("/proc/self/exe")  # noqa: PTH115
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208
        with contextlib.suppress(OSError):  # it is gone, or another user's
            if os.readlink(f"/proc/{name}/exe") == program:  # noqa: PTH115
                yield int(name), "".join(_mappings(name))


def _map(fd: int, place: int = 0) -> int:
    """Map the memory of *fd*, at *place* if there is one; return its address."""
    protection = _int(mmap.PROT_READ | mmap.PROT_WRITE)
    flags = _int(mmap.MAP_SHARED | (_FIXED if place else 0))
    return _call("mmap", _address, place, _size(_SIZE), protection, flags, _int(fd), 0)


def _counts(address: int) -> ctypes.Array[ctypes.c_uint32]:
    return _Counts.from_address(address)


def _call(name: str, result: type, address: int, *args: object) -> int:
    function = _libc[name]  # a new one each time, which nobody else declares
    function.restype = result
    value: int | None = function(_address(address), *args)
    if value in {-1, _address(-1).value}:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")
    return value or 0
