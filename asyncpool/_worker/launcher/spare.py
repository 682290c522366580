"""A process that is forked before it is needed, and then becomes a worker at once.

A fork takes 1 to 2 ms, and the first writes of the new process take as long again.  A slot
whose worker has died need not wait for that: the pool sends the descriptors to the spare
process.  It sends them directly, because waking the launcher first takes 0.6 ms more.
"""

from __future__ import annotations

import os
import socket

from asyncpool._system.descriptors import receive_fds
from asyncpool._system.sockets import socket_pair
from asyncpool._worker.process import titles

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import Callable

# More descriptors than a worker gets.
_MOST = 16


def fork_spare(
    fork: Callable[[Callable[[], list[int]]], int], prepare: Callable[[], None]
) -> tuple[int, socket.socket]:
    """Fork a spare process; return its pid, and the socket for a worker's descriptors.

    The process ends when that socket is closed.

    Args:
        fork: Forks a process, which calls the function that it is given to receive its
            descriptors.  It returns the pid.
        prepare: Called in the new process, which has time then.

    Raises:
        OSError: If the process cannot be made.
    """
    door, inside = socket_pair()

    def await_fds() -> list[int]:
        door.close()
        titles.show("pool-spare", "spare process")
        prepare()
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
