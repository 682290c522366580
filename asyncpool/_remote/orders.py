"""What commands ask of a pool whose workers belong to agents, and have it do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from asyncpool._observe.control.pool_control import RATE, over
from asyncpool._remote.client import Client
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats


class RemotePool(Protocol):
    """What these need of a pool whose workers belong to agents."""

    async def stacks(self, *, slot: int | None = None) -> dict[int, str]:
        """Return the stacks of one worker or of all."""
        ...

    async def profile(
        self, seconds: float, *, slot: int | None, function: Any, rate: float
    ) -> Profile:
        """Sample one worker or all."""
        ...

    async def kill(self, slot: int) -> None:
        """Kill a worker."""
        ...

    async def retire(self, slot: int) -> None:
        """Replace a worker."""
        ...

    async def roll(self) -> RollResult:
        """Replace all workers."""
        ...

    async def resize(self, workers: int) -> None:
        """Change how many there are."""
        ...


class RemoteOrders:
    """The :class:`LocalOrders` of such a pool.

    Args:
        pool: The pool.
        client: What submits its jobs.
    """

    def __init__(self, pool: RemotePool, client: Client) -> None:
        self._pool, self._client = pool, client

    def latest(self) -> PoolStats:
        """Return the figures as the agents have told them last."""
        return self._client.figures.latest()

    async def stats(self) -> PoolStats:
        """Return the figures."""
        return await self._client.figures.ask()

    async def stacks(self, slot: int | None) -> Mapping[int, str]:
        """Return the stacks of one worker or of all."""
        return await self._pool.stacks(slot=slot)

    async def stack_of(self, number: int) -> tuple[int, str]:
        """Return the slot of a job and its stack."""
        job = self._client.registry.jobs.get(number)
        if job is None:
            raise over(number)
        text = await job.stack()
        slots = (await self.stats()).slots
        here = (slot.slot for slot in slots if number in slot.job_ids)
        return next(here, 0), text

    async def profile(
        self, seconds: float, function: str | None, slot: int | None
    ) -> Profile:
        """Sample one worker or all."""
        return await self._pool.profile(
            seconds, slot=slot, function=function, rate=RATE
        )

    async def kill(self, slot: int) -> None:
        """Kill a worker."""
        await self._pool.kill(slot)

    async def retire(self, slot: int) -> None:
        """Replace a worker."""
        await self._pool.retire(slot)

    async def roll(self) -> RollResult:
        """Replace all workers."""
        return await self._pool.roll()

    async def resize(self, workers: int) -> None:
        """Change how many each agent has."""
        await self._pool.resize(workers)
