"""What a client asks the process that has the pool to tell, or to do, for the pool as a whole."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

from asyncpool._core.base.names import function_name
from asyncpool._runtime.base.arguments import check_int, least_and_most
from asyncpool._runtime.client.client import Client
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.stats import PoolStats


class Orders:
    """The questions and orders of a shared pool; each waits for the agent's answer.

    Each raises :exc:`PoolClosedError` if the agent is gone, and what the method of
    :class:`asyncpool.Pool` with the same name raises there.
    """

    @abstractmethod
    def _open(self) -> Client:
        """Return the client."""

    async def stats(self) -> PoolStats:
        """Return the figures of the pool, with the jobs of all clients."""
        found: PoolStats = await self._open().ask("stats")
        return found

    async def stacks(self, *, slot: int | None = None) -> dict[int, str]:
        """Return the stacks of what the workers run; see :meth:`Pool.stacks`."""
        if slot is not None:
            check_int("slot", slot, at_least=0)
        found: dict[int, str] = await self._open().ask("stacks", slot=slot)
        return found

    async def profile(
        self,
        seconds: float,
        *,
        slot: int | None = None,
        function: Callable[..., Any] | str | None = None,
        rate: float = 100.0,
    ) -> Profile:
        """Sample what the workers do, for all clients; see :meth:`Pool.profile`."""
        if callable(function):
            function = function_name(function)
        found: Profile = await self._open().ask(
            "profile", seconds=seconds, slot=slot, function=function, rate=rate
        )
        return found

    async def resize(self, workers: int | tuple[int, int]) -> None:
        """Change the number of workers, for all clients; see :meth:`Pool.resize`."""
        least, most = least_and_most(workers)
        pair = [least, most] if isinstance(workers, tuple) else [least]
        await self._open().ask("resize", workers=pair)

    async def roll(self) -> RollResult:
        """Replace every worker by a fresh one, for all clients; see :meth:`Pool.roll`.

        Cancellation:
            Safe: the roll goes on.
        """
        found: RollResult = await self._open().ask("roll")
        return found

    async def retire(self, slot: int) -> None:
        """Replace the worker in *slot* by a fresh one; see :meth:`Pool.retire`."""
        check_int("slot", slot, at_least=0)
        await self._open().ask("retire", slot=slot)

    async def kill(self, slot: int) -> None:
        """Kill the worker in *slot*, whoever's jobs it runs; see :meth:`Pool.kill`."""
        check_int("slot", slot, at_least=0)
        await self._open().ask("kill", slot=slot)
