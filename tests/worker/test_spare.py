"""The process that is forked ahead, while it waits."""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from asyncpool._worker.launcher import spare
from tests.helpers.patience import PATIENCE


def fork(await_fds: Callable[[], list[int]]) -> int:
    pid = os.fork()
    if pid == 0:
        await_fds()
        os._exit(1)
    return pid


def test_it_ends_when_nobody_can_want_it_any_more() -> None:
    pid, door = spare.fork_spare(fork, lambda: None)
    pidfd = os.pidfd_open(pid)
    door.close()
    ended, _, _ = select.select([pidfd], [], [], PATIENCE)
    os.close(pidfd)
    os.kill(pid, 9)
    _, status = os.waitpid(pid, 0)
    assert ended
    assert status == 0


def test_it_has_rehearsed_before_anything_comes() -> None:
    """What it makes of its descriptors takes a third of the time then."""
    told, tell = os.pipe()

    def rehearse() -> None:
        os.write(tell, b"rehearsed")

    pid, door = spare.fork_spare(fork, rehearse)
    os.close(tell)
    assert os.read(told, 100) == b"rehearsed"
    os.close(told)
    door.close()
    os.waitpid(pid, 0)
