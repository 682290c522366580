"""What commands ask of a pool that this process has, and have it do."""

from __future__ import annotations

from collections.abc import Mapping

from asyncpool._core.profile.profile_messages import ProfileRequest
from asyncpool._observe.control.orders import RATE, over
from asyncpool._runtime.base.event_loop import shielded
from asyncpool._runtime.pool.lifecycle import SupervisorRunner
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats


class LocalOrders:
    """The :class:`PoolOrders` of a pool in this process.

    Args:
        life: The pool's life.
    """

    def __init__(self, life: SupervisorRunner) -> None:
        self._life = life

    def latest(self) -> PoolStats:
        """Return the figures."""
        return self._life.running().stats()

    async def stats(self) -> PoolStats:
        """Return the figures."""
        return self.latest()

    async def stacks(self, slot: int | None) -> Mapping[int, str]:
        """Return the stacks of one worker or of all."""
        return await self._life.running().traffic.live_stacks.of_workers(slot)

    async def stack_of(self, number: int) -> tuple[int, str]:
        """Return the slot of a job and its stack."""
        job = self._life.running().job(number)
        if job is None:
            raise over(number)
        slot = job._slot
        return slot or 0, await job.stack()

    async def profile(
        self, seconds: float, function: str | None, slot: int | None
    ) -> Profile:
        """Sample one worker or all."""
        wanted = ProfileRequest(seconds, RATE, function or "")
        return await self._life.open().profiles.take(wanted, slot)

    async def kill(self, slot: int) -> None:
        """Kill a worker."""
        self._life.running().replacement.kill(slot)

    async def retire(self, slot: int) -> None:
        """Replace a worker."""
        self._life.open().replacement.retire_from(slot)

    async def roll(self) -> RollResult:
        """Replace all workers."""
        return await shielded(self._life.trying().replacement.roll())

    async def resize(self, workers: int) -> None:
        """Change how many there are."""
        await self._life.open().replacement.resize(workers, workers)
