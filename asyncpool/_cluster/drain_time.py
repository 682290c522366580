"""How long a worker of a cluster may drain: perhaps longer, while others serve."""

from __future__ import annotations

import asyncio
import contextlib

from asyncpool._cluster.rules import DrainLimit, drain_limit

TYPE_CHECKING = False  # see _wire/records.py
if TYPE_CHECKING:
    from collections.abc import Awaitable


class DrainTime:
    """The time that a worker has from when it begins to drain.

    Args:
        at_end: Seconds, if the whole cluster ends.
        replaced: Seconds, if other workers go on serving.
    """

    def __init__(self, at_end: float, replaced: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._at_end, self._replaced = at_end, replaced
        self._began: float | None = None
        self._end_began: float | None = None
        self._others_serve = False
        self._bound: asyncio.Timeout | None = None

    @property
    def limit(self) -> float:
        """How many seconds it is, by what is known now."""
        return self._replaced if self._others_serve else self._at_end

    @property
    def applied(self) -> DrainLimit:
        """Which limit applies, by what is known now."""
        return drain_limit(
            self._loop.time() if self._began is None else self._began,
            self._end_began,
            others_serve=self._others_serve,
            at_end=self._at_end,
            replaced=self._replaced,
        )

    def begin(self) -> None:
        """Begin to drain, once."""
        if self._began is None:
            self._began = self._loop.time()

    def others_serve(self) -> None:
        """Note that other workers go on serving."""
        if self._end_began is None:
            self._others_serve = True
            self._reschedule()

    def cluster_ends(self) -> None:
        """Note that the whole cluster ends, so that less time may be left."""
        if self._end_began is None:
            self._end_began = self._loop.time()
            self._reschedule()

    async def bound(self, awaited: Awaitable[object]) -> None:
        """Wait for *awaited*, but no longer than the time, which has begun."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(self.applied.over_at) as self._bound:
                await awaited
        self._bound = None

    def _reschedule(self) -> None:
        if self._bound is not None and not self._bound.expired():
            self._bound.reschedule(self.applied.over_at)
