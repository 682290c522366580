"""Pages of memory that two processes share: what is read of them whatever the other one does."""

from __future__ import annotations

import errno
import mmap
import os
import resource
from collections.abc import Iterator
from typing import NoReturn

import pytest

from asyncpool._engine.page import WorkerPage
from asyncpool._wire import page
from asyncpool._wire.frames import Frame, FrameKind
from asyncpool._wire.page import (
    CHUNK_SIZE,
    JOB_KEY,
    LANE_OUTCOME_SIZE,
    LOG_HEAD,
    LOST,
    NOTED,
    PageLayout,
    note,
)
from tests.helpers.guards import open_fds

WIDTH = 3


class Desk:
    """A page, and the worker's side of it."""

    def __init__(self) -> None:
        self.page, self.layout = WorkerPage(WIDTH), PageLayout(WIDTH)
        fd = self.page.open()
        try:
            self.memory = mmap.mmap(fd, self.layout.size)
        finally:
            os.close(fd)

    def begin(self, lane: int, job: int, attempt: int = 1) -> None:
        JOB_KEY.pack_into(self.memory, self.layout.begun_offset(lane), job, attempt)

    def note(self, lane: int, job: int, kind: int, data: bytes, size: int) -> None:
        start = self.layout.outcome_offset(lane)
        NOTED.pack_into(self.memory, start, job, 1, kind, 77, size)
        start += NOTED.size
        self.memory[start : start + len(data)] = data


def refuse(*_: object) -> NoReturn:
    raise PermissionError(errno.EPERM, "Operation not permitted")


@pytest.fixture(params=["sealed", "file"])
def desk(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Desk]:
    if request.param == "file":
        monkeypatch.setattr(os, "memfd_create", refuse)
    desk = Desk()
    yield desk
    desk.page.close()
    desk.memory.close()


def test_a_log_is_found_where_its_chunk_has_begun(desk: Desk) -> None:
    desk.begin(2, 11)
    LOG_HEAD.pack_into(desk.memory, desk.layout.log_offset(2), 1, 0, 11, 1)
    start, entry = desk.layout.log_offset(2) + LOG_HEAD.size, note(42)
    desk.memory[start : start + len(entry)] = entry
    assert desk.page.log(11, 1) == [42]
    assert desk.page.log(12, 1) is None


def test_outcomes_are_found_whole_or_not_at_all(desk: Desk) -> None:
    room = LANE_OUTCOME_SIZE - NOTED.size
    desk.note(0, 10, FrameKind.VALUE, b"value", 5)
    desk.note(1, 11, FrameKind.ERROR, b"e" * room, room)
    desk.note(2, 12, FrameKind.VALUE, b"", room + 1)
    assert desk.page.outcomes() == {
        (10, 1): Frame(FrameKind.VALUE, 10, 1, 77, b"value"),
        (11, 1): Frame(FrameKind.ERROR, 11, 1, 77, b"e" * room),
    }
    desk.note(0, 10, 99, b"value", 5)
    assert list(desk.page.outcomes()) == [(11, 1)]


def test_a_chunk_is_stopped_and_stacks_are_wiped_out_in_the_memory_itself(
    desk: Desk,
) -> None:
    desk.begin(1, 11)
    desk.page.stop_chunk(11, 1)
    desk.page.stop_chunk(12, 1)
    logs = [desk.layout.log_offset(lane) for lane in range(WIDTH)]
    assert [LOG_HEAD.unpack_from(desk.memory, at)[1] for at in logs] == [0, 11, 0]
    start = desk.layout.stacks
    desk.memory[start : start + 4] = b"text"
    assert desk.page.written_stacks == b"text"
    assert desk.page.take_stacks() == "text"
    assert desk.memory[start : start + 4] == bytes(4)
    assert desk.page.written_stacks == b""


def test_what_a_worker_has_truncated_is_empty(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(os, "memfd_create", refuse)
    own = WorkerPage(WIDTH)
    fd = own.open()
    try:
        os.ftruncate(fd, 0)
        assert (own.beats(), own.outcomes(), own.stack(1, 1)) == ([], {}, "")
        assert (own.begun(7, 1), own.take_stacks()) == (False, "")
    finally:
        own.close()
        os.close(fd)
    # So is one that is closed.
    assert (own.beats(), own.outcomes(), own.stack(1, 1)) == ([], {}, "")
    assert not own.begun(0, 0)
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.logs("notes-unreadable")
def test_what_cannot_be_read_counts_as_begun_and_lost(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> NoReturn:
        raise MemoryError

    desk.begin(1, 11)
    monkeypatch.setattr("asyncpool._engine.page.tidy", fail)
    for name in ("copy_log", "read_beats", "has_beats"):
        monkeypatch.setattr(page, name, fail)
    assert desk.page.log(11, 1) == [LOST] * CHUNK_SIZE
    assert desk.page.beats() == []
    assert desk.page.take_stacks() == ""
    monkeypatch.setattr(page, "JOB_KEY", None)
    assert desk.page.begun(12, 1)
    assert desk.page.stack(11, 1) == ""
    monkeypatch.setattr(page, "NOTED", None)
    assert desk.page.outcomes() == {}
    assert caplog.messages == ["the notes of a worker cannot be read"] * 6


def test_a_limit_of_file_size_is_named() -> None:
    size = PageLayout(1).size
    before = open_fds()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1, hard))
    try:
        with pytest.raises(OSError, match="RLIMIT_FSIZE") as caught:
            WorkerPage().open()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert str(caught.value) == (
        f"[Errno 27] a worker shares {size} bytes of memory with its pool, and the limit "
        "of file size (RLIMIT_FSIZE, ulimit -f) is lower"
    )
    assert open_fds() == before
