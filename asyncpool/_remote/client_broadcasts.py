"""Calls that every worker of all agents makes: also those of an agent that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from asyncpool._core.data_only import DataOnly
from asyncpool._dataclass import replace
from asyncpool._engine.loop import Threads
from asyncpool._engine.sessions import Broadcast, Broadcasts, error_of
from asyncpool._remote.agent_errors import AgentErrors, Answer, read_broadcast
from asyncpool._remote.node import Node, Questions
from asyncpool._remote.options import write_options
from asyncpool.errors import AsyncPoolError, PoolClosedError

if TYPE_CHECKING:
    from asyncpool._remote.client import Client


class ClientBroadcasts(Broadcasts):
    """The broadcasts of one client.

    Args:
        owner: The client.
        questions: Asks the agents.
        threads: Pickle the calls.
        data: What calls may be, if the pool is data only.
    """

    _abroad = True

    def __init__(
        self,
        owner: Client,
        questions: Questions,
        threads: Threads,
        data: DataOnly | None,
    ) -> None:
        super().__init__(threads, data)
        self._owner = owner
        self._questions = questions
        self._loop = asyncio.get_running_loop()
        self._preparing: set[asyncio.Task[None]] = set()

    def _targets(self) -> list[Node]:
        return self._owner.usual_nodes()

    async def _results(self, broadcast: Broadcast) -> dict[int, Any]:
        answers, succeeded = broadcast.calls, False
        self._owner.draining.hold(broadcast)
        try:
            # Also for agents that join meanwhile.
            while waiting := [one for one in answers.values() if not one.done()]:
                await asyncio.wait(waiting)
            results = await self._read(broadcast, _found(answers))
            # An agent that comes later has no time of its caller's.
            broadcast.options = replace(
                broadcast.options, queue_timeout=None, deadline=None
            )
            succeeded = True
            return results
        finally:
            self._end(broadcast, remember=succeeded)
            self._owner.draining.release(broadcast)
            if not succeeded:
                for answer in answers.values():
                    answer.cancel()

    def _call(self, target: Node, broadcast: Broadcast) -> asyncio.Task[Any]:
        """Ask an agent, after all that it was asked before."""
        question = self._questions.ask(
            target,
            "broadcast",
            broadcast.payload,
            name=broadcast.name,
            options=write_options(broadcast.options, self._loop.time()),
        )
        task = self._loop.create_task(question, name="asyncpool broadcast")
        task.add_done_callback(error_of)  # the caller may be cancelled
        return task

    def _read(
        self, broadcast: Broadcast, answers: list[Answer]
    ) -> asyncio.Future[dict[int, Any]]:
        errors = AgentErrors(
            broadcast.name,
            broadcast.options,
            broadcast.serializer,
            self._owner.next_id,
        )
        return self._threads.pickle(
            read_broadcast, answers, errors, unwanted=lambda: False
        )

    def give_up(self) -> None:
        """Take back those that are under way: their callers get a ``PoolClosedError``."""
        for broadcast in self.open:
            for answer in broadcast.calls.values():
                answer.cancel()

    # Agents that come later.

    def on_join(self, node: Node) -> bool:
        """Hear of another agent; return whether it may have jobs at once.

        Else its workers have calls to make first.
        """
        asked = [(call, self._call(node, call)) for call in self.remembered]
        under_way = [(call, self._call(node, call)) for call in self.open]
        for call, answer in under_way:
            call.calls[node] = answer
        if not asked and not under_way:
            return True
        task = self._loop.create_task(
            self._prepare(node, asked, [answer for _, answer in under_way]),
            name="asyncpool start of an agent",
        )
        self._preparing.add(task)
        task.add_done_callback(self._preparing.discard)
        return False

    async def _prepare(
        self,
        node: Node,
        asked: list[tuple[Broadcast, asyncio.Task[Any]]],
        under_way: list[asyncio.Task[Any]],
    ) -> None:
        await asyncio.wait([*under_way, *(answer for _, answer in asked)])
        try:
            # The callers of those that are under way hear of their errors.
            for call, answer in asked:
                await self._read(call, [(node.first_slot, answer.result())])
        except PoolClosedError:
            return  # the agent is lost, or the client is closed
        except AsyncPoolError as error:
            self._owner.on_unfit(node, error)
        else:
            self._owner.on_ready(node)


def _found(answers: Mapping[Node, asyncio.Future[Any]]) -> list[Answer]:
    """Return the answers of the agents that are not lost.

    Raises:
        PoolClosedError: If all are lost, or the question was taken back.
        AsyncPoolError: That of an agent that has refused the call.
    """
    found: list[Answer] = []
    lost: AsyncPoolError | None = None
    for node, task in answers.items():
        if task.cancelled():
            raise PoolClosedError
        error = task.exception()
        if error is None:
            found.append((node.first_slot, task.result()))
        elif isinstance(error, PoolClosedError):
            lost = error
        else:
            raise error
    if lost is not None and not found:
        raise lost
    return found
