"""Jobs that write where they should not, as a wild pointer does, and die of it."""

from __future__ import annotations

import os
import random
import signal

from asyncpool._wire.page import ENTRY, LOG_HEAD, LOG_SIZE, PageLayout
from tests.helpers.inside import worker_page

__all__ = ["SCRIBBLES", "echo_or_scribble"]

_ENTRIES = PageLayout(1).log_offset(0) + LOG_HEAD.size

# Where each writes, and what.
SCRIBBLES: dict[str, tuple[int, bytes]] = {
    # As marshal would read it, a tuple of 2 ** 31 - 1 items: 16 GB before the first is read.
    "a tuple without end": (_ENTRIES, b"(\xff\xff\xff\x7f"),
    "a pickle without end": (_ENTRIES, ENTRY.pack(2**64 - 1, 0)),
    # Pickle would make room for 2 ** 32 - 1 objects: 32 GB.
    "a pickle with a large memo": (
        _ENTRIES,
        ENTRY.pack(8, 0) + b"\x80\x05Nr\xff\xff\xff\xff.",
    ),
    "ones": (_ENTRIES, b"\xff" * (LOG_SIZE - LOG_HEAD.size)),
    "noise": (_ENTRIES, random.Random(0).randbytes(LOG_SIZE - LOG_HEAD.size)),
}


def scribble(start: int, data: bytes) -> None:
    """Write over what this worker has noted, and die."""
    page = worker_page()
    page[start : start + len(data)] = data
    os.kill(os.getpid(), signal.SIGKILL)


def echo_or_scribble(item: object) -> object:
    """Return *item*, or scribble if it is the name of a scribble."""
    if isinstance(item, str) and item in SCRIBBLES:
        scribble(*SCRIBBLES[item])
    return item
