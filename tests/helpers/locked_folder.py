"""A folder that another program keeps locked, in which a socket is to be made."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__all__ = ["assert_waits", "locked"]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep a folder locked; the end of the context unlocks it."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


async def assert_waits(folder: Path, *tasks: asyncio.Task[Any]) -> None:
    """Check that *tasks* let the event loop go on, and have made no socket in the folder."""
    for _ in range(20):
        await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    assert not any(each.is_socket() for each in folder.iterdir())
