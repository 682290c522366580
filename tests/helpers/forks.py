"""Jobs that fork while they see shared memory, or meddle with it."""

from __future__ import annotations

import contextlib
import os

from tests.helpers.large import Block, checksum

__all__ = ["fork_and_count", "only_count"]


def fork_and_count(block: Block) -> int:
    """Leave a copy of this process for a moment, which sees the argument too."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return checksum(block)


def only_count(block: Block) -> int:
    return checksum(block)


def truncate_page() -> None:
    """Take away the page on which this worker notes what it has begun."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            if "asyncpool-page" in os.readlink(f"/proc/self/fd/{name}"):
                os.ftruncate(int(name), 0)
                return
    raise LookupError("there is no page")


def deafen() -> None:
    """Have the control thread fail at the next grant, in its own way."""
    from asyncpool._worker.channels import LargeBuffers

    def fail(self: LargeBuffers, number: int) -> None:
        raise ZeroDivisionError("deaf")

    LargeBuffers.grant = fail  # type: ignore[method-assign] # on purpose
