"""Calls with arguments that are in a store of the engine that carries them.

The agent gets such a job without its call.  The engine brings the call and the values of these
arguments by itself, and the job begins when they are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from asyncpool._core.pickling.out_of_band import OutOfBandPickle
from asyncpool._runtime.remote.carrier import Carrier

# Stands for the call in the message of such a job.  Other calls begin with a number of parts, which
# is never as large, or with LENT.
STORED = b"\xff\xff\xff\xfe"


class StoredCall(NamedTuple):
    """A call as its client keeps it.

    Attributes:
        call: The call, in which something stands for the values.
        references: What the engine knows the values by.
    """

    call: bytes
    references: tuple[Any, ...]


class StoredArguments(Protocol):
    """What finds such arguments, and packs calls that have some."""

    # What workers run: it is given the call and the values.
    function: Callable[..., Any]

    def are_in(self, values: Iterable[Any], /) -> bool:
        """Tell whether there are any among *values*.

        Raises:
            TypeError: If the pool takes none.
        """
        ...

    def pack(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Any, /
    ) -> StoredCall:
        """Pack a call."""
        ...


class StoringCarrier(Carrier, Protocol):
    """A carrier whose engine has a store."""

    def store(self, job: int, stored: StoredCall) -> None:
        """Bring the call of *job* and its values to the agent."""
        ...


class StoredPayloads:
    """The calls of an agent that the engine brings, each of which its job waits for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._coming: dict[int, asyncio.Future[bytes | OutOfBandPickle]] = {}
        self._unwanted: set[int] = (
            set()
        )  # of jobs that were over before their calls came

    def put(self, job: int, payload: bytes | OutOfBandPickle) -> None:
        """Take the call of a job, as the pool takes it."""
        if job in self._unwanted:
            self._unwanted.discard(job)
            return
        coming = self._future(job)
        if not coming.done():  # it may be brought twice
            coming.set_result(payload)

    async def get(self, job: int) -> bytes | OutOfBandPickle:
        """Wait for the call of a job, and return it.

        Cancellation:
            Forgets it.
        """
        try:
            payload = await asyncio.shield(self._future(job))
        except asyncio.CancelledError:
            self.forget(job)
            raise
        del self._coming[job]
        return payload

    def forget(self, job: int) -> None:
        """Forget the call of a job that is over, also if it comes later."""
        coming = self._coming.pop(job, None)
        if coming is None or not coming.done():
            self._unwanted.add(job)

    def _future(self, job: int) -> asyncio.Future[bytes | OutOfBandPickle]:
        return self._coming.setdefault(job, self._loop.create_future())
