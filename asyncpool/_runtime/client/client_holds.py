"""What keeps a client open that takes no more jobs: open jobs, and maps and sessions."""

from __future__ import annotations

import asyncio

from asyncpool._runtime.state.draining import Hold
from asyncpool._runtime.state.registry import JobRegistry


class ClientHolds:
    """Knows when a client is done.

    Args:
        registry: The open jobs.

    Attributes:
        closed: Whether the client takes no more jobs but those of maps and sessions.
    """

    def __init__(self, registry: JobRegistry) -> None:
        self.closed = False
        self._registry = registry
        self._holds: set[Hold] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def hold(self, hold: Hold) -> None:
        """Let *hold* keep the client open, unless it closes already."""
        if not self.closed:
            self._holds.add(hold)
            hold.take(self._let_go)
            self._idle.clear()

    def busy(self) -> None:
        """Note that there is an open job."""
        self._idle.clear()

    def look(self) -> None:
        """Note it if nothing is left to do."""
        if not self._registry.jobs and not self._holds:
            self._idle.set()

    async def drain(self) -> None:
        """Take no more jobs, and wait for those that there are.

        Cancellation:
            Safe.
        """
        self.closed = True
        await self._idle.wait()

    def close(self) -> None:
        """Take no more jobs, and let nothing keep the client open."""
        self.closed = True
        for hold in [*self._holds]:
            hold.release()

    def _let_go(self, hold: Hold) -> None:
        self._holds.discard(hold)
        self.look()
