"""Shared memory: what fits is written, and its end is noticed."""

from __future__ import annotations

import gc
import mmap
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from asyncpool._wire import memory as _memory
from asyncpool._wire.memory import Memory, create

SIZE = 100_000


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


# The end of a view.


def test_the_end_is_told_once_when_nothing_is_left() -> None:
    memory = fresh()
    calls: list[str] = []
    view = memory.lend(lambda: calls.append("over"))
    part = view[10:20]
    cast = part.cast("H")
    copy = memoryview(part)
    view.release()
    del view
    del part
    del cast
    assert calls == []
    del copy
    assert calls == ["over"]
    gc.collect()
    del memory
    assert calls == ["over"]


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
