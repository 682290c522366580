"""A job that has several items of a map."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from asyncpool._core.map.chunks import CHUNK_SIZE, LOST, ChunkResult
from asyncpool._runtime.job.job import Job

if TYPE_CHECKING:
    from asyncpool._runtime.channel.page import WorkerPage

R = TypeVar("R")


class Chunk:
    """What a job is besides that has several items of a map; see ``_core/map/chunks.py``.

    A chunk that fails has no result.  Then the pool finds out which of its items are done.

    Attributes:
        rounds: How many rounds of the stall watch have found it running.
    """

    __slots__ = ()

    rounds: int

    # No abstract base class: each time a job is sent isinstance() is asked, which takes longer there.

    def find_in_log(self, page: WorkerPage) -> bool:
        """Find what its worker, which is dead, has noted; return whether it has begun with its first item."""
        raise NotImplementedError

    def find_in_result(self, result: Any) -> None:
        """Find it in a result that came after the time was over."""
        raise NotImplementedError

    def find_nothing(self) -> None:
        """Take it that each item may have begun."""
        raise NotImplementedError


class ChunkJob(Chunk, Job[R]):
    """A chunk whose map is here.

    Attributes:
        found: The outcomes of the items that are done, if the chunk has not ended with a
            result; ``None`` if it has not begun with its first item.
    """

    __slots__ = ("found", "rounds")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rounds = 0
        self.found: list[Any] | None = None

    def find_in_log(self, page: WorkerPage) -> bool:
        """Find what its worker has noted; return whether it has begun with its first item."""
        self.found = page.log(self.id, self.attempt)
        return self.found is not None

    def find_in_result(self, result: ChunkResult) -> None:
        """Find all but the last item, which was running when the time was over."""
        self.found = result.load()[:-1]

    def find_nothing(self) -> None:
        """Take it that each item may have begun."""
        self.found = [LOST] * CHUNK_SIZE
