"""Whatever a worker in a sandbox takes, others get theirs of what the kernel counts."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.helpers.counters import COUNTERS
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.scripts import ROOT

# Other users cannot run the Python of a user, such as root.
SHARED = Path("/usr/bin/python3")
ANOTHER, UNRELATED = 65534, 65533


@contextlib.contextmanager
def start(*words: str, user: int) -> Iterator[Callable[[str], str]]:
    """Start a program; yield what writes it a line and returns what it prints then."""
    python = sys.executable if user == os.geteuid() else str(SHARED)
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if "site-packages" in p)])
    env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin"}
    command, pipe = [python, "-m", "tests.helpers.counters", *words], subprocess.PIPE
    with subprocess.Popen(
        command, env=env, user=user, stdin=pipe, stdout=pipe, bufsize=0
    ) as done:
        stdin, stdout = done.stdin, done.stdout
        assert stdin is not None
        assert stdout is not None

        def tell(line: str) -> str:
            stdin.write(f"{line}\n".encode())
            return stdout.readline().decode()

        yield tell
    assert done.returncode == 0


@needs_sandbox
@pytest.mark.parametrize("user", [os.geteuid(), ANOTHER])
def test_workers_use_up_nothing_that_is_counted_for_others(user: int) -> None:
    me = os.geteuid()
    if user != me and not (me == 0 and SHARED.exists()):
        pytest.skip("only root can start a service of another user")
    users = {me, user} | ({UNRELATED} if me == 0 and SHARED.exists() else set())
    with contextlib.ExitStack() as stack:
        others = {
            each: stack.enter_context(start("others", user=each)) for each in users
        }
        before = [  # the kernel may lack it
            {each: others[each](f"{number}") for each in users}
            for number in range(len(COUNTERS))
        ]
        service = stack.enter_context(start(user=user))
        for number, counter in enumerate(COUNTERS):
            taken = [int(word) for word in service("go on").split()]
            assert len(taken) == 2
            most = max(counter.most, counter.apart if user == 0 else 0)
            assert max(taken) <= most, (counter.name, taken)
            after = {each: others[each](f"{number}") for each in users}
            assert after == before[number], counter.name
