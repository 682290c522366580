"""What commands ask of a pool that this process has, and have it do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from asyncpool._engine.engine import SupervisorRunner
from asyncpool._engine.loop import shielded
from asyncpool._engine.options import SupervisorConfig
from asyncpool._wire.profile import ProfileRequest
from asyncpool.errors import ProtocolError
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats

# What commands may ask of a pool and have it do, wherever its workers are.

# Samples a second of each worker.
RATE = 100.0


class PoolOrders(Protocol):
    """The questions and orders; each raises what the method of a pool raises."""

    def latest(self) -> PoolStats:
        """Return the figures, at once."""
        ...

    async def stats(self) -> PoolStats:
        """Return the figures as they are now."""
        ...

    async def stacks(self, slot: int | None) -> Mapping[int, str]:
        """Return the stacks of one worker or of all."""
        ...

    async def stack_of(self, number: int) -> tuple[int, str]:
        """Return the slot of a job and its stack, which is empty if it does not run.

        Raises:
            ProtocolError: If there is no such job.
        """
        ...

    async def profile(
        self, seconds: float, function: str | None, slot: int | None
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


def over(number: int) -> ProtocolError:
    """Return the error for a job that there is not."""
    return ProtocolError(f"job {number} is over, or never was")


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
        return await self._life.running().stacks.of_workers(slot)

    async def stack_of(self, number: int) -> tuple[int, str]:
        """Return the slot of a job and its stack."""
        job = self._life.running().registry.jobs.get(number)
        if job is None:
            raise over(number)
        slot = job.slot
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
        self._life.open().replacement.retire(slot)

    async def roll(self) -> RollResult:
        """Replace all workers."""
        return await shielded(self._life.open(retrying=True).replacement.roll())

    async def resize(self, workers: int) -> None:
        """Change how many there are."""
        await self._life.open().replacement.resize(workers, workers)


async def open_beside(
    life: SupervisorRunner, config: SupervisorConfig, control: str | None
) -> None:
    """Open what a pool was asked to have beside it, before anything happens in it.

    Args:
        life: The pool's life.  Not the pool itself: who drops it would not be noticed then.
        config: What the pool was told; the trace is there.
        control: The name or path of the control socket; ``""`` for the pool's name, ``None``
            for no socket.

    Raises:
        OSError: If the file cannot be written, or the socket cannot be made at its path.

    Cancellation:
        Opens neither.
    """
    orders, hub, opened = LocalOrders(life), life.hub, None
    concurrency = config.worker.concurrency
    if control is not None:
        from asyncpool._observe.control.pool_control import open_pool_control  # noqa: PLC0415 - few have one

        opened = await open_pool_control(
            orders, hub, config.name, control or None, concurrency
        )
    if config.trace is None or hub.ended:  # the pool may be closed meanwhile
        return
    from asyncpool._observe.trace import Trace  # noqa: PLC0415 - few have one

    try:
        Trace(
            config.trace,
            name=config.name,
            concurrency=concurrency,
            hub=hub,
            stats=orders.latest,
            most=config.max_traced,
        )
    except BaseException:
        if opened is not None:
            opened.socket.shut()
        raise
