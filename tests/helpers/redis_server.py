"""A real Redis, for one test, on a socket of its own."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.helpers.patience import PATIENCE
from tests.helpers.programs import find_program

__all__ = ["pause", "poll", "redis_server"]


@contextmanager
def redis_server(folder: Path) -> Iterator[str]:
    """Run a server that keeps nothing; yield the path of its socket."""
    path = folder / "redis.sock"
    process = subprocess.Popen(
        [
            *(find_program("redis-server"), "--port", "0", "--unixsocket", str(path)),
            *("--save", "", "--appendonly", "no", "--dir", str(folder)),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    try:
        poll(path.exists)
        yield str(path)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def poll(predicate: Callable[[], object], *, limit: float = PATIENCE) -> None:
    """Wait until *predicate* holds: other processes have no event to wait for."""
    give_up_at = time.monotonic() + limit
    while not predicate():
        assert time.monotonic() < give_up_at, f"it did not happen in {limit:g} s"
        time.sleep(0.02)


def pause(seconds: float) -> None:
    """Let other processes get somewhere, so that chaos meets them at any point."""
    time.sleep(seconds)
