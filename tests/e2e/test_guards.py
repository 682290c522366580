"""The guards themselves: each of them sees what it is there for, and names it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.helpers.guards import MARK, Snapshot
from tests.helpers.patience import PATIENCE

CODE = "import sys; print(flush=True); sys.stdin.read()"
MAKE_SHARED = """
import mmap, os, sys
how = sys.argv[1]
name = "folder_%d_x" % os.getpid() if how == "named" else "test-x%s-" % os.urandom(4).hex() + how
file = open("/dev/shm/" + name, "w+b", buffering=0)
file.truncate(1)
if how == "mapped":
    memory = mmap.mmap(file.fileno(), 1)
if how != "open":
    file.close()
print("/dev/shm/" + name, flush=True)
sys.stdin.read()
"""


def test_a_descriptor_is_named(tmp_path: Path) -> None:
    before = Snapshot()
    assert before.leaks() == []
    # Wherever the package opens files.
    for where in (tmp_path / "left", "/proc/self/stat", "/dev/null", __file__):
        fd = os.open(where, os.O_CREAT if where == tmp_path / "left" else os.O_RDONLY)
        [leak] = before.leaks()
        os.close(fd)
        assert leak.startswith(f"descriptor {fd}: ")
    fd = os.open(tmp_path / "left", os.O_RDONLY)
    assert before.leaks() == [f"descriptor {fd}: {tmp_path / 'left'}"]
    # One that was exchanged is seen.
    before = Snapshot()
    other = os.open(tmp_path / "two", os.O_CREAT)
    os.dup2(other, fd)
    os.close(other)
    leaks = before.leaks()
    os.close(fd)
    assert leaks == [f"descriptor {fd}: {tmp_path / 'two'}"]


def test_what_a_library_opens_once_is_no_leak_but_a_second_one_is() -> None:
    """As libuuid does with a clock in /var/lib, and libffi with a file of memory."""
    before = Snapshot()
    once = os.open("/etc/passwd", os.O_RDONLY)
    memory = os.memfd_create("of a library")
    assert before.leaks() == []
    again = os.open("/etc/passwd", os.O_RDONLY)
    assert before.leaks() == [f"descriptor {again}: /etc/passwd"]
    for fd in (once, memory, again):
        os.close(fd)


def test_standard_input_that_is_not_handed_on_any_more_is_seen() -> None:
    before = Snapshot()
    os.set_inheritable(0, False)
    leaks = before.leaks()
    os.set_inheritable(0, True)
    assert leaks == ["descriptor 0 is inherited no more"]


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


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="no /dev/shm here")
@pytest.mark.parametrize("how", ["mapped", "open", "named"])
def test_shared_memory_of_another_program_is_not_held_against_a_test(how: str) -> None:
    # It does not descend from here, as far as its environment tells.
    others = {name: value for name, value in os.environ.items() if name != MARK}
    command = [sys.executable, "-c", MAKE_SHARED, how]
    before = Snapshot()
    with subprocess.Popen(
        command, env=others, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        path = Path(program.stdout.readline().strip())
        before.processes[program.pid] = "another program"
        there = path.exists()
        leaks = [leak for leak in before.leaks() if "shm" in leak]
        program.stdin.close()
    path.unlink()
    assert there
    assert leaks == []
