"""Find what a preload has left behind in this process, and what jobs could use to get out."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import re
import sys

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

# The device and the number of a file.
_File = tuple[int, int]

_STREAMS = 3

_TRAMPOLINES = "/memfd:libffi (deleted)"

# Libraries keep them open, and they tell nothing.  By a pidfd a process can be signalled, which
# the sandbox refuses, and multiprocessing has that of the service.
_HARMLESS = {
    _TRAMPOLINES,
    *(f"/dev/{name}" for name in ("null", "zero", "full", "random", "urandom")),
    *(f"anon_inode:[{kind}]" for kind in ("eventfd", "pidfd", "signalfd", "timerfd")),
}

# Of /proc/self/maps, a mapping that is shared: where it begins and ends, whether it may be written
# to, the numbers of its file, and the name of that.
_SHARED = re.compile(
    rb"^([0-9a-f]+)-([0-9a-f]+) .(.).s \S+ ([0-9a-f]+):([0-9a-f]+) (\d+) *(.*)$",
    re.MULTILINE,
)


def check_leftovers(known: Iterable[int]) -> None:
    """Refuse what *preload* has left.

    Args:
        known: The descriptors that this process has been given.

    Raises:
        RuntimeError: If something would be outside of the sandbox, or common to workers.
    """
    files = {_identity(fd) for fd in known}
    if shared := shared_memory(files):
        raise RuntimeError(
            "preload left memory that all workers share, by which a job could reach the others: "
            f"{shared}; make it in the initializer, or name another preload"
        )
    if left := [
        f"{fd} ({where})"
        for fd, where, file in _descriptors()
        if fd >= _STREAMS and where not in _HARMLESS and file not in files
    ]:
        raise RuntimeError(
            f"preload left descriptors open, which jobs would have: {', '.join(left)}; "
            "close them after the import, or name another preload"
        )


def shared_memory(files: Collection[_File] = ()) -> str:
    """Return what memory the copies of this process share with it, but for that of *files*."""
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123
        mapped = _SHARED.findall(maps.read())
    told: list[str] = []
    for begin, end, writes, major, minor, inode, name in mapped:
        file = os.makedev(int(major, 16), int(minor, 16)), int(inode)
        # A library or a table that is read only cannot be made writable either.
        if file not in files and (writes == b"w" or _may_become_writable(begin)):
            first, last = int(begin, 16), int(end, 16)
            holder = _holder_of(first, last)
            told.append(f"{last - first} bytes of {os.fsdecode(name)}{holder}")
    return ", ".join(told)


def _may_become_writable(begin: bytes) -> bool:
    try:
        with open("/proc/self/smaps", "rb") as maps:  # noqa: PTH123
            _, _, after = maps.read().partition(b"\n" + begin + b"-")
    except OSError:
        return True
    flags = after.partition(b"VmFlags:")[2].partition(b"\n")[0]
    return not flags or b"mw" in flags.split()


def _identity(fd: int) -> _File:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _descriptors() -> Iterator[tuple[int, str, _File]]:
    """Yield what is open, where it leads to, and which file that is."""
    listing = "/proc/self/fd"
    for fd in map(int, os.listdir(listing)):  # noqa: PTH208 - see _worker/__init__.py
        try:
            where = os.readlink(f"{listing}/{fd}")  # noqa: PTH115
            file = _identity(fd)
        except OSError:
            continue  # that of the listing itself
        if where == _TRAMPOLINES or os.path.basename(where).startswith("libffi.so."):  # noqa: PTH119
            _unshare(fd)
            where = _TRAMPOLINES
        yield fd, where, file


def _unshare(fd: int) -> None:
    """Put a copy that nobody can write to in the place of a descriptor of libffi's.

    libffi 3.5, where it is built so, maps the code of callbacks from a file that it opens as ctypes
    is imported: its own library, or a memfd if it cannot find that, as where a blank is in its
    path.  If the launcher has imported ctypes, all of its workers have that descriptor: what one
    of them wrote into the memfd would run in the launcher and in the others.  libffi goes on using
    the number of its descriptor.
    """
    own = os.memfd_create("libffi", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(own, os.pread(fd, os.fstat(fd).st_size, 0))
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(own, fcntl.F_ADD_SEALS, seals)
    os.dup2(own, fd, inheritable=False)
    os.close(own)


def _holder_of(first: int, last: int) -> str:
    """Return which module has an object of Python's there, if that can be found out."""
    import ctypes  # noqa: PLC0415 - its libffi may share memory, which the look would find

    gc.unfreeze()  # the launcher has hidden what it has
    for found in gc.get_objects():
        if not isinstance(found, mmap.mmap):
            continue
        try:
            address = ctypes.addressof(ctypes.c_char.from_buffer(found))
        except (TypeError, ValueError):
            continue
        if first <= address < last:
            return _module_of(found)
    return ""


def _module_of(found: object) -> str:
    loaded = [*sys.modules.items()]
    modules = {id(getattr(module, "__dict__", None)): name for name, module in loaded}
    level, seen = [found], set[int]()
    for _ in range(6):
        nearest = gc.get_referrers(*level)
        level = [each for each in nearest if id(each) not in seen]
        seen.update(map(id, level))
        for each in level:
            name = modules.get(id(each), "")
            if name.partition(".")[0] not in {"", "asyncpool", "multiprocessing"}:
                return f" (module {name})"
    return ""
