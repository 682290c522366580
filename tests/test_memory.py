"""The contract of shared memory: nobody can take it away, and its end is noticed."""

from __future__ import annotations

import errno
import fcntl
import gc
import mmap
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest

from asyncpool._system import memory as _memory
from asyncpool._system.memory import Memory, create
from tests.helpers.guards import open_fds

SIZE = 100_000


class Calls:
    """Counts how often it was called, and notes in which threads."""

    def __init__(self) -> None:
        self.threads: list[int] = []

    def __call__(self) -> None:
        self.threads.append(threading.get_ident())

    def __len__(self) -> int:
        return len(self.threads)


def mapped() -> int:
    """Count the pieces of shared memory that are mapped here."""
    with Path("/proc/self/maps").open() as maps:
        return sum("/memfd:asyncpool (" in line for line in maps)


@pytest.fixture(autouse=True)
def nothing_stays_mapped() -> Iterator[None]:
    before = mapped()
    yield
    gc.collect()
    assert mapped() == before


@pytest.fixture
def fd() -> Iterator[int]:
    found = create(SIZE)
    yield found
    with suppress(OSError):
        os.close(found)


def fresh() -> Memory:
    fd = create(SIZE)
    try:
        return Memory(fd, SIZE)
    finally:
        os.close(fd)


# What it is.


@pytest.mark.parametrize(
    "change",
    [
        lambda fd: os.ftruncate(fd, 0),
        lambda fd: os.ftruncate(fd, SIZE - 1),
        lambda fd: os.ftruncate(fd, SIZE + 1),
        lambda fd: os.posix_fallocate(fd, SIZE, 1),
        lambda fd: os.pwrite(fd, b"x" * 4096, SIZE // 4096 * 4096 + 4096),
        lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE),
        lambda fd: fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK),
    ],
    ids=["empty", "smaller", "larger", "allocated", "appended", "sealed", "again"],
)
def test_nobody_can_make_it_smaller_or_larger(
    change: Callable[[int], object], fd: int
) -> None:
    with pytest.raises(PermissionError) as caught:
        change(fd)
    assert caught.value.errno == errno.EPERM
    assert os.fstat(fd).st_size == SIZE
    # Least of all he who has opened it anew.
    other = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.ftruncate(other, 0)
    os.close(other)


def test_a_size_that_cannot_be_had_leaves_no_descriptor() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = open_fds()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        os.close(create(1 << 20))
        with pytest.raises(OSError, match="File too large") as caught:
            create((1 << 20) + 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert open_fds() == before


def test_memory_that_is_not_there_is_an_error_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = open_fds()
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="No space left on device"):
        create(SIZE)
    assert open_fds() == before


# Mappings.


@pytest.mark.skipif(
    not hasattr(mmap, "MAP_POPULATE"), reason="it is an advice to Linux"
)
def test_it_is_warm_wherever_it_is_mapped() -> None:
    size = 1000 * mmap.PAGESIZE
    fd = create(size)
    memories = [Memory(fd, size) for _ in range(2)]
    os.close(fd)
    data = b"x" * size  # which is there, too
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for memory in memories:
        memory.write(0, [data])
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    assert faults < 200, "none for each page"


def test_it_is_unmapped_when_nobody_has_it(fd: int) -> None:
    before = mapped()
    memory = Memory(fd, SIZE)
    assert mapped() == before + 1
    del memory
    assert mapped() == before


def test_a_view_outlives_it(fd: int) -> None:
    before = mapped()
    memory = Memory(fd, SIZE)
    part = memory.lend(lambda: None)[10:20]
    del memory
    assert mapped() == before + 1
    part[:] = b"0123456789"
    assert os.pread(fd, 12, 9) == b"\x000123456789\x00"
    del part
    assert mapped() == before


# Writing.


@pytest.mark.parametrize(
    "pieces",
    [
        [],
        [b""],
        [b"abc"],
        [b"a", memoryview(b"bc"), memoryview(bytearray(b"def"))[1:]],
        [memoryview(bytes(70_000))],
    ],
    ids=len,
)
def test_pieces_are_written_one_behind_the_other(
    pieces: list[bytes | memoryview],
) -> None:
    memory = fresh()
    view = memory.lend(lambda: None)
    view[:] = b"-" * SIZE
    memory.write(7, pieces)
    whole = b"".join(pieces)
    assert bytes(view) == b"-" * 7 + whole + b"-" * (SIZE - 7 - len(whole))


def test_a_piece_may_reach_to_the_end_and_no_further() -> None:
    memory = fresh()
    view = memory.lend(lambda: None)
    memory.write(SIZE - 3, [b"ab", b"c"])
    assert bytes(view[-4:]) == b"\0abc"
    for offset, pieces in (
        (SIZE - 2, [b"xyz"]),
        (SIZE, [b"x"]),
        (0, [bytes(SIZE + 1)]),
        (10 * SIZE, [b"x"]),
    ):
        with pytest.raises(ValueError, match="the pieces do not fit"):
            memory.write(offset, pieces)
        assert bytes(view[-4:]) == b"\0abc"
    memory.write(SIZE, [b""])
    # What fits is written, and the rest is not.
    with pytest.raises(ValueError, match="do not fit"):
        memory.write(SIZE - 3, [b"12", b"34"])
    assert bytes(view[-4:]) == b"\x0012c"


def test_what_is_written_is_let_go_of() -> None:
    memory = fresh()
    source = bytearray(b"x" * 1000)
    memory.write(0, [memoryview(source)])
    source.clear()  # which it refuses while anybody has a view of it
    with pytest.raises(ValueError, match="do not fit"):
        memory.write(SIZE, [memoryview(kept := bytearray(10))])
    kept.clear()
    with closing(mmap.mmap(-1, 4096)) as mapping:
        memory.write(0, [memoryview(mapping)])


# The end of a view.


def test_the_end_is_told_once_when_nothing_is_left() -> None:
    memory = fresh()
    calls = Calls()
    view = memory.lend(calls)
    assert len(calls) == 0
    part = view[10:20]
    cast = part.cast("H")
    copy = memoryview(part)
    view.release()
    del view
    for name in ("part", "cast"):
        assert len(calls) == 0
        if name == "part":
            del part
        else:
            del cast
    assert len(calls) == 0
    del copy
    assert len(calls) == 1
    gc.collect()
    del memory
    assert len(calls) == 1


def test_the_end_is_told_when_the_collector_comes_for_it() -> None:
    memory = fresh()
    calls = Calls()
    cycle: list[object] = [memory.lend(calls)]
    cycle.append(cycle)
    gc.disable()
    try:
        del cycle
        assert len(calls) == 0
        gc.collect()
    finally:
        gc.enable()
    assert len(calls) == 1


def test_a_view_leaves_no_garbage() -> None:
    memory = fresh()
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            view = memory.lend(lambda: None)
            del view
        del memory
        found = gc.collect()
    finally:
        gc.enable()
    assert found == 0


def test_what_has_no_address_is_not_unmapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be mapped has an end too, and is no mapping."""
    unmapped: list[tuple[int, int]] = []
    monkeypatch.setattr(
        Memory.__del__, "__defaults__", (lambda *what: unmapped.append(what),)
    )
    with pytest.raises(OSError, match="Bad file descriptor"):
        Memory(-1, SIZE)
    gc.collect()
    assert unmapped == []
    memory = Memory(fd := create(SIZE), SIZE)
    os.close(fd)
    address = memory._address
    del memory
    assert unmapped == [(address, SIZE)]
    _memory._munmap(address, SIZE)
