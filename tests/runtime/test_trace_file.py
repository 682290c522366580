"""The file of a trace: who may write it, and what a disk does that is full or slow."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

import pytest

from asyncpool._core.trace.trace_lines import LineMaker
from asyncpool._observe.trace import TraceFile

HEAD = LineMaker(7000).head("pool shop", 7)


def refusal(path: Path) -> OSError:
    """Return the error of a trace that cannot be written."""
    with pytest.raises(OSError, match="pool shop cannot write its trace") as caught:
        TraceFile(str(path), "pool shop")
    error = caught.value
    assert error.filename == str(path)
    assert str(error).startswith(f"[Errno {error.errno}] ")
    assert "name another file by trace, or leave trace out" in str(error)
    return error


def test_lines_are_in_the_file_when_it_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = TraceFile(str(path), "pool shop")
    file.put([HEAD])
    file.put(["{},\n", "{}\n]\n"])
    file.close()
    assert path.read_text() == HEAD + "{},\n{}\n]\n"
    assert (file.stopped, file.lost) == (False, 0)


def test_an_older_trace_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in (f"{HEAD}{{}},\n" * 3, HEAD, HEAD[:20], ""):
        path.write_text(text)
        file = TraceFile(str(path), "pool shop")
        file.put([HEAD])
        file.close()
        assert path.read_text() == HEAD


def test_what_is_no_trace_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "orders.json"
    path.write_text('[\n{"order":1}]')
    error = refusal(path)
    assert type(error) is FileExistsError
    assert "there is a file that is no trace" in str(error)
    assert path.read_text() == '[\n{"order":1}]'


def test_two_pools_cannot_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = TraceFile(str(path), "pool first")
    file.put([HEAD])
    try:
        assert "another pool or cluster writes it" in str(refusal(path))
    finally:
        file.close()
    assert path.read_text() == HEAD
    TraceFile(str(path), "pool shop").close()


def test_where_there_can_be_no_file(tmp_path: Path) -> None:
    assert type(refusal(tmp_path / "nowhere" / "trace.json")) is FileNotFoundError
    assert type(refusal(tmp_path)) is IsADirectoryError
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert refusal(pipe).errno == errno.EINVAL, "nobody reads it, so it would wait"


@pytest.mark.logs("trace-ended")
def test_a_full_disk_ends_the_trace_with_one_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    file = TraceFile("/dev/full", "pool shop")
    file.put([HEAD])
    file.close()
    assert file.stopped
    file.put(["{},\n"])
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.getMessage() == (
        "the trace of pool shop ends here, since /dev/full cannot be written: "
        "No space left on device; the pool goes on without it"
    )
    assert (record.__dict__["pool"], record.__dict__["path"]) == (
        "shop",
        "/dev/full",
    )


def test_lines_are_lost_that_a_slow_disk_leaves_waiting(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    file = TraceFile(str(path), "pool shop")
    file._waiting = 100 << 20  # the disk has not taken these
    file.put(["{},\n"] * 5)
    assert file.lost == 5
    file._waiting = 0
    file.put([HEAD])
    file.close()
    assert path.read_text() == HEAD
