"""What the cells ask of a peer: open, call, cancel a call, and map.

Every cell runs in an event loop, as a service would: the peers that are executors
are awaited through ``asyncio.wrap_future``, those with callbacks through a future.
Each runs with its own defaults, except for the number of workers and for what its
documentation offers against the fault at hand (``cancellable=True`` and the like).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

Initializer = Callable[[], object]


class Peer(ABC):
    """One pool of worker processes behind the interface of the cells."""

    backend = "asyncio"
    takes_initializer = True
    has_map = True

    def distrust(self) -> None:  # noqa: B027 - few have anything
        """Use what the peer offers against workers that are hostile, from the next open on."""

    @abstractmethod
    def open(
        self, workers: int, initializer: Initializer | None = None
    ) -> AbstractAsyncContextManager[None]:
        """Start the pool; leaving does what the peer's own ``with`` block does."""

    @abstractmethod
    async def call(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run *fn* in a worker; cancelling the call stops it if the peer can."""

    async def first_of_map(self, fn: Callable[[Any], Any], items: Iterable[Any]) -> Any:
        """Give the first result of the laziest ordered map that the peer has."""
        raise NotImplementedError
