"""The code of callbacks that a worker would share with its launcher."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncpool._worker.sandbox.descriptors import open_descriptors, unknown_descriptors
from asyncpool._worker.sandbox.trampolines import unshare_trampolines

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="there are no memfds"
)


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
        before = [(fd, where) for fd, where in open_descriptors() if fd == shared]
        after = unshare_trampolines(before)
        assert after == [
            (fd, where) for fd, where in open_descriptors() if fd == shared
        ]
        assert os.pread(shared, 100, 0) == b"code"
        assert not os.path.sameopenfile(shared, launchers)
        with pytest.raises(PermissionError):
            os.pwrite(shared, b"evil", 0)
        with pytest.raises(PermissionError):
            os.ftruncate(shared, 0)
        assert not os.get_inheritable(shared)
        assert os.pread(launchers, 100, 0) == b"code"
    finally:
        os.close(launchers)
    assert unknown_descriptors(after, ()) == []


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    with (tmp_path / "libffi").open("wb+", buffering=0) as file:
        found = [(file.fileno(), str(tmp_path / "libffi"))]
        assert unshare_trampolines(found) == found
        assert unknown_descriptors(found, ()) == [
            f"{file.fileno()} ({tmp_path / 'libffi'})"
        ]
        assert unknown_descriptors(found, [file.fileno()]) == []
        assert file.write(b"mine") == 4
