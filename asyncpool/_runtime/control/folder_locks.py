"""Locks of the folders in which Unix sockets are made.

A module of its own: commands, which make no socket, do without asyncio.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import time
from collections.abc import AsyncGenerator, Iterable

from asyncpool._runtime.control.socket_files import file_number, folder_of

# Seconds to wait for locks, and between two tries: a program may keep a folder locked for ever.
_LOCK_PATIENCE = 1.0
_LOCK_EVERY = 0.01


@contextlib.asynccontextmanager
async def folders_locked(paths: Iterable[str]) -> AsyncGenerator[None]:
    """Lock the folders in which sockets are about to be made; the event loop goes on meanwhile.

    A folder that stays locked for a second, or that this process may not read, is left unlocked.
    Without its lock it is only less likely that two servers notice each other which start at once.

    Args:
        paths: The paths of the sockets.

    Cancellation:
        Safe.
    """
    give_up_at = time.monotonic() + _LOCK_PATIENCE
    with contextlib.ExitStack() as stack:
        for fd in _folders_of(paths, stack):
            # Nothing tells of the end of another's lock, but in a thread that waits for it.
            while not _is_locked(fd) and time.monotonic() < give_up_at:  # noqa: ASYNC110
                await asyncio.sleep(_LOCK_EVERY)
        yield


def _folders_of(paths: Iterable[str], stack: contextlib.ExitStack) -> list[int]:
    """Open each folder once, whatever it is called, and have *stack* close them."""
    found: dict[tuple[int, int], int] = {}
    for path in paths:
        # Whatever is wrong with a folder, bind() says it, unless it may only not be read.
        with contextlib.suppress(OSError):
            fd = os.open(folder_of(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, fd)
            found.setdefault(file_number(os.fstat(fd)), fd)
    # In one order, or two servers with two folders would wait for each other.
    return [found[number] for number in sorted(found)]


def _is_locked(fd: int) -> bool:
    """Lock a folder, if nobody else has."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
