"""Things that arrive, for one task after the other to take out in their order."""

from __future__ import annotations

import asyncio
from collections import deque

TYPE_CHECKING = False  # see _core/base/records.py
if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any


class Arrivals:
    """A queue with an end, which those that iterate over it reach.

    Attributes:
        waiting: What nobody has taken out yet.
        ended: Whether nothing more arrives.
    """

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self.ended = False
        self._takers: deque[asyncio.Future[None]] = deque()

    def put(self, item: Any) -> None:
        """Let *item* arrive."""
        self.waiting.append(item)
        self._wake(1)

    def end(self) -> None:
        """Let nothing more arrive."""
        self.ended = True
        self._wake(len(self._takers))

    async def __aiter__(self) -> AsyncIterator[Any]:
        while True:
            while not self.waiting:
                if self.ended:
                    return
                taker = asyncio.get_running_loop().create_future()
                self._takers.append(taker)
                try:
                    await taker
                except BaseException:
                    # What has woken it is for another one.
                    if taker in self._takers:
                        self._takers.remove(taker)
                    elif self.waiting:
                        self._wake(1)
                    raise
            yield self.waiting.popleft()

    def _wake(self, count: int) -> None:
        while count and self._takers:
            taker = self._takers.popleft()
            if not taker.done():
                taker.set_result(None)
                count -= 1
