"""The code of callbacks that a worker would share with its launcher."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncpool._sandbox.leftovers import _TRAMPOLINES, _descriptors

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="there are no memfds"
)


def where(fd: int) -> list[str]:
    return [leads_to for number, leads_to, _ in _descriptors() if number == fd]


@pytest.fixture(params=["library", "memfd"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[int]:
    if request.param == "memfd":
        fd = os.memfd_create("libffi")
        os.write(fd, b"code")
    else:
        library = tmp_path / "libffi.so.8.5.0"
        library.write_bytes(b"code")
        fd = os.open(library, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_worker_has_a_copy_that_nobody_can_change(shared: int) -> None:
    launchers = os.dup(shared)
    try:
        assert where(shared) == [_TRAMPOLINES]
        assert os.pread(shared, 100, 0) == b"code"
        with pytest.raises(PermissionError):
            os.pwrite(shared, b"evil", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(shared, 0)
        assert not os.get_inheritable(shared)
        assert not os.path.sameopenfile(shared, launchers)
    finally:
        os.close(launchers)


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    with (tmp_path / "libffi").open("wb+", buffering=0) as file:
        assert where(file.fileno()) == [str(tmp_path / "libffi")]
        assert file.write(b"mine") == 4
