"""The guards themselves: each of them sees what it is there for, and names it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.helpers.guards import Snapshot
from tests.helpers.patience import PATIENCE

CODE = "import sys; print(flush=True); sys.stdin.read()"


def test_nothing_is_found_where_nothing_is_left() -> None:
    assert Snapshot().leaks() == []


def test_a_descriptor_is_named(tmp_path: Path) -> None:
    before = Snapshot()
    fd = os.open(tmp_path / "left", os.O_CREAT)
    leaks = before.leaks()
    os.close(fd)
    assert leaks == [f"descriptor {fd}: {tmp_path / 'left'}"]


def test_a_descriptor_that_was_exchanged_is_seen(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "one", os.O_CREAT)
    before = Snapshot()
    other = os.open(tmp_path / "two", os.O_CREAT)
    os.dup2(other, fd)
    os.close(other)
    leaks = before.leaks()
    os.close(fd)
    assert leaks == [f"descriptor {fd}: {tmp_path / 'two'}"]


def test_a_zombie_is_seen() -> None:
    before = Snapshot()
    if (pid := os.fork()) == 0:
        os._exit(0)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    [leak] = before.leaks()
    assert leak.startswith(f"process {pid}: zombie")


@pytest.mark.parametrize("new_session", [False, True])
def test_a_process_that_has_lost_its_parent_is_seen_and_ended(
    *, new_session: bool
) -> None:
    parent = (
        "import subprocess, sys; subprocess.Popen("
        f"[sys.executable, '-c', {CODE!r}], start_new_session={new_session})"
    )
    out, into = os.pipe()
    hold, let_go = os.pipe()
    before = Snapshot()
    with subprocess.Popen([sys.executable, "-c", parent], stdin=hold, stdout=into):
        os.close(into)
    os.read(out, 1)
    [leak] = before.leaks()
    assert "sys.stdin.read()" in leak
    # It is ended, so that the next test has nothing to complain of.
    assert os.read(out, 1) == b""
    for fd in (out, hold, let_go):
        os.close(fd)


def test_a_thread_is_seen() -> None:
    before = Snapshot()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, args=(PATIENCE,), name="left")
    thread.start()
    [leak] = before.leaks()
    stop.set()
    thread.join()
    assert "left" in leak


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm here")
def test_shared_memory_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.helpers.guards.PATIENCE", 0.0)
    before = Snapshot()
    name = f"asyncpool-test-{os.getpid()}"
    path = Path("/dev/shm") / name
    path.touch()
    leaks = before.leaks()
    path.unlink()
    assert leaks == [f"/dev/shm/{name}"]
