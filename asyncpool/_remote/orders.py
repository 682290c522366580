"""What commands ask of a pool whose workers belong to agents, and have it do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpool._observe.control.pool_control import RATE, over
from asyncpool._remote.client import Client
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats


class RemoteOrders:
    """The :class:`LocalOrders` of such a pool.

    Args:
        pool: The pool.
        client: What submits its jobs.
    """

    def __init__(self, pool: Any, client: Client) -> None:
        self._pool, self._client = pool, client

    def latest(self) -> PoolStats:
        """Return the figures as the agents have told them last."""
        return self._client.figures.latest()

    async def stats(self) -> PoolStats:
        """Return the figures."""
        return await self._client.figures.ask()

    async def stacks(self, slot: int | None) -> Mapping[int, str]:
        """Return the stacks of one worker or of all."""
        found: Mapping[int, str] = await self._pool.stacks(slot=slot)
        return found

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
        profile: Profile = await self._pool.profile(
            seconds, slot=slot, function=function, rate=RATE
        )
        return profile

    async def kill(self, slot: int) -> None:
        """Kill a worker."""
        await self._pool.kill(slot)

    async def retire(self, slot: int) -> None:
        """Replace a worker."""
        await self._pool.retire(slot)

    async def roll(self) -> RollResult:
        """Replace all workers."""
        result: RollResult = await self._pool.roll()
        return result

    async def resize(self, workers: int) -> None:
        """Change how many each agent has."""
        await self._pool.resize(workers)
