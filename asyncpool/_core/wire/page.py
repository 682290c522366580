"""What lies where in the memory that a worker shares with the pool.

First which job the worker has begun, then the newest beats of its jobs, what has become
of the items of a chunk, and last, since
what is written there by ``faulthandler`` may come to the end of it, the stacks of its
threads.  Memory is used only for what is written.

Where a worker runs several jobs at once there are *lanes* before the stacks: which job each
has begun last, in one table, and behind that the rest for each of them, with the stack of
its coroutine and the outcome of the last one, which may not have been sent.  What comes
first is not used then.
"""

from __future__ import annotations

import struct

from asyncpool._core.wire.heartbeat_records import BEATS_SIZE

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from typing import Protocol

    class Readable(Protocol):
        """The memory, or a copy of it, of which slices are taken."""

        def __getitem__(self, where: slice, /) -> bytes: ...

    class Writable(Protocol):
        """The memory, of which slices are overwritten."""

        def __setitem__(self, where: slice, data: bytes, /) -> None: ...


# A job and an attempt.
BEGUN = struct.Struct("=QQ")

BEATS_START = 4096
LOG_START = BEATS_START + BEATS_SIZE
# What a worker notes of the items of a chunk, and all that is before them.
LOG_SIZE = 131_072
# Without lanes.
STACKS_START = LOG_START + LOG_SIZE
STACKS_SIZE = 65_536
PAGE_SIZE = STACKS_START + STACKS_SIZE

# The text, behind whose it is, as in the table.
LANE_STACK_SIZE = 16_384

# The outcome, behind whose it is: the kind of its frame, how long it took, how long it is.
NOTED = struct.Struct("=QQQQQ")
LANE_OUTCOME_SIZE = 4096
_LANE_SIZE = BEATS_SIZE + LOG_SIZE + LANE_STACK_SIZE + LANE_OUTCOME_SIZE

# Beyond that, more workers are what is needed.
MAX_LANES = 1024


class PageLayout:
    """Where the lanes are, and what is behind them.

    Args:
        width: How many lanes there are; one needs none.

    Attributes:
        width: As above.
        table: Where the table is of what has begun.
        stacks: Where the stacks of threads are.
        size: How large all of it is.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self.table, self._lanes, self.stacks = 0, BEATS_START, STACKS_START
        if width > 1:
            self.table = STACKS_START
            self._lanes = STACKS_START + _in_whole_pages(width * BEGUN.size)
            self.stacks = self._lanes + width * _LANE_SIZE
        self.size = self.stacks + STACKS_SIZE

    def begun(self, lane: int) -> int:
        """Return where it says which job has begun."""
        return self.table + lane * BEGUN.size

    def beats(self, lane: int) -> int:
        """Return where its beats are."""
        return self._lanes + lane * _LANE_SIZE

    def log(self, lane: int) -> int:
        """Return where its chunks are noted."""
        return self.beats(lane) + BEATS_SIZE

    def stack(self, lane: int) -> int:
        """Return where its coroutine's stack is, if there are several lanes."""
        return self.log(lane) + LOG_SIZE

    def outcome(self, lane: int) -> int:
        """Return where the outcome of its last job is, if there are several lanes."""
        return self.stack(lane) + LANE_STACK_SIZE


def _in_whole_pages(size: int) -> int:
    return -(-size // 4096) * 4096
