"""The leases of a client's jobs, as its agent keeps them.

The client has the real keeper.  It tells the agent until when a lease lasts, and the agent
tells the client when no worker has the job any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from functools import partial

from asyncpool._runtime.job.lease_renewals import Holder


class ClientKeeper:
    """A lease keeper for the pool of an agent; a lease is the client's number of the job.

    Args:
        on_free: Called with the number of each job that no worker has any more.
    """

    def __init__(self, on_free: Callable[[int], object]) -> None:
        self._on_free = on_free
        self._until: dict[int, float] = {}
        self._holders: dict[int, Holder] = {}

    def keep(self, lease: Hashable, holder: Holder, /) -> None:
        """Keep a lease until *holder* is done."""
        assert isinstance(lease, int)
        self._holders[lease] = holder
        holder.add_done_callback(partial(self._done, lease))
        if lease in self._until:
            holder.until = self._until[lease]

    def keeps(self, number: int) -> bool:
        """Tell whether a worker has, or may get, the job with that number."""
        return number in self._holders

    def extend(self, number: int, until: float) -> None:
        """Hear until when the lease of a job lasts, on this loop's clock."""
        holder = self._holders.get(number)
        if holder is None:
            self._until[number] = until
        else:
            holder.extended(until)

    def forget(self, number: int) -> None:
        """Forget a job that the pool never got."""
        self._until.pop(number, None)

    def _done(self, number: int, _: asyncio.Future[None]) -> None:
        del self._holders[number]
        self._until.pop(number, None)
        self._on_free(number)
