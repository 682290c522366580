"""What a client asks all agents to tell, or to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from asyncpool._core.base.names import function_name
from asyncpool._runtime.base.arguments import check_int, least_and_most
from asyncpool._runtime.node.merged_figures import merged_profiles, merged_rolls
from asyncpool._runtime.node.node import Node
from asyncpool.errors import NoWorkerError, PoolClosedError
from asyncpool.events import RollResult
from asyncpool.profile import Profile
from asyncpool.sharedpool._remote_pool import Orders
from asyncpool.stats import PoolStats


class NodeOrders(Orders):
    """The questions and orders of a pool with many agents.

    The slots of the first agent are 0, 1 and so on, those of the second one 10000, 10001 and so
    on.  An agent that takes the place of a lost one has numbers that none had before.
    """

    name: str

    async def stats(self) -> PoolStats:
        """Return the figures of all agents' pools, added up, also of those that are gone.

        The counters of jobs, and of attempts after one that raised, are those of this client.
        ``PoolStats.nodes`` has a summary of each agent; see :meth:`nodes` for the whole.
        """
        client = self._open()
        client.check_home()
        return await client.figures.ask()

    async def nodes(self) -> dict[str, PoolStats]:
        """Return the figures of the pool of each agent, by the name of the agent.

        A name is the address of the node, the begin of Ray's id of it, and the process of the
        agent.
        """
        return {node.name: stats for node, stats in await self._ask_all("stats")}

    async def stacks(self, *, slot: int | None = None) -> dict[int, str]:
        """Return the stacks of what the workers run; see :meth:`Pool.stacks`."""
        stacks: dict[int, str] = {}
        for node, found in await self._ask_slot(slot, "stacks"):
            stacks |= {node.first_slot + one: text for one, text in found.items()}
        return stacks

    async def profile(
        self,
        seconds: float,
        *,
        slot: int | None = None,
        function: Callable[..., Any] | str | None = None,
        rate: float = 100.0,
    ) -> Profile:
        """Sample what the workers do; see :meth:`Pool.profile`."""
        if callable(function):
            function = function_name(function)
        found = await self._ask_slot(
            slot, "profile", seconds=seconds, function=function, rate=rate
        )
        whole = [(node.first_slot, profile) for node, profile in found]
        return merged_profiles(whole, f"pool {self.name}")

    async def resize(self, workers: int | tuple[int, int]) -> None:
        """Change the number of workers of each agent; see :meth:`Pool.resize`.

        Agents that come later have as many as the pool was made with.
        """
        least, most = least_and_most(workers)
        pair = [least, most] if isinstance(workers, tuple) else [least]
        await self._ask_all("resize", workers=pair)

    async def roll(self) -> RollResult:
        """Replace every worker by a fresh one; see :meth:`Pool.roll`.

        Cancellation:
            Safe: the rolls go on.
        """
        return merged_rolls([found for _, found in await self._ask_all("roll")])

    async def retire(self, slot: int) -> None:
        """Replace the worker in *slot* by a fresh one; see :meth:`Pool.retire`."""
        await self._ask_slot(slot, "retire")

    async def kill(self, slot: int) -> None:
        """Kill the worker in *slot*; see :meth:`Pool.kill`."""
        await self._ask_slot(slot, "kill")

    async def _ask_slot(
        self, slot: int | None, what: str, **details: Any
    ) -> list[tuple[Node, Any]]:
        """Ask the agent that has *slot*, or all."""
        if slot is None:
            return await self._ask_all(what, slot=None, **details)
        check_int("slot", slot, at_least=0)
        client = self._open()
        client.check_home()
        node = client.nodes.with_slot(slot)
        if node is None:
            raise NoWorkerError(
                slot, there=tuple(each.first_slot for each in client.nodes)
            )
        first = node.first_slot
        try:
            found = await client.ask(what, at=node, slot=slot - first, **details)
        except NoWorkerError as error:
            there = tuple(first + one for one in error.there or ())
            raise NoWorkerError(slot, there=there) from None
        return [(node, found)]

    async def _ask_all(self, what: str, **details: Any) -> list[tuple[Node, Any]]:
        client = self._open()
        client.check_home()
        nodes = [*client.nodes]
        asked = [client.ask(what, at=node, **details) for node in nodes]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        there = {*client.nodes}
        found = [
            (node, answer)
            for node, answer in zip(nodes, answers, strict=True)
            if node in there or not isinstance(answer, PoolClosedError)
        ]
        for _, answer in found:
            if isinstance(answer, BaseException):
                raise answer
        return found
