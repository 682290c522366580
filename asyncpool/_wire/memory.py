"""Memory that a pool and one of its workers both see.

The standard library's ``mmap`` does most of this, but keeps a descriptor for each
mapping, and a service that keeps a thousand results must not run out of them.  It also
cannot tell when the last view of it is gone; an array of ctypes can, since there may be
weak references to it.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import mmap
import operator
import os
import weakref

from asyncpool._wire.buffers import lay_out

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from asyncpool._wire.buffers import OutOfBandPickle

_pointer, _size, _int = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

_libc = ctypes.CDLL(None, use_errno=True)
_mmap = _libc.mmap
_mmap.restype = _pointer
_mmap.argtypes = [_pointer, _size, _int, _int, _int, ctypes.c_long]
_munmap = _libc.munmap
_munmap.argtypes = [_pointer, _size]

_FAILED = ctypes.c_void_p(-1).value
# Map all existing pages at once: to map each when it is first touched takes twice as long.
_POPULATE = getattr(mmap, "MAP_POPULATE", 0)


# Room for a ``Py_buffer`` of PEP 3118, which has eleven words at the most.  Its first word is the
# address of the memory, and its third one the length.
_Buffer = ctypes.c_size_t * 11
_ADDRESS, _LENGTH = 0, 2

# A library object of our own.  The functions of ctypes.pythonapi are shared: setting their
# argument types here would change them for everybody.
_python = ctypes.PyDLL(None)
_get_buffer = _python.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, _Buffer, ctypes.c_int]
_release_buffer = _python.PyBuffer_Release
_release_buffer.argtypes = [_Buffer]
_release_buffer.restype = None


def available() -> bool:
    """Tell whether memory can be shared so that the other side cannot take it away.

    That needs Linux.  If one side truncates the file, the other side is killed by SIGBUS
    when it reads the memory, unless the file is sealed against truncation.
    """
    return hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")


def is_sealed(fd: int, size: int) -> bool:
    """Tell whether *fd* is memory of exactly *size* bytes that is there, and that stays."""
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
    try:
        found, about = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd)
    except OSError:  # it is no memory
        return False
    there = about.st_blocks * 512  # as POSIX counts blocks
    return found & seals == seals and about.st_size == size and there >= size


def create(size: int) -> int:
    """Return a descriptor of *size* bytes of memory, which nobody can shrink.

    Raises:
        OSError: If there is not enough memory, or this process may open no more files.
    """
    fd = os.memfd_create("asyncpool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        # Allocate the pages now, while a lack of memory is an error.  Later it would be a
        # SIGBUS.  This also takes a third of the time of touching page after page.
        os.posix_fallocate(fd, 0, size)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(fd)
        raise
    return fd


# Keep the types.  A dropped type is a reference cycle, and there are few sizes.
_array_type = functools.cache(functools.partial(operator.mul, ctypes.c_ubyte))


class Memory:
    """A mapping, which lasts as long as this object or any view of it.

    Args:
        fd: The descriptor of the memory.  The caller may close it afterwards.
        size: How many bytes to map.
        later: Whether pages are mapped as they are touched, so that this returns at once.

    Attributes:
        view: What the last view is of, as long as anything has it; set to ``None``, nobody is told
            when it is gone.
        copied: Whether this process has forked while there was a view: the copy has it too, and
            may write there.

    Raises:
        OSError: If the memory cannot be mapped.
    """

    def __init__(self, fd: int, size: int, *, later: bool = False) -> None:
        self.size = size
        self.view: weakref.ref[Any] | None = None
        self.copied = False
        self._address = 0
        access = mmap.PROT_READ | mmap.PROT_WRITE
        flags = mmap.MAP_SHARED | (0 if later else _POPULATE)
        address = _mmap(None, size, access, flags, fd, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        self._address = address

    def write(self, offset: int, pieces: Iterable[bytes | memoryview]) -> None:
        """Copy *pieces*, one after the other, to *offset*.  The copy releases the GIL."""
        for piece in pieces:
            if offset + len(piece) > self.size:
                raise ValueError("the pieces do not fit")
            source = _Buffer()
            _get_buffer(piece, source, 0)
            try:
                target = self._address + offset
                ctypes.memmove(target, source[_ADDRESS], source[_LENGTH])
            finally:
                _release_buffer(source)
            offset += len(piece)

    def fill(self, pickled: OutOfBandPickle) -> None:
        """Copy the areas of *pickled* to the places where the other side looks for them."""
        offsets, _ = lay_out(pickled.sizes)
        for offset, pieces in zip(offsets, pickled.areas, strict=True):
            self.write(offset, pieces)

    def lend(self, on_gone: Callable[[], None]) -> memoryview:
        """Return a view of all of it.

        Args:
            on_gone: Called when the view is gone, and everything that was made from it.
                Any thread may call it, at any bytecode.
        """
        array: Any = _array_type(self.size).from_address(self._address)
        array.memory = self  # must not be unmapped before
        self.view = weakref.ref(array, lambda _: on_gone())
        _lent[self._address] = self
        return memoryview(array).cast("B")

    def __del__(self, _munmap: Any = _munmap) -> None:
        if self._address:
            _munmap(self._address, self.size)


# Memory of which there was a view, by its address.
_lent: weakref.WeakValueDictionary[int, Memory] = weakref.WeakValueDictionary()


def _mark_copied() -> None:
    for found in _lent.valuerefs():  # a list: other threads may lend memory meanwhile
        memory = found()
        if memory is not None and memory.view is not None and memory.view() is not None:
            memory.copied = True


# Before a fork, too: a view may go while other hooks run, and the copy has it still.
os.register_at_fork(before=_mark_copied, after_in_parent=_mark_copied)
