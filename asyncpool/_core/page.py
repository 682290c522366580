"""What lies where in the memory that a worker shares with the pool.

First which job the worker has begun, then the newest beats of its jobs, what has become
of the items of a chunk, and last, since
what is written there by ``faulthandler`` may come to the end of it, the stacks of its
threads.  Memory is used only for what is written.
"""

from __future__ import annotations

import struct

from asyncpool._core.beats import BEATS_SIZE
from asyncpool._core.chunks import LOG_SIZE

__all__ = [
    "BEATS_START",
    "BEGUN",
    "LOG_START",
    "PAGE_SIZE",
    "STACKS_SIZE",
    "STACKS_START",
]

# A job and an attempt.
BEGUN = struct.Struct("=QQ")

BEATS_START = 4096
LOG_START = BEATS_START + BEATS_SIZE
STACKS_START = LOG_START + LOG_SIZE
STACKS_SIZE = 65_536
PAGE_SIZE = STACKS_START + STACKS_SIZE
