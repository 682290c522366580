"""A job of an agent's pool, whose caller is elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncpool._runtime.job.chunk_job import Chunk, NotedPage
from asyncpool._runtime.job.job import Job
from asyncpool._runtime.remote.found_items import pack_log, pack_result

if TYPE_CHECKING:
    from asyncpool._runtime.agent.relay import Relay


class RelayedJob(Job[Any]):
    """Tells of its end in the step that ends it.

    A callback of the future would come in the next turn of the loop.  That is 20 us more for a
    call that is awaited, and 2 us of CPU time for each of many.

    Attributes:
        client: The agent's client that it belongs to.
        number: The client's number of it.
        relay: Hears of its end, once it is set.
    """

    # They are set when the pool has taken the job: to set them before costs 0.4 us for each.
    __slots__ = ("client", "number", "relay")

    client: Any
    number: int
    relay: Relay

    @property
    def has_client(self) -> bool:
        """Whether a client has sent it; else the pool has, for a session."""
        return hasattr(self, "client")

    @property
    def _awaited(self) -> bool:
        """Its client waits for it."""
        return True

    def set_result(self, result: Any, /) -> None:
        """End with a result."""
        super().set_result(result)
        self._tell()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """End with an error."""
        super().set_exception(exception)
        self._tell()

    def cancel(self, msg: Any | None = None) -> bool:
        """End without either."""
        if not super().cancel(msg):
            return False
        self._tell()
        return True

    def _tell(self) -> None:
        relay = getattr(self, "relay", None)
        if relay is not None:
            relay.on_end(self)


class RelayedChunk(Chunk, RelayedJob):
    """A chunk of a client's map.

    Attributes:
        found: What tells the client which items are done; ``None`` if it has not begun.
    """

    __slots__ = ("found", "rounds")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.found: bytes | None = None
        self.rounds = 0

    def find_in_log(self, page: NotedPage) -> bool:
        """Find what its worker has noted; return whether it has begun with its first item."""
        log = page.copy_log(self.id, self.attempt)
        self.found = None if log is None else pack_log(log)
        return log is not None

    def find_in_result(self, result: Any) -> None:
        """Find it in a result that came after the time was over."""
        self.found = pack_result(result)

    def find_nothing(self) -> None:
        """Take it that each item may have begun."""
        self.found = b""
