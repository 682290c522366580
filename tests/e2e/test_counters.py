"""Whatever a worker in a sandbox takes, others get theirs of what the kernel counts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.counters import COUNTERS
from tests.helpers.sandboxes import needs_sandbox
from tests.helpers.scripts import ROOT

# Other users cannot run the Python of a user, such as root.
SHARED = Path("/usr/bin/python3")
ANOTHER, UNRELATED = 65534, 65533


def command(*words: str, user: int) -> tuple[list[str], dict[str, str]]:
    python = sys.executable if user == os.geteuid() else str(SHARED)
    path = os.pathsep.join([str(ROOT), *(p for p in sys.path if "site-packages" in p)])
    variables = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin"}
    return [python, "-m", "tests.helpers.counters", *words], variables


def gets_one(number: int, user: int) -> bool:
    words, env = command(f"{number}", user=user)
    done = subprocess.run(words, env=env, user=user, capture_output=True, check=False)
    return done.returncode == 0


@needs_sandbox
@pytest.mark.parametrize("user", [os.geteuid(), ANOTHER])
def test_workers_use_up_nothing_that_is_counted_for_others(user: int) -> None:
    me = os.geteuid()
    if user != me and not (me == 0 and SHARED.exists()):
        pytest.skip("only root can start a service of another user")
    users = {me, user} | ({UNRELATED} if me == 0 and SHARED.exists() else set())
    before = {
        (number, each): gets_one(number, each)  # the kernel may lack it
        for number in range(len(COUNTERS))
        for each in users
    }
    words, env = command(user=user)
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=env, user=user, stdin=pipe, stdout=pipe) as done:
        assert done.stdin is not None
        assert done.stdout is not None
        for number, counter in enumerate(COUNTERS):
            taken = [int(word) for word in done.stdout.readline().split()]
            assert len(taken) == 2
            most = max(counter.most, counter.apart if user == 0 else 0)
            assert max(taken) <= most, (counter.name, taken)
            after = {each: gets_one(number, each) for each in users}
            assert after == {each: before[number, each] for each in users}, counter.name
            done.stdin.write(b"\n")
            done.stdin.flush()
    assert done.returncode == 0
