"""The layout of the memory that a worker shares with the pool.

First comes which job the worker has begun.  The newest heartbeats of its jobs follow,
then the outcomes of the items of a chunk.  The stacks of its threads come last, since
what ``faulthandler`` writes there may reach the end of the memory.  Memory is used only
where something is written.

A worker that runs several jobs at once has *lanes* before the stacks.  A table says
which job each lane has begun last.  The rest follows for each lane, also with the stack
of its coroutine, and with the outcome of its last job, which the worker may not have
sent.  The parts for one job, at the beginning, are not used then.
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
# The size of the log for the items of a chunk, and the size of all that is before it.
LOG_SIZE = 131_072
# Without lanes.
STACKS_START = LOG_START + LOG_SIZE
STACKS_SIZE = 65_536
PAGE_SIZE = STACKS_START + STACKS_SIZE

# The text of a stack, after its job and attempt as in the table.
LANE_STACK_SIZE = 16_384

# The outcome, after its job and attempt, the kind of its frame, its run time and its
# length.
NOTED = struct.Struct("=QQQQQ")
LANE_OUTCOME_SIZE = 4096
_LANE_SIZE = BEATS_SIZE + LOG_SIZE + LANE_STACK_SIZE + LANE_OUTCOME_SIZE

# More lanes are not useful; use more workers instead.
MAX_LANES = 1024


class PageLayout:
    """Where the lanes are, and what comes after them.

    Args:
        width: How many lanes there are; one needs none.

    Attributes:
        width: As above.
        table: Where the table begins that says which job each lane has begun.
        stacks: Where the stacks of threads begin.
        size: How large the memory is.
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
        """Return where the job is written that *lane* has begun."""
        return self.table + lane * BEGUN.size

    def beats(self, lane: int) -> int:
        """Return where the heartbeats of *lane* are."""
        return self._lanes + lane * _LANE_SIZE

    def log(self, lane: int) -> int:
        """Return where the log of *lane* for chunks is."""
        return self.beats(lane) + BEATS_SIZE

    def stack(self, lane: int) -> int:
        """Return where the stack of *lane*'s coroutine is, if there are several lanes."""
        return self.log(lane) + LOG_SIZE

    def outcome(self, lane: int) -> int:
        """Return where the outcome of *lane*'s last job is, if there are several lanes."""
        return self.stack(lane) + LANE_STACK_SIZE


def _in_whole_pages(size: int) -> int:
    return -(-size // 4096) * 4096
