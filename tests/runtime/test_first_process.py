"""The first process of a container: here one that adopts orphans likewise."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.patience import PATIENCE

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux lets others adopt"
)

# As long as it has ended and nobody has collected it, a process has its folder there.
WORK = f"""
import os, pathlib, signal, subprocess, sys, time

from asyncpool._runtime.cluster.first_process import look_after_orphans
from asyncpool._worker.process.os_setup import adopt_orphans

adopt_orphans()
look_after_orphans()
# What follows is done in the child.

def orphan():
    shell = ["sh", "-c", "true & echo $!"]
    return int(subprocess.run(shell, capture_output=True, check=True).stdout)

def is_gone(pid):
    give_up_at = time.monotonic() + {PATIENCE}
    while pathlib.Path(f"/proc/{{pid}}").exists():
        if time.monotonic() > give_up_at:
            return False
        time.sleep(0.005)
    return True
"""

ROOT = Path(__file__).parents[2]


def start(code: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORK + code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        stdout=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    out, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, out


def test_orphans_are_collected_and_nobodys_children_are_stolen() -> None:
    code = """
own = subprocess.Popen(["sh", "-c", "exit 3"])
print([is_gone(orphan()) for _ in range(3)], own.wait())
sys.exit(5)
"""
    assert end(start(code)) == (5, "[True, True, True] 3\n")


def test_signals_are_passed_on() -> None:
    # They stay pending until they are asked for, so none can come between two looks.
    code = """
numbers = {signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR1}
signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
print("ready", flush=True)
print(*sorted(int(signal.sigwait(numbers)) for _ in range(4)))
"""
    process = start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGTTIN, signal.SIGUSR1)
    for number in numbers:
        process.send_signal(number)
    assert end(process) == (0, " ".join(map(str, sorted(map(int, numbers)))) + "\n")


def test_a_signal_that_ends_the_child_ends_both() -> None:
    assert end(start("os.kill(os.getpid(), signal.SIGKILL)")) == (128 + 9, "")


def test_signals_are_not_blocked_in_the_child() -> None:
    code = """
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getpgid(0) == os.getpid())
"""
    assert end(start(code)) == (0, "set() True\n")


def test_sockets_that_systemd_has_passed_are_the_childs() -> None:
    # The process replaces itself, so its own number is known before.
    code = "print(os.environ['LISTEN_PID'] == str(os.getpid()))"
    script = 'export LISTEN_PID=$$; exec "$@"'
    process = subprocess.Popen(
        ["sh", "-c", script, "-", sys.executable, "-c", WORK + code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert end(process) == (0, "True\n")
    assert end(start("print(os.environ['LISTEN_PID'])", LISTEN_PID="7")) == (0, "7\n")
