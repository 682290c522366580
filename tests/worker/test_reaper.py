"""The contract of the reaper: the dead are collected, and so is what they leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.scripts import run_script

# The reaper looks at all children of its process, so it gets one of its own.
PREAMBLE = """
import atexit, os, select, signal, socket, sys, time
from asyncpool._worker.launcher import Reaper, adopt_orphans, children

adopt_orphans()
wake_out, wake_in = os.pipe()
os.set_blocking(wake_in, False)
signal.set_wakeup_fd(wake_in)
signal.signal(signal.SIGCHLD, lambda *_: None)
reaper = Reaper()
# A check that fails would leave workers, and the test would wait for their stdout.
atexit.register(reaper.end_all)


def wait():
    "Wait for the end of some child."
    assert select.select([wake_out], [], [], 20)[0]
    os.read(wake_out, 4096)


def fork(body):
    "Run body in a worker, and return its pid."
    if (pid := reaper.fork()) == 0:
        os.setsid()
        body()
        os._exit(0)
    return pid


def reap(count):
    "Reap until that many workers have ended."
    ended = []
    while len(ended) < count:
        wait()
        ended += look()
    return ended


def look():
    "Return who has ended by now, with its status; what it has cost is told apart."
    return [(pid, status) for pid, status, cpu in reaper.reap() if cpu >= 0]


class Life:
    "A connection that is at its end when nobody is left of those who hold it."

    def __init__(self):
        self.out, self.held = [end.detach() for end in socket.socketpair()]

    def let_go(self):
        os.close(self.held)

    def over(self):
        "Wait for that, and go on reaping meanwhile."
        ended = []
        while True:
            ready, _, _ = select.select([self.out, wake_out], [], [], 20)
            assert ready
            if wake_out in ready:
                os.read(wake_out, 4096)
                ended += look()
            if self.out in ready:
                assert os.read(self.out, 1) == b""
                return ended


def nap():
    time.sleep(3600)


def program():
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(3600)"])
"""

# As in gVisor, and in kernels that were built without CONFIG_PROC_CHILDREN.
NO_LIST = """
import os
exists = os.path.exists
os.path.exists = lambda path: not path.endswith("/children") and exists(path)
"""

# As in gVisor, which shows no such limit.
NO_MARKS = """
from asyncpool._worker import launcher
launcher._can_mark = lambda mark: False
"""
NO_PROC = """
from asyncpool._worker import launcher
launcher._PROC = "/nowhere"
"""


def check(folder: Path, source: str, *, before: str = "") -> None:
    text = before + PREAMBLE + source + "\nprint('good')\n"
    assert run_script(folder, text) == "good\n"


@pytest.mark.parametrize(
    "before", ["", NO_LIST, NO_MARKS], ids=["listed", "searched for", "unmarked"]
)
@pytest.mark.parametrize("body", ["nap", "program"])
def test_a_session_that_a_dead_worker_began_is_killed(
    body: str, before: str, tmp_path: Path
) -> None:
    check(
        tmp_path,
        before=before,
        source=f"""
life = Life()
os.set_inheritable(life.held, True)
def begin_a_session():
    if os.fork() == 0:
        os.setsid()
        {body}()
worker = fork(begin_a_session)
life.let_go()
assert life.over() == [(worker, 0)]
""",
    )


@pytest.mark.parametrize("before", ["", NO_MARKS], ids=["marked", "unmarked"])
def test_what_a_living_worker_has_sent_away_is_left_alone(
    before: str, tmp_path: Path
) -> None:
    check(
        tmp_path,
        before=before,
        source="""
ready_out, ready_in = os.pipe()
daemons = Life()
def daemonize():
    if (child := os.fork()) == 0:
        if os.fork() == 0:
            os.setsid()
            os.dup2(daemons.held, 0)
            os.dup2(daemons.held, 1)
            os.execvp("cat", ["cat"])
        os._exit(0)
    os.close(daemons.held)
    os.waitpid(child, 0)
    os.write(ready_in, b".")
    nap()
worker = fork(daemonize)
daemons.let_go()
os.read(ready_out, 1)
other = fork(lambda: os._exit(0))
assert reap(1) == [(other, 0)]
assert look() == []
os.write(daemons.out, b"?")
assert os.read(daemons.out, 1) == b"?"
os.kill(worker, signal.SIGKILL)
assert daemons.over() == [(worker, -9)]
""",
    )


def test_what_has_taken_off_its_mark_goes_with_the_next_worker(tmp_path: Path) -> None:
    check(
        tmp_path,
        """
import resource
ready_out, ready_in = os.pipe()
stranger = Life()
def shed():
    resource.setrlimit(10, (resource.RLIM_INFINITY,) * 2)
    if os.fork() == 0:
        os.setsid()
        os.write(ready_in, b".")
        nap()
    os._exit(0)
def leave_a_stranger():
    if (child := os.fork()) == 0:
        shed()
    os.close(stranger.held)
    os.waitpid(child, 0)
    nap()
worker = fork(leave_a_stranger)
stranger.let_go()
os.read(ready_out, 1)
assert look() == []
assert not select.select([stranger.out], [], [], 0)[0]
other = fork(lambda: None)
assert stranger.over() == [(other, 0)]
reaper.end_all()
""",
    )


@pytest.mark.parametrize("before", ["", NO_LIST], ids=["listed", "searched for"])
def test_ending_everything_leaves_nothing(tmp_path: Path, before: str) -> None:
    check(
        tmp_path,
        before=before,
        source="""
life = Life()
def family():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.setsid()
            nap()
    nap()
for _ in range(3):
    fork(family)
life.let_go()
reaper.end_all()
assert children() == set()
assert os.read(life.out, 1) == b""
""",
    )


def test_nobody_is_adopted_who_could_not_be_found_and_waited_for(
    tmp_path: Path,
) -> None:
    check(
        tmp_path,
        before=NO_PROC,
        source="""
life = Life()
end_out, end_in = os.pipe()
def leave_a_session():
    if os.fork() == 0:
        os.setsid()
        os.close(end_in)
        os.read(end_out, 1)
worker = fork(leave_a_session)
life.let_go()
assert reap(1) == [(worker, 0)]
reaper.end_all()
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    pass
else:
    raise AssertionError("it was adopted")
os.close(end_in)
assert os.read(life.out, 1) == b""
""",
    )
