"""A process that is forked before it is needed, and then becomes a worker at once.

A fork takes 1 to 2 ms, and what the new process touches first as much again.  A slot
whose worker has died need not wait for that: its descriptors go to the spare process,
and straight from the pool, since to wake the launcher first takes 0.6 ms more.
"""

from __future__ import annotations

import os
import socket

from asyncpool._system.descriptors import receive_fds
from asyncpool._worker.launcher.rehearsal import rehearse

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

# More than a worker gets.
_MOST = 16


def fork_spare(
    fork: Callable[[Callable[[], list[int]]], int],
) -> tuple[int, socket.socket]:
    """Return the number of a process, and the way of a worker's descriptors to it.

    It ends when that is closed.

    Args:
        fork: Forks a process that calls what it is given, to get its descriptors;
            returns its pid.

    Raises:
        OSError: If there can be none.
    """
    door, inside = socket.socketpair()

    def await_fds() -> list[int]:
        door.close()
        rehearse()
        with inside:
            data, fds, _ = receive_fds(inside, 1, _MOST)
        if not data:  # nobody will ever want it
            os._exit(0)
        return fds

    try:
        pid = fork(await_fds)
    except OSError:
        door.close()
        inside.close()
        raise
    inside.close()  # not in the process that waits there, which does not come here
    return pid, door
